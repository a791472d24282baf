"""The step type `ExecuteWorkflow`: another workflow as a block of this one.

Only what it takes is declared here: a call is an operation of the plan, and whoever runs the plan carries it
out. Its outputs are the outputs of the called workflow.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field

from workflows_mcp.steps.base import Step, StepInputs, StepOutputs


class ExecuteWorkflowInputs(StepInputs):
    workflow: str = Field(description="The name of the workflow to run.")
    inputs: dict[str, Any] = Field(default_factory=dict, description="Its inputs. It sees nothing else.")
    timeout_ms: float | None = Field(None, gt=0, description="Milliseconds after which it is stopped.")


class ExecuteWorkflow(Step):
    """Runs another workflow inside this one; its outputs are the outputs of the block.

    It sees only the inputs that it is given. Its own blocks can be looked at under `blocks.<id>.blocks`.
    """

    name = "ExecuteWorkflow"
    aliases = ("Workflow",)
    dialect_names: ClassVar[Mapping[str, str]] = {"graph": "ExecuteWorkflow"}
    Inputs = ExecuteWorkflowInputs
    Outputs = StepOutputs
    level = "trusted"
    may_fail = True
