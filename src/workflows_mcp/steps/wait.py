"""The step type `Wait` is a durable timer, as a block.

This module declares its inputs only: waiting is an operation of the plan, and the engine sets the timer. The
stateful and reactive dialects have the step `wait` instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field

from workflows_mcp.steps.base import Step, StepInputs, StepOutputs


class WaitInputs(StepInputs):
    duration_seconds: float = Field(ge=0, description="How many seconds to wait.")
    message: str | None = Field(None, description="A text to show while it waits.")


class WaitOutputs(StepOutputs):
    resumed: bool = False
    duration: float = 0.0


class Wait(Step):
    """Waits for some time. The timer survives a restart of the server."""

    name = "Wait"
    dialect_names: ClassVar[Mapping[str, str]] = {"graph": "Wait"}
    Inputs = WaitInputs
    Outputs = WaitOutputs
