"""Real Claude Code and real Codex, each with a scripted model: they find a workflow, start it, answer three steps and
finish, mend what they did wrong from what the errors say, and their models are shown what we say, whole."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from support.announcing import ANNOUNCE, DRAFT, Announcer
from support.claude_code import claude_code
from support.codex import codex_cli
from support.model_apis import RESPONSES
from support.rendered import Service
from support.scripted_model import scripted_model, texts
from workflows_mcp.mcp_server.tooling import ERROR_CHARS
from workflows_mcp.mcp_server.toolsets import INSTRUCTIONS, tools_of
from workflows_mcp.settings.model import load_settings

PREFIX = "mcp__workflows__"
SERVER = [sys.executable, "-m", "workflows_mcp", "serve"]
DEFINED = {tool.name: tool for tool in tools_of(["core"])}
AT_ONCE = {
    "list_workflows",
    "get_workflow_info",
    "start_workflow",
    "submit_result",
    "get_workflow_status",
}


@dataclass(frozen=True)
class Session:
    """What became of one."""

    announcer: Announcer
    last_seen: list[dict[str, Any]]
    told: list[dict[str, Any]]
    """What the agent printed."""
    store: Path
    project: Path

    @property
    def told_at_last(self) -> str:
        [text] = [it.get("result") or it.get("item", {}).get("text") for it in self.told if _is_last(it)]
        return str(text)

    @property
    def first_words(self) -> str:
        """All that stands in the first request, outside of the descriptions of single tools."""
        first = self.last_seen[0]
        spaces = "\n".join(first.get("namespaces", {}).values())
        return f"{first['system']}\n{texts(first['messages'])}\n{spaces}"

    @property
    def tools(self) -> dict[str, dict[str, Any]]:
        """Ours, as the model has them in its first turn."""
        named = {tool["name"]: tool for tool in self.last_seen[0]["tools"]}
        return {name.removeprefix(PREFIX): it for name, it in named.items() if name.startswith(PREFIX)}


def _is_last(told: dict[str, Any]) -> bool:
    """Whether this is what the agent says in the end: in the words of Claude Code, or of Codex."""
    kinds = {told["type"], told.get("item", {}).get("type")}
    return bool(kinds & {"result", "agent_message"})


class Desk:
    """Where an agent works: a project with the workflow, a store of runs, a home."""

    def __init__(self, directory: Path) -> None:
        self.home, self.project, self.store = (directory / it for it in ("home", "project", "store"))
        self.home.mkdir()
        (self.project / ".workflows").mkdir(parents=True)
        (self.project / ".workflows" / "announce.yaml").write_text(ANNOUNCE, encoding="utf-8")
        self.environment = {"WORKFLOWS_HOME": str(self.store)}


def with_claude_code(directory: Path) -> Session:
    desk, announcer = Desk(directory), Announcer(PREFIX)
    claude = claude_code(desk.home)
    server = {"command": SERVER[0], "args": SERVER[1:], "env": desk.environment}
    settings = directory / "mcp.json"
    settings.write_text(json.dumps({"mcpServers": {"workflows": server}}), encoding="utf-8")
    with scripted_model(announcer.turns) as (address, last_seen):
        said = claude(
            *("-p", "Announce Ada", "--mcp-config", settings, "--strict-mcp-config"),
            *("--allowedTools", "mcp__workflows", "--output-format", "stream-json", "--verbose"),
            cwd=desk.project,
            environment={"ANTHROPIC_BASE_URL": address, "ANTHROPIC_API_KEY": "none"},
        )
    told = [json.loads(line) for line in said.stdout.splitlines()]
    return Session(announcer, last_seen, told, desk.store, desk.project)


def with_codex(directory: Path) -> Session:
    desk, announcer = Desk(directory), Announcer(PREFIX)
    codex = codex_cli(desk.home)
    with scripted_model(announcer.turns, RESPONSES) as (address, last_seen):
        told = codex("Announce Ada", address, SERVER, cwd=desk.project, environment=desk.environment)
    return Session(announcer, last_seen, told, desk.store, desk.project)


WAYS: dict[str, Callable[[Path], Session]] = {"Claude Code": with_claude_code, "Codex": with_codex}


@pytest.fixture(scope="module", params=WAYS)
def session(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Session:
    """One session with each agent; the tests look at it from all sides."""
    return WAYS[request.param](tmp_path_factory.mktemp("agent"))


async def in_the_store(session: Session) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The runs that there are, and what is in the one that the session was about."""
    settings = load_settings({"WORKFLOWS_HOME": str(session.store)}, workspace=session.project)
    async with Service.open(settings) as service:
        return await service.recent(), await service.state(session.announcer.run_id)


pytestmark = pytest.mark.slow


def test_the_run_is_completed_in_the_store(session: Session) -> None:
    assert session.told_at_last == "completed: Ada 2 is out"
    assert len(session.last_seen) == len(session.announcer.turns), "no turn was lost, and none came twice"
    [run], found = asyncio.run(in_the_store(session))
    assert (run["workflow"], run["status"]) == ("announce", "completed")
    assert found["state"] == {
        "project": "Ada",
        "channel": "mailing-list",
        "draft": DRAFT["stdout"],
        "approved": True,
    }


def test_the_model_has_the_tools_of_every_run_in_its_first_turn_with_their_descriptions_whole(
    session: Session,
) -> None:
    assert session.tools.keys() >= AT_ONCE
    for name, shown in session.tools.items():
        defined = DEFINED[name]
        assert shown["description"] == defined.description
        for argument, schema in defined.parameters["properties"].items():
            described = shown["input_schema"]["properties"][argument]
            assert described["description"] == schema["description"], f"{name}.{argument}"


def test_what_may_hold_anything_is_not_shown_as_empty(session: Session) -> None:
    inputs = session.tools["start_workflow"]["input_schema"]["properties"]["inputs"]
    assert inputs["additionalProperties"] is True
    kinds = session.tools["submit_result"]["input_schema"]["properties"]["result"]["anyOf"]
    assert [kind["type"] for kind in kinds] == ["object", "array", "string", "number", "boolean", "null"]
    assert kinds[0]["additionalProperties"] is True
    assert kinds[1]["items"] == {}


def test_the_instructions_of_the_server_reach_the_model_whole(session: Session) -> None:
    assert INSTRUCTIONS in session.first_words


def test_answers_reach_the_model_as_structured_data_and_nothing_else(session: Session) -> None:
    for name in ("discover", "look", "start", "answer_by_the_schema", "name_the_step", "confirm"):
        assert isinstance(json.loads(session.announcer.shown[name]), dict)
    asked = json.loads(session.announcer.shown["start"])
    assert asked["action"]["parameters"]["validation"]["choices"] == ["mailing-list", "forum"]


def test_errors_reach_the_model_whole(session: Session) -> None:
    for turn, ends in {
        "write_a_bad_definition": "fix these first to see the rest)",
        "misspell_the_workflow": ".workflows",
        "misspell_an_input": "workflow 'announce' takes: project (string, required)",
        "answer_beside_the_schema": "Nothing has changed.",
        "misspell_the_step": "}",
        "misspell_an_argument": "it takes: result, step_id, wait_seconds, workflow_id",
    }.items():
        error = session.announcer.shown[turn]
        assert "did you mean" in error or "must be one of" in error
        assert error.endswith(ends)
        assert "ToolSearch" not in error, "the tool was there already"
    assert len(session.announcer.shown["write_a_bad_definition"]) > ERROR_CHARS * 0.9
