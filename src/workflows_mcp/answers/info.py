"""Describes a workflow before it runs: inputs, outputs, steps, questions and capabilities."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from workflows_mcp.answers.previews import Cut, cut
from workflows_mcp.plan import (
    Bundle,
    Call,
    Do,
    Graph,
    Node,
    Operation,
    Plan,
    fixed_name,
    input_schema,
    kind_of_operation,
)
from workflows_mcp.settings import LEVELS
from workflows_mcp.steps import StepRegistry
from workflows_mcp.values import Value

_CHARACTERS = 300
_CALL = "ExecuteWorkflow"
_OTHER_NAMES = {
    "reactive": {"condition": "conditional", "call": "include_workflow", "return": "exit"},
}
"""Operations that have another name in a dialect than in the plan."""


def workflow_info(
    bundle: Bundle,
    registry: StepRegistry,
    *,
    source: str = "",
    missing_secrets: Sequence[str] = (),
    forbidden: Sequence[str] = (),
) -> dict[str, Any]:
    """Describe a workflow. `forbidden`: each block that the policy refuses, and why."""
    plan = bundle.plans[bundle.main]
    info: dict[str, Any] = {
        "workflow": plan.name,
        "description": plan.description,
        "dialect": plan.dialect,
        "version": plan.version,
        "tags": list(plan.tags),
        "source": source or plan.file,
        "inputs": input_schema(plan),
        "outputs": {name: _short(expr.source) for name, expr in plan.outputs.items()},
        "steps": [_step(node, plan, registry) for node in plan.body.nodes],
        "asks": _asks(bundle, registry),
        "agent_tools": _agent_tools(bundle),
        "level": _level(bundle, registry),
        "needs": _needs(bundle, registry),
        "secrets": bundle.secrets,
        "missing_secrets": list(missing_secrets),
        "forbidden": list(forbidden),
        "calls": sorted(name for name in bundle.plans if name != bundle.main),
    }
    always = ("workflow", "inputs", "outputs", "steps")
    return {name: value for name, value in info.items() if value or name in always}


def type_name(do: Operation, dialect: str, registry: StepRegistry) -> str:
    """Return the name of an operation in a dialect."""
    step = registry.known(do.step) if isinstance(do, Do) else None
    if step is not None:
        return step.dialect_names.get(dialect, step.name)
    kind = kind_of_operation(do)
    return _OTHER_NAMES.get(dialect, {}).get(kind, kind)


def _step(node: Node, plan: Plan, registry: StepRegistry) -> dict[str, Value]:
    graph = plan.body
    step: dict[str, Value] = {"id": node.id}
    if isinstance(graph, Graph):
        step["wave"] = node.wave
    if isinstance(node.do, Call):
        step["calls"] = node.do.name
    else:
        step["type"] = type_name(node.do, plan.dialect, registry)
    if isinstance(node.do, Do):
        step["by"] = node.do.by
    if node.needs:
        step["depends_on"] = [graph.nodes[need.node].id for need in node.needs]
    condition = node.condition
    if (each := node.for_each) is not None:
        step["for_each"] = _short(each.items.source)
        if each.agent:
            step["agent"] = each.agent
        condition = condition or each.condition
    if condition is not None:
        step["condition"] = _short(condition.source.strip())
    return step


def _asks(bundle: Bundle, registry: StepRegistry) -> list[Value]:
    """List the questions to the agent in the workflow and in the workflows that it calls."""
    asked: list[Value] = []
    for name, plan in _main_first(bundle):
        for node in plan.body.nodes:
            if isinstance(node.do, Do) and node.do.by == "agent":
                kind = type_name(node.do, plan.dialect, registry)
                question: dict[str, Value] = {"step": node.id, "type": kind}
                if name != bundle.main:
                    question["workflow"] = name
                question["inputs"] = _short({name: expr.source for name, expr in node.do.inputs.items()})
                asked.append(question)
    return asked


def _agent_tools(bundle: Bundle) -> list[str]:
    """List the tools of other servers that the agent needs for the workflow."""
    steps = [node.do for plan in bundle.every_plan.values() for node in plan.body.nodes]
    calls = [do for do in steps if isinstance(do, Do) and do.step == "MCPCall" and do.by == "agent"]
    return sorted({str(do.inputs["tool"].source) for do in calls if "tool" in do.inputs} - {""})


def _level(bundle: Bundle, registry: StepRegistry) -> str:
    """Return the highest level of the steps of the workflow and of the workflows that it calls."""
    nodes = [node.do for plan in bundle.every_plan.values() for node in plan.body.nodes]
    names = {_CALL if isinstance(do, Call) else do.step for do in nodes if isinstance(do, Do | Call)}
    levels = {step.level for name in names if (step := registry.known(name)) is not None}
    return max(levels, key=LEVELS.index, default=LEVELS[0])


def _needs(bundle: Bundle, registry: StepRegistry) -> list[str]:
    """List the capabilities that the workflow, and the workflows that it calls, need."""
    needs: set[str] = set()
    for plan in bundle.every_plan.values():
        for node in plan.body.nodes:
            if isinstance(node.do, Do):
                step = registry.known(node.do.step)
                needs |= set(step.capabilities) if step is not None else set()
            elif isinstance(node.do, Call) and fixed_name(node.do) is None:
                needs.add("whatever the workflow needs that is chosen while it runs")
    return sorted(needs)


def _main_first(bundle: Bundle) -> list[tuple[str, Plan]]:
    return sorted(bundle.every_plan.items(), key=lambda item: item[0] != bundle.main)


def _short(value: Value) -> Value:
    return cut(value, (), Cut(_CHARACTERS), lambda path, offset: "get_workflow_info with definition: true")
