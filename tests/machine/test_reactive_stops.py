"""An expression that was stopped because it took too long: whoever comes to the same place again, on whatever
machine, comes to the same end without finding out once more."""

from __future__ import annotations

import pytest

from support.reactive import Sluggish, World, documents, survives
from workflows_mcp.answers.state import reactive_snapshot
from workflows_mcp.engines.forks import fork_of
from workflows_mcp.machine import program
from workflows_mcp.machine.events import ExpressionStopped, Started
from workflows_mcp.machine.machine import replayed
from workflows_mcp.plan.references import LANGUAGES

pytestmark = pytest.mark.rows("R5", "X1")


@pytest.fixture
def language(monkeypatch: pytest.MonkeyPatch) -> Sluggish:
    """The language on a machine that is too slow for what has SLOW in it."""
    sluggish = Sluggish(LANGUAGES["javascript"])
    sluggish.too_slow = {"SLOW"}
    monkeypatch.setattr(
        program, "language_of", lambda plan: {**LANGUAGES, "javascript": sluggish}[plan.language]
    )
    return sluggish


HEAD = """
name: main
inputs: {word: {type: string, default: x}}
default_state: {raw: {n: 0, words: [a, b], errors: [], seen: []}}
state_schema:
  computed:
    lazy: {from: raw.n, transform: "input + 'SLOW'.length"}
    strict: {from: raw.words, transform: "input.length + (input.length > 2 ? 'SLOW'.length : 0)", on_error: ignore}
steps:
  - {id: first, type: Ask, prompt: "{{ n }}", state_update: {path: raw.first, value: "{{ response }}"}}
"""
TAIL = """
  - {type: user_message, message: "{{ n }} {{ words.length }} {{ errors.length }}"}
  - {id: last, type: Ask, prompt: "{{ n }} {{ seen }}"}
error_handling:
  error_collection: {enabled: true, state_path: raw.errors}
  on_failure: [{type: user_message, message: "failed: {{ error.type }}"}, {id: clean, type: Ask, prompt: clean up}]
sub_agent_tasks:
  look:
    inputs: {me: "{{ item + 'MAYBE' }}"}
    steps:
      - {id: read, type: Ask, prompt: "{{ me }}", state_update: {path: raw.seen, operation: append, value: "{{ item + 'INSIDE' }}"}}
"""
INNER = """
name: inner
default_state: {raw: {m: "{{ 'DEFAULT'.length }}"}}
state_schema: {computed: {left: {from: raw.m, transform: "input + 'LEFT'.length"}}}
steps: [{id: deep, type: Ask, prompt: "{{ m }}"}]
"""
PLACES = {
    "condition of a conditional": "{type: conditional, condition: \"'SLOW'\", on_error: continue, then: [{type: exit}]}",
    "when": "{type: user_message, when: \"'SLOW'\", message: told}",
    "condition of a while": "{type: while, condition: \"n < 2 && 'SLOW'\", on_error: continue, body: [{type: state_update, path: raw.n, operation: increment}]}",
    "max_iterations": "{type: while, condition: n < 2, max_iterations: \"{{ n + 'SLOW'.length }}\", on_error: continue, body: [{type: break}]}",
    "items of a foreach": "{type: foreach, items: \"{{ words.concat('SLOW') }}\", on_error: continue, steps: [{type: user_message, message: x}]}",
    "value of a state_update": "{type: state_update, on_error: continue, updates: [{path: raw.n, value: 7}, {path: raw.m, value: \"{{ 'SLOW' }}\"}]}",
    "path of a state_update": "{type: state_update, on_error: continue, path: \"raw.seen.{{ 'SLOW' }}\", value: 1}",
    "transform of a state_update": "{type: state_update, on_error: continue, path: raw.n, value: 1, transform: \"input + 'SLOW'.length\"}",
    "message": "{type: user_message, on_error: continue, message: \"{{ 'SLOW' }}\"}",
    "inputs of a step": "{id: do, type: Note, on_error: continue, text: \"{{ 'SLOW' }}\"}",
    "inputs of a question": "{id: do, type: Ask, on_error: continue, prompt: \"{{ 'SLOW' }}\"}",
    "path for the result of a question": "{id: do, type: Ask, on_error: continue, prompt: x, state_update: {path: \"raw.{{ 'SLOW' }}\"}}",
    "value of a result": '{id: do, type: Note, on_error: continue, text: x, state_update: [{path: raw.n, value: 9}, {path: raw.m, value: "{{ text + \'SLOW\' }}"}], error_state_update: {path: raw.failed, value: "{{ error.type }}"}}',
    "path of a result": "{id: do, type: Note, on_error: continue, text: x, state_update: {path: \"raw.{{ text + 'SLOW' }}\"}}",
    "transform of a result": "{id: do, type: Ask, on_error: continue, prompt: x, state_update: {path: raw.m, transform: \"input.response + 'SLOW'\"}}",
    "what changes with a failure": "{id: do, type: Note, on_error: continue, text: CRASH, error_state_update: {path: raw.m, value: \"{{ error.message + 'SLOW' }}\"}}",
    "how often it is tried": "{id: do, type: Note, on_error: retry, text: CRASH, retry_count: \"{{ n + 'SLOW'.length }}\"}",
    "a computed field": "{type: conditional, condition: lazy > 0, then: [{type: exit}]}",
    "a computed field that is not needed elsewhere": '{type: user_message, on_error: continue, message: "{{ lazy }}"}',
    "a computed field behind a change": '{type: state_update, on_error: continue, path: raw.words, operation: append, value: "{{ strict }}"}',
    "items of tasks": "{id: each, type: parallel_foreach, items: \"{{ words.concat('SLOW') }}\", sub_agent_task: look, on_sub_agent_error: continue}",
    "prompt of tasks": '{id: each, type: parallel_foreach, items: "{{ words }}", sub_agent_task: look, sub_agent_prompt_override: "{{ \'SLOW\' }}", on_sub_agent_error: continue}',
    "where errors of tasks go": '{id: each, type: parallel_foreach, items: "{{ [1, 2] }}", sub_agent_task: look, on_sub_agent_error: {strategy: continue, error_state_path: "raw.{{ \'SLOW\' }}"}}',
    "tasks nobody waits for": "{id: each, type: parallel_foreach, items: \"{{ words.concat('SLOW') }}\", wait_for_all: false, sub_agent_task: look, on_sub_agent_error: continue}",
    "inputs of an included workflow": "{id: call, type: include_workflow, workflow: inner, on_error: continue, inputs: {extra: \"{{ 'SLOW' }}\"}}",
    "unhandled": "{id: do, type: Note, text: \"{{ 'SLOW' }}\"}",
}
ELSEWHERE = {
    "inputs of a task": (
        "MAYBE",
        '{id: each, type: parallel_foreach, items: "{{ words }}", max_parallel: 1, sub_agent_task: look, on_sub_agent_error: continue}',
    ),
    "what a task gives": (
        "INSIDE",
        '{id: each, type: parallel_foreach, items: "{{ words }}", sub_agent_task: look, on_sub_agent_error: {strategy: continue, error_state_path: raw.lost}}',
    ),
    "a task that ends the others": (
        "INSIDE",
        '{id: each, type: parallel_foreach, items: "{{ words }}", sub_agent_task: look, on_sub_agent_error: fail_all}',
    ),
    "a task that is tried again": (
        "INSIDE",
        '{id: each, type: parallel_foreach, items: "{{ words }}", sub_agent_task: look, on_sub_agent_error: {strategy: retry_failed, max_retries: 1}}',
    ),
    "first values of an included workflow": (
        "DEFAULT",
        "{id: call, type: include_workflow, workflow: inner, on_error: continue}",
    ),
    "what an included workflow leaves": (
        "LEFT",
        '{id: call, type: include_workflow, workflow: inner, on_error: continue, state_update: {path: raw.left, value: "{{ left }}"}}',
    ),
}


def play(address: str, inputs: dict[str, object], times: int) -> dict[str, object] | str:
    if inputs.get("text") == "CRASH":
        return "it crashed"
    return {"response": f"answer {times}"} if "prompt" in inputs else dict(inputs)


@pytest.mark.parametrize("place", [*PLACES, *ELSEWHERE])
def test_a_run_in_which_an_expression_was_stopped_comes_back_the_same_on_a_fast_machine(
    place: str, language: Sluggish
) -> None:
    mark, step = ELSEWHERE.get(place) or ("SLOW", PLACES[place])
    language.too_slow = {mark}
    bundle = documents(f"{HEAD}  - {step}\n{TAIL}", INNER)
    story = survives(bundle, play, elsewhere=language.fast)  # type: ignore[arg-type]
    stopped = [event for event in story.events if isinstance(event, ExpressionStopped)]
    assert stopped, "nothing was stopped"
    codes = {fault.code for event in stopped for fault in event.faults.values()}
    assert codes == {"too_slow"}
    assert story.state.status in ("completed", "failed")
    assert story.asked[-1][0] in ("last", "clean", "each/look.item1/read", "each/look.item0/read")
    with language.fast():
        assert replayed(bundle, story.events).state == story.state


def test_first_values_that_take_too_long_fail_the_run_for_good(language: Sluggish) -> None:
    text = "name: main\ndefault_state: {raw: {x: \"{{ 'SLOW' }}\"}}\nsteps: [{id: ask, type: Ask, prompt: x}]"
    bundle = documents(text)
    story = World(bundle).run()
    assert story.state.status == "failed"
    assert story.state.fault is not None
    assert (story.state.fault.code, story.state.fault.path) == ("too_slow", ("default_state", "raw", "x"))
    assert [type(event) for event in story.events] == [ExpressionStopped, Started]
    with language.fast():
        assert replayed(bundle, story.events).state == story.state


def test_a_run_that_was_stopped_at_once_can_be_forked(language: Sluggish) -> None:
    text = """
name: main
steps:
  - {type: state_update, path: raw.x, value: "{{ 'SLOW' }}", on_error: continue}
  - {id: ask, type: Ask, prompt: x}
"""
    bundle = documents(text)
    story = World(bundle).run(events=2)
    assert [type(event) for event in story.events] == [ExpressionStopped, Started]
    with language.fast():
        fork = fork_of("wf_1", bundle, story.events, 2, 5.0)
    assert list(fork.machine.state.frames) == ["ask"]
    assert fork.machine.state.root.state == story.state.root.state
    assert fork.machine.state.run_id != "wf_1"


def test_what_was_stopped_once_is_not_known_of_another_try(language: Sluggish) -> None:
    """In the next round of a loop the same step is carried out as if nothing had been."""
    text = """
name: main
default_state: {raw: {n: 0}}
steps:
  - id: loop
    type: while
    condition: n < 2
    body:
      - {type: state_update, path: raw.n, operation: increment}
      - {id: ask, type: Ask, prompt: "{{ n }}"}
      - {id: set, type: state_update, path: raw.x, value: "{{ n + 'SLOW'.length }}", on_error: continue}
"""
    bundle = documents(text)
    world = World(bundle)
    world.run(events=2)  # the first round, on a slow machine
    assert "x" not in world.story.raw
    with language.fast():
        back = replayed(bundle, world.story.events)
        assert back.state == world.story.state
        world.story.machine = back
        story = world.go_on()
    assert story.state.status == "completed"
    assert story.raw == {"n": 2, "x": 6}


LOOKED_AT = """
name: main
default_state: {raw: {n: 1, m: 1}}
state_schema:
  computed:
    slow: {from: raw.n, transform: "'SLOW'.length + input"}
    fine: {from: raw.m, transform: "input + 1"}
    after: {from: computed.slow, transform: "input + 2"}
    last: {from: computed.after, transform: "input + 3"}
steps:
  - {id: ask, type: Ask, prompt: "?", state_update: {path: raw.m, value: "{{ response.length }}"}}
  - {id: read, type: Note, text: "{{ slow }}", on_error: continue}
  - {id: again, type: Ask, prompt: "again?"}
"""


def test_whoever_looks_at_a_state_waits_once_for_what_has_to_be_stopped(language: Sluggish) -> None:
    """Not once more for every field that follows from it, and not each time that somebody looks."""
    world = World(documents(LOOKED_AT))
    machine = world.run(events=1).machine
    language.evaluated.clear()
    for _ in range(3):
        snapshot = reactive_snapshot(machine, "")
        assert snapshot is not None
        assert snapshot.computed == {"slow": None, "fine": 2, "after": None, "last": None}
        assert list(snapshot.errors) == ["slow", "after", "last"]
        assert all("the computed field 'slow' cannot be computed" in it for it in snapshot.errors.values())
    assert language.evaluated == ["'SLOW'.length + input", "input + 1"]


def test_what_was_seen_is_computed_anew_when_what_it_comes_from_has_changed(language: Sluggish) -> None:
    world = World(documents(LOOKED_AT))
    for events, fine in ((1, 2), (3, 9)):
        machine = (world.run if events == 1 else world.go_on)(events=events).machine
        snapshot = reactive_snapshot(machine, "")
        assert snapshot is not None
        assert snapshot.computed["fine"] == fine


def test_a_run_does_not_know_that_something_was_stopped_for_somebody_who_looked(language: Sluggish) -> None:
    """After a restart it could not know it either: it has to find out by itself, and to write it down."""
    world = World(documents(LOOKED_AT))
    machine = world.run(events=1).machine
    snapshot = reactive_snapshot(machine, "")
    assert snapshot is not None
    assert snapshot.errors
    with language.fast():
        story = world.go_on()
    assert (story.state.status, story.said) == ("completed", [5])
