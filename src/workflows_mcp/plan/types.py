"""The type that a template of a graph certainly has, and where that type cannot be used.

    type_of("${inputs.n}", plan, {})                             # "integer", as the input is declared
    type_of("${blocks.list.outputs.stdout | lines}", plan, {})   # "list", which the filter gives
    type_of("v${inputs.n}", plan, {})                            # "string"

What is not known has no type, and is checked by the run. Pure: problems carry paths of the document.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from workflows_mcp.errors import ExpressionError, Problem
from workflows_mcp.expressions.base import Reference
from workflows_mcp.expressions.dollar import Dollar, TextTemplate, WholeReference
from workflows_mcp.plan.calls import fixed_name
from workflows_mcp.plan.inputs import takes
from workflows_mcp.plan.layout import LAYOUTS
from workflows_mcp.plan.model import Call, Do, Graph, Node, Plan
from workflows_mcp.values import Value

_NUMBERS = frozenset({"number", "integer", "float"})
_SCALARS = frozenset({"string", "boolean", *_NUMBERS})
_IMPOSSIBLE: Mapping[str, frozenset[str]] = {
    "string": frozenset({"list", "object"}),
    "boolean": frozenset({"list", "object", *_NUMBERS}),
    "number": frozenset({"list", "object", "boolean"}),
    "integer": frozenset({"list", "object", "boolean"}),
    "float": frozenset({"list", "object", "boolean"}),
    "list": frozenset({"object", "boolean", *_NUMBERS}),
    "object": frozenset({"list", "boolean", *_NUMBERS}),
}
"""By the type that is wanted: those that no value of can be converted to it. Text can say anything."""
_KINDS: dict[type, str] = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    list: "list",
    dict: "object",
}
_CALLED = {"string": "text"}


def check_types(plan: Plan, plans: Mapping[str, Plan]) -> Iterator[Problem]:
    """What can only fail when it is reached. `plans` are the workflows that are known by name."""
    if not isinstance(plan.body, Graph) or plan.dialect != "graph":
        return
    for node in plan.body.nodes:
        yield from _items(node, plan)
        name = fixed_name(node.do)
        called = plans.get(name) if name is not None else None
        if called is not None and isinstance(node.do, Call) and isinstance(node.do.inputs, dict):
            yield from _given(node, node.do.inputs, called, plan)


def _items(node: Node, plan: Plan) -> Iterator[Problem]:
    items = node.for_each.items if node.for_each is not None else None
    found = type_of(items, plan)
    if found not in _SCALARS or not isinstance(items, str):
        return
    hint = "refer to a list or an object"
    if found == "string" and type_of(items.strip(), plan) not in _SCALARS:
        hint = "remove the white space around the reference, which makes it text (|- instead of |)"
    elif found == "string":
        reference = items.strip().removeprefix("${").removesuffix("}")
        hint = f"the lines of a text are a list: for_each: ${{{reference} | lines}}; JSON text: | json"
    message = f"for_each takes a list or an object, not {_CALLED.get(found, found)}"
    yield Problem("wrong_type", message, hint, (*node.at, *LAYOUTS["graph"].items))


def _given(node: Node, inputs: Mapping[str, Value], called: Plan, plan: Plan) -> Iterator[Problem]:
    for name, value in inputs.items():
        spec = called.inputs.get(name)
        found = type_of(value, plan) if spec is not None else None
        if spec is None or found is None or found not in _IMPOSSIBLE.get(spec.type, ()):
            continue
        what = f"input '{name}' of workflow '{called.name}' takes {_CALLED.get(spec.type, spec.type)}"
        path = (*node.at, *LAYOUTS["graph"].given, name)
        yield Problem("wrong_type", f"{what}, not {_CALLED.get(found, found)}", takes(called), path)


def type_of(value: Value, plan: Plan) -> str | None:
    """The type that a template certainly has when it is evaluated."""
    if not isinstance(value, str) or "${" not in value:
        return None
    try:
        expression = Dollar.template(value)
    except ExpressionError:
        return None
    if isinstance(expression, TextTemplate):
        return "string"
    if not isinstance(expression, WholeReference):
        return "boolean"
    found = _of_reference(expression.operand.reference, plan)
    for applied in expression.operand.filters:
        gives = applied.filter.gives
        if gives != "same":
            found = None if gives == "any" else gives
        elif found is not None and _KINDS.get(type(applied.arguments[0])) != found:
            found = None
    return found


def _of_reference(reference: Reference, plan: Plan) -> str | None:
    match reference.path:
        case ("inputs", str() as name) if name in plan.inputs:
            spec = plan.inputs[name]
            nullable = not spec.required and spec.default is None
            return None if spec.type == "any" or nullable else spec.type
        case ("blocks", block, "outputs", str() as name) | ("blocks", block, str() as name):
            node = next((node for node in plan.body.nodes if node.id == block), None)
            if node is None or node.for_each is not None or not isinstance(node.do, Do):
                return None
            return _KINDS.get(type(node.do.defaults.get(name)))
    return None
