"""Tools called in a workflow: by the agent, by the server on a real MCP server, and those of the memory."""

from __future__ import annotations

import asyncio
import dataclasses
import sqlite3
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
from pydantic import ValidationError

from support import tool_server
from support.questions import AskedRun
from support.rendered import Service
from workflows_mcp.errors import Forbidden
from workflows_mcp.policy.mcp_client import unpacked
from workflows_mcp.settings.model import Settings
from workflows_mcp.steps.mcp_call import MCPCall
from workflows_mcp.steps.registry import default_registry
from workflows_mcp.values import Value

T = TypeVar("T")
CALL = MCPCall()
SERVER = {"command": sys.executable, "args": [str(Path(tool_server.__file__))]}


@pytest.fixture
def settings(tmp_path: Path, workspace: Path) -> Settings:
    return Settings(workspace=workspace, home=tmp_path / "home", mcp_servers={"hub": SERVER})


def with_service(settings: Settings, work: Callable[[Service], Awaitable[T]]) -> T:
    async def session() -> T:
        async with Service.open(settings) as service:
            return await work(service)

    return asyncio.run(asyncio.wait_for(session(), 30))


def workflow(step: str, *, state: str = "{}") -> str:
    return f"""\
name: calls
version: "1.0.0"
initial_state: {state}
steps:
  - {step}
  - {{id: end, type: return, needs_state: [out], value: "{{{{ state.out }}}}"}}
"""


def step(tool: str, parameters: str = "{}", *, more: str = "") -> str:
    return (
        f"{{id: call, type: mcp_call, needs_state: [], tool: {tool}, parameters: {parameters}, "
        f"output_to: out{more and ', '}{more}}}"
    )


# By the agent


@pytest.mark.rows("S8")
def test_an_agent_is_asked_to_call_the_tool_and_to_hand_on_what_it_gives() -> None:
    inputs = CALL.Inputs.model_validate({"tool": "github.create_issue", "parameters": {"title": "x"}})
    question = CALL.ask(inputs)
    assert question.type == "mcp_call"
    assert question.parameters == {
        "tool": "github.create_issue",
        "args": {"title": "x"},
    }
    for said in (
        "parameters.tool",
        "`mcp__github__create_issue`",
        "exactly parameters.args",
        "everything that it returned",
    ):
        assert said in question.instructions
    bare = CALL.ask(CALL.Inputs.model_validate({"tool": "web_search", "args": '{"q": 1}', "timeout": 9}))
    assert bare.parameters == {"tool": "web_search", "args": {"q": 1}, "timeout": 9}


@pytest.mark.rows("S8")
@pytest.mark.parametrize(
    ("result", "value"),
    [
        ({"number": 7}, {"number": 7}),
        (["a"], ["a"]),
        ('{"number": 7}', {"number": 7}),
        ("done", "done"),
        (None, None),
        ({"error": "of the data"}, {"error": "of the data"}),
        ({"content": [{"type": "text", "text": '{"a": 1}'}]}, {"a": 1}),
        ({"content": [{"type": "text", "text": "x"}], "structuredContent": {"b": 2}}, {"b": 2}),
        ({"content": "a page"}, {"content": "a page"}),
        (
            {"content": [{"type": "text", "text": "x"}], "pages": 3},
            {"content": [{"type": "text", "text": "x"}], "pages": 3},
        ),
    ],
)
def test_whatever_the_agent_hands_on_is_the_result(settings: Settings, result: Value, value: Value) -> None:
    async def work(service: Service) -> Any:
        answer = await service.start(text=workflow(step("github.create_issue")))
        assert answer["action"]["type"] == "mcp_call"
        return await service.submit(answer["workflow_id"], result)

    answer = with_service(settings, work)
    assert answer["status"] == "completed"
    assert answer.get("result") == value


@pytest.mark.rows("S8")
@pytest.mark.parametrize(
    "result",
    [
        {"is_error": True, "error": "there is no such repository"},
        {"isError": True, "content": [{"type": "text", "text": "there is no such repository"}]},
    ],
)
def test_a_failure_that_the_agent_tells_of_fails_the_step(settings: Settings, result: Value) -> None:
    async def work(service: Service) -> Any:
        answer = await service.start(text=workflow(step("github.create_issue")))
        return await service.submit(answer["workflow_id"], result)

    answer = with_service(settings, work)
    assert answer["status"] == "failed"
    assert "the tool 'github.create_issue' failed: there is no such repository" in str(answer["error"])


def test_a_failure_that_gives_no_reason_is_one_all_the_same() -> None:
    assert unpacked({"is_error": True}).message == "it gave no reason"
    assert unpacked({"isError": True, "content": []}).message == "it gave no reason"


@pytest.mark.parametrize(
    "inputs",
    [
        {},
        {"tool": ""},
        {"tool": "x", "parameters": [1]},
        {"tool": "x", "parameters": "no json"},
        {"tool": "x", "a": 1},
    ],
)
def test_what_is_no_call_is_refused(inputs: dict[str, Value]) -> None:
    with pytest.raises(ValidationError):
        CALL.Inputs.model_validate(inputs)


@pytest.mark.rows("R11")
@pytest.mark.parametrize("result", [{"errors": 2}, ["src/one.ts"], "clean", None])
def test_in_the_reactive_dialect_method_and_params_are_tool_and_parameters(result: Value) -> None:
    assert default_registry().find("mcp_call", "reactive") is default_registry().get("MCPCall")
    inputs: dict[str, Value] = {"tool": "check_typescript", "parameters": {"files": ["src/one.ts"]}}
    run = AskedRun(CALL, inputs)
    assert run.action["type"] == "mcp_call"
    assert run.action["parameters"] == {"tool": inputs["tool"], "args": inputs["parameters"]}
    assert run.submit(result).outputs == {"result": result}
    assert CALL.result_output_in("reactive") == CALL.result_output == "result"
    failed = run.submit({"is_error": True, "error": "no compiler"})
    assert (failed.ok, failed.message) == (False, "the tool 'check_typescript' failed: no compiler")


# By the server


@pytest.mark.slow
@pytest.mark.rows("X9")
def test_the_server_calls_the_tool_itself_and_the_result_is_the_same(settings: Settings) -> None:
    async def work(service: Service) -> None:
        on_server = "run_on: server"
        answer = await service.start(
            text=workflow(step("hub.issue", "{title: '{{ 1 + 1 }} left', labels: [a]}", more=on_server))
        )
        assert answer["status"] == "completed"
        assert answer["result"] == {"number": 7, "title": "2 left", "labels": ["a"]}
        answer = await service.start(text=workflow(step("hub.refuse", "{reason: no money}", more=on_server)))
        assert answer["status"] == "failed"
        assert "the tool 'hub.refuse' failed: Error executing tool refuse: no money" in str(answer["error"])
        answer = await service.start(text=workflow(step("hub.isue", more=on_server)))
        assert "has no tool 'isue'" in str(answer["error"])
        more = f"{on_server}, timeout: 0.2"
        answer = await service.start(text=workflow(step("hub.sleep", "{seconds: 60}", more=more)))
        assert answer["status"] == "failed"
        assert "timed out after 0.2 s" in answer["error"]["message"]

    with_service(settings, work)


@pytest.mark.slow
@pytest.mark.rows("X5", "X9")
def test_a_tool_gets_secrets_and_nobody_else_does(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORKFLOWS_SECRET_TOKEN", "s3cr3t-value")

    async def work(service: Service) -> None:
        given = step("hub.say", "{text: 'Bearer {{ secrets.TOKEN }}'}", more="run_on: server")
        answer = await service.start(text=workflow(given))
        assert answer["status"] == "completed", answer
        assert answer["result"] == "Bearer ⟦secret:TOKEN⟧", "it came back, so it was there"
        given = step("save_to_memory", "{key: k, value: 'Bearer {{ secrets.TOKEN }}'}")
        answer = await service.start(text=workflow(given))
        assert answer["status"] == "completed", answer
        assert await service.load_memory("k") == "Bearer [secret:TOKEN⟧"

    with_service(settings, work)
    files = [path for path in settings.home.rglob("*") if path.is_file()]
    assert len(files) > 1, "the log of the store too"
    assert not [path for path in files if b"s3cr3t" in path.read_bytes()]


@pytest.mark.rows("X9")
def test_calls_are_refused_where_programs_may_not_be_started(settings: Settings) -> None:
    strict = dataclasses.replace(settings, allow_commands=False)

    async def work(service: Service) -> None:
        with pytest.raises(Forbidden, match=r"\(MCPCall\): it needs run_commands"):
            await service.start(text=workflow(step("hub.add", more="run_on: server")))

    with_service(strict, work)


# The tools of the memory


@pytest.mark.rows("S18")
def test_the_tools_of_the_memory_are_carried_out_here_without_any_server(settings: Settings) -> None:
    alone = dataclasses.replace(settings, mcp_servers={})

    async def work(service: Service) -> None:
        async def result(tool: str, parameters: str) -> Any:
            answer = await service.start(text=workflow(step(tool, parameters)))
            assert answer["status"] == "completed", answer
            return answer["result"]

        assert await result("load_from_memory", "{key: plan}") == {
            "key": "plan",
            "found": False,
            "value": None,
        }
        saved = await result("save_to_memory", "{key: plan, value: {steps: [1, 2]}}")
        assert saved == {"saved": True, "key": "plan"}
        assert await result("load_from_memory", "{key: plan}") == {
            "key": "plan",
            "found": True,
            "value": {"steps": [1, 2]},
        }
        assert await result("list_memory_keys", "{prefix: pl}") == {"keys": ["plan"], "count": 1}
        assert await result("save_to_memory", "{key: plan, value: null}") == {"saved": False, "key": "plan"}
        assert await result("list_memory_keys", "{}") == {"keys": [], "count": 0}

    with_service(alone, work)


@pytest.mark.rows("S18")
@pytest.mark.parametrize(
    ("tool", "parameters", "says"),
    [
        ("save_to_memory", "{key: x}", "value: Field required"),
        ("load_from_memory", "{kee: x}", "key: Field required; kee: Extra"),
        ("save_to_memory", "{key: '', value: 1}", "must not be empty"),
    ],
)
def test_a_wrong_call_of_the_memory_fails_and_says_why(
    settings: Settings, tool: str, parameters: str, says: str
) -> None:
    answer = with_service(settings, lambda service: service.start(text=workflow(step(tool, parameters))))
    assert answer["status"] == "failed"
    assert says in str(answer["error"])


@pytest.mark.rows("S18")
def test_what_is_remembered_can_be_kept_from_being_changed(settings: Settings) -> None:
    strict = dataclasses.replace(settings, denied_capabilities=frozenset({"modify_state"}))

    async def work(service: Service) -> None:
        answer = await service.start(text=workflow(step("save_to_memory", "{key: k, value: 1}")))
        assert "denied_capabilities has modify_state" in str(answer["error"])
        answer = await service.start(text=workflow(step("list_memory_keys")))
        assert answer["result"] == {"keys": [], "count": 0}

    with_service(strict, work)


@pytest.mark.rows("S18")
def test_what_a_workflow_has_saved_is_there_for_the_next_process(settings: Settings) -> None:
    text = workflow(step("save_to_memory", "{key: k, value: [1]}"))
    with_service(settings, lambda service: service.start(text=text))
    with sqlite3.connect(settings.store) as connection:
        assert connection.execute("SELECT key FROM memory").fetchall() == [("k",)]
    assert with_service(settings, lambda service: service.load_memory("k")) == [1]
