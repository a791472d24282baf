"""The shapes of what tools answer. Their JSON Schemas are published; absent fields are left out."""

from __future__ import annotations

from typing import Any, Literal, NotRequired

# Below Python 3.12 pydantic reads only this one when they are nested.
from typing_extensions import TypedDict

Status = Literal["pending_action", "running", "waiting", "completed", "failed", "cancelled"]


class Action(TypedDict, total=False):
    step_id: str
    type: str
    instructions: str
    parameters: dict[str, Any]
    result_schema: dict[str, Any]
    sub_agent_prompt: str
    workflow_id: str
    task: str


class RunAnswer(TypedDict):
    """The answer of every tool that touches a run or a task. `more_actions` are actions too: to say so again
    in the schema of every tool would cost more than it tells."""

    workflow_id: str
    status: Status
    messages: NotRequired[list[Any]]
    action: NotRequired[Action]
    more_actions: NotRequired[list[Any]]
    progress: NotRequired[dict[str, Any]]
    why: NotRequired[str]
    outputs: NotRequired[dict[str, Any]]
    result: NotRequired[Any]
    failed_blocks: NotRequired[list[Any]]
    error: NotRequired[dict[str, Any]]
    next: str


class NextAnswer(TypedDict):
    """As RunAnswer: what that says of `status`, `messages` and `action` holds here and below, too."""

    workflow_id: str
    status: str
    messages: NotRequired[list[Any]]
    action: NotRequired[dict[str, Any]]
    more_actions: NotRequired[list[Any]]
    progress: NotRequired[dict[str, Any]]
    why: NotRequired[str]
    outputs: NotRequired[dict[str, Any]]
    result: NotRequired[Any]
    failed_blocks: NotRequired[list[Any]]
    error: NotRequired[dict[str, Any]]
    next: str


class StatusAnswer(TypedDict, total=False):
    """The answer of a run or a task, or the recent runs."""

    workflow_id: str
    workflow: str
    status: str
    messages: list[Any]
    action: dict[str, Any]
    more_actions: list[Any]
    progress: dict[str, Any]
    why: str
    outputs: dict[str, Any]
    result: Any
    failed_blocks: list[Any]
    error: dict[str, Any]
    next: str
    runs: list[Any]
    more: bool


class ControlAnswer(NextAnswer):
    """What became of a run that was interfered with, or of the one that was made of it."""

    forked_from: NotRequired[str]


class StateAnswer(TypedDict):
    workflow_id: str
    workflow: NotRequired[str]
    status: str
    inputs: NotRequired[dict[str, Any]]
    state: NotRequired[dict[str, Any]]
    result: NotRequired[Any]
    outputs: NotRequired[dict[str, Any]]
    blocks: NotRequired[dict[str, Any]]
    values: NotRequired[dict[str, Any]]
    slices: NotRequired[dict[str, Any]]


class Listed(TypedDict):
    """What a list says of a workflow. Its own lists are of texts, as those of WorkflowInfo."""

    name: str
    description: NotRequired[str]
    dialect: NotRequired[str]
    source: str
    tags: NotRequired[list[Any]]
    problems: NotRequired[list[Any]]


class WorkflowList(TypedDict):
    workflows: list[Listed]
    more: NotRequired[int]


class WorkflowInfo(TypedDict, total=False):
    """What a workflow is, or its definition."""

    workflow: str
    description: str
    dialect: str
    version: str
    tags: list[Any]
    source: str
    inputs: dict[str, Any]
    outputs: dict[str, Any]
    steps: list[Any]
    asks: list[Any]
    agent_tools: list[Any]
    level: str
    needs: list[Any]
    secrets: list[Any]
    missing_secrets: list[Any]
    forbidden: list[Any]
    calls: list[Any]
    definition: str


class FoundProblem(TypedDict):
    message: str
    hint: NotRequired[str]
    place: NotRequired[str]
    line: NotRequired[str]
    code: str
    warning: NotRequired[bool]


class Validation(TypedDict):
    valid: bool
    problems: list[FoundProblem]
    more: NotRequired[int]
