"""A service whose answers are the shapes that clients see: those of the core, and of the other toolsets."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

from workflows_mcp import runs
from workflows_mcp.mcp_server.compat import graph, reactive, stateful
from workflows_mcp.mcp_server.tooling import Content, Ctx
from workflows_mcp.values import LEFT_OUT

Shape = dict[str, Any]


class Service(runs.Service):
    """The service, with the answers of the core in full."""

    @property
    def plain(self) -> runs.Service:
        """The service as the tools have it."""
        found = runs.Service.__new__(runs.Service)
        found.__dict__ = self.__dict__
        return found

    @property
    def step_protocol(self) -> Reactive:
        return Reactive(self.plain)

    async def start(self, *given: Any, **named: Any) -> Shape:  # type: ignore[override]
        return (await super().start(*given, **named)).rendered()

    async def submit(self, *given: Any, **named: Any) -> Shape:  # type: ignore[override]
        return (await super().submit(*given, **named)).rendered()

    async def next_step(self, *given: Any, **named: Any) -> Shape:  # type: ignore[override]
        return (await super().next_step(*given, **named)).rendered()

    async def status(self, *given: Any, **named: Any) -> Shape:  # type: ignore[override]
        return (await super().status(*given, **named)).rendered()

    async def cancel(self, *given: Any, **named: Any) -> Shape:  # type: ignore[override]
        return (await super().cancel(*given, **named)).rendered()

    async def context_full(self, *given: Any, **named: Any) -> Shape:  # type: ignore[override]
        return (await super().context_full(*given, **named)).rendered()

    async def resume_run(self, *given: Any, **named: Any) -> Shape:  # type: ignore[override]
        return (await super().resume_run(*given, **named)).rendered()

    async def retry(self, *given: Any, **named: Any) -> Shape:  # type: ignore[override]
        return (await super().retry(*given, **named)).rendered()

    async def fork(self, *given: Any, **named: Any) -> Shape:  # type: ignore[override]
        return (await super().fork(*given, **named)).rendered()

    # In the shapes of the toolsets `graph` and `stateful`

    async def execute(self, **given: Any) -> Shape:
        tool = graph.execute_inline_workflow if "text" in given else graph.execute_workflow
        if "text" in given:
            given["workflow_yaml"] = given.pop("text")
        return await _called(self.plain, tool, **given)

    async def resume(  # type: ignore[override]
        self, checkpoint_id: str, response: Any = LEFT_OUT, **how: Any
    ) -> Shape:
        return await _called(self.plain, graph.resume_workflow, checkpoint_id, response, **how)

    async def step(self, workflow_id: str, *, task_id: str | None = None) -> Shape:
        return await _called(self.plain, stateful.get_next_step, workflow_id, task_id)

    async def submit_step(self, workflow_id: str, result: Any, *, step_id: str, **how: Any) -> Shape:
        return await _called(self.plain, stateful.submit_step_result, workflow_id, step_id, result, **how)


class Reactive:
    """The tools of the toolset `reactive`."""

    def __init__(self, service: runs.Service) -> None:
        self._service = service

    async def start(self, workflow: str, inputs: Any, wait: float) -> Shape:
        return await _called(self._service, reactive.workflow_start, workflow, inputs, wait)

    async def next_step(self, run_id: str, task_id: str | None, wait: float) -> Shape:
        return await _called(self._service, reactive.workflow_get_next_step, run_id, task_id, None, wait)

    async def complete_step(
        self, workflow_id: str, step_id: str, *, wait_seconds: float = 0, **how: Any
    ) -> Shape:
        how = {"result": LEFT_OUT, **how, "wait_seconds": wait_seconds}
        return await _called(self._service, reactive.workflow_step_complete, workflow_id, step_id, **how)

    async def resume(self, workflow_id: str, wait: float) -> Shape:
        return await _called(self._service, reactive.workflow_resume, workflow_id, wait)

    async def checkpoint(self, run_id: str, reason: str, step_id: str | None) -> Shape:
        return await _called(self._service, reactive.workflow_checkpoint, run_id, reason, step_id)

    async def complete(self, run_id: str, status: str) -> Shape:
        return await _called(self._service, reactive.workflow_complete, run_id, status)

    async def read(self, workflow_id: str, paths: Sequence[str], task_id: str | None) -> Shape:
        return await _called(self._service, reactive.workflow_state_read, workflow_id, list(paths), task_id)

    async def update(self, run_id: str, updates: list[Shape], task_id: str | None) -> Shape:
        return await _called(self._service, reactive.workflow_state_update, run_id, updates, task_id)

    async def dependencies(self, workflow_id: str, field: str) -> Shape:
        return await _called(self._service, reactive.workflow_state_dependencies, workflow_id, field)


async def _called(
    service: runs.Service, tool: Callable[..., Awaitable[Content]], *given: Any, **named: Any
) -> Shape:
    """Call the function of a tool, whose errors stay those of the service."""
    context = cast(Ctx, SimpleNamespace(request_context=SimpleNamespace(lifespan_context=service)))
    return dict(await tool(context, *given, **named))
