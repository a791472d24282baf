"""The step type `ExecuteWorkflow` runs another workflow as a block of this one.

This module declares its inputs only: a call is an operation of the plan, which the machine performs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field

from workflows_mcp.steps.base import Step, StepInputs, StepOutputs


class ExecuteWorkflowInputs(StepInputs):
    workflow: str = Field(description="The name of the workflow to run.")
    inputs: dict[str, Any] = Field(
        default_factory=dict, description="Its inputs. It has access to nothing else."
    )
    timeout_ms: float | None = Field(None, gt=0, description="Milliseconds after which it is cancelled.")


class ExecuteWorkflow(Step):
    """Runs another workflow inside this one; its outputs are the outputs of the block.

    The called workflow has access to its inputs only. Its blocks are under `blocks.<id>.blocks`.
    """

    name = "ExecuteWorkflow"
    aliases = ("Workflow",)
    dialect_names: ClassVar[Mapping[str, str]] = {"graph": "ExecuteWorkflow"}
    Inputs = ExecuteWorkflowInputs
    Outputs = StepOutputs
    level = "trusted"
    may_fail = True
