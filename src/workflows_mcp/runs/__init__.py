"""The one API that MCP, the terminal and a page use: `Service`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workflows_mcp.lazy import exports

if TYPE_CHECKING:
    from workflows_mcp.runs.progress import Watch
    from workflows_mcp.runs.service import (
        HowFar,
        Line,
        Progress,
        Service,
        UserQuestion,
        UserQuestions,
        WorkflowSummary,
        has_stopped,
        read_yaml,
        told,
    )
    from workflows_mcp.runs.start import descriptor_limit, raise_descriptor_limit, started

__all__ = [
    "HowFar",
    "Line",
    "Progress",
    "Service",
    "UserQuestion",
    "UserQuestions",
    "Watch",
    "WorkflowSummary",
    "descriptor_limit",
    "has_stopped",
    "raise_descriptor_limit",
    "read_yaml",
    "started",
    "told",
]

__getattr__ = exports(
    __name__,
    {
        "progress": "Watch",
        "service": "HowFar Line Progress Service UserQuestion UserQuestions WorkflowSummary has_stopped"
        " read_yaml told",
        "start": "descriptor_limit raise_descriptor_limit started",
    },
)
