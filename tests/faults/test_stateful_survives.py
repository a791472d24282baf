"""The complete examples of the stateful dialect, with a server that is killed after every single call: no two
calls reach the same process, and neither what is asked nor what comes of it changes."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

from support.mortal_servers import Victims
from support.scripted import ANALYZE, DEPLOY, PLANNING, SMALL_PR, Agents, Answers, Call, example, ran
from support.stdio import served

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


async def driven(call: Call, name: str, answers: Answers, inputs: dict[str, Any]) -> tuple[Any, ...]:
    """The last answer, the state at the end, what was asked of each agent and how many calls each made, all of it
    apart from the id of the run."""
    agents = Agents(call, answers)
    answer = await agents.drive(yaml=example(name), inputs=inputs)
    state = await call("get_workflow_state", workflow_id=agents.run_id, paths=["state"])
    asked = {who: agents.asked_of(who) for who in agents.calls}
    text = json.dumps([answer, state["values"], asked]).replace(agents.run_id, "RUN")
    text = re.sub(r"--expect [0-9a-f]+", "--expect PROOF", text)
    return (*json.loads(text), agents.calls)


def undisturbed(directory: Path, name: str, answers: Answers, inputs: dict[str, Any]) -> tuple[Any, ...]:
    directory.mkdir()
    return served(directory, lambda call: driven(call, name, answers, inputs))


@pytest.mark.rows("S16", "X1")
@pytest.mark.parametrize("name", RUNS)
def test_a_server_that_is_killed_after_every_call_changes_nothing(tmp_path: Path, name: str) -> None:
    answers, inputs = RUNS[name]
    expected = undisturbed(tmp_path / "undisturbed", name, answers, inputs)
    victims = Victims(tmp_path)
    came_of_it = asyncio.run(driven(victims.call, name, answers, inputs))
    assert came_of_it == expected
    answer, values, _, calls = came_of_it
    assert answer["status"] == "completed"
    assert values["state"]
    assert victims.killed == sum(calls.values()) + 1  # one of them told the state


@pytest.mark.rows("X1")
def test_calls_whose_answers_were_lost_with_the_server_are_repeated_without_harm(tmp_path: Path) -> None:
    name, inputs = "analyze-codebase", {"repository": "/repo"}
    answers = {**ANALYZE, "find-files": ran("/repo/a.py\n")}
    expected = undisturbed(tmp_path / "undisturbed", name, answers, inputs)
    assert asyncio.run(driven(Forgetful(tmp_path).call, name, answers, inputs)) == expected
