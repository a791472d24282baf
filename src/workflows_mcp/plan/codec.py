"""Encodes plans and bundles, computes their content hash, and upgrades stored plans of earlier versions.

The encoding keeps the order of keys, because a workflow can show it (an object in a template), and it is the
same in every process. The path of a file is not part of its meaning, so `file` is not part of the key.

    decode = decoder(list[Event])      # also upgrades the plans in what an earlier version stored
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import msgspec

from workflows_mcp.plan.model import Bundle, ExprKind, Plan
from workflows_mcp.values import Value

_encode = msgspec.msgpack.Encoder().encode
_KEY_BYTES = 12

Path = tuple[str | int, ...]


def decoder(kind: Any, ext_hook: Any = None) -> Callable[[bytes], Any]:
    """A function that decodes values of a type with plans inside, whichever version encoded them."""
    decode = msgspec.msgpack.Decoder(kind, ext_hook=ext_hook).decode

    def read(data: bytes) -> Any:
        try:
            return decode(data)
        except msgspec.ValidationError:
            stored = msgspec.msgpack.decode(data, ext_hook=ext_hook)
            return msgspec.convert(upgrade(stored), kind)

    return read


decode_plan: Callable[[bytes], Plan] = decoder(Plan)
decode_bundle: Callable[[bytes], Bundle] = decoder(Bundle)


def encode_plan(plan: Plan) -> bytes:
    return _encode(plan)


def encode_bundle(bundle: Bundle) -> bytes:
    return _encode(bundle)


def plan_key(plan: Plan) -> str:
    """The hash of the content of `plan`: 24 hexadecimal digits, independent of the file's path."""
    return _key(_encode(msgspec.structs.replace(plan, file="")))


def bundle_key(bundle: Bundle) -> str:
    """The hash of a plan, the plans that it can call, and all their sources.

    The sources count because a run shows its errors in the text that it was started from.
    """
    plans = [(name, plan_key(plan), plan.file) for name, plan in sorted(bundle.plans.items())]
    return _key(_encode([bundle.main, plans, sorted(bundle.sources.items())]))


def _key(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=_KEY_BYTES).hexdigest()


# Plans of earlier versions: their expressions were bare values, whose paths followed from the dialect


_Keys = dict[str, Path]

_KEYS: dict[str, _Keys] = {
    "graph": {"seconds": ("inputs", "duration_seconds"), "message": ("inputs", "message")},
    "stateful": {
        "condition": ("when",),
        "inputs": (),
        "workflow": ("workflow",),
        "given": ("inputs",),
        "items": ("items",),
        "test": ("if",),
    },
    "reactive": {
        "condition": ("when",),
        "inputs": (),
        "workflow": ("workflow",),
        "given": ("inputs",),
        "retry": (),
        "items": ("items",),
        "test": ("condition",),
    },
}
"""Where the parts of a node are in its document, if not at a key of their own name."""

_USUAL: _Keys = {
    "workflow": ("inputs", "workflow"),
    "given": ("inputs", "inputs"),
    "items": ("for_each",),
    "seconds": ("duration_seconds",),
    "most": ("max_iterations",),
    "fallback": ("fallback_value",),
    "timeout_answer": ("on_timeout",),
    "parameters": ("mcp", "params"),
    "prompt": ("sub_agent_prompt_override",),
    "errors_to": ("on_sub_agent_error", "error_state_path"),
}

_PARTS: dict[str, tuple[str, ...]] = {
    "call": ("workflow", "timeout"),
    "jump": ("most",),
    "return": ("value",),
    "wait": ("seconds", "message"),
    "while": ("most",),
    "each": ("items",),
    "tell": ("message",),
    "checkpoint": ("parameters",),
}
"""The parts of each operation that are one template."""


def upgrade(stored: Any) -> Any:
    """What an earlier version stored, decoded without types, with its plans as they are now."""
    if isinstance(stored, list):
        return [upgrade(item) for item in stored]
    if not isinstance(stored, dict):
        return stored
    if "body" in stored and "dialect" in stored:
        return _upgrade_plan(stored)
    if isinstance(plans := stored.get("plans"), dict):
        return {**stored, "plans": {name: upgrade(plan) for name, plan in plans.items()}}
    return stored


def _upgrade_plan(plan: dict[str, Any]) -> dict[str, Any]:
    dialect = plan["dialect"]
    keys = {**_USUAL, **_KEYS[dialect]}
    body = plan.pop("body")
    return {
        **plan,
        "nodes": {**body, "nodes": [_upgrade_node(node, keys, dialect) for node in body["nodes"]]},
        "language": {"graph": "dollar", "stateful": "jinja", "reactive": "javascript"}[dialect],
        "reactive": dialect == "reactive",
        "outputs": _each(plan.get("outputs"), ("outputs",), "output"),
        "given": _each(plan.get("given"), ("sub_agent_tasks", plan["name"].partition("#")[2], "inputs")),
        "tasks": [_upgrade_plan(task) for task in plan.get("tasks", ())],
    }


def _upgrade_node(node: dict[str, Any], keys: _Keys, dialect: str) -> dict[str, Any]:
    at = tuple(node.get("at", ()))

    def place(owner: dict[str, Any], name: str, kind: ExprKind = "template") -> None:
        if owner.get(name) is not None:
            owner[name] = [owner[name], (*at, *keys.get(name, (name,))), kind]

    node, do = dict(node), dict(node["do"])
    for name in ("retry", "timeout_answer"):
        place(node, name)
    place(node, "condition", "condition")
    if node.pop("has_fallback", False):
        node["fallback"] = [node.get("fallback"), (*at, *keys["fallback"]), "template"]
    for name in ("changes", "error_changes"):
        node[name] = [_upgrade_change(change, at) for change in node.get(name, ())]
    if (each := node.get("for_each")) is not None:
        each = node["for_each"] = dict(each)
        for name in ("items", "max_parallel", "prompt"):
            place(each, name)
        place(each, "condition", "condition")
        if each.get("errors_to"):
            place(each, "errors_to", "path")
    node["do"] = do
    if do["type"] == "do":
        code, literal = do.pop("code", ()), do.pop("literal", ())
        do["inputs"] = {
            name: [
                value,
                (*at, *keys.get("inputs", ("inputs",)), name),
                "code" if name in code else "literal" if name in literal else "template",
            ]
            for name, value in do.get("inputs", {}).items()
        }
        place(do, "timeout")
        if "config" in do:
            do["config"] = [do["config"], at, "settings"]
    elif do["type"] == "set":
        do["updates"] = _each(do["updates"], (*at, "updates"))
    elif do["type"] == "update":
        do["changes"] = [_upgrade_change(change, at) for change in do["changes"]]
    elif do["type"] == "call":
        do["inputs"] = [do.get("inputs", {}), (*at, *keys["given"]), "template"]
    for name in _PARTS.get(do["type"], ()):
        place(do, name)
    place(do, "test", "condition")
    return node


def _upgrade_change(change: dict[str, Any], at: Path) -> dict[str, Any]:
    at = (*at, *change.get("at", ()))
    found = {"operation": change.get("operation", "set"), "path": [change["path"], (*at, "path"), "path"]}
    if change.get("has_value"):
        found["value"] = [change.get("value"), (*at, "value"), "template"]
    if transform := change.get("transform"):
        kind = "template" if "{{" in transform else "transform"
        found["transform"] = [transform, (*at, "transform"), kind]
    return found


def _each(values: dict[str, Value] | None, at: Path, kind: ExprKind = "template") -> dict[str, Any]:
    return {name: [value, (*at, name), kind] for name, value in (values or {}).items()}
