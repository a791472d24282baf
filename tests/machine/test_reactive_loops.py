"""Loops of reactive workflows: how often the body is carried out, what it knows, what leaves it; and with a crash
after every event the same steps, the same messages and the same end."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings

from support.reactive import Story, World, documents, run, survives
from support.reactive_programs import Statement, as_document, programs, said_by
from workflows_mcp.limits import Limits
from workflows_mcp.machine.events import StateUpdated
from workflows_mcp.machine.machine import Machine

pytestmark = pytest.mark.rows("R13")


def fault(story: Story) -> str:
    assert story.state.fault is not None
    return f"{story.state.fault.message}\n{story.state.fault.hint}"


# Any loops inside of each other


@settings(max_examples=60, deadline=None)
@given(programs())
def test_loops_in_loops_go_as_in_any_other_language(program: list[Statement]) -> None:
    expected = said_by(program)
    story = survives(documents(as_document(program)))
    assert story.state.status == "completed", story.state.fault
    assert story.said == expected
    assert story.state.root.loops == {}


NESTED = """
default_state: {{raw: {{n: 0, words: [a, b, c]}}}}
steps:
  - id: outer
    type: {outer}
    {test}
    {body}:
      - {{type: state_update, path: raw.n, operation: increment}}
      - {before}
      - id: inner
        type: foreach
        items: "{{{{ words }}}}"
        variable_name: word
        steps:
          - {inside}
          - {{id: say, type: Note, text: "{{{{ n }}}}{{{{ word }}}}"}}
      - {after}
      - {{id: round, type: Note, text: "round {{{{ n }}}}"}}
  - {{id: end, type: Note, text: end}}
"""
NOTHING = "{type: user_message, message: '.'}"
LOOPS = {
    "while": ("while", "condition: n < 3", "body"),
    "foreach": ("foreach", "items: [1, 2, 3]", "steps"),
}
PLACES: dict[str, tuple[dict[str, str], list[str]]] = {
    "break before the inner loop": (
        {"before": "{type: conditional, condition: n == 2, then: [{type: break}]}"},
        ["1a", "1b", "1c", "round 1", "end"],
    ),
    "continue before the inner loop": (
        {"before": "{type: conditional, condition: n == 2, then: [{type: continue}]}"},
        ["1a", "1b", "1c", "round 1", "3a", "3b", "3c", "round 3", "end"],
    ),
    "break in the inner loop": (
        {"inside": "{type: conditional, condition: word == 'b', then: [{type: break}]}"},
        ["1a", "round 1", "2a", "round 2", "3a", "round 3", "end"],
    ),
    "continue in the inner loop": (
        {"inside": "{type: conditional, condition: word == 'b', then: [{type: continue}]}"},
        ["1a", "1c", "round 1", "2a", "2c", "round 2", "3a", "3c", "round 3", "end"],
    ),
    "continue in the inner loop, in the last round": (
        {"inside": "{type: conditional, condition: word != 'c', then: [{type: continue}]}"},
        ["1c", "round 1", "2c", "round 2", "3c", "round 3", "end"],
    ),
    "break in an else": (
        {
            "inside": "{type: conditional, condition: word == 'a', then: [{type: user_message, message: x}],"
            " else: [{type: break}]}"
        },
        ["1a", "round 1", "2a", "round 2", "3a", "round 3", "end"],
    ),
    "break behind the inner loop": (
        {"after": "{type: conditional, condition: n == 2, then: [{type: break}]}"},
        ["1a", "1b", "1c", "round 1", "2a", "2b", "2c", "end"],
    ),
    "continue behind the inner loop": (
        {"after": "{type: conditional, condition: n != 2, then: [{type: continue}]}"},
        ["1a", "1b", "1c", "2a", "2b", "2c", "round 2", "3a", "3b", "3c", "end"],
    ),
    "exit in the inner loop": (
        {"inside": "{type: conditional, condition: n == 2 && word == 'b', then: [{type: exit}]}"},
        ["1a", "1b", "1c", "round 1", "2a"],
    ),
}


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("place", PLACES)
def test_break_and_continue_act_on_the_innermost_loop(place: str, loop: str) -> None:
    parts, expected = PLACES[place]
    outer, test, body = LOOPS[loop]
    filled = {"before": NOTHING, "inside": NOTHING, "after": NOTHING, **parts}
    text = NESTED.format(outer=outer, test=test, body=body, **filled)
    story = survives(documents(text))
    assert (story.state.status, story.said) == ("completed", expected)


# How often


THOUSAND = """
name: thousand
default_state: {raw: {n: 0, sum: 0}}
state_schema:
  computed:
    is_even: {from: raw.n, transform: input % 2 === 0}
steps:
  - id: loop
    type: while
    condition: "{{ n < 1000 }}"
    max_iterations: 1000
    body:
      - {id: add, type: Note, text: "{{ n }}", state_update: {path: raw.sum, operation: increment, value: "{{ Number(text) }}"}}
      - {type: conditional, condition: is_even, then: [{type: state_update, path: raw.evens, operation: increment}]}
      - {type: state_update, path: raw.n, operation: increment}
"""


def test_a_thousand_rounds_are_a_thousand_steps_and_the_run_does_not_grow_with_them() -> None:
    world = World(documents(THOUSAND))
    world.run(events=100)
    early = len(world.story.machine.snapshot())
    story = World(documents(THOUSAND)).run()
    assert (story.state.status, len(story.events)) == ("completed", 1001)
    assert story.raw == {"n": 1000, "sum": 499_500, "evens": 500}
    assert [command.key for command in story.performed[::333]] == [
        "add#1",
        "add#r334.1",
        "add#r667.1",
        "add#r1000.1",
    ]
    assert len(story.machine.snapshot()) < early * 1.1
    assert story.state.root.records["loop"].message is None, "the condition has ended it, not the limit"


def test_a_thousand_rounds_come_back_from_their_journal_and_from_a_snapshot() -> None:
    bundle = documents(THOUSAND)
    story = World(bundle).run()
    back = Machine(bundle)
    for position, event in enumerate(story.events):
        if position % 250 == 100:
            back = Machine(bundle, back.snapshot())
        back.apply(event)
    assert back.state == story.state


def test_reaching_max_iterations_ends_a_loop_that_continues_and_is_recorded() -> None:
    text = """
name: limited
default_state: {raw: {n: 0, most: 3}}
steps:
  - id: loop
    type: while
    condition: "{{ true }}"
    max_iterations: "{{ most }}"
    on_limit: continue
    body: [{id: say, type: Note, text: "{{ loop.index }}"}]
  - {id: end, type: Note, text: "end"}
"""
    story = survives(documents(text))
    assert (story.state.status, story.said) == ("completed", [0, 1, 2, "end"])
    loop = story.state.root.records["loop"]
    assert loop.outputs == {"result": False, "iterations": 3}
    assert loop.message == "the loop ended after 3 rounds, which is its max_iterations"


def test_the_condition_is_asked_before_the_limit() -> None:
    text = """
name: just
default_state: {raw: {n: 0}}
steps:
  - id: loop
    type: while
    condition: n < 3
    max_iterations: 3
    body: [{type: state_update, path: raw.n, operation: increment}]
"""
    loop = run(documents(text)).state.root.records["loop"]
    assert (loop.outputs["iterations"], loop.message) == (3, None)


@pytest.mark.parametrize(
    ("most", "why"), [('"{{ word }}"', "whole number"), ('"{{ word.length - 3 }}"', "1 or more")]
)
def test_a_limit_that_makes_no_sense_is_an_error_at_its_place(most: str, why: str) -> None:
    text = f"""
name: limited
default_state: {{raw: {{word: few}}}}
steps:
  - {{id: loop, type: while, condition: true, max_iterations: {most}, body: [{{id: say, type: Note, text: x}}]}}
"""
    story = run(documents(text))
    assert "max_iterations" in fault(story)
    assert why in fault(story)
    assert story.state.fault is not None
    assert story.state.fault.path == ("steps", 0, "max_iterations")


FOR_EVER = """
name: endless
default_state: {raw: {n: 0}}
steps:
  - id: loop
    type: while
    condition: "{{ true }}"
    %s
    body: [{type: state_update, path: raw.n, operation: increment}]
  - {id: end, type: Note, text: "{{ n }}"}
"""


def test_a_loop_without_a_limit_fails_at_the_one_of_the_server() -> None:
    story = run(documents(FOR_EVER % ""), limits=Limits(loop_iterations=7))
    assert (story.state.status, story.raw["n"]) == ("failed", 7)
    assert story.state.fault is not None
    assert story.state.fault.code == "loop_iterations"
    assert "the loop ran 7 times and its condition still holds" in fault(story)
    assert "max_iterations" in fault(story)
    assert "WORKFLOWS_LIMIT_LOOP_ITERATIONS" in fault(story)
    assert Limits().loop_iterations == 10_000


def test_a_loop_that_failed_and_is_come_to_again_begins_anew() -> None:
    text = """
name: again
steps:
  - id: outer
    type: foreach
    items: [1, 2]
    steps:
      - id: inner
        type: while
        condition: "{{ true }}"
        on_error: continue
        body: [{id: say, type: Note, text: "{{ item }}{{ loop.iteration }}"}]
"""
    story = survives(documents(text), limits=Limits(loop_iterations=2))
    assert story.said == ["11", "12", "21", "22"]


def test_when_is_asked_once_of_a_loop_and_not_before_every_round() -> None:
    text = """
name: asked
default_state: {raw: {n: 0}}
steps:
  - id: outer
    type: foreach
    items: [1, 2]
    steps:
      - {type: state_update, path: raw.n, value: 0}
      - id: inner
        type: while
        when: n == 0
        condition: n < 3
        body:
          - {type: state_update, path: raw.n, operation: increment}
          - {id: say, type: Note, text: "{{ item }} {{ n }} {{ loop.iteration }}"}
  - {id: never, type: foreach, when: n == 0, items: [1], steps: [{type: user_message, message: x}]}
"""
    story = survives(documents(text))
    assert story.said == [f"{item} {n} {n}" for item in (1, 2) for n in (1, 2, 3)]
    assert story.state.root.records["never"].status == "skipped"
    assert story.told[-1] == []


# Items


FOREACH = """
name: each
default_state: {raw: {items: %s, seen: []}}
steps:
  - id: loop
    type: foreach
    items: "{{ items }}"
    steps:
      - {id: say, type: Note, text: "{{ item }}"}
      %s
  - {id: end, type: Note, text: "{{ items.length }}"}
"""


def test_an_empty_list_is_carried_out_for_nothing() -> None:
    story = survives(documents(FOREACH % ("[]", "")))
    assert story.said == [0]
    assert story.state.root.records["loop"].outputs == {"result": False, "iterations": 0}


@pytest.mark.parametrize(
    ("change", "left"),
    [
        ('{type: state_update, path: raw.items, operation: append, value: "{{ item * 10 }}"}', 6),
        ("{type: state_update, path: raw.items, value: []}", 0),
        ("{type: state_update, path: 'raw.items[{{ 2 }}]', value: 99}", 3),
    ],
)
def test_a_list_that_the_body_changes_is_gone_through_as_it_was(change: str, left: int) -> None:
    story = survives(documents(FOREACH % ("[1, 2, 3]", f"- {change}")))
    assert story.said == [1, 2, 3, left]


@pytest.mark.parametrize(
    ("items", "what"), [("text", 'text "text"'), ("{a: 1}", "object"), ("7", "integer 7"), ("null", "null")]
)
def test_items_must_be_a_list(items: str, what: str) -> None:
    story = run(documents(FOREACH % (items, "")))
    assert story.state.status == "failed"
    assert f"items takes a list, not {what}" in fault(story)
    assert "Object.entries(results)" in fault(story)


def test_more_items_than_the_limit_are_refused_before_the_first() -> None:
    story = run(documents(FOREACH % ("[1, 2, 3]", "")), limits=Limits(for_each_items=2))
    assert (story.state.status, story.said) == ("failed", [])
    assert "WORKFLOWS_LIMIT_FOR_EACH_ITEMS" in fault(story)


def test_the_entries_of_an_object_are_items() -> None:
    text = """
name: entries
default_state: {raw: {results: {a.ts: 1, b.ts: 2}}}
steps:
  - id: loop
    type: foreach
    items: "{{ Object.entries(results) }}"
    steps: [{id: say, type: Note, text: "{{ item[0] }}={{ item[1] }}"}]
"""
    assert survives(documents(text)).said == ["a.ts=1", "b.ts=2"]


# What a body knows


def test_loop_variables() -> None:
    text = """
name: known
default_state: {raw: {n: 0}}
steps:
  - id: letters
    type: foreach
    items: [a, b]
    variable_name: letter
    index_name: row
    steps:
      - id: numbers
        type: foreach
        items: [1, 2]
        variable_name: number
        steps:
          - {id: say, type: Note, text: "{{ [letter, row, number, index, loop.item, loop.index, loop.iteration, loop.total, loop.is_first, loop.is_last] }}"}
      - {id: outside, type: Note, text: "{{ [letter, typeof number, loop.item, loop.total] }}"}
      - id: again
        type: while
        condition: n < 1
        body:
          - {type: state_update, path: raw.n, operation: increment}
          - {id: inside, type: Note, text: "{{ [letter, row, loop.index, loop.iteration, loop.item === undefined] }}"}
  - {id: after, type: Note, text: "{{ [typeof letter, typeof loop, typeof index] }}"}
"""
    said = survives(documents(text)).said
    assert said[:4] == [
        ["a", 0, 1, 0, 1, 0, 1, 2, True, False],
        ["a", 0, 2, 1, 2, 1, 2, 2, False, True],
        ["a", "undefined", "a", 2],
        ["a", 0, 0, 1, True],
    ]
    assert said[4:6] == [["b", 1, 1, 0, 1, 0, 1, 2, True, False], ["b", 1, 2, 1, 2, 1, 2, 2, False, True]]
    assert said[-1] == ["undefined"] * 3


def test_a_loop_variable_hides_a_field_of_the_same_name_and_gives_it_back() -> None:
    text = """
name: hidden
default_state: {raw: {file: mine}}
steps:
  - {id: loop, type: foreach, items: [x], variable_name: file, steps: [{id: in, type: Note, text: "{{ file }} {{ raw.file }}"}]}
  - {id: out, type: Note, text: "{{ file }}"}
"""
    assert survives(documents(text)).said == ["x mine", "mine"]


def test_a_variable_outside_of_its_loop_is_an_error_that_says_so() -> None:
    text = """
name: outside
steps:
  - {id: loop, type: foreach, items: [x], variable_name: file, steps: [{id: in, type: Note, text: "{{ file }}"}]}
  - {id: out, type: Note, text: "{{ file }}"}
"""
    story = run(documents(text))
    assert (story.state.status, story.said) == ("failed", ["x"])
    assert "there is no 'file'" in fault(story)


def test_chance_and_time_are_new_in_every_round_and_the_same_after_a_crash() -> None:
    text = """
name: chance
steps:
  - id: loop
    type: foreach
    items: [1, 2, 3]
    steps:
      - {id: say, type: Note, text: "{{ uuid() }} {{ Math.random() }} {{ now() }}"}
      - {id: call, type: include_workflow, workflow: inner}
"""
    inner = """
name: inner
default_state: {raw: {me: "{{ uuid() }}"}}
steps: [{id: me, type: Note, text: "{{ me }}"}]
"""
    story = survives(documents(text, inner))
    assert len(set(story.said)) == len(story.said) == 6


# What comes from outside


def test_what_an_agent_changes_between_two_rounds_is_seen_by_the_next_one() -> None:
    text = """
name: changed
default_state: {raw: {n: 0, words: [a], answers: []}}
state_schema: {computed: {shout: {from: raw.words, transform: "input.join('').toUpperCase()"}}}
steps:
  - id: loop
    type: while
    condition: n < 3
    body:
      - {type: state_update, path: raw.n, operation: increment}
      - {type: user_message, message: "round {{ n }}: {{ shout }}"}
      - {id: ask, type: Ask, prompt: "{{ n }} {{ shout }}", state_update: {path: "raw.answers[{{ n - 1 }}]", value: "{{ response }}"}}
"""
    between: dict[int, Any] = {
        1: StateUpdated(1.5, [(["raw", "words"], "append", "b")]),
        3: StateUpdated(3.5, [(["raw", "words"], "append", "c"), (["raw", "n"], "increment", 1)]),
        4: StateUpdated(4.5, [(["computed", "shout"], "set", "no")]),
    }
    story = survives(documents(text), between=between)
    assert story.state.status == "completed"
    assert [asked["prompt"] for _, asked in story.asked] == ["1 A", "2 AB"]
    assert story.raw == {"n": 3, "words": ["a", "b", "c"], "answers": ["answer 1", "answer 2"]}
    assert story.told == [["round 1: A"], ["round 2: AB"], []]
