"""The items of a block with `for_each`: their keys, what they are called, and the block that each one is."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from workflows_mcp.plan.model import Node, Plan
from workflows_mcp.values import Value

EACH = ("key", "value", "index", "count")
"""What `${each.…}` has."""
NO_ITEMS: dict[str, Value] = {"results": [], "count": 0, "failed_keys": [], "skipped_keys": []}
"""The outputs of a block with `for_each` that did not run; the keys are all outputs there are."""
_NAME = re.compile(r"[\w-]{1,64}")


def keys_of(items: list[Value] | dict[str, Value]) -> list[str | int]:
    return list(items) if isinstance(items, dict) else list(range(len(items)))


def inputs_of_item(plan: Plan, item: Value) -> dict[str, Value]:
    """What a task gets that is carried out for an item: the item as its only input, or by its keys."""
    if isinstance(item, dict) and any(name in item for name in plan.inputs):
        return {name: item[name] for name in plan.inputs if name in item}
    return {next(iter(plan.inputs)): item} if len(plan.inputs) == 1 else {}


def can_be_names(keys: Sequence[str | int]) -> bool:
    """Whether all keys can stand in addresses; else the items are called by their positions there."""
    return all(isinstance(key, int) or _NAME.fullmatch(key) for key in keys)


def name_of_item(keys: Sequence[str | int], position: int, named: bool) -> str:
    """What an item is called in addresses."""
    return str(keys[position]) if named else str(position)


def names_of_items(keys: Sequence[str | int], named: bool) -> list[str]:
    return [str(key) for key in keys] if named else [str(position) for position in range(len(keys))]


def item_node(node: Node, name: str) -> Node:
    """The block that one item is."""
    assert node.for_each is not None
    condition = node.for_each.condition
    return msgspec.structs.replace(node, id=name, needs=(), for_each=None, condition=condition)
