"""The step type `Wait`: a durable timer as a block.

Only what it takes is declared here: waiting is an operation of the plan, and whoever runs the plan lets the
time pass. In dialects of steps it is the step type `wait`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field

from workflows_mcp.steps.base import Step, StepInputs, StepOutputs


class WaitInputs(StepInputs):
    duration_seconds: float = Field(ge=0, description="How long.")
    message: str | None = Field(None, description="What is shown meanwhile.")


class WaitOutputs(StepOutputs):
    resumed: bool = False
    duration: float = 0.0


class Wait(Step):
    """Lets time pass: a timer of the server, which survives a restart."""

    name = "Wait"
    dialect_names: ClassVar[Mapping[str, str]] = {"graph": "Wait"}
    Inputs = WaitInputs
    Outputs = WaitOutputs
