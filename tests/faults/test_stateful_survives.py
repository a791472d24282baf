"""The complete examples of the stateful dialect, with a server that is killed after every single call: no two
calls reach the same process, and neither what is asked nor what comes of it changes."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from support.mortal_servers import Victims
from support.scripted import ANALYZE, DEPLOY, PLANNING, SMALL_PR, Agents, Answers, example, ran
from workflows_mcp.service import Service
from workflows_mcp.settings import Settings

pytestmark = pytest.mark.slow
RUNS: dict[str, tuple[Answers, dict[str, Any]]] = {
    "deploy-service": (DEPLOY, {"service_name": "api"}),
    "analyze-codebase": (
        {**ANALYZE, "find-files": ran("/repo/a.py\n/repo/b.js\n")},
        {"repository": "/repo"},
    ),
    "interactive-planning": ({**PLANNING, "generate-research-tasks": '["One", "Two"]'}, {}),
    "pr-automation": (SMALL_PR, {"pr_number": 12}),
}


class Forgetful(Victims):
    """The answers get lost with the process: everything is said to a second one again, word for word."""

    async def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        if tool == "start_workflow":
            arguments["request_id"] = "the run"
        await super().call(tool, **arguments)
        return await super().call(tool, **arguments)


async def undisturbed(
    directory: Path, name: str, answers: Answers, inputs: dict[str, Any]
) -> tuple[dict[str, Any], Agents]:
    directory.mkdir()
    async with Service.open(Settings(workspace=directory, home=directory / "home")) as service:
        does = {
            "start_workflow": lambda yaml, inputs: service.start(text=yaml, inputs=inputs),
            "submit_result": service.submit,
            "get_next_step": service.next_step,
            "get_workflow_status": service.status,
        }

        async def call(tool: str, **arguments: Any) -> dict[str, Any]:
            return await does[tool](**arguments)  # type: ignore[no-any-return, operator]

        agents = Agents(call, answers)
        return await agents.drive(yaml=example(name), inputs=inputs), agents


def compared(answer: dict[str, Any], agents: Agents) -> tuple[Any, ...]:
    """All that was asked of each agent and all that came of it, apart from the id of the run."""
    asked = {who: agents.asked_of(who) for who in agents.calls}
    text = json.dumps([answer, asked]).replace(agents.run_id, "RUN")
    return (*json.loads(text), agents.calls)


@pytest.mark.rows("S16", "X1")
@pytest.mark.parametrize("name", RUNS)
def test_a_server_that_is_killed_after_every_call_changes_nothing(tmp_path: Path, name: str) -> None:
    answers, inputs = RUNS[name]
    expected = compared(*asyncio.run(undisturbed(tmp_path / "undisturbed", name, answers, inputs)))
    victims = Victims(tmp_path)
    agents = Agents(victims.call, answers)
    answer = asyncio.run(agents.drive(yaml=example(name), inputs=inputs))
    assert compared(answer, agents) == expected
    assert answer["status"] == "completed"
    assert victims.killed == sum(agents.calls.values())


@pytest.mark.rows("X1")
def test_calls_whose_answers_were_lost_with_the_server_are_repeated_without_harm(tmp_path: Path) -> None:
    name, inputs = "analyze-codebase", {"repository": "/repo"}
    answers = {**ANALYZE, "find-files": ran("/repo/a.py\n")}
    expected = compared(*asyncio.run(undisturbed(tmp_path / "undisturbed", name, answers, inputs)))
    agents = Agents(Forgetful(tmp_path).call, answers)
    answer = asyncio.run(agents.drive(yaml=example(name), inputs=inputs))
    assert compared(answer, agents) == expected
