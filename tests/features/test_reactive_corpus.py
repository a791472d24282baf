"""Reactive workflows that other people wrote, with what an agent is handed, what the server carries out, and the
state at the start and at the end.

They are not part of this repository: the tests run where a folder of them is found beside it, or where
WORKFLOWS_CORPUS points to one.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters

from support.programs import Programs
from support.reactive_agents import MESSAGE, Agents, Call, Handed, Who, tools_of
from support.rendered import Service
from support.stdio import serving
from support.stepping_agents import SteppingAgents, reactive_tools_of
from workflows_mcp.errors import InvalidResult
from workflows_mcp.limits import Limits
from workflows_mcp.machine.events import StepDone
from workflows_mcp.settings.model import Settings

BESIDE = Path(__file__).resolve().parents[3] / "shared" / "corpus"
CORPUS = Path(os.environ.get("WORKFLOWS_CORPUS", BESIDE)) / "reactive"
TRANSFORMS = json.loads((CORPUS / "transform_cases.json").read_text()) if CORPUS.is_dir() else []
CASES = [json.loads(path.read_text()) for path in sorted((CORPUS / "cases").glob("*.json"))]

pytestmark = pytest.mark.skipif(not CASES, reason="no corpus of workflows beside this repository")

NOW = "2024-01-20T10:00:00Z"
UUID = "00000000-0000-4000-8000-000000000000"
RUN = "wf_abc123"
PRESENT = {
    NOW: re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z"),
    UUID: re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"),
}
"""Values that differ from run to run, and what they look like."""
NAMELESS = re.compile(r"(^|\.)\d+\.\w+$")
"""What a step is called whose author gave it no id: its position and its type."""
BY_NAME = ("test_results", "file_batches")
"""What transforms read beside the fields that they come from."""
INCLUDED = [("npm run coverage --silent", 0)]
"""What the workflow runs that release:prepare includes; the cases list the commands of the main workflow alone."""
ABSENT = "<absent>"
WHOLE = Limits(preview_chars=1_000_000, answer_chars=10_000_000)
"""Answers that nothing is cut from."""


@pytest.fixture
def settings(tmp_path: Path, workspace: Path) -> Settings:
    return Settings(workspace=workspace, home=tmp_path / "home", limits=WHOLE)


@pytest.mark.rows("R1", "R2", "R3", "R4", "R5", "R8", "R9", "R10", "R11", "R12", "R13", "R14", "R15", "R16")
@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_a_real_workflow_hands_out_and_leaves_what_is_expected(
    case: dict[str, Any], settings: Settings, workspace: Path, programs: Programs
) -> None:
    lay_out(case, workspace, programs)
    expected = case["expect"]

    async def go() -> None:
        async with Service.open(settings) as service:
            agents = Agents(tools_of(service), replies_of(case))
            answer = await agents.drive(workflow=case["workflow"], inputs=case["inputs"])
            assert answer["status"] == "completed", answer.get("error")
            assert not agents.left
            assert_handed(agents, expected["steps"])
            assert_alike(answer["state"], expected["final_state"], agents.run_id, "state")
            carried_out = [(it["command"], it["exit_code"]) for it in expected["server_executed"]]
            included = INCLUDED if case["workflow"] == "release:prepare" else []
            assert await commands(service, agents.run_id) == [*carried_out, *included]
            for command in expected["server_executed"]:
                for update in command["state_updates"]:
                    found = value_at(answer["state"], update["path"])
                    assert_alike(found, update["value"], agents.run_id, update["path"])

    asyncio.run(asyncio.wait_for(go(), 60))


@pytest.mark.rows("R17", "R19")
@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_a_real_workflow_hands_out_atomic_steps_that_say_where_their_results_go(
    case: dict[str, Any], settings: Settings, workspace: Path, programs: Programs
) -> None:
    lay_out(case, workspace, programs)

    async def go() -> None:
        async with Service.open(settings) as service:
            agents = SteppingAgents(reactive_tools_of(service), replies_of(case))
            final = await agents.drive(case["workflow"], case["inputs"])
            assert (final["success"], final["status"]) == (True, "completed")
            assert not agents.left
            assert_handed(agents, case["expect"]["steps"], with_updates=True)
            assert_alike(final["final_state"], case["expect"]["final_state"], agents.run_id, "state")

    asyncio.run(asyncio.wait_for(go(), 60))


@pytest.mark.rows("R3", "R4", "R7", "R19")
@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_a_real_workflow_begins_with_the_expected_state(
    case: dict[str, Any], settings: Settings, workspace: Path, programs: Programs
) -> None:
    file = lay_out(case, workspace, programs)
    before = "\nsteps:\n  - {id: before, type: user_input, prompt: shall it begin?}\n"
    text = file.read_text(encoding="utf-8")
    assert text.count("\nsteps:\n") == 1
    file.write_text(text.replace("\nsteps:\n", before), encoding="utf-8")

    async def go() -> None:
        async with Service.open(settings) as service:
            answer = await service.start(workflow=case["workflow"], inputs=case["inputs"])
            assert answer["action"]["step_id"] == "before"
            state = (await service.state(answer["workflow_id"]))["state"]
            assert_alike(state, case["expect"]["start_state"], answer["workflow_id"], "state")
            answer = await service.step_protocol.start(case["workflow"], case["inputs"], 30.0)
            assert answer["step"]["id"] == "before"
            assert_alike(answer["state"], case["expect"]["start_state"], answer["workflow_id"], "state")

    asyncio.run(asyncio.wait_for(go(), 60))


@pytest.mark.rows("R4", "R5", "R6")
@pytest.mark.parametrize("case", TRANSFORMS, ids=[case["source"] for case in TRANSFORMS])
def test_real_computed_fields_have_the_expected_values(case: dict[str, Any], settings: Settings) -> None:
    document = {
        "name": "fields",
        "default_state": {"raw": case["raw"]},
        "state_schema": {
            "raw": dict.fromkeys(read_by(case["computed"]), "any"),
            "computed": case["computed"],
        },
        "steps": [{"type": "user_message", "message": "done"}],
    }

    async def go() -> None:
        async with Service.open(settings) as service:
            answer = await service.start(text=json.dumps(document))
            overview = await service.state(answer["workflow_id"])
        computed = {name: overview["state"].get(name, ABSENT) for name in case["computed"]}
        expected = {name: case["expected_computed"].get(name, ABSENT) for name in case["computed"]}
        expected = {name: None if value == "Infinity" else value for name, value in expected.items()}
        assert computed == expected
        wrong = [error.partition(":")[0] for error in case["transform_errors"]]
        assert list(overview.get("computed_errors", {})) == wrong

    asyncio.run(asyncio.wait_for(go(), 60))


@pytest.mark.rows("R12")
def test_an_answer_of_the_user_that_does_not_fit_is_refused_and_asked_for_again(
    settings: Settings, workspace: Path, programs: Programs
) -> None:
    case = named("A14_deploy_env")
    lay_out(case, workspace, programs)

    async def go() -> None:
        async with Service.open(settings) as service:
            asked = await service.start(workflow=case["workflow"])
            run_id = asked["workflow_id"]
            with pytest.raises(InvalidResult, match="Please enter: dev, staging, or prod"):
                await service.submit(run_id, "qa")
            assert (await service.status(run_id))["action"] == asked["action"]
            assert (await service.state(run_id))["state"] == {}
            answer = await service.submit(run_id, "prod")
            assert answer["action"]["parameters"]["command"] == "./deploy-interactive.sh prod"

    asyncio.run(asyncio.wait_for(go(), 60))


@pytest.mark.rows("R2", "R13")
def test_a_name_that_nobody_defines_is_told_and_never_looped_over(
    settings: Settings, workspace: Path, programs: Programs
) -> None:
    case = named("A07_release_prepare_ready")
    lay_out(case, workspace, programs)

    async def go() -> None:
        async with Service.open(settings) as service:
            answer = await service.start(workflow=case["workflow"])
            answer = await service.submit(answer["workflow_id"], "staging")
            assert answer["status"] == "failed"
            assert "all_source_files" in answer["error"]["message"]

    asyncio.run(asyncio.wait_for(go(), 60))


@pytest.mark.slow
@pytest.mark.rows("R1", "R15", "R16", "R17")
def test_main_agent_and_sub_agents_drive_one_run_each_in_a_session_of_its_own(
    tmp_path: Path, workspace: Path, programs: Programs
) -> None:
    """Every session is a server process of its own; they share the runs."""
    case = named("A01_standards_fix_HEAD")
    lay_out(case, workspace, programs)
    session = sessions(tmp_path)

    async def go() -> None:
        async with session() as call:
            agents = Agents(call, replies_of(case), session)
            answer = await agents.drive(workflow=case["workflow"], inputs=case["inputs"])
            assert answer["status"] == "completed", answer.get("error")
            assert not agents.left
            assert_handed(agents, case["expect"]["steps"])
            paths = list(case["expect"]["final_state"])
            found = await call("get_workflow_state", workflow_id=agents.run_id, paths=paths)
            assert_alike(found["values"], case["expect"]["final_state"], agents.run_id, "state")

    asyncio.run(asyncio.wait_for(go(), 120))


@pytest.mark.slow
@pytest.mark.rows("R1", "R15", "R16", "R17", "R19")
def test_the_same_goes_with_the_tools_of_the_dialect(
    tmp_path: Path, workspace: Path, programs: Programs
) -> None:
    case = named("A01_standards_fix_HEAD")
    lay_out(case, workspace, programs)
    session = sessions(tmp_path, toolsets="reactive")

    async def go() -> None:
        async with session() as call:
            agents = SteppingAgents(call, replies_of(case), session)
            final = await agents.drive(case["workflow"], case["inputs"])
            assert final["success"] is True, final
            assert not agents.left
            assert_handed(agents, case["expect"]["steps"], with_updates=True)
            assert_alike(final["final_state"], case["expect"]["final_state"], agents.run_id, "state")

    asyncio.run(asyncio.wait_for(go(), 120))


# Setting the scene


def sessions(directory: Path, toolsets: str = "core") -> Callable[[], AbstractAsyncContextManager[Call]]:
    """Each session begins a server, and gives a way to call its tools."""
    command, environment, workspace = serving(directory, toolsets)
    environment |= {"PATH": os.environ["PATH"], "WORKFLOWS_LIMIT_ANSWER_CHARS": str(WHOLE.answer_chars)}
    parameters = StdioServerParameters(command=command[0], args=command[1:], env=environment, cwd=workspace)

    @asynccontextmanager
    async def session() -> AsyncIterator[Call]:
        async with Client(parameters) as client:

            async def call(tool: str, **arguments: Any) -> dict[str, Any]:
                result = await client.call_tool(tool, arguments)
                assert not result.is_error, result.content
                assert isinstance(result.structured_content, dict)
                return result.structured_content

            yield call

    return session


def named(case_id: str) -> dict[str, Any]:
    return next(case for case in CASES if case["id"] == case_id)


def lay_out(case: dict[str, Any], workspace: Path, programs: Programs) -> Path:
    """Put the workflow, what it imports, and the programs and files that it uses in their places."""
    folder = workspace / ".aromcp" / "workflows"
    (folder / "shared").mkdir(parents=True)
    for path in CORPUS.glob("shared_*.yaml"):
        shutil.copy(path, folder / "shared" / path.name.removeprefix("shared_"))
    for name, script in case["fixtures"]["bin"].items():
        programs.add(name, script)
    for name, text in case["fixtures"]["files"].items():
        (workspace / name).write_text(text, encoding="utf-8")
    file = folder / f"{case['workflow']}.yaml"
    shutil.copy(CORPUS / Path(case["yaml"]).name, file)
    return file


def read_by(computed: dict[str, Any]) -> set[str]:
    """The raw fields that computed ones come from, whether they have a value or not."""
    sources = " ".join(str(spec.get("from")) for spec in computed.values())
    return {*re.findall(r"raw\.(\w+)", sources), *BY_NAME} - set(computed)


def replies_of(case: dict[str, Any]) -> dict[Who, list[Any]]:
    replies: dict[Who, list[Any]] = {}
    for given in case["agent_replies"]:
        replies.setdefault(given["task"], []).append(given["reply"])
    return replies


async def commands(service: Service, run_id: str) -> list[tuple[str, int]]:
    """The commands that the server has carried out, in order, with their exit codes."""
    _, events = await service._engine.journal(run_id)
    outputs = [event.outputs for event in events if isinstance(event, StepDone)]
    return [(it["command_executed"], it["exit_code"]) for it in outputs if "command_executed" in it]


# Comparing


def assert_handed(
    agents: Agents | SteppingAgents, steps: list[dict[str, Any]], *, with_updates: bool = False
) -> None:
    """Each agent was handed just these steps, in this order. `with_updates`: and told what becomes of results."""
    expected: dict[Who, list[dict[str, Any]]] = {}
    for step in asked_of_agents(steps):
        expected.setdefault(step.get("task"), []).append(step)
    assert set(agents.handed) == set(expected)
    for who, wanted in expected.items():
        handed = agents.handed[who]
        assert [it.type for it in handed] == [step["type"] for step in wanted], who
        for found, step in zip(handed, wanted, strict=True):
            assert_same_step(found, step, agents.run_id, with_updates)


def asked_of_agents(steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The server itself changes the state, and carries out tasks that ask nothing of an agent."""
    asked = [step for step in steps if step["type"] != "state_update"]
    driven = {step.get("task") for step in asked}
    tasks = [[task["task_id"] for task in step["definition"].get("tasks", [])] for step in asked]
    return [step for step, of in zip(asked, tasks, strict=True) if not of or driven & set(of)]


def assert_same_step(found: Handed, step: dict[str, Any], run_id: str, with_updates: bool) -> None:
    if found.type != MESSAGE and not NAMELESS.search(step["id"]):
        assert found.step == step["id"].rpartition(".")[2]
    definition = dict(step["definition"])
    if not with_updates:
        definition.pop("state_update", None)
    if "tasks" in definition:
        definition["tasks"] = [complete(task) for task in definition["tasks"]]
    beside = {"sub_agent_prompt", "max_parallel"} & set(found.definition)
    given = {key: value for key, value in found.definition.items() if key not in beside}
    assert_alike(given, definition, run_id, step["id"])


def complete(task: dict[str, Any]) -> dict[str, Any]:
    """The context holds all fields of the item, its `id` too, and then not the item again. Ids are not in it:
    a sub-agent is told one id, that of its task."""
    item = task["context"]["item"]
    own = item if isinstance(item, dict) else {}
    hidden = {"workflow_id", "task_id", *(("item",) if own else ())}
    context = {name: value for name, value in task["context"].items() if name not in hidden}
    return {**task, "context": {**context, **own}}


def assert_alike(found: Any, expected: Any, run_id: str, where: str) -> None:
    """Equal, but for times, ids of runs and random ids, which only have to look like such."""
    if isinstance(expected, dict):
        assert isinstance(found, dict), (where, found)
        assert set(found) == set(expected), where
        for key, value in expected.items():
            assert_alike(found[key], value, run_id, f"{where}.{key}")
    elif isinstance(expected, list):
        assert isinstance(found, list), (where, found)
        assert len(found) == len(expected), where
        for number, (item, value) in enumerate(zip(found, expected, strict=True)):
            assert_alike(item, value, run_id, f"{where}[{number}]")
    elif expected in (NOW, UUID):
        assert PRESENT[expected].fullmatch(str(found)), (where, found)
    else:
        value = run_id if expected == RUN else expected
        assert (type(found), found) == (type(value), value), where


def value_at(state: dict[str, Any], path: str) -> Any:
    """What stands at raw.a.b in a flat state."""
    value: Any = state
    for key in path.split(".")[1:]:
        value = value[key]
    return value
