"""Step types. Each is one class in one file, registered as an entry point."""

from __future__ import annotations

from workflows_mcp.steps.base import (
    Performer,
    Question,
    Step,
    StepContext,
    StepInputs,
    StepOutputs,
    StepResult,
    StepStopped,
)
from workflows_mcp.steps.output_formats import FORMATS
from workflows_mcp.steps.registry import StepRegistry, default_registry
from workflows_mcp.steps.shell import ANY_EXIT, TYPES, WATCH_CHANGES, Shell

__all__ = [
    "ANY_EXIT",
    "FORMATS",
    "TYPES",
    "WATCH_CHANGES",
    "Performer",
    "Question",
    "Shell",
    "Step",
    "StepContext",
    "StepInputs",
    "StepOutputs",
    "StepRegistry",
    "StepResult",
    "StepStopped",
    "default_registry",
]
