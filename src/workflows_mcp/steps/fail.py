"""The step type `Fail` (`fail` in dialects of steps): ends the workflow as failed, on purpose."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field

from workflows_mcp.errors import StepError
from workflows_mcp.steps.base import Step, StepContext, StepInputs, StepOutputs, StepResult
from workflows_mcp.values import Value


class FailInputs(StepInputs):
    message: str = Field(description="Why it fails: the message of the error of the run.")
    code: str = Field("failed", min_length=1, description="What programs know the failure by: its code.")


class Fail(Step):
    """Ends the workflow as failed, with a message and a code of your own.

    Nothing handles this failure: neither on_error nor on_failure, nor a block that depends on it.
    """

    name = "Fail"
    dialect_names: ClassVar[Mapping[str, str]] = {"graph": "Fail", "stateful": "fail", "reactive": "fail"}
    Inputs = FailInputs
    Outputs = StepOutputs

    def changes_world(self, inputs: dict[str, Value]) -> bool:
        return False

    def run(self, inputs: FailInputs, context: StepContext) -> StepResult:
        raise StepError(inputs.message, code=inputs.code)
