"""Real Claude Code with the plugin, and a model that does not want to follow the process: it has to.

The model is a script on loopback. What the hooks decide is in tests/mcp_server/test_hooks.py; here is that Claude Code
asks them, and does what they answer.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from support.claude_code import Claude, claude_code
from support.scripted_model import Turn, last_output, last_result, scripted_model, texts
from workflows_mcp.machine import Identity, events
from workflows_mcp.runs import Service
from workflows_mcp.settings.model import Settings

pytestmark = [pytest.mark.slow, pytest.mark.rows("P4")]

PLUGIN = Path(__file__).resolve().parents[2] / "plugin"
TOOL = "mcp__plugin_workflows_workflows__"
SUB_AGENT = "You are to do one task"
Messages = list[dict[str, Any]]

RELEASE = """\
name: release
description: A plan, the approval of a person, and the release
dialect: stateful
initial_state: {}
steps:
  - {id: plan, type: delegate, instructions: Write the plan, allow_tools: [Edit, "Bash(make test:*)"]}
  - {id: approve, type: gate, message: Release it?}
  - {id: publish, type: delegate, instructions: Publish it}
"""
FAN = """\
name: fan
description: One task of a sub-agent, and a summary
dialect: stateful
initial_state: {}
steps:
  - {id: each, type: foreach, items: "{{ ['a'] }}", agent: "@task", task: one, output_to: done}
  - {id: sum, type: delegate, instructions: Sum it up, needs_state: []}
tasks:
  one:
    inputs: {name: {type: string}}
    steps:
      - {id: look, type: delegate, instructions: Look at it}
"""


class Place:
    """A project with workflows, and Claude Code in it, with a home of its own."""

    def __init__(self, directory: Path) -> None:
        self.project, self.runs = directory / "project", directory / "runs"
        (self.project / ".workflows").mkdir(parents=True)
        for name, text in (("release", RELEASE), ("fan", FAN)):
            (self.project / ".workflows" / f"{name}.yaml").write_text(text, encoding="utf-8")
        (directory / "claude").mkdir()
        self._claude: Claude = claude_code(directory / "claude")
        self._server = directory / "workflows-mcp"
        self._server.write_text(
            f'#!/bin/sh\nexec "{sys.executable}" -m workflows_mcp "$@"\n', encoding="utf-8"
        )
        self._server.chmod(0o755)
        self.session = ""

    def ask(self, prompt: str, *turns: Turn) -> tuple[list[Messages], list[dict[str, Any]]]:
        """What the model was sent, turn by turn, and what Claude Code printed. The conversation continues."""
        with scripted_model([*turns, lambda _: "The script has ended."]) as (address, seen):
            printed = self._claude(
                *("-p", prompt, "--plugin-dir", PLUGIN, "--output-format", "stream-json", "--verbose"),
                *("--allowedTools", f"Bash,Agent,{TOOL.removesuffix('__')}"),
                *(("--resume", self.session) if self.session else ()),
                cwd=self.project,
                environment={
                    "ANTHROPIC_BASE_URL": address,
                    "ANTHROPIC_API_KEY": "none",
                    "WORKFLOWS_MCP_COMMAND": str(self._server),
                    "WORKFLOWS_HOME": str(self.runs),
                    "WORKFLOWS_ELICITATION": "never",
                },
            )
        assert printed.returncode == 0, printed.stdout + printed.stderr
        lines = [json.loads(line) for line in printed.stdout.splitlines()]
        self.session = lines[-1]["session_id"]
        return [it["messages"] for it in seen], lines

    def served(self, work: Callable[[Service], Any]) -> Any:
        async def session() -> Any:
            async with Service.open(Settings(workspace=self.project, home=self.runs)) as service:
                return await work(service)

        return asyncio.run(session())

    def journal(self, run_id: str) -> Sequence[events.Event]:
        async def read(service: Service) -> Sequence[events.Event]:
            return (await service._engine.journal(run_id))[1]

        found: Sequence[events.Event] = self.served(read)
        return found


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def calls(tool: str, **arguments: Any) -> Turn:
    name = tool if tool[0].isupper() else f"{TOOL}{tool}"
    return lambda _: (name, arguments)


def says(text: str) -> Turn:
    return lambda _: text


def last_text(messages: Messages) -> str:
    return texts(messages[-1:])


def test_a_model_that_stops_skips_answers_the_gate_and_is_compacted_finishes_in_order(place: Place) -> None:
    found: dict[str, str] = {}

    def stops(messages: Messages) -> str:
        found["run"] = last_result(messages)["workflow_id"]
        return "All done, the release is out!"

    def submits(step: str) -> Turn:
        return lambda _: (
            f"{TOOL}submit_result",
            {"workflow_id": found["run"], "step_id": step, "result": {"response": step}, "wait_seconds": 0},
        )

    seen, printed = place.ask(
        "Run the workflow release",
        calls("start_workflow", workflow="release"),
        stops,
        submits("publish"),
        calls("Bash", command="git push"),
        submits("plan"),
        lambda _: ("Bash", {"command": f"workflows-mcp answer {found['run']} approve"}),
        says("A person has to approve it."),
    )
    after = [last_text(it) if it[-1]["role"] == "system" else last_output(it) for it in seen[2:]]
    held, skipped, denied, waits, refused = after
    assert "Your turn is not over" in held
    assert "Pending step: 'plan' (delegate)" in held
    assert "'publish'" in skipped
    assert "'plan'" in skipped
    assert "`git push` is not allowed" in denied
    assert json.loads(waits)["status"] == "waiting"
    assert "`workflows-mcp answer` is for the user" in refused
    assert printed[-1]["result"] == "A person has to approve it.", "a gate holds nobody"

    ada = Identity("ada", "terminal", human=True)
    place.served(lambda service: service.decide(found["run"], "approve", by=ada))
    place.ask("/compact", says("<summary>We were releasing something.</summary>"))
    seen, printed = place.ask(
        "Go on", says("It is released."), submits("publish"), says("Now it is released.")
    )
    assert f"This conversation works on the workflow 'release' (run {found['run']})" in texts(seen[0])
    assert "Publish it" in texts(seen[0])
    assert "Pending step: 'publish' (delegate)" in last_text(seen[1])
    assert last_result(seen[2])["status"] == "completed"
    assert printed[-1]["result"] == "Now it is released."
    journal = place.journal(found["run"])
    done = [it.address for it in journal if isinstance(it, events.Answered | events.Decided)]
    assert done == ["plan", "approve", "publish"]
    tried = [it.what for it in journal if isinstance(it, events.Refused)]
    assert tried == ["stop", "step", "tool", "command", "stop"]
    assert list((place.runs / "sessions").glob("*.json")) == []


def test_a_sub_agent_that_stops_early_is_held_to_its_task(place: Place) -> None:
    found: dict[str, str] = {}

    def delegates(messages: Messages) -> tuple[str, dict[str, Any]]:
        found["run"] = last_result(messages)["workflow_id"]
        prompt = f"{SUB_AGENT} {found['run']}.each.0"
        kind = "workflows:workflow-task"
        return "Agent", {
            "description": "x", "prompt": prompt, "subagent_type": kind, "run_in_background": False
        }  # fmt: skip

    def submits(step: str, task: str = "") -> Turn:
        return lambda _: (
            f"{TOOL}submit_result",
            {"workflow_id": found["run"] + task, "step_id": step, "result": {"response": step}},
        )

    main = iter([calls("start_workflow", workflow="fan"), delegates, submits("sum"), says("All is done.")])
    sub = iter(
        [
            lambda _: (f"{TOOL}get_next_step", {"workflow_id": f"{found['run']}.each.0"}),
            says("I have looked at it."),
            submits("look", ".each.0"),
            says("Now I have."),
        ]
    )
    heard: list[str] = []

    def turn(messages: Messages) -> Any:
        is_sub = SUB_AGENT in texts(messages[:1])
        if is_sub:
            heard.append(last_text(messages))
        return next(sub if is_sub else main)(messages)

    _, printed = place.ask("Run the workflow fan", *[turn] * 8)
    assert printed[-1]["result"] == "All is done."
    assert f"(task {found['run']}.each.0) waits for you. Pending step: 'look'" in heard[2]
    done = [it.address for it in place.journal(found["run"]) if isinstance(it, events.Answered)]
    assert done == ["each/0/look", "sum"]


def test_without_a_run_the_hooks_print_nothing(place: Place) -> None:
    seen, printed = place.ask(
        "Say hello",
        calls("list_workflows"),
        calls("Bash", command="echo workflows-mcp answer wf_1"),
        says("Hello"),
    )
    assert printed[-1]["result"] == "Hello"
    assert last_output(seen[2]) == "workflows-mcp answer wf_1"
    assert not any("hook additional context" in texts(messages) for messages in seen)
    for line in printed:
        if line.get("subtype") == "hook_response":
            assert (line["stdout"], line["stderr"], line["exit_code"]) == ("", "", 0)
    assert not (place.runs / "sessions").exists()
