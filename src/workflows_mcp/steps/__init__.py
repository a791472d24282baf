"""Step types. Each is one class in one file, registered as an entry point."""

from __future__ import annotations

from workflows_mcp.steps.agent_prompt import failure_in, find_result, prompt_for
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
from workflows_mcp.steps.results import (
    Asked,
    asked_of,
    example_of,
    reported_failure,
    reported_tokens,
    understood,
    violations_of,
)
from workflows_mcp.steps.schema_check import fits
from workflows_mcp.steps.shell import ANY_EXIT, TYPES, WATCH_CHANGES, Shell

__all__ = [
    "ANY_EXIT",
    "FORMATS",
    "TYPES",
    "WATCH_CHANGES",
    "Asked",
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
    "asked_of",
    "default_registry",
    "example_of",
    "failure_in",
    "find_result",
    "fits",
    "prompt_for",
    "reported_failure",
    "reported_tokens",
    "understood",
    "violations_of",
]
