"""Runs made by hand, without files, clocks or engines: a machine and the facts that it is told."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import Field

from support.plans import Call, Do, Node, Plan
from workflows_mcp.machine.events import Started
from workflows_mcp.machine.machine import Machine
from workflows_mcp.plan import model
from workflows_mcp.plan.inputs import check_inputs
from workflows_mcp.plan.model import Bundle, Graph, InputSpec, Need
from workflows_mcp.steps.base import Question, Step, StepInputs, StepResult
from workflows_mcp.steps.registry import StepRegistry


class Work(Step):
    """Does something on the server."""

    name = "Work"
    capabilities = frozenset({"run_commands"})


class Ask(Step):
    """Asks for a text."""

    name = "Ask"
    performer = "agent"

    class Inputs(StepInputs):
        prompt: str = Field(description="What to ask")

    def ask(self, inputs: Any) -> Question:
        schema = {
            "type": "object",
            "properties": {"response": {"type": "string", "description": "the answer"}},
            "required": ["response"],
            "additionalProperties": False,
        }
        return Question("prompt", "Answer this.", {"prompt": inputs.prompt}, schema, "response")


class Confirm(Step):
    """Asks for yes or no."""

    name = "Confirm"
    performer = "agent"

    def ask(self, inputs: Any) -> Question:
        schema = {
            "type": "object",
            "properties": {"confirmed": {"type": "boolean"}, "note": {"type": "string"}},
            "required": ["confirmed"],
            "additionalProperties": False,
        }
        return Question("confirm", "Yes or no?", {}, schema, "confirmed")

    def normalize_result(self, inputs: Any, result: Any) -> Any:
        return {**result, "confirmed": True} if result.get("confirmed") == "yes" else result

    def parse_result(self, inputs: Any, result: dict[str, Any]) -> StepResult:
        return StepResult({"yes": result["confirmed"]})


def work(name: str, *needs: int, **inputs: Any) -> model.Node:
    return Node(name, Do("Work", inputs, defaults={"stdout": ""}), needs=tuple(Need(need) for need in needs))


def ask(name: str, *needs: int, prompt: Any = "How many?") -> model.Node:
    do = Do("Ask", {"prompt": prompt}, by="agent", defaults={"response": ""})
    return Node(name, do, needs=tuple(Need(need) for need in needs))


def confirm(name: str, *needs: int) -> model.Node:
    return Node(name, Do("Confirm", {}, by="agent"), needs=tuple(Need(need) for need in needs))


def call(name: str, workflow: str, *needs: int) -> model.Node:
    return Node(name, Call(workflow), needs=tuple(Need(need) for need in needs))


def plan(name: str, *nodes: model.Node, **parts: Any) -> model.Plan:
    return Plan(name, "graph", Graph(nodes), **parts)


def started(*plans: model.Plan, at: float = 1000.0, **inputs: Any) -> Machine:
    """A run of the first of these plans, just started; times count from `at`."""
    machine = Machine(Bundle(plans[0].name, {each.name: each for each in plans}))
    machine.apply(Started(at, "wf_1", check_inputs(plans[0], inputs)))
    return machine


class Build:
    """The words that tests use to make a run."""

    work = staticmethod(work)
    ask = staticmethod(ask)
    confirm = staticmethod(confirm)
    call = staticmethod(call)
    plan = staticmethod(plan)
    started = staticmethod(started)
    text_input = InputSpec("string")


@pytest.fixture
def build() -> type[Build]:
    return Build


@pytest.fixture
def registry() -> StepRegistry:
    return StepRegistry(steps=[Work(), Ask(), Confirm()])
