"""The items of a block with `for_each`: their keys, what they are called, and the block that each one is."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import msgspec

from workflows_mcp.plan.model import Node, Plan
from workflows_mcp.values import Value, kind_and_value

EACH = ("key", "value", "index", "count")
"""What `${each.…}` has."""
NO_ITEMS: dict[str, Value] = {"results": [], "count": 0, "failed_keys": [], "skipped_keys": []}
"""The outputs of a block with `for_each` that did not run; the keys are all outputs there are."""
OF_TASK = ("item", "index", "total", "is_first", "is_last", "task_id", "workflow_id", "context", "parent")
"""What a task knows beside the fields of its item."""
_NAME = re.compile(r"[\w-]{1,64}")


def keys_of(items: list[Value] | dict[str, Value]) -> list[str | int]:
    return list(items) if isinstance(items, dict) else list(range(len(items)))


def inputs_of_item(
    plan: Plan, item: Value, known: Mapping[str, Value] = MappingProxyType({})
) -> dict[str, Value]:
    """The inputs of a task for one item: by the keys of the item, or the item as its only input.

    `known` are the variables of a reactive task, among them the fields of its item.
    """
    if plan.dialect == "reactive":
        given = {name: known[name] for name in plan.inputs if name in known}
        alone = _from_item(plan) if plan.semantics >= 3 and not isinstance(item, dict) else []
        return {**given, alone[0]: item} if len(alone) == 1 else given
    if isinstance(item, dict) and any(name in item for name in plan.inputs):
        return {name: item[name] for name in plan.inputs if name in item}
    return {next(iter(plan.inputs)): item} if len(plan.inputs) == 1 else {}


def unbound_item(plan: Plan, item: Value) -> tuple[str, str] | None:
    """Why a task takes none of its several inputs from an item, and how to bind them; None if it does."""
    names = _from_item(plan)
    if len(names) < 2 or all(plan.inputs[name].has_default for name in names):
        return None
    reactive = plan.dialect == "reactive"
    if isinstance(item, dict) and (reactive or any(name in item for name in names)):
        return None
    task = plan.name.partition("#")[2] or plan.name
    listed = ", ".join(f"'{name}'" for name in names)
    message = f"the task '{task}' takes none of its inputs ({listed}) from the item {kind_and_value(item)}"
    fields = ", ".join(f"{name}: …" for name in names)
    hint = f"make each item an object: {{{fields}}}, or declare one input only: it is the item"
    if reactive:
        hint = f'say which input is the item: inputs: {{{names[0]}: "{{{{ item }}}}"}}, or {hint}'
    return message, hint


def _from_item(plan: Plan) -> list[str]:
    """The inputs of a task that only its item can provide."""
    return [name for name in plan.inputs if name not in plan.known and name not in OF_TASK]


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
