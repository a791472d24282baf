"""Every way in which an agent could leave, fake or pass a step, and what comes of it.

A way is *rejected*: nothing happens, and the attempt is in the journal. It is *impossible*: there is nothing to
call, or the call changes nothing of what it is meant to change. Or it is *evident*: what an agent with a shell, or
with a run of its own, can do is seen in the journal, and so in the report.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import pwd
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from mcp.types import ElicitResult, InputRequiredResult

from support.http_server import http_server
from support.task_client import Seen, TaskClient, TaskId, TaskRequest
from support.ways_around import AGENTS, BUDGET, CHECKED, GOOD, RELEASE, UNCHECKED, UNGATED, Call, Scene
from workflows_mcp.machine import (
    Answered,
    BudgetRaised,
    CancelRequested,
    Decided,
    Refused,
    Reopened,
    StateUpdated,
)

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


def deviations(scene: Scene) -> set[str]:
    """What a reader of the report should look at."""
    return {it.kind for it in scene.report().deviations}


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


@way("declare the run complete", "impossible")
def _(scene: Scene) -> None:
    async def work(call: Call, _: Client) -> None:
        await call("workflow_complete", workflow_id=scene.run, status="success")

    scene.agent(work, toolsets="reactive")
    assert scene.state().status != "completed"
    assert not scene.events(Decided), scene.told


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
    report = scene.report(other)
    assert not report.decisions
    assert report.run.definition != scene.report().run.definition
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
    assert [(it.step, it.by.client) for it in scene.report().decisions] == [("approve", "mcp")]
    (scene.workspace / "published").unlink()


# ---- over HTTP, where the agent has a token of its own

AGENT_TOKEN, APPROVER_TOKEN, PLAIN_TOKEN = "agent-token-0123456", "ada-token-012345678", "plain-token-0123456"
TOKENS = {
    "WORKFLOWS_HTTP_TOKEN": PLAIN_TOKEN,
    "WORKFLOWS_HTTP_TOKENS": json.dumps(
        {"claude": {"token": AGENT_TOKEN}, "ada": {"token": APPROVER_TOKEN, "role": "approver"}}
    ),
}


def _over_http(scene: Scene, work: Callable[[Call, Client], Any], token: str, user: Any = None) -> None:
    async def go(url: str) -> None:
        headers = {"Authorization": f"Bearer {token}"}
        async with (
            httpx2.AsyncClient(headers=headers, timeout=60) as http,
            Client(
                streamable_http_client(url, http_client=http), mode="auto", elicitation_callback=user
            ) as client,
        ):
            await work(scene.call_of(client), client)

    with http_server(scene.workspace.parent, more=TOKENS) as server:
        asyncio.run(asyncio.wait_for(go(server.url), 40))


async def _resume(call: Call, scene: Scene) -> None:
    await call("control_workflow", workflow_id=scene.run, action="resume", wait_seconds=0)


@way("fill in the form with the token of an agent", "rejected")
def _(scene: Scene) -> None:
    _over_http(scene, lambda call, _: _resume(call, scene), AGENT_TOKEN, _accepts)
    by = scene.refusals()[-1].by
    assert by is not None
    assert by.name == "claude"


@way("fill in the form with the token that has no name", "rejected")
def _(scene: Scene) -> None:
    _over_http(scene, lambda call, _: _resume(call, scene), PLAIN_TOKEN, _accepts)


@way("fill in the form without a token", "impossible")
def _(scene: Scene) -> None:
    with pytest.raises(BaseExceptionGroup):
        _over_http(scene, lambda call, _: _resume(call, scene), "wrong-token-0123456", _accepts)


@way("fill in the form that an approver was shown", "impossible")
def _(scene: Scene) -> None:
    seals: list[str | None] = []

    async def see(_: Call, client: Client) -> None:
        seals.append(await _form(scene, client))

    async def fill_in(_: Call, client: Client) -> None:
        with pytest.raises(MCPError):
            await _repeat(scene, client, seals[0])

    _over_http(scene, see, APPROVER_TOKEN, _nobody)
    _over_http(scene, fill_in, AGENT_TOKEN, _nobody)


@way("submit the decision with the token of an approver", "rejected")
def _(scene: Scene) -> None:
    async def work(call: Call, _: Client) -> None:
        await call("submit_result", workflow_id=scene.run, step_id="approve", result=YES)

    _over_http(scene, work, APPROVER_TOKEN)


@way("change a definition with the token of an agent", "rejected")
def _(scene: Scene) -> None:
    async def work(call: Call, _: Client) -> None:
        arguments = {"action": "fork", "step_id": "write", "definition": UNGATED}
        await call("control_workflow", workflow_id=scene.run, **arguments)

    _over_http(scene, work, AGENT_TOKEN)


# ---- with a shell, as the same user


@way("answer in a shell without a terminal", "rejected")
def _(scene: Scene) -> None:
    assert scene.terminal("answer", scene.run, "approve", stdin="approve\n\napprove\n") == 2
    assert "only a person at a terminal can decide 'approve': its input is not a terminal" in scene.told


@way("answer in a shell with --step and --comment", "rejected")
def _(scene: Scene) -> None:
    assert scene.terminal("answer", scene.run, "approve", "--step", "approve", "--comment", "ok") == 2


@way("answer in a shell with --yes", "rejected")
def _(scene: Scene) -> None:
    assert scene.terminal("answer", scene.run, "approve", "--yes", stdin="approve\n") == 2


@way("answer the gate from a file of answers", "rejected")
def _(scene: Scene) -> None:
    (scene.workspace / "answers.json").write_text(json.dumps({"approve": YES, "write": GOOD}))
    assert scene.terminal("answer", scene.run, "--answers", "answers.json", "--yes") == 2


@way("run the workflow in the terminal with a file of answers", "impossible")
def _(scene: Scene) -> None:
    (scene.workspace / "answers.json").write_text(json.dumps({"approve": YES, "write": GOOD, "end": "x"}))
    assert scene.terminal("run", "release", "--yes", "--answers", "answers.json") == 3


@way("report the gate as failed in a shell", "rejected")
def _(scene: Scene) -> None:
    assert scene.terminal("answer", scene.run, "--fail", "skip it") == 2


def _on_a_terminal_of(agent: str, value: str = "1") -> None:
    @way(f"answer on a terminal inside of an agent: {agent}", "rejected")
    def _(scene: Scene) -> None:
        code, shown = scene.screen(
            "answer", scene.run, "approve", typed="looks good\napprove\n", **{agent: value}
        )
        assert code == 2
        assert f"it was started inside an agent ({agent} is set)" in shown


for _agent in ("CLAUDECODE", "CODEX_SANDBOX", "AI_AGENT", "CURSOR_AGENT", "GEMINI_CLI", "WORKFLOWS_AGENT"):
    _on_a_terminal_of(_agent)
_on_a_terminal_of("WORKFLOWS_TASK", "wf_1.each.0")


@way("start a workflow whose command answers on a terminal of its own", "rejected")
def _(scene: Scene) -> None:
    program = f"env WORKFLOWS_HOME={scene.home} {sys.executable} -m workflows_mcp answer {scene.run} approve"
    command = f"printf 'ok\\napprove\\n' | script -qec '{program}' /dev/null"
    text = json.dumps({"name": "x", "blocks": [{"id": "x", "type": "Shell", "inputs": {"command": command}}]})

    async def work(call: Call, _: Client) -> None:
        await call("start_workflow", yaml=text)

    with pytest.MonkeyPatch.context() as patch:
        for name in AGENTS:
            patch.delenv(name, raising=False)
        scene.agent(work)
    assert scene.refusals()[-1].what == "command"


@way("type the confirmation on a terminal of its own", "evident")
def _(scene: Scene) -> None:
    code, shown = scene.screen("answer", scene.run, "approve", typed="looks good\napprove\nreported\n")
    assert code == 0, shown
    (decided,) = scene.events(Decided)
    assert (decided.by.via, decided.by.human, decided.comment) == ("terminal", True, "looks good")
    assert [(it.step, it.by.via, it.comment) for it in scene.report().decisions] == [
        ("approve", "terminal", "looks good")
    ]
    (scene.workspace / "published").unlink()


@way("type something else than the name of the step", "impossible")
def _(scene: Scene) -> None:
    for typed in ("\nyes\n", "\ny\n", "\n\n", "\napprov\n", "\nAPPROVE\n"):
        code, shown = scene.screen("answer", scene.run, "approve", typed=typed)
        assert code == 2
        assert "not confirmed: nothing was decided" in shown


@way("change the definition of the run in a shell", "rejected")
def _(scene: Scene) -> None:
    (scene.workspace / "ungated.yaml").write_text(UNGATED)
    assert scene.terminal("fork", scene.run, "write", "--definition", "ungated.yaml") == 2


@way("cancel the run in a shell", "evident")
def _(scene: Scene) -> None:
    assert scene.terminal("cancel", scene.run) in (0, 1)
    (cancelled,) = scene.events(CancelRequested)
    assert (cancelled.by.via, cancelled.by.human) == ("terminal", False)
    assert scene.state().status == "cancelled"


APPROVED = "name: other\nblocks: [{id: approve, type: Gate, inputs: {message: x, approvers: [managers]}}]\n"


@way("name itself an approver in a file of the project", "rejected", "elsewhere")
def _(scene: Scene) -> None:
    user = pwd.getpwuid(os.getuid()).pw_name
    (scene.workspace / "workflows.toml").write_text(f'[approvers]\nmanagers = ["{user}"]\n')

    async def work(call: Call, _: Client) -> None:
        scene.run = (await call("start_workflow", yaml=APPROVED))["workflow_id"]

    scene.agent(work)
    code, shown = scene.screen("answer", scene.run, "approve", typed="\napprove\n")
    assert code == 2
    assert f"{user} on the terminal is not one of the approvers of 'approve': managers" in shown


@way("take the name of an approver", "rejected", "elsewhere")
def _(scene: Scene) -> None:
    async def work(call: Call, _: Client) -> None:
        scene.run = (await call("start_workflow", yaml=APPROVED))["workflow_id"]

    scene.agent(work)
    names = {"LOGNAME": "managers", "USER": "managers", "LNAME": "managers", "USERNAME": "managers"}
    code, shown = scene.screen("answer", scene.run, "approve", typed="\napprove\n", **names)
    assert code == 2
    assert "is not one of the approvers" in shown


# ---- a step and its checks


@way("submit what does not fit the schema", "rejected", "step")
def _(scene: Scene) -> None:
    async def work(call: Call, _: Client) -> None:
        for wrong in ({}, {"text": 1}, "done", {"text": None}, [GOOD], True):
            found = await call("submit_result", workflow_id=scene.run, step_id="write", result=wrong)
            assert "refused" in found

    scene.agent(work)
    assert len(scene.refusals()) == 6


def _step(name: str, level: Level, **arguments: Any) -> None:
    by_call(name, level, "submit_result", "step", workflow_id="RUN", **arguments)


_step("submit for the gate before its time", "rejected", step_id="approve", result=YES)
_step("submit for a later step", "rejected", step_id="end", result="done")
_step("submit for a step that does not exist", "rejected", step_id="skip", result="done")
by_call(
    "complete a typed step without a result", "rejected", "workflow_step_complete", "step",
    workflow_id="RUN", step_id="write",
)  # fmt: skip
by_call(
    "submit with another run's id",
    "impossible",
    "submit_result",
    "step",
    workflow_id="wf_0123456789ab",
    result=GOOD,
)
by_call(
    "jump by a fork from a later step",
    "impossible",
    "control_workflow",
    "step",
    workflow_id="RUN",
    action="fork",
    step_id="end",
)
by_call(
    "retry with a definition without the checks", "rejected", "control_workflow", "step",
    workflow_id="RUN", action="fork", step_id="write", definition=UNCHECKED,
)  # fmt: skip


@way("write the result to the state and complete the step", "rejected", "step")
def _(scene: Scene) -> None:
    async def work(call: Call, _: Client) -> None:
        update = {"path": "raw.text", "value": "not checked"}
        await call("workflow_state_update", workflow_id=scene.run, updates=[update])
        found = await call("workflow_step_complete", workflow_id=scene.run, step_id="write")
        assert "refused" in found

    scene.agent(work, toolsets="reactive")


@way("submit a result that fits but fails its checks", "evident", "step")
def _(scene: Scene) -> None:
    async def work(call: Call, _: Client) -> None:
        found = await call("submit_result", workflow_id=scene.run, step_id="write", result={"text": "a"})
        found = await call(
            "submit_result", workflow_id=scene.run, step_id=found["action"]["step_id"], result=GOOD
        )
        assert found["action"]["rejected_because"] == ["make it checked (test -e checked: exit code 1)"]
        assert found["action"]["results_left"] == 1

    scene.agent(work)
    record = scene.state().root.records["write"]
    assert [(it.round, it.passed) for it in record.checks] == [(1, False), (2, True), (2, False)]
    assert scene.state().frames["write"].kind == "agent"
    assert "rejected_result" in deviations(scene)


@way("wear out the checks", "evident", "step")
def _(scene: Scene) -> None:
    async def work(call: Call, _: Client) -> None:
        step = "write"
        for _attempt in range(3):
            found = await call("submit_result", workflow_id=scene.run, step_id=step, result=GOOD)
            step = found.get("action", {}).get("step_id", "")
        assert found["status"] == "failed"

    scene.agent(work)
    record = scene.state().root.records["write"]
    assert (record.fault.code if record.fault else "", record.rejections) == ("rejected", 3)
    assert deviations(scene) >= {"rejected_result", "failure"}


@way("retry with a definition without the checks that have failed", "impossible", "elsewhere")
def _(scene: Scene) -> None:
    unchecked = CHECKED.replace(', attempts: 1, verify: [{command: "test -e checked"}]', "")

    async def work(call: Call, _: Client) -> None:
        scene.run = (await call("start_workflow", yaml=CHECKED))["workflow_id"]
        assert (await call("submit_result", workflow_id=scene.run, result="x"))["status"] == "failed"
        for action in ({"action": "retry"}, {"action": "fork", "step_id": "write"}):
            found = await call("control_workflow", workflow_id=scene.run, definition=unchecked, **action)
            assert "only a person can change its definition" in found["refused"]

    scene.agent(work)


@way("skip a step by reporting a failure", "evident", "step")
def _(scene: Scene) -> None:
    async def work(call: Call, _: Client) -> None:
        result = {"is_error": True, "error": "not needed"}
        found = await call("submit_result", workflow_id=scene.run, step_id="write", result=result)
        assert found["status"] == "failed"

    scene.agent(work)
    (answered,) = scene.events(Answered)
    assert (answered.ok, answered.message, answered.by.via) == (False, "not needed", "mcp")
    assert "failure" in deviations(scene)


@way("submit another result for a step that is done", "rejected")
def _(scene: Scene) -> None:
    async def work(call: Call, _: Client) -> None:
        other = {"text": "something else"}
        found = await call("submit_result", workflow_id=scene.run, step_id="write", result=other)
        assert "refused" in found

    scene.agent(work)
    assert scene.state().root.records["write"].outputs["text"] == GOOD["text"]


@way("change what was accepted by writing the state", "evident")
def _(scene: Scene) -> None:
    async def work(call: Call, _: Client) -> None:
        update = {"path": "raw.text", "value": "other text"}
        await call("workflow_state_update", workflow_id=scene.run, updates=[update])

    scene.agent(work, toolsets="reactive")
    (updated,) = scene.events(StateUpdated)
    assert updated.changes == [(["raw", "text"], "set", "other text")]
    assert scene.state().frames["approve"].kind == "gate"
    assert "state_updated" in [note.kind for note in scene.report().notes]


# ---- sub-agents


def _task(name: str, level: Level, workflow_id: str, step_id: str, result: Any = "x") -> None:
    by_call(name, level, "submit_result", "tasks", workflow_id=workflow_id, step_id=step_id, result=result)


_task("decide the gate of one's own task", "rejected", "RUN.each.0", "approve", YES)
_task("decide the gate of a task from the run", "rejected", "RUN", "each/0/approve", YES)
_task("decide as a sub-agent for the run", "rejected", "RUN.each.0", "review", YES)
_task("submit for the task of another sub-agent", "rejected", "RUN.each.1", "each/0/approve", YES)
_task("submit the step of the run before its tasks are done", "rejected", "RUN", "review", "done")
_task("submit the result of all tasks at once", "rejected", "RUN", "each", ["A", "B"])
by_call(
    "give up the task whose gate waits",
    "impossible",
    "control_workflow",
    "tasks",
    workflow_id="RUN.each.0",
    action="retry",
)


# ---- budgets

by_call(
    "submit for the step that waits for more budget",
    "rejected",
    "submit_result",
    "budget",
    workflow_id="RUN",
    step_id="second",
    result="x",
)
by_call(
    "decide about the budget",
    "rejected",
    "submit_result",
    "budget",
    workflow_id="RUN",
    result={"decision": "allow"},
)
by_call(
    "resume the run without budget",
    "impossible",
    "control_workflow",
    "budget",
    workflow_id="RUN",
    action="resume",
)
by_call(
    "raise the budget by a changed definition", "rejected", "control_workflow", "budget",
    workflow_id="RUN", action="retry", definition=BUDGET.replace("agent_steps: 1", "agent_steps: 100"),
)  # fmt: skip


@way("raise the budget in a shell", "rejected", "budget")
def _(scene: Scene) -> None:
    assert scene.terminal("budget", scene.run, "agent_steps=100", stdin="yes\n") == 2


@way("answer the budget in a shell", "rejected", "budget")
def _(scene: Scene) -> None:
    assert scene.terminal("answer", scene.run, "allow", stdin="100\nsecond\n") == 2


@way("do the steps again in a fork to have their budget back", "impossible", "budget")
def _(scene: Scene) -> None:
    async def work(call: Call, _: Client) -> None:
        made = await call(
            "control_workflow", workflow_id=scene.run, action="fork", step_id="first", keep=True
        )
        assert made["decisions"][0]["step_id"] == "first"
        assert made["decisions"][0]["kind"] == "budget"

    scene.agent(work)


# ---- the table


@pytest.mark.parametrize("it", WAYS, ids=[it.name for it in WAYS])
def test_no_way_around_the_process_is_open(it: Way, tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.prepare(it.at)
    before = scene.journal() if scene.run else []
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
        assert deviations(scene) & {"refused", "rejected_result"}


def test_the_table_has_at_least_forty_ways() -> None:
    assert len({it.name for it in WAYS}) == len(WAYS) >= 40
