"""The step type `Fail` (`fail` in the stateful and reactive dialects) fails the workflow on purpose."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field

from workflows_mcp.errors import StepError
from workflows_mcp.steps.base import Step, StepContext, StepInputs, StepOutputs, StepResult
from workflows_mcp.values import Value


class FailInputs(StepInputs):
    message: str = Field(description="Why it fails: the error message of the run.")
    code: str = Field("failed", min_length=1, description="The error code, for programs.")


class Fail(Step):
    """Fails the workflow, with your message and error code.

    Nothing handles this failure: not `on_error`, not `on_failure`, and not a block that depends on it.
    """

    name = "Fail"
    dialect_names: ClassVar[Mapping[str, str]] = {"graph": "Fail", "stateful": "fail", "reactive": "fail"}
    Inputs = FailInputs
    Outputs = StepOutputs

    def changes_world(self, inputs: dict[str, Value]) -> bool:
        return False

    def run(self, inputs: FailInputs, context: StepContext) -> StepResult:
        raise StepError(inputs.message, code=inputs.code)
