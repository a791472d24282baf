"""Every way in which an agent could leave, fake or pass a step, and what comes of it.

A way is *rejected*: nothing happens, and the attempt is in the journal. It is *impossible*: there is nothing to
call, or the call changes nothing of what it is meant to change. Or it is *evident*: what an agent with a shell, or
with a run of its own, can do is seen in the journal, and so in the report.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError
from mcp.types import ElicitResult, InputRequiredResult

from support.task_client import Seen, TaskClient, TaskId, TaskRequest
from support.ways_around import GOOD, RELEASE, UNGATED, Call, Scene
from workflows_mcp.machine import (
    BudgetRaised,
    Decided,
    Refused,
    Reopened,
)
from workflows_mcp.machine.events import StateUpdated

pytestmark = pytest.mark.rows("P1", "P2", "P3", "P5", "X8")
Level = Literal["rejected", "impossible", "evident"]
YES = {"decision": "approve", "comment": "I am sure"}
ACCEPT = ElicitResult(action="accept", content={"decision": "approve"})


@dataclasses.dataclass(frozen=True)
class Way:
    name: str
    level: Level
    at: str
    act: Callable[[Scene], None]


WAYS: list[Way] = []


def way(name: str, level: Level, at: str = "gate") -> Callable[[Callable[[Scene], None]], None]:
    """Add a way. An evident one checks itself what is seen of it."""

    def add(act: Callable[[Scene], None]) -> None:
        WAYS.append(Way(name, level, at, act))

    return add


def by_call(name: str, level: Level, tool: str, at: str = "gate", **arguments: Any) -> None:
    """Add a way that is one call of a tool; `RUN` stands for the id of the run."""

    def act(scene: Scene) -> None:
        given = {
            key: it.replace("RUN", scene.run) if isinstance(it, str) else it for key, it in arguments.items()
        }

        async def work(call: Call, _: Client) -> None:
            await call(tool, **given)

        scene.agent(work, toolsets=_TOOLSET_OF.get(tool, "core"))

    WAYS.append(Way(name, level, at, act))


_TOOLSET_OF = {
    "submit_step_result": "stateful",
    "resume_workflow": "graph",
    **dict.fromkeys(
        [
            "workflow_step_complete",
            "workflow_state_update",
            "workflow_resume",
            "workflow_complete",
            "workflow_checkpoint",
            "workflow_get_next_step",
        ],
        "reactive",
    ),
}

# ---- the gate, with nothing but MCP

by_call("submit the decision", "rejected", "submit_result", workflow_id="RUN", step_id="approve", result=YES)
by_call("submit the decision without a step", "rejected", "submit_result", workflow_id="RUN", result=YES)
by_call(
    "submit it as text", "rejected", "submit_result", workflow_id="RUN", step_id="approve", result="approve"
)
by_call(
    "report the gate as failed", "rejected", "submit_result",
    workflow_id="RUN", step_id="approve", result={"is_error": True, "error": "skip"},
)  # fmt: skip
by_call(
    "submit for another round of the gate", "rejected", "submit_result",
    workflow_id="RUN", step_id="approve@2", result=YES,
)  # fmt: skip
by_call(
    "submit_step_result on the gate", "rejected", "submit_step_result",
    workflow_id="RUN", step_id="approve", result=YES,
)  # fmt: skip
by_call(
    "complete the gate with a result", "rejected", "workflow_step_complete",
    workflow_id="RUN", step_id="approve", result=YES,
)  # fmt: skip
by_call(
    "complete the gate without a result", "rejected", "workflow_step_complete",
    workflow_id="RUN", step_id="approve",
)  # fmt: skip
by_call(
    "complete the gate as failed", "rejected", "workflow_step_complete",
    workflow_id="RUN", step_id="approve", status="failed", error="skip it",
)  # fmt: skip
by_call("answer with resume_workflow", "rejected", "resume_workflow", checkpoint_id="RUN", response=YES)
by_call(
    "acknowledge the gate", "rejected", "submit_result", workflow_id="RUN", step_id="approve", result="ok"
)
by_call(
    "submit for the step behind the gate",
    "rejected",
    "submit_result",
    workflow_id="RUN",
    step_id="end",
    result="x",
)
by_call(
    "submit for the command behind the gate",
    "rejected",
    "submit_result",
    workflow_id="RUN",
    step_id="publish",
    result="x",
)
by_call(
    "fork from behind the gate",
    "impossible",
    "control_workflow",
    workflow_id="RUN",
    action="fork",
    step_id="publish",
)
by_call("retry the run at the gate", "impossible", "control_workflow", workflow_id="RUN", action="retry")
by_call("resume the run at the gate", "impossible", "control_workflow", workflow_id="RUN", action="resume")
by_call("resume the conversation", "impossible", "workflow_resume", workflow_id="RUN")
by_call(
    "cancel only the gate",
    "impossible",
    "control_workflow",
    workflow_id="RUN",
    action="cancel",
    step_id="approve",
)
by_call(
    "retry with a definition without the gate", "rejected", "control_workflow",
    workflow_id="RUN", action="retry", definition=UNGATED,
)  # fmt: skip
by_call(
    "fork with a definition without the gate", "rejected", "control_workflow",
    workflow_id="RUN", action="fork", step_id="write", definition=UNGATED,
)  # fmt: skip
by_call(
    "fork with a gate that lets everybody pass in time", "rejected", "control_workflow",
    workflow_id="RUN", action="fork", step_id="write",
    definition=RELEASE.replace("type: gate,", "type: gate, timeout: 1, on_timeout: continue,"),
)  # fmt: skip


@way("fork from the gate", "impossible")
def _(scene: Scene) -> None:
    async def work(call: Call, _: Client) -> None:
        made = await call(
            "control_workflow", workflow_id=scene.run, action="fork", step_id="approve", keep=True
        )
        assert made["status"] == "waiting"
        assert made["decisions"][0]["step_id"] == "approve"

    scene.agent(work)


@way("fork from before the gate", "impossible")
def _(scene: Scene) -> None:
    async def work(call: Call, _: Client) -> None:
        made = await call(
            "control_workflow", workflow_id=scene.run, action="fork", step_id="write", keep=True
        )
        found = await call("submit_result", workflow_id=made["workflow_id"], step_id="write", result=GOOD)
        assert found["status"] == "waiting"
        assert found["decisions"][0]["step_id"] == "approve"

    scene.agent(work)


@way("cancel the run and retry it", "impossible")
def _(scene: Scene) -> None:
    async def work(call: Call, _: Client) -> None:
        await call("control_workflow", workflow_id=scene.run, action="cancel")
        made = await call("control_workflow", workflow_id=scene.run, action="retry")
        assert made["decisions"][0]["step_id"] == "approve"
        scene.run = made["workflow_id"]

    scene.agent(work)


@way("park the run and resume it", "impossible")
def _(scene: Scene) -> None:
    async def work(call: Call, _: Client) -> None:
        await call("control_workflow", workflow_id=scene.run, action="context_full")
        await call("control_workflow", workflow_id=scene.run, action="resume")

    scene.agent(work)


@way("submit a decision to the parked run", "rejected")
def _(scene: Scene) -> None:
    async def work(call: Call, _: Client) -> None:
        await call("control_workflow", workflow_id=scene.run, action="context_full")
        found = await call("submit_result", workflow_id=scene.run, step_id="approve", result=YES)
        assert "refused" in found
        await call("control_workflow", workflow_id=scene.run, action="resume")

    scene.agent(work)


@way("write the field of the decision", "impossible")
def _(scene: Scene) -> None:
    async def work(call: Call, _: Client) -> None:
        update = {"path": "raw.approval", "value": {"decision": "approve", "approved": True, "by": "ada"}}
        await call("workflow_state_update", workflow_id=scene.run, updates=[update])
        await call("workflow_step_complete", workflow_id=scene.run, step_id="approve")

    scene.agent(work, toolsets="reactive")
    assert scene.events(StateUpdated), "what was written is in the journal"


@way("declare the run complete", "evident")
def _(scene: Scene) -> None:
    async def work(call: Call, _: Client) -> None:
        await call("workflow_complete", workflow_id=scene.run, status="success")

    scene.agent(work, toolsets="reactive")
    assert scene.state().status != "completed"
    assert not scene.has_passed


@way("continue from a checkpoint behind the gate", "impossible")
def _(scene: Scene) -> None:
    async def work(call: Call, _: Client) -> None:
        listed = await call("list_checkpoints", workflow_id=scene.run)
        for it in listed.get("checkpoints", []):
            found = await call("resume_workflow", checkpoint_id=it["checkpoint_id"])
            assert found.get("status") != "completed"
            found = await call("resume_workflow", checkpoint_id=it["checkpoint_id"], response=YES)
            assert found.get("status") != "completed"

    scene.agent(work, toolsets="graph")


@way("make a checkpoint at the gate and resume from it", "impossible")
def _(scene: Scene) -> None:
    async def work(call: Call, _: Client) -> None:
        await call("workflow_checkpoint", workflow_id=scene.run, reason="x", step_id="approve")
        found = await call("workflow_resume", workflow_id=scene.run)
        assert found.get("status") != "completed"

    scene.agent(work, toolsets="reactive")


@way("start the workflow again with the decision among its inputs", "impossible")
def _(scene: Scene) -> None:
    async def work(call: Call, _: Client) -> None:
        inputs = {"approval": YES, "approve": YES, "blocks": {"approve": YES}}
        found = await call("start_workflow", workflow="release", inputs=inputs)
        if "refused" not in found:
            other = found["workflow_id"]
            found = await call("submit_result", workflow_id=other, step_id="write", result=GOOD)
            assert found["decisions"][0]["step_id"] == "approve"

    scene.agent(work)


@way("start a copy of the workflow without the gate", "evident")
def _(scene: Scene) -> None:
    other = ""

    async def work(call: Call, _: Client) -> None:
        nonlocal other
        other = (await call("start_workflow", yaml=UNGATED))["workflow_id"]
        await call("submit_result", workflow_id=other, step_id="write", result=GOOD)

    scene.agent(work)
    assert scene.has_passed, "a run of another definition is no run of this one"
    assert scene.state().frames["approve"].kind == "gate"
    assert not scene.events(Decided, run_id=other)
    (scene.workspace / "published").unlink()


@way("change the file of the definition while the run waits", "impossible")
def _(scene: Scene) -> None:
    scene.file("release").write_text(UNGATED)

    async def work(call: Call, _: Client) -> None:
        await call("get_workflow_status", workflow_id=scene.run, wait_seconds=0)
        await call("control_workflow", workflow_id=scene.run, action="resume")
        await call("control_workflow", workflow_id=scene.run, action="fork", step_id="approve", keep=True)

    scene.agent(work)


@way("use a prompt of the server", "impossible")
def _(scene: Scene) -> None:
    async def work(_: Call, client: Client) -> None:
        for words in ({"word2": scene.run, "word1": "resume"}, {"word1": "approve", "word2": scene.run}):
            try:
                await client.get_prompt("workflow", words)
            except MCPError:
                continue

    scene.agent(work)


@way("read a resource as if it were a call", "impossible")
def _(scene: Scene) -> None:
    async def work(_: Call, client: Client) -> None:
        for uri in (
            f"run://{scene.run}/answer/approve",
            f"run://{scene.run}/values/blocks.approve.outputs?decision=approve",
            f"run://{scene.run}/journal?decide=approve",
        ):
            try:
                await client.read_resource(uri)
            except MCPError:
                continue

    scene.agent(work)


@way("call a tool that decides", "impossible")
def _(scene: Scene) -> None:
    async def work(call: Call, client: Client) -> None:
        names = [tool.name for tool in (await client.list_tools()).tools]
        assert not [name for name in names if "decide" in name or "approve" in name or "budget" in name]
        for name in ("decide", "answer", "approve", "workflow_decide", "raise_budget"):
            assert "refused" in await call(name, workflow_id=scene.run, choice="approve")

    scene.agent(work)


class Update(TaskId):
    input_responses: dict[str, Any]


class UpdateRequest(TaskRequest):
    params: Update


@way("send input for a form that was never shown to a task", "impossible")
def _(scene: Scene) -> None:
    async def never(_: TaskClient) -> None:
        raise AssertionError("nothing becomes a task here")

    async def work(_: Call, client: Client) -> None:
        accepted = {"action": "accept", "content": {"decision": "approve"}}
        for key in ("answer", "approve", "form-1", "1"):
            params = Update(task_id=scene.run, input_responses={key: accepted})
            try:
                await client.session.send_request(UpdateRequest(method="tasks/update", params=params), Seen)
            except MCPError:
                continue

    scene.agent(work, extensions=[TaskClient(never)])


async def _repeat(scene: Scene, client: Client, state: str | None) -> Any:
    return await client.session.call_tool(
        "control_workflow",
        {"workflow_id": scene.run, "action": "resume", "wait_seconds": 0},
        input_responses={"answer": ACCEPT},
        request_state=state,
        allow_input_required=True,
    )


async def _form(scene: Scene, client: Client) -> str | None:
    found = await client.session.call_tool(
        "control_workflow",
        {"workflow_id": scene.run, "action": "resume", "wait_seconds": 0},
        allow_input_required=True,
    )
    assert isinstance(found, InputRequiredResult)
    return found.request_state


async def _nobody(context: Any, params: Any) -> ElicitResult:
    raise AssertionError("the form is filled in by hand")


@way("forge the seal of a form", "impossible")
def _(scene: Scene) -> None:
    async def work(_: Call, client: Client) -> None:
        true = await _form(scene, client)
        assert true is not None
        for seal in ("", "x", json.dumps([scene.run, "approve", 1]), true[:-4] + "AAAA", true[1:]):
            try:
                await _repeat(scene, client, seal)
            except MCPError:
                continue

    scene.agent(work, user=_nobody)


@way("use the seal of another server", "impossible")
def _(scene: Scene) -> None:
    other = Scene(scene.workspace.parent / "other")
    other.prepare("gate")
    seal: str | None = None

    async def steal(_: Call, client: Client) -> None:
        nonlocal seal
        seal = await _form(other, client)

    other.agent(steal, user=_nobody)

    async def work(_: Call, client: Client) -> None:
        try:
            await _repeat(scene, client, seal)
        except MCPError:
            return

    scene.agent(work, user=_nobody)


@way("use the seal of a form that belongs to another run", "impossible")
def _(scene: Scene) -> None:
    other = "name: other\nblocks: [{id: approve, type: Gate, inputs: {message: x}}]\n"

    async def work(_: Call, client: Client) -> None:
        found = await client.session.call_tool("start_workflow", {"yaml": other}, allow_input_required=True)
        assert isinstance(found, InputRequiredResult)
        try:
            await _repeat(scene, client, found.request_state)
        except MCPError:
            return

    scene.agent(work, user=_nobody, toolsets="core")


@way("fill in a form without being able to show one", "impossible")
def _(scene: Scene) -> None:
    seal: str | None = None

    async def see(_: Call, client: Client) -> None:
        nonlocal seal
        seal = await _form(scene, client)

    scene.agent(see, user=_nobody)

    async def work(_: Call, client: Client) -> None:
        try:
            await _repeat(scene, client, seal)
        except MCPError:
            return

    scene.agent(work)


async def _accepts(context: Any, params: Any) -> ElicitResult:
    return ACCEPT


def _in_process(name: str, variables: dict[str, str]) -> None:
    @way(name, "rejected")
    def _(scene: Scene) -> None:
        with pytest.MonkeyPatch.context() as patch:
            for key, value in variables.items():
                patch.setenv(key, value)

            async def work(call: Call, _: Client) -> None:
                await call("control_workflow", workflow_id=scene.run, action="resume", wait_seconds=0)

            scene.agent(work, user=_accepts, mode="legacy")


_in_process("fill in the form as a client inside of an agent's task", {"WORKFLOWS_TASK": "wf_1.each.0"})
_in_process(
    "fill in the form of a server that an agent has started in its shell", {"CLAUDE_CODE_CHILD_SESSION": "1"}
)
_in_process(
    "fill in the form of a server that a step of a run has started", {"WORKFLOWS_MCP_STEP": "wf_1/x#1"}
)
_in_process("fill in the form as a headless agent", {"WORKFLOWS_AGENT": "claude"})


@way("start a server in a shell of its own and fill in its form", "evident")
def _(scene: Scene) -> None:
    async def work(call: Call, _: Client) -> None:
        await call("control_workflow", workflow_id=scene.run, action="resume", wait_seconds=0)

    scene.agent(work, user=_accepts, mode="legacy")
    (decided,) = scene.events(Decided)
    assert (decided.by.via, decided.by.client) == ("form", "mcp")
    (scene.workspace / "published").unlink()


# ---- the table


@pytest.mark.parametrize("it", WAYS, ids=[it.name for it in WAYS])
def test_no_way_around_the_process_is_open(it: Way, tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.prepare(it.at)
    before = scene.journal()
    it.act(scene)
    assert not scene.has_passed, scene.told
    if it.level == "evident":
        return
    journal = scene.journal()
    decided = [event for event in journal if isinstance(event, Decided | BudgetRaised)]
    assert not decided, scene.told
    assert not [event for event in journal if isinstance(event, Reopened) and event.decision is not None]
    waiting = {"gate": ("approve", "gate"), "step": ("write", "agent"), "budget": ("second", "budget")}
    if it.at in waiting:
        address, kind = waiting[it.at]
        frame = scene.state().frames.get(address)
        assert frame is not None, scene.told
        assert frame.kind == kind
    refused = [event for event in journal[len(before) :] if isinstance(event, Refused)]
    if it.level == "rejected":
        assert refused, scene.told
        assert not any(event.by is not None and event.by.human for event in refused)


def test_the_table_has_at_least_forty_ways() -> None:
    assert len({it.name for it in WAYS}) == len(WAYS) >= 40
