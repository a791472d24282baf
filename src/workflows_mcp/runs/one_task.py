"""`TaskService`: the service for one task. It refuses everything about another run or task.

    service = TaskService(Service.open(settings), "wf_7f3a.review.0")
    await service.submit("wf_7f3a.review.0", {"response": "fine"})    # as the service does
    await service.submit("wf_7f3a.review.1", {"response": "fine"})    # raises RequestError
    await service.start(workflow="deploy")                            # raises RequestError

The MCP server of a sub-agent has it in place of the service (`WORKFLOWS_TASK`). It passes on only what is
listed here, so a method that is added to the service is refused until somebody lists it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import TracebackType
from typing import Any, NamedTuple

from workflows_mcp.answers import Answer, joined, run_of
from workflows_mcp.errors import RequestError
from workflows_mcp.limits import DEFAULT_WAIT
from workflows_mcp.runs.agent_protocol import ExplainRefusal
from workflows_mcp.runs.service import Service


class Allowed(NamedTuple):
    """What is passed on of one part of the service; the names are separated by spaces."""

    free: str = ""
    """Touches no run."""
    of_task: str = ""
    """Its first argument is the id of a run or a task, and it shows nothing else."""
    of_run: str = ""
    """As `of_task`, but it shows the whole run of a task, so it is refused for a task."""


ALLOWED: Mapping[str, Allowed] = {
    "service": Allowed(
        free="settings list_workflows workflow_info definition validate workflow_schema schema_part "
        "save_memory load_memory list_memory",
        of_task="status state note noted",
    ),
    "definitions": Allowed(free="listed info plan_of definition"),
    "inspector": Allowed(
        free="names text_of file_of stamp_of rewritten drawing_of",
        of_task="tasks graph journal value position moved times",
        of_run="details",
    ),
    "debugger": Allowed(free="test_transformation explain_plan", of_run="trace_transformations debug_info"),
    "conversations": Allowed(of_task="read update dependencies"),
}


class _Scope(NamedTuple):
    """The task that is served, and the tasks inside it."""

    service: Service
    task: str

    async def full_id(self, workflow_id: str, *, whole_run: bool = False) -> str:
        """Return the full id of this task or one inside it. Raises RequestError for any other."""
        if run_of(workflow_id) == run_of(self.task):
            full = await self.service.full_id(workflow_id)
            if (full == self.task or full.startswith(f"{self.task}.")) and (
                not whole_run or run_of(full) == full
            ):
                return full
        raise self.refusal(f"not '{workflow_id}'")

    def refusal(self, what: str) -> RequestError:
        return RequestError(
            f"this server serves only '{self.task}', {what}",
            hint=f"call with workflow_id='{self.task}', and leave the rest to the agent that started you",
            code="other_task",
        )


class _Part:
    """A part of the service that passes on only what is allowed."""

    def __init__(self, part: Any, allowed: Allowed, scope: _Scope) -> None:
        self._part = part
        self._scope = scope
        self._free = frozenset(allowed.free.split())
        self._of_run = frozenset(allowed.of_run.split())
        self._with_id = self._of_run | frozenset(allowed.of_task.split())

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if name in self._free:
            return getattr(self._part, name)
        if name in self._with_id:
            return partial(self._checked, name)
        raise self._scope.refusal(f"and '{name}' is not part of that")

    async def _checked(self, name: str, workflow_id: str, *arguments: Any, **named: Any) -> Any:
        full_id = await self._scope.full_id(workflow_id, whole_run=name in self._of_run)
        return await getattr(self._part, name)(full_id, *arguments, **named)


class _Inspector(_Part):
    def run_of(self, workflow_id: str) -> str:
        """Return the id itself: the run around a task is not served."""
        return workflow_id


class _Conversations(_Part):
    async def task_brief(self, workflow_id: str, task_id: str = "") -> Any:
        return await self._part.task_brief(await self._scope.full_id(joined(workflow_id, task_id)))


class TaskService(_Part):
    def __init__(self, service: Service, task: str) -> None:
        scope = _Scope(service, task)
        super().__init__(service, ALLOWED["service"], scope)
        self._service = service
        self.inspector = _Inspector(service.inspector, ALLOWED["inspector"], scope)
        self.conversations = _Conversations(service.conversations, ALLOWED["conversations"], scope)
        self.definitions = _Part(service.definitions, ALLOWED["definitions"], scope)
        self.debugger = _Part(service.debugger, ALLOWED["debugger"], scope)

    async def __aenter__(self) -> TaskService:
        await self._service.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._service.__aexit__(kind, error, trace)

    async def next_step(self, workflow_id: str, *, task_id: str | None = None, **how: Any) -> Answer:
        return await self._service.next_step(await self._scope.full_id(joined(workflow_id, task_id)), **how)

    async def submit(
        self,
        workflow_id: str,
        result: Any,
        *,
        step_id: str | None = None,
        wait_seconds: float = DEFAULT_WAIT,
        explain_refusal: ExplainRefusal | None = None,
    ) -> Answer:
        """Submit a result. The answer is always about the task, even if its agent would get the run next."""
        full_id = await self._scope.full_id(workflow_id)
        answer = await self._service.submit(
            full_id,
            result,
            step_id=step_id,
            wait_seconds=wait_seconds,
            explain_refusal=explain_refusal,
        )
        return answer if answer.workflow_id == full_id else await self._service.status(full_id)

    async def runs(self, **_: Any) -> dict[str, Any]:
        """List the task, as if it were the only run."""
        task = self._scope.task
        found = await self._service.status(task)
        began, changed = await self._service.inspector.times(task)
        entry = {
            "workflow_id": task,
            "workflow": found.workflow,
            "status": found.status,
            "started_at": began,
            "changed_at": changed,
        }
        return {"runs": [entry]}

    async def recent(self, **_: Any) -> list[dict[str, Any]]:
        try:
            runs: list[dict[str, Any]] = (await self.runs())["runs"]
        except RequestError:
            return []  # there is no such task (any more)
        return runs
