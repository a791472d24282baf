"""Tools that move a run on, and for each the tool by which its run is looked at again, in the same shape.

What has to happen between a call and its answer, such as asking the user or waiting for long, needs the
answer anew when it is done: that of the tool here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

from mcp.types import CallToolResult

from workflows_mcp.limits import DEFAULT_WAIT
from workflows_mcp.mcp_server.tooling import Ctx

if TYPE_CHECKING:
    from mcp.server.mcpserver.tools import Tool

    from workflows_mcp.runs import ProgressReport


class FollowUp(NamedTuple):
    tool: str
    run: str
    """What its argument for the run is called."""
    waits: bool = True
    adds: tuple[str, ...] = ()
    """What the answer has beside what the tool gives."""
    inputs: bool = False
    """The arguments are inputs of a workflow: whatever they are called, they say nothing to the tool."""
    style: str = ""
    """The argument that says how the answer is to look, which is the same for both tools."""

    def arguments(self, run_id: str, wait_seconds: float, style: str = "") -> dict[str, Any]:
        waiting = {"wait_seconds": wait_seconds} if self.waits else {}
        return {self.run: run_id, **waiting, **({self.style: style} if style else {})}

    def style_in(self, arguments: Mapping[str, Any]) -> str:
        return str(arguments.get(self.style) or "") if self.style else ""


STATUS = FollowUp("get_workflow_status", "workflow_id")

WORKFLOW = STATUS._replace(inputs=True)

"""How the run of a tool is looked at that is a workflow."""

_STEP = FollowUp("workflow_get_next_step", "workflow_id")

_RESUME = FollowUp("resume_workflow", "checkpoint_id", style="response_format")


FOLLOW_UPS: dict[str, FollowUp] = {
    "start_workflow": STATUS,
    "submit_result": STATUS,
    "get_workflow_status": STATUS,
    "get_next_step": STATUS,
    "control_workflow": STATUS._replace(adds=("forked_from",)),
    "submit_step_result": FollowUp("get_next_step", "workflow_id", waits=False),
    "execute_workflow": _RESUME,
    "execute_inline_workflow": _RESUME,
    "resume_workflow": _RESUME,
    "workflow_start": _STEP._replace(adds=("workflow_id", "state")),
    "workflow_get_next_step": _STEP,
    "workflow_step_complete": _STEP._replace(adds=("success",)),
}


def run_meant(look: FollowUp, arguments: Mapping[str, Any], result: object) -> str | None:
    """The run that an answer is about, if it is about one as a whole: tasks have agents of their own."""
    if not isinstance(result, CallToolResult) or result.is_error:
        return None
    said = {} if look.inputs else arguments
    if said.get("task_id") or said.get("sub_agent_context"):
        return None
    found = (result.structured_content or {}).get("workflow_id") or said.get("workflow_id")
    return found if isinstance(found, str) else None


def is_peek(tool: Tool, arguments: Mapping[str, Any]) -> bool:
    """Whether a call only wants to know how a run stands at this moment: it asks nobody anything."""
    reads = tool.annotations is not None and tool.annotations.read_only_hint
    return bool(reads) and arguments.get("wait_seconds") == 0


def status_in(result: CallToolResult) -> str:
    return str((result.structured_content or {}).get("status", ""))


# ----------------------------------------------------------------------------------------------------
# Waiting for a run inside of a call: how long at most, and progress for a client that has asked to be told:
# steps that are done, of how many, and what is under way.


_most = ContextVar("_most", default=inf)


@contextmanager
def waiting_at_most(seconds: float) -> Iterator[None]:
    """Whatever waits for a run inside of this waits no longer."""
    before = _most.set(seconds)
    try:
        yield
    finally:
        _most.reset(before)


def seconds_to_wait(wanted: float = DEFAULT_WAIT) -> float:
    return min(wanted, _most.get())


def progress_told(context: Ctx | None) -> AbstractContextManager[None]:
    """Whatever waits for a run inside of this tells the client of the call."""
    if context is None or (context.request_context.meta or {}).get("progress_token") is None:
        return nullcontext()
    from workflows_mcp.runs import reporting_progress

    last = -1.0
    again = 0

    async def tell(how_far: ProgressReport) -> None:
        """What is told must grow each time; where nothing more is done, it comes a bit closer to the next."""
        nonlocal last, again
        again = again + 1 if how_far.done <= last else 0
        last = max(how_far.done + again / (again + 1), last + 0.001)
        await context.report_progress(round(last, 3), how_far.total, how_far.doing)

    return reporting_progress(tell)
