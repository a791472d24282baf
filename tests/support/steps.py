"""Small step types for tests that are about something else."""

from __future__ import annotations

import asyncio

from pydantic import Field

from workflows_mcp.errors import StepError
from workflows_mcp.steps.base import Question, Step, StepContext, StepInputs, StepOutputs, StepResult
from workflows_mcp.steps.registry import StepRegistry
from workflows_mcp.values import Value


class Echo(Step):
    """Hands back its value; can be repeated unnoticed."""

    name = "Echo"

    class Inputs(StepInputs):
        value: Value = None

    class Outputs(StepOutputs):
        value: Value = None

    def changes_world(self, inputs: dict[str, Value]) -> bool:
        return False

    def run(self, inputs: Inputs, context: StepContext) -> StepResult:
        return StepResult({"value": inputs.value})


class Note(Step):
    """Writes a line into a list: a change of the world that a test can look at."""

    name = "Note"

    class Inputs(StepInputs):
        text: str = ""
        ok: bool = True
        crash: bool = False

    class Outputs(StepOutputs):
        text: str = ""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def run(self, inputs: Inputs, context: StepContext) -> StepResult:
        self.lines.append(inputs.text)
        if inputs.crash:
            raise StepError(f"{inputs.text} crashed")
        return StepResult({"text": inputs.text}, inputs.ok, None if inputs.ok else "it went wrong")


class Gate(Step):
    """Goes on when the test opens it; says when it was stopped."""

    name = "Gate"

    class Inputs(StepInputs):
        name: str = Field(default="gate")

    class Outputs(StepOutputs):
        name: str = ""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.stopped: list[str] = []
        self.waiting = 0
        self._gates: dict[str, asyncio.Event] = {}

    def open(self, name: str) -> None:
        self._gates.setdefault(name, asyncio.Event()).set()

    async def run(self, inputs: Inputs, context: StepContext) -> StepResult:
        self.started.append(inputs.name)
        self.waiting += 1
        try:
            await self._gates.setdefault(inputs.name, asyncio.Event()).wait()
        except asyncio.CancelledError:
            self.stopped.append(inputs.name)
            raise
        finally:
            self.waiting -= 1
        return StepResult({"name": inputs.name})


class Ask(Step):
    """A question to the agent."""

    name = "Ask"
    performer = "agent"

    class Inputs(StepInputs):
        prompt: str = ""

    class Outputs(StepOutputs):
        response: str = ""

    def ask(self, inputs: Inputs) -> Question:
        schema = {"type": "object", "properties": {"response": {"type": "string"}}, "required": ["response"]}
        return Question("prompt", "Answer this.", {"prompt": inputs.prompt}, schema, "response")


def registry_of(*steps: Step) -> StepRegistry:
    return StepRegistry(steps=[Echo(), Ask(), *steps])
