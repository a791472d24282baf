"""`WORKFLOWS_TASK`: a server of a sub-agent, which knows its task and nothing else of any run.

The tables are made from the tools themselves: a new tool is in them, and its test fails until it is refused
what it must be refused.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError
from mcp.types import ElicitResult

from support.in_memory import Desk, called
from support.task_client import TaskClient, ask
from workflows_mcp.cli.main import main
from workflows_mcp.errors import RequestError
from workflows_mcp.mcp_server.elicitation import Elicitation, _Answer, _Asked
from workflows_mcp.mcp_server.server import build_server
from workflows_mcp.mcp_server.tooling import ToolRecord
from workflows_mcp.mcp_server.toolsets import toolset, toolsets_for_task, why_not_served
from workflows_mcp.runs.one_task import ALLOWED, TaskService
from workflows_mcp.runs.service import Service
from workflows_mcp.settings.model import TOOLSETS

pytestmark = pytest.mark.rows("P9")

REVIEW = """\
name: review
initial_state: {secret: "of the run"}
steps:
  - {id: review, type: foreach, needs_state: [], items: "{{ [1, 2] }}", agent: "@task", task: one, output_to: found}
  - {id: back, type: return, needs_state: [found], value: "{{ state.found }}"}
tasks:
  one:
    steps:
      - {id: look, type: delegate, needs_state: [], instructions: Look, output_to: seen}
      - {id: again, type: delegate, needs_state: [seen], instructions: "Again {{ state.seen.response }}", output_to: last}
      - {id: inner, type: return, needs_state: [last], value: "{{ state.last.response }}"}
"""
REFUSED = "this server serves only"
IDS = ("workflow_id", "checkpoint_id", "run_id", "task_id")
"""Arguments that say which run or task a call is about."""
ABOUT_NO_RUN = {
    "list_workflows", "get_workflow_info", "validate_workflow_yaml", "get_workflow_schema",
    "workflow_list", "workflow_get_info", "workflow_load_definition",
    "save_to_memory", "load_from_memory", "list_memory_keys",
    "workflow_test_transformation", "workflow_explain_plan",
}  # fmt: skip
"""Tools that read definitions, try expressions out, or use the memory. Every other tool is refused another run."""
VALUES: dict[str, Any] = {
    "workflow": "review", "yaml": REVIEW, "yaml_content": REVIEW, "workflow_yaml": REVIEW,
    "result": {"response": "x"}, "step_id": "look", "status": "cancelled", "action": "cancel", "reason": "r",
    "updates": [{"path": "state.secret", "value": "x"}], "field": "secret", "key": "k", "value": 1,
    "transform": "input", "input": 1,
}  # fmt: skip
"""Arguments that would be valid on a server for everything."""

RECORDS: list[tuple[str, ToolRecord]] = [
    (name, record) for name in TOOLSETS for record in toolset(name).records.values()
]


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    found = Desk(tmp_path)
    found.define("review", REVIEW)
    return found


def started(desk: Desk) -> tuple[str, str]:
    """The ids of two runs, with two tasks each."""

    async def work(client: Client) -> tuple[str, str]:
        one = await called(client, "start_workflow", workflow="review")
        other = await called(client, "start_workflow", workflow="review")
        return one["workflow_id"], other["workflow_id"]

    return desk.serve(work)


def others(run: str, other: str) -> list[str]:
    """Ids that a server for the first task of `run` must refuse, as runs, tasks, checkpoints and in disguise."""
    return [
        other, f"{other}.review.0", run, f"{run}.review.1", f"{run}.review.00", f"{run}.review@2.0",
        f"{run}.review", f"{run}.1", f"pause_{run}_2", f"chk_{other}_1", f"chk_{run}_1", f"{run}.", "wf_0", "",
    ]  # fmt: skip


def with_service(desk: Desk, task: str, work: Callable[[TaskService], Awaitable[None]]) -> None:
    async def session() -> None:
        async with TaskService(Service.open(desk.settings(), recovers=False), task) as service:
            await work(service)

    asyncio.run(asyncio.wait_for(session(), 60))


def arguments_of(record: ToolRecord, workflow_id: str) -> dict[str, Any]:
    """The required arguments of a tool, with this id wherever it takes one."""
    tool = record.make()
    known, required = tool.parameters.get("properties", {}), tool.parameters.get("required", [])
    ids = {name: workflow_id for name in known if name in IDS and name != "task_id"}
    return {name: VALUES[name] for name in required if name not in ids} | ids


# ---- by construction: behind every tool, whether it is served or not


@pytest.mark.parametrize(("name", "record"), RECORDS, ids=[f"{at}-{it.name}" for at, it in RECORDS])
def test_no_tool_of_any_toolset_reaches_another_run_or_task(
    name: str, record: ToolRecord, desk: Desk
) -> None:
    run, other = started(desk)

    async def work(service: TaskService) -> None:
        context = cast(Any, SimpleNamespace(request_context=SimpleNamespace(lifespan_context=service)))
        if record.name in ABOUT_NO_RUN:
            assert not set(record.make().parameters["properties"]) & set(IDS)
            await record.make().call(arguments_of(record, ""), context, 0)
            return
        for wrong in others(run, other):
            with pytest.raises(RequestError) as refused:
                await record.make().call(arguments_of(record, wrong), context, 0)
            assert refused.value.code == "other_task", (wrong, refused.value)

    with_service(desk, f"{run}.review.0", work)


def test_the_ids_in_the_table_are_all_that_tools_have() -> None:
    named = {argument for _, record in RECORDS for argument in record.make().parameters["properties"]}
    assert {it for it in named if it.endswith("_id")} - set(IDS) == {"request_id", "step_id"}


WITH_TASK = [
    (name, record) for name, record in RECORDS if "task_id" in record.make().parameters["properties"]
]


@pytest.mark.parametrize(("name", "record"), WITH_TASK, ids=[f"{at}-{it.name}" for at, it in WITH_TASK])
def test_a_task_id_beside_the_own_id_leads_nowhere_else(name: str, record: ToolRecord, desk: Desk) -> None:
    given = set(record.make().parameters["properties"])
    run, other = started(desk)

    async def work(service: TaskService) -> None:
        context = cast(Any, SimpleNamespace(request_context=SimpleNamespace(lifespan_context=service)))
        ways: list[dict[str, Any]] = [
            {"workflow_id": run, "task_id": "review.1"},
            {"workflow_id": f"{run}.review.0", "task_id": f"{run}.review.1"},
            {"workflow_id": run, "task_id": f"{run}.review.1"},
            {"workflow_id": other, "task_id": "review.0"},
        ]
        if "sub_agent_context" in given:
            ways.append({"workflow_id": run, "sub_agent_context": {"task_id": "review.1"}})
        for way in ways:
            with pytest.raises(RequestError) as refused:
                await record.make().call({**arguments_of(record, run), **way}, context, 0)
            assert refused.value.code == "other_task", way

    with_service(desk, f"{run}.review.0", work)


def test_everything_that_the_service_can_do_is_allowed_by_name_or_refused(desk: Desk) -> None:
    """A method that is added to the service is refused: nothing is passed on that is not listed."""
    run, other = started(desk)

    async def work(service: TaskService) -> None:
        parts = {
            "service": service,
            **{name: getattr(service, name) for name in ALLOWED if name != "service"},
        }
        for part, guard in parts.items():
            behind = guard._part
            allowed = {name for names in ALLOWED[part] for name in names.split()}
            assert all(hasattr(behind, name) for name in allowed), part
            own = {name for name, _ in inspect.getmembers(type(guard), callable)}
            for name in (it for it in dir(behind) if not it.startswith("_")):
                if name in allowed or name in own or name in parts:
                    continue
                with pytest.raises(RequestError, match=REFUSED):
                    getattr(guard, name)
            for name in f"{ALLOWED[part].of_task} {ALLOWED[part].of_run}".split():
                for wrong in others(run, other):
                    with pytest.raises(RequestError, match=REFUSED):
                        await getattr(guard, name)(wrong)

    with_service(desk, f"{run}.review.0", work)


def test_what_shows_a_whole_run_is_refused_for_a_task_and_allowed_for_a_run(desk: Desk) -> None:
    run, _ = started(desk)

    def whole(service: TaskService, workflow_id: str) -> list[Awaitable[Any]]:
        return [
            service.inspector.details(workflow_id),
            service.debugger.debug_info(workflow_id),
            service.debugger.trace_transformations(workflow_id, None),
        ]

    async def refused(service: TaskService) -> None:
        for call in whole(service, f"{run}.review.0"):
            with pytest.raises(RequestError, match=REFUSED):
                await call

    async def allowed(service: TaskService) -> None:
        for call in whole(service, run):
            assert await call

    with_service(desk, f"{run}.review.0", refused)
    with_service(desk, run, allowed)


# ---- through a client


def serve_task(desk: Desk, task: str, work: Callable[[Client], Awaitable[None]], **client: Any) -> None:
    more = {"WORKFLOWS_TASK": task, "WORKFLOWS_TOOLSETS": "all"}
    desk.serve(work, more=more, **client)


def test_its_own_task_is_done_as_on_any_server(desk: Desk) -> None:
    run, _ = started(desk)
    task = f"{run}.review.0"

    async def work(client: Client) -> None:
        found = await called(client, "get_next_step", workflow_id=task)
        assert found["action"]["step_id"] == "look"
        for step, response in (("look", "a"), ("again", "b")):
            found = await called(
                client, "submit_result", workflow_id=task, step_id=step, result={"response": response}
            )
        assert (found["workflow_id"], found["status"]) == (task, "completed")
        assert (await called(client, "get_workflow_state", workflow_id=task))["result"] == "b"
        listed = (await called(client, "get_workflow_status"))["runs"]
        assert [it["workflow_id"] for it in listed] == [task]

    desk.serve(work, more={"WORKFLOWS_TASK": task})

    async def look(client: Client) -> None:
        status = await called(client, "get_workflow_status", workflow_id=run)
        assert [it["workflow_id"] for it in status["action"]["parameters"]["tasks"]] == [f"{run}.review.1"]

    desk.serve(look)


def test_tools_that_start_control_or_list_runs_are_not_served_and_say_why(desk: Desk) -> None:
    run, _ = started(desk)

    async def work(client: Client) -> None:
        there = {tool.name for tool in (await client.list_tools()).tools}
        assert there == {record.name for name, record in RECORDS if name != "graph" and record.serves_task}
        gone = {record.name for _, record in RECORDS} - there
        assert {"start_workflow", "control_workflow", "workflow_start", "execute_workflow"} <= gone
        assert {"list_checkpoints", "resume_workflow", "workflow_resume", "workflow_checkpoint"} <= gone
        for name in sorted(gone):
            with pytest.raises(MCPError, match=REFUSED) as refused:
                await client.call_tool(name, {})
            assert f"Unknown tool: {name}" in refused.value.error.message

    serve_task(desk, f"{run}.review.0", work)


def test_resources_and_prompts_of_another_run_are_refused(desk: Desk) -> None:
    run, other = started(desk)
    task = f"{run}.review.0"

    async def work(client: Client) -> None:
        listed = [str(it.uri) for it in (await client.list_resources()).resources]
        assert [uri for uri in listed if uri.startswith("run://")] == [f"run://{task}"]
        parts = ("", "/graph", "/journal", "/values/state.secret", "/values/blocks.review")
        for wrong in (run, other, f"{run}.review.1", f"{other}.review.0"):
            for part in parts:
                with pytest.raises(MCPError, match=REFUSED):
                    await client.read_resource(f"run://{wrong}{part}")
            with pytest.raises(MCPError, match=REFUSED):
                await client.get_prompt("workflow_sub_agent", {"workflow_id": wrong})
        for part in parts[:3]:
            [content] = (await client.read_resource(f"run://{task}{part}")).contents
            assert other not in getattr(content, "text", "")
        assert [it.name for it in (await client.list_prompts()).prompts] == ["workflow_sub_agent"]
        found = await client.get_prompt("workflow_sub_agent", {"workflow_id": run, "task_id": "review.0"})
        assert task in found.messages[0].content.text  # type: ignore[union-attr]
        with pytest.raises(MCPError, match="Unknown prompt"):
            await client.get_prompt("workflow", {"command": f"resume {other}"})
        with pytest.raises(MCPError):
            await client.read_resource(f"run://{task}/values/state.secret")

    desk.serve(work, more={"WORKFLOWS_TASK": task})


def test_subscriptions_to_another_run_are_refused(desk: Desk) -> None:
    run, other = started(desk)

    async def work(client: Client) -> None:
        await client.subscribe_resource(f"run://{run}.review.0")
        for wrong in (run, other, f"{run}.review.1"):
            with pytest.raises(MCPError, match=REFUSED):
                await client.subscribe_resource(f"run://{wrong}")

    desk.serve(work, more={"WORKFLOWS_TASK": f"{run}.review.0"}, mode="legacy")


def test_completion_knows_only_the_own_task(desk: Desk) -> None:
    run, other = started(desk)
    task = f"{run}.review.0"

    async def work(client: Client) -> None:
        from mcp.types import ResourceTemplateReference

        async def values(argument: str, given: dict[str, str]) -> list[str]:
            ref = ResourceTemplateReference(uri="run://{id}/values/{+path}{?offset,limit}")
            found = await client.complete(ref, {"name": argument, "value": ""}, given)
            return found.completion.values

        assert await values("id", {}) == [task]
        assert await values("path", {"id": other}) == []
        assert await values("path", {"id": run}) == []

    desk.serve(work, more={"WORKFLOWS_TASK": task})


def test_the_tasks_extension_and_forms_of_another_run_are_refused(desk: Desk) -> None:
    run, other = started(desk)

    async def nothing(_: TaskClient) -> None: ...

    async def work(client: Client) -> None:
        for wrong in (run, other, f"{run}.review.1"):
            for method in ("tasks/get", "tasks/update", "tasks/cancel"):
                with pytest.raises(MCPError, match="Failed to retrieve task"):
                    await ask(client.session, method, f"submit_result:{wrong}:1")
        own = f"get_workflow_status:{run}.review.0:1"
        assert (await ask(client.session, "tasks/get", own)).status == "completed"
        await ask(client.session, "tasks/cancel", own)

    desk.serve(work, more={"WORKFLOWS_TASK": f"{run}.review.0"}, extensions=[TaskClient(nothing)])

    async def sealed(service: TaskService) -> None:
        """The text of a repeated call is sealed with a key that all servers of a home share."""
        context = cast(Any, SimpleNamespace(request_context=SimpleNamespace(lifespan_context=service)))

        async def fetch(run_id: str) -> dict[str, Any]:
            return cast(dict[str, Any], (await service.status(run_id)).rendered("status"))

        with pytest.raises(RequestError, match=REFUSED):
            await Elicitation().take_answer(_Answer(_Asked(other, "review", 0), None), context, fetch)

    with_service(desk, f"{run}.review.0", sealed)

    async def still_running(client: Client) -> None:
        for it in (run, other):
            assert (await called(client, "get_workflow_status", workflow_id=it))["status"] == "pending_action"

    desk.serve(still_running)


ASKS = """\
name: asks
elicitation: true
initial_state: {}
steps:
  - {id: approve, type: gate, needs_state: [], message: "Release?"}
"""
PROMPT = "type: prompt, prompt_type: confirm"


@pytest.mark.parametrize("asked", ["type: gate", PROMPT])
def test_no_form_is_shown_to_the_client_of_a_sub_agent(asked: str, desk: Desk) -> None:
    """That client is a program: what it fills in is no answer of a person."""
    desk.define("asks", ASKS.replace("type: gate", asked))
    forms: list[str] = []
    filled: dict[str, Any] = {"confirmed": True} if asked == PROMPT else {"decision": "approve"}

    async def fill_in(_: Any, params: Any) -> ElicitResult:
        forms.append(params.message)
        return ElicitResult(action="accept", content=filled)

    async def start(client: Client) -> str:
        return str((await called(client, "start_workflow", workflow="asks", wait_seconds=0))["workflow_id"])

    run = desk.serve(start)

    async def work(client: Client) -> None:
        for tool in ("get_next_step", "get_workflow_status"):
            more = {"wait_seconds": 0} if tool == "get_workflow_status" else {}
            found = await called(client, tool, workflow_id=run, **more)
            assert found["status"] == ("pending_action" if asked == PROMPT else "waiting")

    for mode in ("auto", "legacy"):
        desk.serve(work, more={"WORKFLOWS_TASK": run}, mode=mode, elicitation_callback=fill_in)
    assert forms == []

    async def on_any_other_server(client: Client) -> None:
        found = await called(client, "get_workflow_status", workflow_id=run)
        assert (found["status"], len(forms)) == ("completed", 1)

    desk.serve(on_any_other_server, elicitation_callback=fill_in)


def test_a_task_with_sub_agents_of_its_own_may_reach_them(desk: Desk) -> None:
    desk.define(
        "nested",
        REVIEW.replace("name: review", "name: nested")
        .replace(
            "      - {id: look, type: delegate, needs_state: [], instructions: Look, output_to: seen}\n",
            "      - {id: look, type: foreach, needs_state: [], items: '{{ [1] }}', agent: '@task', task: two,"
            " output_to: seen}\n",
        )
        .replace("state.seen.response", "state.seen")
        + "  two:\n    steps:\n"
        "      - {id: deep, type: delegate, needs_state: [], instructions: Deep, output_to: it}\n"
        "      - {id: up, type: return, needs_state: [it], value: '{{ state.it.response }}'}\n",
    )

    async def start(client: Client) -> str:
        return str((await called(client, "start_workflow", workflow="nested"))["workflow_id"])

    run = desk.serve(start)

    async def work(client: Client) -> None:
        found = await called(client, "get_next_step", workflow_id=f"{run}.review.0")
        [inner] = found["action"]["parameters"]["tasks"]
        assert inner["workflow_id"] == f"{run}.review.0.look.0"
        step = await called(client, "get_next_step", workflow_id=inner["workflow_id"])
        assert step["action"]["step_id"] == "deep"
        refused = await client.call_tool("get_next_step", {"workflow_id": f"{run}.review.1.look.0"})
        assert refused.is_error

    desk.serve(work, more={"WORKFLOWS_TASK": f"{run}.review.0"})


def test_a_server_for_a_step_that_is_no_task_reaches_no_run_at_all(desk: Desk) -> None:
    run, other = started(desk)

    async def work(client: Client) -> None:
        for wrong in (run, other, f"{run}.review.0", f"{run}.back"):
            result = await client.call_tool("get_workflow_status", {"workflow_id": wrong})
            assert result.is_error
        assert await called(client, "list_workflows")
        assert not [it for it in (await client.list_resources()).resources if str(it.uri).startswith("run:")]

    desk.serve(work, more={"WORKFLOWS_TASK": f"{run}.back"})


def test_its_instructions_name_the_task_and_only_tools_that_are_there(desk: Desk) -> None:
    every = {record.name for _, record in RECORDS}
    for toolsets in (*TOOLSETS, "all"):
        settings = desk.settings(WORKFLOWS_TASK="wf_1.review.0", WORKFLOWS_TOOLSETS=toolsets)
        server = build_server(settings, exits_on_signals=False)
        text = server.instructions or ""
        assert "workflow_id='wf_1.review.0'" in text
        there = {tool.name for tool in asyncio.run(server.list_tools())}
        named = {word for word in text.replace("'", " ").replace(",", " ").split() if word in every}
        assert len(named) >= 2
        assert named <= there


def test_tools_of_graph_are_left_out_and_its_users_get_the_core() -> None:
    assert toolsets_for_task(("graph",)) == ("core",)
    assert toolsets_for_task(("graph", "reactive", "memory")) == ("reactive", "memory")
    assert "not for that" in str(why_not_served("execute_workflow", read_only=False, task="wf_1.a.0"))


def served_by_command(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:  # the task of the settings that the command serves with
    seen: list[str] = []
    monkeypatch.setattr(
        "workflows_mcp.mcp_server.server.serve_stdio", lambda settings: seen.append(settings.task)
    )
    assert main(["serve", *arguments]) == 0
    yield from seen


def test_the_option_can_narrow_what_the_environment_allows_and_never_widen_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WORKFLOWS_HOME", str(tmp_path))
    assert list(served_by_command(["--task", "wf_1.a.0"], monkeypatch)) == ["wf_1.a.0"]
    monkeypatch.setenv("WORKFLOWS_TASK", "wf_1.a.0")
    assert list(served_by_command([], monkeypatch)) == ["wf_1.a.0"]
    assert list(served_by_command(["--task", "wf_1.a.0.b.1"], monkeypatch)) == ["wf_1.a.0.b.1"]
    for wider in ("wf_1", "wf_1.a.1", "wf_1.a.00", "wf_2"):
        assert main(["serve", "--task", wider]) == 2
        assert "WORKFLOWS_TASK allows only 'wf_1.a.0'" in capsys.readouterr().err
    monkeypatch.setenv("WORKFLOWS_TASK", "")
    assert list(served_by_command([], monkeypatch)) == [""]
