"""What a person sees of steps that are carried out again and again: every round, in the order in which they went."""

from __future__ import annotations

import re
from typing import Any

WHILE = """\
name: again
default_state: {raw: {n: 0}}
steps:
  - id: loop
    type: while
    condition: "{{ n < 3 }}"
    body:
      - {id: work, type: shell_command, command: "sleep 0.05; [ {{ n }} != 1 ]", on_error: continue}
      - {id: count, type: state_update, path: raw.n, value: "{{ n + 1 }}"}
  - {id: after, type: shell_command, command: "true"}
"""
FOREACH = """\
name: each-of-them
default_state: {raw: {seen: 0}}
steps:
  - id: each
    type: foreach
    items: "{{ ['a', 'b'] }}"
    steps:
      - {id: call, type: include_workflow, workflow: inner}
"""
INNER = """\
name: inner
blocks:
  - {id: one, type: Shell, inputs: {command: 'sleep 0.05'}}
"""
GOTO = """\
name: back-again
initial_state: {n: 0}
steps:
  - {id: work, type: shell, run_on: server, needs_state: [], command: "sleep 0.05"}
  - {id: count, type: set_state, needs_state: ["n"], updates: {n: "{{ state.n + 1 }}"}}
  - {id: back, type: goto, target: work, when: "{{ state.n < 3 }}", max_iterations: 5, needs_state: ["n"]}
"""
ASKING = """\
name: asking
default_state: {raw: {n: 0, last: ""}}
steps:
  - id: loop
    type: while
    condition: "{{ n < 2 }}"
    body:
      - {id: ask, type: user_input, prompt: "And now?", state_update: {path: raw.last}}
      - {id: count, type: state_update, path: raw.n, value: "{{ n + 1 }}"}
"""


def told(err: str) -> list[str]:
    """The lines of progress, without times and reasons: marks and addresses."""
    return re.findall(r"^\d\d:\d\d:\d\d +(\S \S+)", err, re.M)


def test_every_round_of_a_while_begins_and_ends_and_a_round_that_failed_is_marked(terminal: Any) -> None:
    said = terminal.run("run", str(terminal.write("w.yaml", WHILE)))
    assert said.code == 0, said.err
    assert told(said.err) == [
        *("✓ loop", "▸ work", "✓ work", "✓ count"),
        *("✓ loop@2", "▸ work@2", "✗ work@2", "✓ count@2"),
        *("✓ loop@3", "▸ work@3", "✓ work@3", "✓ count@3"),
        *("✓ loop@4", "▸ after", "✓ after"),
    ]
    took = re.search(r"✓ work  (?:(\d+) ms|(\d+\.\d) s)$", said.err, re.M)
    assert took is not None
    assert took[1] is None or int(took[1]) >= 50  # what its command sleeps
    assert re.search(r"✗ work@2  .*  Command exited with code 1$", said.err, re.M)


def test_what_is_inside_of_a_round_stands_below_that_round(terminal: Any) -> None:
    terminal.write("inner.yaml", INNER)
    said = terminal.run("run", str(terminal.write("w.yaml", FOREACH)))
    assert said.code == 0, said.err
    assert told(said.err) == [
        *("✓ each", "▸ call", "▸ call/one", "✓ call/one", "· call"),
        *("✓ each@2", "▸ call@2", "▸ call@2/one", "✓ call@2/one", "✓ call@2"),
        "✓ each@3",
    ]


def test_every_round_of_a_goto_is_shown(terminal: Any) -> None:
    said = terminal.run("run", str(terminal.write("w.yaml", GOTO)))
    assert said.code == 0, said.err
    assert told(said.err) == [
        *("▸ work", "✓ work", "✓ count", "✓ back"),
        *("▸ work@2", "✓ work@2", "✓ count@2", "✓ back@2"),
        *("▸ work@3", "✓ work@3", "✓ count@3", "– back@3"),
    ]


def test_whoever_answers_sees_what_follows_from_the_answer_and_nothing_twice(terminal: Any) -> None:
    said = terminal.run("run", str(terminal.write("w.yaml", ASKING)), "--json")
    assert said.code == 3, said.err
    assert told(said.err) == ["✓ loop", "? ask"]
    run_id = said.data["workflow_id"]
    said = terminal.run("answer", run_id, "this")
    assert said.code == 3, said.err
    assert told(said.err) == ["✓ ask", "✓ count", "✓ loop@2", "? ask@2"]
    said = terminal.run("answer", run_id, "that")
    assert said.code == 0, said.err
    assert told(said.err) == ["✓ ask@2", "✓ count@2", "✓ loop@3"]
