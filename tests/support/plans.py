"""Plans made by hand, for tests that are not about YAML.

The functions have the names of the parts of a plan, and take bare values where these have expressions. The
expressions have no paths: `unplaced` makes a plan of a document comparable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from workflows_mcp.plan import model
from workflows_mcp.plan.graph import arrange
from workflows_mcp.plan.model import Bundle, Expr, ExprKind, Graph, InputSpec, Need, OnInterrupt, Steps
from workflows_mcp.values import Value


def unplaced(part: Any) -> Any:
    """A part of a plan without the paths of its expressions."""
    if isinstance(part, Expr):
        return Expr(part.source, (), part.kind)
    if isinstance(part, msgspec.Struct):
        fields = {name: unplaced(getattr(part, name)) for name in part.__struct_fields__ if name != "at"}
        return msgspec.structs.replace(part, **fields)
    if isinstance(part, dict):
        return {key: unplaced(value) for key, value in part.items()}
    return tuple(map(unplaced, part)) if isinstance(part, tuple) else part


def bare(part: Any) -> Any:
    """The source of an expression, or of each in a mapping."""
    if isinstance(part, dict):
        return {key: bare(value) for key, value in part.items()}
    return part.source if isinstance(part, Expr) else part


def expr(value: Value, kind: ExprKind = "template") -> Expr:
    return value if isinstance(value, Expr) else Expr(value, (), kind)


def _maybe(value: Value, kind: ExprKind = "template") -> Expr | None:
    return None if value is None else expr(value, kind)


def Do(
    step: str,
    inputs: Mapping[str, Value] | None = None,
    *,
    code: Sequence[str] = (),
    literal: Sequence[str] = (),
    timeout: Value = None,
    config: Value = None,
    **more: Any,
) -> model.Do:
    kinds: dict[str, ExprKind] = {**dict.fromkeys(code, "code"), **dict.fromkeys(literal, "literal")}
    given = {name: expr(value, kinds.get(name, "template")) for name, value in (inputs or {}).items()}
    return model.Do(step, given, timeout=_maybe(timeout), config=_maybe(config, "settings"), **more)


def Call(workflow: Value, inputs: Value = None, timeout: Value = None, **more: Any) -> model.Call:
    given = expr({} if inputs is None else inputs)
    return model.Call(_maybe(workflow), given, _maybe(timeout), **more)


def Branch(test: str, otherwise: int) -> model.Branch:
    return model.Branch(expr(test, "condition"), otherwise)


def Jump(target: int, most: Value, **more: Any) -> model.Jump:
    return model.Jump(target, expr(most), **more)


def SetState(updates: Mapping[str, Value]) -> model.SetState:
    return model.SetState({name: expr(value) for name, value in updates.items()})


def Return(value: Value = None) -> model.Return:
    return model.Return(_maybe(value))


def Wait(seconds: Value, message: Value = None) -> model.Wait:
    return model.Wait(expr(seconds), _maybe(message))


def While(test: str, otherwise: int, most: Value = None, **more: Any) -> model.While:
    return model.While(expr(test, "condition"), otherwise, _maybe(most), **more)


def Each(items: Value, *more: Any) -> model.Each:
    return model.Each(expr(items), *more)


def Tell(message: Value) -> model.Tell:
    return model.Tell(expr(message))


def Change(
    path: Sequence[Value],
    operation: model.ChangeOperation = "set",
    value: Value = None,
    has_value: bool = False,
    transform: str = "",
) -> model.Change:
    kind: ExprKind = "template" if "{{" in transform else "transform"
    made = expr(transform, kind) if transform else None
    return model.Change(expr(list(path), "path"), operation, expr(value) if has_value else None, made)


def ForEach(
    items: Value,
    max_parallel: Value = None,
    *,
    condition: str | None = None,
    prompt: Value = None,
    errors_to: Sequence[Value] = (),
    **more: Any,
) -> model.ForEach:
    return model.ForEach(
        expr(items),
        _maybe(max_parallel),
        _maybe(condition, "condition"),
        prompt=_maybe(prompt),
        errors_to=expr(list(errors_to), "path") if errors_to else None,
        **more,
    )


def Node(
    name: str,
    do: model.Operation,
    at: model.Path = (),
    needs: tuple[Need, ...] = (),
    condition: str | None = None,
    *,
    retry: Value = None,
    timeout_answer: Value = None,
    **more: Any,
) -> model.Node:
    asked = _maybe(condition, "condition")
    return model.Node(
        name, do, at, needs, asked, retry=_maybe(retry), timeout_answer=_maybe(timeout_answer), **more
    )


def Plan(
    name: str,
    dialect: str,
    body: Graph | Steps,
    inputs: dict[str, InputSpec] | None = None,
    outputs: Mapping[str, Value] | None = None,
    **more: Any,
) -> model.Plan:
    language: model.LanguageName = {"stateful": "jinja", "reactive": "javascript"}.get(dialect, "dollar")  # type: ignore[assignment]
    made = {key: Expr(value, ("outputs", key), "output") for key, value in (outputs or {}).items()}
    reactive = dialect == "reactive"
    return model.Plan(name, dialect, body, inputs or {}, made, language=language, reactive=reactive, **more)


def block(
    name: str,
    do: model.Do | model.Call | None = None,
    needs: Sequence[str | tuple[str, bool]] = (),
    *,
    condition: str | None = None,
    tolerated: bool = False,
    retry: Value = None,
    for_each: model.ForEach | None = None,
    on_interrupt: OnInterrupt = "repeat",
) -> tuple[model.Node, list[tuple[str, bool]]]:
    """A block and the names of what it depends on; (name, False) is an optional dependency."""
    wanted = [(need, True) if isinstance(need, str) else need for need in needs]
    operation = do or Do("Echo", {"value": name}, defaults={"value": None})
    node = Node(
        name,
        operation,
        ("blocks", name),
        condition=condition,
        tolerated=tolerated,
        retry=retry,
        for_each=for_each,
        on_interrupt=on_interrupt,
    )
    return _placed(node), wanted


def _placed(node: model.Node) -> model.Node:
    """A block with the paths that its expressions have in a document."""

    def at(part: Any, **paths: tuple[str, ...]) -> Any:
        known = {name: (getattr(part, name), path) for name, path in paths.items()}
        moved = {
            name: Expr(it.source, (*node.at, *path), it.kind)
            for name, (it, path) in known.items()
            if it is not None
        }
        return msgspec.structs.replace(part, **moved)

    each, do = node.for_each, node.do
    if each is not None:
        each = at(each, items=("for_each",), max_parallel=("max_parallel",), condition=("condition",))
    if isinstance(do, model.Call):
        do = at(do, workflow=("inputs", "workflow"), inputs=("inputs", "inputs"), timeout=("timeout",))
    elif isinstance(do, model.Do):
        inputs = {
            name: Expr(it.source, (*node.at, "inputs", name), it.kind) for name, it in do.inputs.items()
        }
        do = at(msgspec.structs.replace(do, inputs=inputs), timeout=("timeout",), config=())
    found: model.Node = at(node, condition=("condition",), retry=("retry",))
    return msgspec.structs.replace(found, do=do, for_each=each)


def plan(
    *blocks: tuple[model.Node, list[tuple[str, bool]]],
    name: str = "test",
    outputs: Mapping[str, Value] | None = None,
    inputs: Mapping[str, InputSpec] | None = None,
) -> model.Plan:
    index = {node.id: position for position, (node, _) in enumerate(blocks)}
    waves, order = arrange([[index[need] for need, _ in needs] for _, needs in blocks])
    nodes = tuple(
        msgspec.structs.replace(
            node,
            needs=tuple(Need(index[need], required) for need, required in needs),
            wave=waves[position],
            order=order[position],
        )
        for position, (node, needs) in enumerate(blocks)
    )
    return Plan(name, "graph", Graph(nodes), dict(inputs or {}), outputs)


def bundle(main: model.Plan, *others: model.Plan) -> Bundle:
    return Bundle(main.name, {it.name: it for it in (main, *others)})
