"""Fetches the run of a call again, and limits how long the call waits.

    FollowUp("get_workflow_status", "workflow_id")     # on the record of start_workflow

Between a call and its answer the server may ask the user, or wait for a long time. It then fetches the run
again, with the tool that the follow-up names, in the shape of the tool that was called.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

from mcp.server.mcpserver import Context
from mcp.types import CallToolResult

from workflows_mcp.limits import DEFAULT_WAIT

if TYPE_CHECKING:
    from mcp.server.mcpserver.tools import Tool

    from workflows_mcp.runs import ProgressReport


class FollowUp(NamedTuple):
    """The call that fetches the run of another call again."""

    tool: str
    run: str
    """The argument of that tool which names the run."""
    waits: bool = True
    """The tool takes wait_seconds."""
    adds: tuple[str, ...] = ()
    """Fields of the first answer that the answer of that tool does not have."""
    inputs: bool = False
    """The arguments of the first call are inputs of a workflow, whatever their names."""
    style: str = ""
    """The argument that sets the format of the answer, which both tools take."""

    def arguments(self, run_id: str, wait_seconds: float, style: str = "") -> dict[str, Any]:
        waiting = {"wait_seconds": wait_seconds} if self.waits else {}
        return {self.run: run_id, **waiting, **({self.style: style} if style else {})}

    def style_in(self, arguments: Mapping[str, Any]) -> str:
        return str(arguments.get(self.style) or "") if self.style else ""

    def run_of(self, arguments: Mapping[str, Any], result: object) -> str | None:
        """The run of a call; None for an error, and for a task, which has an agent of its own."""
        if not isinstance(result, CallToolResult) or result.is_error:
            return None
        own = {} if self.inputs else arguments
        if own.get("task_id") or own.get("sub_agent_context"):
            return None
        found = (result.structured_content or {}).get("workflow_id") or own.get("workflow_id")
        return found if isinstance(found, str) else None


STATUS = FollowUp("get_workflow_status", "workflow_id")


def is_peek(tool: Tool, arguments: Mapping[str, Any]) -> bool:
    """Whether a call only reads the current state of a run, so that nobody is asked anything."""
    reads = tool.annotations is not None and tool.annotations.read_only_hint
    return bool(reads) and arguments.get("wait_seconds") == 0


def status_in(result: CallToolResult) -> str:
    return str((result.structured_content or {}).get("status", ""))


# ---- waiting inside a call

_limit = ContextVar("_limit", default=inf)


@contextmanager
def waiting_at_most(seconds: float) -> Iterator[None]:
    """Limit how long calls inside this block wait for a run."""
    before = _limit.set(seconds)
    try:
        yield
    finally:
        _limit.reset(before)


def seconds_to_wait(wanted: float = DEFAULT_WAIT) -> float:
    return min(wanted, _limit.get())


def reporting_progress(context: Context[Any, Any] | None) -> AbstractContextManager[None]:
    """Report the progress of the run that a call waits for, if the client has asked for it.

    A report has the number of steps that are done, their total, and the step under way.
    """
    if context is None or (context.request_context.meta or {}).get("progress_token") is None:
        return nullcontext()
    from workflows_mcp.runs import reporting_progress as report_to

    last = -1.0
    repeats = 0

    async def report(how_far: ProgressReport) -> None:
        """Progress must grow with each report; without a further step, it grows by a fraction of a step."""
        nonlocal last, repeats
        repeats = repeats + 1 if how_far.done <= last else 0
        last = max(how_far.done + repeats / (repeats + 1), last + 0.001)
        await context.report_progress(round(last, 3), how_far.total, how_far.doing)

    return report_to(report)
