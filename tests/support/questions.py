"""One step that is asked of an agent, in a run made by hand: what it asks, and what comes of an answer."""

from __future__ import annotations

from typing import Any

from support.plans import Do, Node, Plan
from workflows_mcp.answers.actions import Action, actions_of
from workflows_mcp.answers.results import Redact, check_result
from workflows_mcp.answers.run_view import run_view_of
from workflows_mcp.machine.events import Started
from workflows_mcp.machine.machine import Machine
from workflows_mcp.plan.model import Bundle, Graph, InputSpec
from workflows_mcp.steps.base import Step, StepResult
from workflows_mcp.steps.registry import StepRegistry
from workflows_mcp.values import Value


def open_actions(machine: Machine, registry: StepRegistry) -> list[Action]:
    """Every open question of a run, the oldest first."""
    return actions_of(run_view_of(machine, now=machine.state.changed_at, alone=True), registry)


class AskedRun:
    """A run whose only step, `ask`, waits for the agent; `given` are the inputs of the run."""

    def __init__(self, step: Step, inputs: dict[str, Value], **given: Value) -> None:
        do = Do(
            step.name,
            inputs,
            by="agent",
            code=tuple(name for name in inputs if name in step.code_inputs),
            defaults=step.output_defaults({}),
            may_fail=step.may_fail,
            result_output=step.result_output,
        )
        self._registry = StepRegistry(steps=[step])
        plan = Plan("asks", "graph", Graph((Node("ask", do),)), {name: InputSpec() for name in given})
        self.machine = Machine(Bundle("asks", {"asks": plan}))
        self.machine.apply(Started(1000.0, "wf_1", given))

    @property
    def action(self) -> dict[str, Any]:
        (action,) = open_actions(self.machine, self._registry)
        return {
            "step_id": action.step_id,
            "type": action.type,
            "instructions": action.instructions,
            "parameters": action.parameters,
            "result_schema": action.result_schema,
        }

    def submit(self, result: Any, clean: Redact = lambda value: value) -> StepResult:
        """What the result amounts to; raises InvalidResult where it does not fit."""
        address, step_result = check_result(run_view_of(self.machine), self._registry, None, result, clean)
        assert address == "ask"
        return step_result
