"""Runs workflows: `Service` is the one API behind MCP, the command line and the tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workflows_mcp.lazy import exports

if TYPE_CHECKING:
    from workflows_mcp.answers import OpenDecision
    from workflows_mcp.machine import Identity
    from workflows_mcp.runs.callers import SHELL_VARIABLES, agent_around, calling_as, user_name
    from workflows_mcp.runs.client_sessions import Agent, Denial, Held, Hold, PendingRuns
    from workflows_mcp.runs.decisions import read_choice, read_limit
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
    from workflows_mcp.runs.tool_rules import ToolUse
    from workflows_mcp.runs.user_questions import UserQuestion, UserQuestions

__all__ = [
    "SHELL_VARIABLES",
    "Agent",
    "Denial",
    "Held",
    "Hold",
    "Identity",
    "Line",
    "OpenDecision",
    "PendingRuns",
    "Progress",
    "ProgressReport",
    "ProgressTracker",
    "Service",
    "StepFailure",
    "TaskService",
    "ToolUse",
    "UserQuestion",
    "UserQuestions",
    "WorkflowSummary",
    "agent_around",
    "calling_as",
    "descriptor_limit",
    "has_stopped",
    "raise_descriptor_limit",
    "read_choice",
    "read_limit",
    "read_yaml",
    "reporting_progress",
    "startup_checks",
    "user_name",
]

__getattr__ = exports(
    __name__,
    {
        "callers": "SHELL_VARIABLES agent_around calling_as user_name",
        "client_sessions": "Agent Denial Held Hold PendingRuns",
        "decisions": "Identity OpenDecision read_choice read_limit",
        "one_task": "TaskService",
        "progress": "Progress ProgressReport ProgressTracker has_stopped reporting_progress",
        "service": "Line Service WorkflowSummary read_yaml",
        "startup": "descriptor_limit raise_descriptor_limit startup_checks",
        "submissions": "StepFailure",
        "tool_rules": "ToolUse",
        "user_questions": "UserQuestion UserQuestions",
    },
)
