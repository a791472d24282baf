"""The terminal plays the agent of a workflow, and its sub-agents."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from support.screen import Screen
from workflows_mcp.cli.run import parse_typed
from workflows_mcp.runs.service import CommandRunner
from workflows_mcp.settings.model import Settings

TALK = """\
name: talk
version: "1.0.0"
steps:
  - {id: hello, type: prompt, needs_state: [], message: "Welcome, traveller.", prompt_type: info}
  - {id: sure, type: prompt, needs_state: [], message: "Go on?", prompt_type: confirm, output_to: sure}
  - id: where
    type: prompt
    needs_state: []
    message: "Which way?"
    prompt_type: choice
    options: [north, south]
    output_to: where
  - id: who
    type: prompt
    needs_state: []
    message: "Your name?"
    prompt_type: text
    validation: {min_length: 2}
    output_to: who
  - id: end
    type: return
    needs_state: [sure, where, who]
    value:
      sure: "{{ state.sure.confirmed }}"
      where: "{{ state.where.selected }}"
      who: "{{ state.who.input }}"
"""
WORK = """\
name: work
version: "1.0.0"
steps:
  - {id: list, type: shell, needs_state: [], command: "ls *.txt", output_to: listing}
  - id: each
    type: foreach
    needs_state: [listing]
    items: "{{ state.listing.stdout.split() }}"
    agent: "@task"
    task: one
    output_to: found
  - {id: end, type: return, needs_state: [found], value: "{{ state.found }}"}
tasks:
  one:
    inputs: {file: {type: string, required: true}}
    steps:
      - {id: read, type: shell, needs_state: [], command: "cat {{ inputs.file }}", output_to: text}
      - id: judge
        type: delegate
        needs_state: [text]
        instructions: "Judge: {{ state.text.stdout }}"
        output_to: verdict
      - id: back
        type: return
        needs_state: [verdict]
        value: {file: "{{ inputs.file }}", verdict: "{{ state.verdict.response }}"}
"""


@pytest.fixture
def work(terminal: Any) -> Any:
    terminal.write("work.yaml", WORK)
    terminal.write("a.txt", "alpha")
    terminal.write("b.txt", "beta")
    return terminal


@pytest.mark.rows("S9")
def test_questions_are_asked_and_answered_by_y_a_number_and_a_text_that_fits(terminal: Any) -> None:
    terminal.write("talk.yaml", TALK)
    screen = Screen(terminal, "run", "talk.yaml")
    screen.wait_for("Welcome, traveller.")
    screen.wait_for("Go on?")
    screen.wait_for("(y / n)")
    screen.type("perhaps\n")
    screen.wait_for("does not fit what 'sure' asks for")
    screen.type("y\n")
    screen.wait_for("  1  north")
    screen.wait_for("  2  south")
    screen.type("2\n")
    screen.wait_for("Your name?")
    screen.type("A\n")
    screen.wait_for("does not fit what 'who' asks for")
    screen.type("Ada\n")
    assert screen.end() == (0, "sure: true\nwhere: south\nwho: Ada\n")


def test_a_command_is_run_once_the_person_agrees_and_other_results_are_typed(work: Any) -> None:
    screen = Screen(work, "run", "work.yaml", "--json")
    screen.wait_for("ls *.txt")
    screen.wait_for("run this command? (y / n) > ")
    screen.type("y\n")
    screen.wait_for("each/0/read")
    screen.wait_for("cat a.txt")
    screen.type("n\n")
    screen.wait_for("its result, as JSON or text > ")
    screen.type('{"stdout": "typed", "stderr": "", "exit_code": 0}\n')
    screen.wait_for("each/1/read")
    screen.type("yes\n")
    screen.wait_for("Judge: typed")
    screen.type("good\n")
    screen.wait_for("Judge: beta")
    screen.type("better\n")
    code, out = screen.end()
    assert code == 0
    assert '"result":[{"file":"a.txt","verdict":"good"},{"file":"b.txt","verdict":"better"}]' in out


def test_answers_come_from_a_file_by_step_by_task_and_in_turn(work: Any) -> None:
    work.write("answers.yaml", "each/1/judge: special\njudge: [first]\n")
    said = work.run("run", "work.yaml", "--yes", "--answers", "answers.yaml", "--json")
    assert said.code == 0, said.err
    assert said.data["result"] == [
        {"file": "a.txt", "verdict": "first"},
        {"file": "b.txt", "verdict": "special"},
    ]
    assert "exit code 0" in said.err


def test_a_whole_conversation_can_be_answered_from_json(terminal: Any) -> None:
    terminal.write("talk.yaml", TALK)
    terminal.write("a.json", '{"sure": "no", "where": {"selected": "north"}, "who": "Grace", "whoo": 1}')
    said = terminal.run("run", "talk.yaml", "--answers", "a.json")
    assert (said.code, said.out) == (0, "sure: false\nwhere: north\nwho: Grace\n"), said.err
    assert "Welcome, traveller." in said.err
    assert "unused answer: no step 'whoo' asked a question" in said.err


def test_what_no_answer_was_given_for_waits_and_can_be_gone_on_with(work: Any) -> None:
    waiting = work.run("run", "work.yaml", "--json")
    assert waiting.code == 3
    assert waiting.data["action"]["step_id"] == "list"
    work.write("answers.yaml", "judge: [good]\n")
    run_id = waiting.data["workflow_id"]
    waiting = work.run("answer", run_id, "--yes", "--answers", "answers.yaml", "--json")
    assert waiting.code == 3
    assert waiting.data["action"]["step_id"] == "each/1/judge"
    assert f"workflows-mcp answer {run_id} VALUE" in waiting.err
    said = work.run("answer", run_id, "late")
    assert said.code == 0
    assert '"verdict":"late"' in said.out


def test_a_task_can_be_answered_and_shown_by_its_own_id(work: Any) -> None:
    work.write(
        "answers.yaml", 'read: {stdout: "x", exit_code: 0}\nlist: {stdout: "a.txt b.txt", exit_code: 0}\n'
    )
    run_id = work.run("run", "work.yaml", "--answers", "answers.yaml", "--json").data["workflow_id"]
    task = f"{run_id}.each.1"
    assert work.run("show", task, "--json").data["action"]["step_id"] == "judge"
    said = work.run("answer", task, "fine", "--step", "judge", "--json")
    assert (said.code, said.data["action"]["step_id"]) == (3, "each/0/judge")
    assert "✓ judge" in work.run("show", task).out
    assert work.run("cancel", task).code == 2


def test_an_answer_that_does_not_fit_is_refused_and_the_run_kept(terminal: Any) -> None:
    terminal.write("talk.yaml", TALK)
    terminal.write("a.yaml", "sure: perhaps\n")
    said = terminal.run("run", "talk.yaml", "--answers", "a.yaml", "--json")
    assert said.code == 3
    assert (said.data["status"], said.data["action"]["step_id"]) == ("pending_action", "sure")
    assert said.data["workflow_id"].startswith("wf_")
    assert "the answers file: the result does not fit what 'sure' asks for" in said.err
    assert terminal.run("runs", "--json").data["runs"][0]["status"] == "pending_action"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[1]", "must contain answers by step id"),
        ("a: [", "neither YAML nor JSON"),
        (None, "cannot read answers from"),
    ],
)
def test_a_file_of_answers_that_is_none_is_refused_before_anything_runs(
    terminal: Any, text: str | None, expected: str
) -> None:
    terminal.write("talk.yaml", TALK)
    if text is not None:
        terminal.write("answers.yaml", text)
    said = terminal.run("run", "talk.yaml", "--answers", "answers.yaml")
    assert said.code == 2
    assert expected in said.err
    assert terminal.run("runs", "--json").data["runs"] == []


def test_a_command_beyond_its_timeout_is_ended_with_all_that_it_started(terminal: Any) -> None:
    step = (
        "{id: slow, type: shell, needs_state: [], command: 'sleep 60 & sleep 60', timeout: 1, output_to: out}"
    )
    end = "{id: end, type: return, needs_state: [out], value: '{{ state.out.exit_code }}'}"
    terminal.write("slow.yaml", f'name: slow\nversion: "1"\nsteps:\n  - {step}\n  - {end}\n')
    said = terminal.run("run", "slow.yaml", "--yes")
    assert "exit code 124" in said.err


def test_an_interruption_ends_the_command_that_the_terminal_runs_and_keeps_the_run(terminal: Any) -> None:
    step = "{id: slow, type: shell, needs_state: [], command: 'echo $$ > pid; sleep 97 & wait'}"
    terminal.write("slow.yaml", f'name: slow\nversion: "1"\nsteps:\n  - {step}\n')
    process = subprocess.Popen(
        [*terminal.command, "run", "slow.yaml", "--yes"],
        cwd=terminal.workspace,
        env=terminal.environment,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    until, pid = time.monotonic() + 20, terminal.workspace / "pid"
    while not (pid.exists() and pid.read_text().strip()):
        assert time.monotonic() < until
        time.sleep(0.01)
    group = int(pid.read_text())
    started = [it.pid for it in psutil.Process(group).children()]
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=20)
    assert (process.returncode, b"is parked" in said) == (130, True)
    psutil.wait_procs([psutil.Process(it) for it in (group, *started) if psutil.pid_exists(it)], timeout=10)
    assert not any(psutil.pid_exists(it) for it in (group, *started))
    assert terminal.run("runs", "--json").data["runs"][0]["status"] == "waiting"


def test_whoever_is_told_to_go_at_the_moment_a_command_begins_leaves_nothing_of_it(tmp_path: Path) -> None:
    async def told_to_go(turns: int) -> None:
        acting = CommandRunner(Settings(workspace=tmp_path, home=tmp_path))
        running = asyncio.create_task(
            acting.run_command("sleep 97 & wait", seconds=None, directory="", variables={})
        )
        for _ in range(turns):
            await asyncio.sleep(0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(running, 10)

    before = set(psutil.Process().children(recursive=True))
    for turns in range(8):
        asyncio.run(told_to_go(turns))
        assert set(psutil.Process().children(recursive=True)) <= before


def test_commands_are_not_run_where_the_settings_forbid_them(work: Any) -> None:
    work.environment["WORKFLOWS_ALLOW_COMMANDS"] = "false"
    said = work.run("run", "work.yaml", "--yes", "--json")
    assert said.code in (2, 3)
    assert "exit code 0" not in said.err


def test_the_answers_of_a_file_serve_every_round_of_a_loop() -> None:
    from workflows_mcp.cli.run import MISSING, Answers

    answers = Answers({"ask": ["Ada", "Grace"], "more": "yes"})
    assert [answers.next(name) for name in ("ask", "more", "ask@2", "more@2", "more@3")] == [
        "Ada",
        "yes",
        "Grace",
        "yes",
        "yes",
    ]
    assert answers.next("ask@3") is MISSING


@pytest.mark.parametrize(
    ("field", "typed", "meant"),
    [
        ({"type": "string", "enum": ["dev", "prod"], "default": "dev"}, "2", "prod"),
        ({"type": "boolean", "default": True}, "n", False),
        ({"type": "boolean", "default": True}, "", ""),
    ],
)
def test_a_question_with_a_default_is_answered_as_any_other(
    field: dict[str, Any], typed: str, meant: object
) -> None:
    schema = {"type": "object", "properties": {"input": field}, "additionalProperties": False}
    assert parse_typed({"type": "user_input", "result_schema": schema}, typed) == meant


PUBLISH = """
name: publish
blocks:
  - {id: ask, type: Prompt, inputs: {prompt: "Publish?"}}
  - {id: lint, type: Shell, on_failure: continue, inputs: {command: "exit 4"}}
  - {id: tests, type: Shell, on_failure: continue, inputs: {command: "until [ -f go ]; do sleep 0.02; done; exit 3"}}
"""


def test_what_fails_before_and_while_a_question_is_open_is_shown_and_named_with_it(terminal: Any) -> None:
    terminal.write("publish.yaml", PUBLISH)
    screen = Screen(terminal, "run", "publish.yaml")
    screen.wait_for("failed so far: lint\r\n> ")
    terminal.write("go", "")
    screen.wait_for("✗ tests")
    screen.wait_for("failed so far: lint, tests\r\n> ")
    assert screen.shown.rindex("✗ tests") < screen.shown.rindex("Publish?")
    screen.type("no\n")
    assert screen.end()[0] in (0, 1)
