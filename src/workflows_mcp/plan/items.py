"""The items of a block with `for_each`: their keys, what they are called, and the block that each one is."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from workflows_mcp.plan.model import Node
from workflows_mcp.values import Value

EACH = ("key", "value", "index", "count")
"""What `${each.…}` has."""
NO_ITEMS: dict[str, Value] = {"results": [], "count": 0, "failed_keys": [], "skipped_keys": []}
"""The outputs of a block with `for_each` that did not run; the keys are all outputs there are."""
_NAME = re.compile(r"[\w-]{1,64}")


def keys_of(items: list[Value] | dict[str, Value]) -> list[str | int]:
    return list(items) if isinstance(items, dict) else list(range(len(items)))


def names_of_items(keys: Sequence[str | int]) -> list[str]:
    """What the items are called in addresses: their keys where all of them can stand there."""
    named = all(isinstance(key, int) or _NAME.fullmatch(key) for key in keys)
    return [str(key) for key in keys] if named else [str(index) for index in range(len(keys))]


def item_node(node: Node, name: str) -> Node:
    """The block that one item is."""
    assert node.for_each is not None
    condition = node.for_each.condition
    return msgspec.structs.replace(node, id=name, needs=(), for_each=None, condition=condition)
