"""The inputs of a workflow: given values are checked against what it declares, and made complete.

All problems are reported at once. The same checks serve defaults when a file is loaded and literals in calls.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workflows_mcp.errors import InvalidInputs
from workflows_mcp.plan.conversion import TYPE_NAMES, shown_value
from workflows_mcp.plan.input_rules import described, fitted, schema_of
from workflows_mcp.plan.model import InputSpec, InputType, Plan
from workflows_mcp.values import Value, nearest


def check_inputs(plan: Plan, given: Mapping[str, Any]) -> dict[str, Value]:
    """All inputs of `plan`: those given, converted where that is lossless, and defaults for the rest.

    Raises InvalidInputs, naming every problem.
    """
    complete: dict[str, Value] = {}
    given, problems = by_own_names(plan, given)
    for name, spec in plan.inputs.items():
        value = given.get(name)
        if name not in given or (value is None and not spec.required and spec.type != "any"):
            if spec.required and not spec.has_default:
                problems.append(f"missing input '{name}' ({_described(spec)})")
            else:
                complete[name] = spec.default
            continue
        complete[name], violations = fitted(value, spec.type, spec.rules, name)
        problems += [f"input '{at}' {message}" for at, message in violations]
    for name in given:
        if name not in plan.inputs:
            missing = [it for it, spec in plan.inputs.items() if it not in given and not spec.has_default]
            close = nearest(name, missing if plan.open_inputs else plan.inputs)
            if plan.open_inputs and close is None:
                field = spec_of(plan, name)
                complete[name] = given[name]
                if field is not None and given[name] is not None:
                    complete[name], violations = fitted(given[name], field.type, field.rules, name)
                    problems += [f"input '{at}' {message}" for at, message in violations]
                continue
            problems.append(f"unknown input '{name}'" + (f", did you mean '{close}'?" if close else ""))
    if problems:
        raise InvalidInputs(
            f"the inputs do not fit workflow '{plan.name}': " + "; ".join(problems), hint=takes(plan)
        )
    return complete


def by_own_names(plan: Plan, given: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """What is given, with the inputs' own names in place of their aliases; and what is given twice."""
    own = {alias: name for name, spec in plan.inputs.items() for alias in spec.aliases}
    found: dict[str, Any] = {}
    problems: list[str] = []
    for name, value in given.items():
        meant = name if name in plan.inputs else own.get(name, name)
        if meant in found or (meant != name and meant in given):
            problems.append(f"'{name}' is another name of the input '{meant}', which is given as well")
        else:
            found[meant] = value
    return found, problems


def spec_of(plan: Plan, name: str) -> InputSpec | None:
    """What an input must be: what it declares, or the type of the field of the state that it becomes."""
    spec = plan.inputs.get(name)
    if spec is None and plan.open_inputs and name in plan.raw_types and plan.semantics >= 3:
        return InputSpec(field_type(plan, name), required=False)
    return spec


def field_type(plan: Plan, name: str) -> InputType:
    """The type that a field of `raw` is declared to have."""
    return TYPE_NAMES.get(plan.raw_types.get(name, "any"), "any")


def takes(plan: Plan) -> str:
    """What the workflow takes, as a hint."""
    if not plan.inputs:
        return f"workflow '{plan.name}' takes no inputs"
    listed = ", ".join(f"{name} ({_described(spec)})" for name, spec in plan.inputs.items())
    return f"workflow '{plan.name}' takes: {listed}"


def input_schema(plan: Plan) -> dict[str, Value]:
    """The inputs as JSON Schema."""
    properties: dict[str, Value] = {}
    for name, spec in plan.inputs.items():
        schema = schema_of(spec.type, spec.rules)
        if spec.description:
            schema["description"] = spec.description
        if spec.has_default:
            schema["default"] = spec.default
        properties[name] = schema
    required = [name for name, spec in plan.inputs.items() if spec.required and not spec.has_default]
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def _described(spec: InputSpec) -> str:
    parts = [spec.type, described(spec.rules)]
    if spec.has_default:
        parts.append(f"default {shown_value(spec.default)}")
    else:
        parts.append("required" if spec.required else "optional")
    return ", ".join(part for part in parts if part)
