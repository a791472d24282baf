"""A person decides on the terminal: gates in `run` and `answer`, and budgets; pipes and agents cannot."""

from __future__ import annotations

from typing import Any

import pytest

from support.screen import Screen
from workflows_mcp.runs.callers import AGENT_VARIABLES

pytestmark = pytest.mark.rows("P1", "P5", "P6")

RELEASE = """\
name: release
blocks:
  - {id: write, type: Prompt, inputs: {prompt: "Which text? ${rejection.comment}"}}
  - id: approve
    type: Gate
    depends_on: [write]
    on_reject: {back_to: write}
    inputs: {message: "Publish ${blocks.write.response}?", choices: [now, later, reject]}
  - {id: publish, type: Shell, depends_on: [approve], inputs: {command: "echo published"}}
outputs: {said: "${blocks.publish.stdout}", when: "${blocks.approve.decision}", why: "${blocks.approve.comment}"}
"""
CHAIN = """\
name: chain
budget: {agent_steps: 1}
blocks:
  - {id: one, type: Prompt, inputs: {prompt: "One?"}}
  - {id: two, type: Prompt, depends_on: [one], inputs: {prompt: "Two?"}}
outputs: {said: "${blocks.one.response} ${blocks.two.response}"}
"""
FAN_OUT = """\
name: fan
budget: {confirm_above: 1}
initial_state: {}
steps:
  - {id: each, type: foreach, needs_state: [], items: [a, b], agent: "@task", task: one, output_to: found}
  - {id: end, type: return, needs_state: [found], value: "{{ state.found }}"}
tasks:
  one:
    inputs: {name: {type: string, required: true}}
    steps:
      - {id: work, type: delegate, needs_state: [], instructions: "Do {{ inputs.name }}", output_to: done}
      - {id: back, type: return, needs_state: [done], value: "{{ state.done.response }}"}
"""


@pytest.fixture(autouse=True)
def _a_person(terminal: Any) -> None:
    for name in AGENT_VARIABLES:
        terminal.environment.pop(name, None)


def started(terminal: Any, text: str, **answers: str) -> str:
    """A run that waits for a person."""
    terminal.write("it.yaml", text)
    terminal.write("answers.yaml", "".join(f"{step}: {it}\n" for step, it in answers.items()) or "{}")
    said = terminal.run("run", "it.yaml", "--answers", "answers.yaml", "--json")
    assert said.code == 3, said.err
    run_id: str = said.data["workflow_id"]
    return run_id


def test_a_person_is_asked_at_the_gate_of_a_run_and_may_send_the_work_back(terminal: Any) -> None:
    terminal.write("release.yaml", RELEASE)
    screen = Screen(terminal, "run", "release.yaml")
    screen.wait_for("Which text?")
    screen.type("one\n")
    screen.wait_for("approve  only a person can decide")
    screen.wait_for("Publish one?")
    screen.wait_for("  1  now")
    screen.wait_for("  3  reject")
    screen.wait_for("now / later / reject > ")
    screen.type("3\n")
    screen.wait_for("comment (optional) > ")
    screen.type("too short\n")
    screen.wait_for("type approve to confirm 'reject' > ")
    screen.type("approve\n")
    screen.wait_for("Which text? too short")
    screen.type("two\n")
    screen.wait_for("Publish two?")
    screen.type("LATER\n")
    screen.type("it is late\n")
    screen.wait_for("type approve@2 to confirm 'later' > ")
    screen.type("approve@2\n")
    assert screen.end() == (0, "said: published\nwhen: later\nwhy: it is late\n")


def test_what_is_no_choice_is_asked_again_and_nothing_is_decided(terminal: Any) -> None:
    run_id = started(terminal, RELEASE, write="one")
    screen = Screen(terminal, "answer", run_id)
    screen.wait_for("now / later / reject > ")
    screen.type("tomorrow\n")
    screen.wait_for("\"tomorrow\" is not a choice of 'approve': it is one of: later, now, reject")
    screen.type("\n")
    assert ended(screen) == (2, "")
    screen = Screen(terminal, "answer", run_id, "tomorrow")
    screen.wait_for("is not a choice of 'approve'")
    assert ended(screen) == (2, "")
    assert terminal.run("show", run_id, "--json").data["decisions"][0]["step_id"] == "approve"


def ended(screen: Screen) -> tuple[int, str]:
    screen.read_to_end()
    return screen.end()


@pytest.mark.parametrize("typed", ["", "y", "yes", "Approve", "approve later"])
def test_only_the_name_of_the_step_confirms(terminal: Any, typed: str) -> None:
    run_id = started(terminal, RELEASE, write="one")
    screen = Screen(terminal, "answer", run_id, "now", "--comment", "fine")
    screen.wait_for("type approve to confirm 'now' > ")
    screen.type(f"{typed}\n")
    screen.wait_for("not confirmed: nothing was decided")
    screen.wait_for("'approve' still waits for a decision")
    assert ended(screen)[0] == 2


def test_answer_takes_the_choice_and_the_comment_and_asks_for_the_rest(terminal: Any) -> None:
    run_id = started(terminal, RELEASE, write="one")
    screen = Screen(terminal, "answer", run_id, "now", "--step", "approve", "--comment", "fine")
    screen.wait_for("Publish one?")
    screen.wait_for("type approve to confirm 'now' > ")
    assert "comment (optional)" not in screen.shown
    screen.type("approve\n")
    assert screen.end() == (0, "said: published\nwhen: now\nwhy: fine\n")


def test_ctrl_d_at_the_gate_of_a_run_leaves_it_waiting(terminal: Any) -> None:
    terminal.write("release.yaml", RELEASE)
    screen = Screen(terminal, "run", "release.yaml")
    screen.wait_for("Which text?")
    screen.type("one\n")
    screen.wait_for("now / later / reject > ")
    screen.type("\x04")
    code, _ = ended(screen)
    assert code == 3
    run = terminal.run("runs", "--json").data["runs"][0]
    assert run["status"] == "waiting"


def test_a_pipe_cannot_decide_and_hears_how_a_person_can(terminal: Any) -> None:
    run_id = started(terminal, RELEASE, write="one")
    said = terminal.run("answer", run_id, "now", stdin="\napprove\n")
    assert (said.code, said.out) == (2, "")
    assert "only a person at a terminal can decide 'approve': its input is not a terminal" in said.err
    assert "open a terminal of your own, and run the same command there" in said.err
    shown = terminal.run("show", run_id)
    assert f"in a terminal: workflows-mcp answer {run_id}" in shown.out


def test_a_run_in_a_pipe_ends_at_the_gate_and_says_what_it_waits_for(terminal: Any) -> None:
    terminal.write("it.yaml", RELEASE)
    terminal.write("answers.yaml", "write: one\napprove: now\n")
    said = terminal.run("run", "it.yaml", "--yes", "--answers", "answers.yaml")
    assert (said.code, said.out) == (3, "")
    assert "Publish one?" in said.err
    assert "only a person can decide" in said.err
    assert "workflows-mcp answer wf_" in said.err


def test_a_terminal_inside_of_an_agent_cannot_decide(terminal: Any) -> None:
    run_id = started(terminal, RELEASE, write="one")
    terminal.environment["CLAUDECODE"] = "1"
    screen = Screen(terminal, "answer", run_id, "now")
    screen.wait_for("it was started inside an agent (CLAUDECODE is set)")
    assert ended(screen)[0] == 2
    screen = Screen(terminal, "run", "it.yaml", "--answers", "answers.yaml")
    screen.wait_for("only a person can decide")
    assert ended(screen)[0] == 3
    screen = Screen(terminal, "budget", run_id, "agent_steps=4")
    screen.wait_for("only a person at a terminal can decide about a budget")
    assert ended(screen)[0] == 2


def test_a_person_raises_a_budget_with_one_command(terminal: Any) -> None:
    run_id = started(terminal, CHAIN, one="1")
    said = terminal.run("budget", run_id, "agent_steps=5", stdin="yes\n")
    assert said.code == 2
    assert "only a person at a terminal can decide about a budget" in said.err
    screen = Screen(terminal, "budget", run_id, "agent_steps=5")
    screen.wait_for(f"type yes to allow agent_steps=5 for {run_id} > ")
    screen.type("no\n")
    screen.wait_for("not confirmed: nothing has changed")
    assert ended(screen)[0] == 2
    screen = Screen(terminal, "budget", run_id, "agent_steps=5")
    screen.wait_for("type yes to allow")
    screen.type("yes\n")
    screen.wait_for("Two?")
    screen.type("2\n")
    assert screen.end() == (0, "said: 1 2\n")


def test_a_budget_that_is_used_up_in_a_run_on_the_terminal_asks_the_person(terminal: Any) -> None:
    terminal.write("chain.yaml", CHAIN)
    screen = Screen(terminal, "run", "chain.yaml")
    screen.wait_for("One?")
    screen.type("1\n")
    screen.wait_for("The budget of the run is used up: agent_steps (the limit is 1).")
    screen.wait_for("allow / stop > ")
    screen.type("allow\n")
    screen.wait_for("new limit of agent_steps > ")
    screen.type("2\n")
    screen.wait_for("type two to confirm 'allow' > ")
    screen.type("two\n")
    screen.wait_for("Two?")
    screen.type("2\n")
    assert screen.end() == (0, "said: 1 2\n")


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ([], "say what to allow"),
        (["agent_steps"], "is not a limit of a budget"),
        (["agent_steps=many"], "is not a limit of a budget"),
        (["agent_steps=nan"], "is not a limit of a budget"),
        (["agent_steps=0"], "must be a number above 0"),
        (["steps=3"], "a budget has no 'steps'"),
        (["agent_steps=3", "--of", "two"], "'two' has no budget"),
        (["--allow"], "no fan-out waits for a confirmation"),
    ],
)
def test_a_limit_that_is_none_is_refused(terminal: Any, limits: list[str], message: str) -> None:
    run_id = started(terminal, CHAIN, one="1")
    screen = Screen(terminal, "budget", run_id, *limits)
    screen.type("yes\n")
    code, _ = ended(screen)
    assert code == 2
    assert message in screen.shown


def test_a_fan_out_is_confirmed_on_the_terminal(terminal: Any) -> None:
    run_id = started(terminal, FAN_OUT)
    screen = Screen(terminal, "answer", run_id)
    screen.wait_for("'each' starts about 2 sub-agents. Start them?")
    screen.wait_for("allow / stop > ")
    screen.type("allow\n")
    screen.type("\n")
    screen.wait_for("type each to confirm 'allow' > ")
    screen.type("each\n")
    screen.wait_for("Do a")
    screen.type("A\n")
    screen.wait_for("Do b")
    screen.type("B\n")
    assert screen.end()[0] == 0
