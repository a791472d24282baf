"""Runs workflows: `Service` is the one API behind MCP, the command line and the tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workflows_mcp.lazy import exports

if TYPE_CHECKING:
    from workflows_mcp.runs.one_task import TaskService
    from workflows_mcp.runs.progress import (
        Progress,
        ProgressReport,
        ProgressTracker,
        has_stopped,
        reporting_progress,
    )
    from workflows_mcp.runs.service import Line, Service, WorkflowSummary, read_yaml
    from workflows_mcp.runs.startup import descriptor_limit, raise_descriptor_limit, startup_checks
    from workflows_mcp.runs.submissions import StepFailure
    from workflows_mcp.runs.user_questions import UserQuestion, UserQuestions

__all__ = [
    "Line",
    "Progress",
    "ProgressReport",
    "ProgressTracker",
    "Service",
    "StepFailure",
    "TaskService",
    "UserQuestion",
    "UserQuestions",
    "WorkflowSummary",
    "descriptor_limit",
    "has_stopped",
    "raise_descriptor_limit",
    "read_yaml",
    "reporting_progress",
    "startup_checks",
]

__getattr__ = exports(
    __name__,
    {
        "one_task": "TaskService",
        "progress": "Progress ProgressReport ProgressTracker has_stopped reporting_progress",
        "service": "Line Service WorkflowSummary read_yaml",
        "startup": "descriptor_limit raise_descriptor_limit startup_checks",
        "submissions": "StepFailure",
        "user_questions": "UserQuestion UserQuestions",
    },
)
