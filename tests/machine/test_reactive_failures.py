"""What becomes of failures in a reactive workflow: tried again, put up with, noted, cleaned up after, or the whole
workflow carried out once more; with a crash after every event the same."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from support.reactive import Outcome, Play, Sluggish, Story, World, documents, say, survives
from workflows_mcp.machine import program
from workflows_mcp.machine.events import ExpressionStopped, StateUpdated
from workflows_mcp.machine.machine import replayed
from workflows_mcp.plan.references import LANGUAGES
from workflows_mcp.values import Value

pytestmark = pytest.mark.rows("R18", "X1")
ORDERS = (None, 1, 2, 3)


def crashing(times: Mapping[str, int]) -> Play:
    """Steps that say one of these words crash, so many times."""

    def play(address: str, inputs: Mapping[str, Value], nth: int) -> Outcome:
        if nth <= times.get(str(inputs.get("text")), 0):
            return f"{inputs['text']} crashed"
        return say(address, inputs, nth)

    return play


def errors(story: Story) -> list[str]:
    return [error["message"] for error in story.raw["errors"]]


STEPS = """
name: main
default_state: {raw: {n: 0, seen: [], errors: []}}
steps:
  - {type: state_update, path: raw.n, operation: increment}
  - {id: good, type: Note, text: "good {{ n }}", state_update: {path: raw.seen, operation: append, value: "{{ text }}"}}
  - id: loop
    type: foreach
    items: [1, 2]
    steps:
      - {id: bad, type: Note, text: bad%s}
  - {id: end, type: Note, text: "end {{ seen.length }}"}
error_handling:
  error_collection: {enabled: true, state_path: raw.errors}
  %s
"""


@pytest.mark.rows("R9")
def test_a_step_that_says_so_is_tried_again_and_then_has_failed() -> None:
    text = STEPS % (", on_error: retry, retry_count: 2, retry_delay: 100", "")
    story = survives(documents(text), crashing({"bad": 2}))
    assert story.state.status == "completed"
    assert story.said == ["good 1", "bad", "bad", "bad", "bad", "end 1"]
    assert errors(story) == []
    story = survives(documents(text), crashing({"bad": 3}))
    assert (story.state.status, story.said) == ("failed", ["good 1", "bad", "bad", "bad"])
    assert errors(story) == ["step 'bad' failed: bad crashed"]
    assert story.raw["errors"][0]["attempts"] == 3


@pytest.mark.rows("R9")
def test_how_often_it_is_tried_again_can_become_nonsense_meanwhile() -> None:
    text = """
name: main
default_state: {raw: {tries: 5}}
steps:
  - {id: bad, type: Note, text: bad, on_error: retry, retry_count: "{{ tries }}", retry_delay: 0}
"""
    changed = {2: StateUpdated(2.5, [(["raw", "tries"], "set", "many")])}
    story = survives(documents(text), crashing({"bad": 9}), between=changed)
    assert story.state.status == "failed"
    assert story.state.fault is not None
    assert "bad crashed" in story.state.fault.message, "why the step failed, not why it is not tried again"
    assert len(story.performed) == 2


@pytest.mark.rows("R9")
def test_a_fallback_is_the_result_of_a_step_that_failed() -> None:
    text = """
name: main
default_state: {raw: {got: null}}
steps:
  - {id: bad, type: Note, text: bad, on_error: continue, fallback_value: {ok: false}, state_update: {path: raw.got}}
  - {id: end, type: Note, text: "{{ got.ok }}"}
"""
    story = survives(documents(text), crashing({"bad": 1}))
    assert (story.state.status, story.said, story.raw["got"]) == ("completed", ["bad", False], {"ok": False})


def test_every_failure_can_be_put_up_with_and_is_collected() -> None:
    story = survives(documents(STEPS % ("", "on_error: continue")), crashing({"bad": 9}))
    assert (story.state.status, story.said) == ("completed", ["good 1", "bad", "bad", "end 1"])
    assert errors(story) == ["step 'bad' failed: bad crashed"] * 2
    assert [error["type"] for error in story.raw["errors"]] == ["boom", "boom"]


ON_FAILURE = """on_failure:
    - {type: user_message, message: "failed: {{ error.message }} {{ typeof item }}"}
    - {id: clean, type: foreach, items: "{{ seen }}", steps: [{id: undo, type: Note, text: "undo {{ item }}"}]}
    - {id: ask, type: Ask, prompt: "{{ error.step }} {{ error.type }}", state_update: {path: raw.answer, value: "{{ response }}"}}
"""


def test_steps_for_the_case_of_a_failure_are_carried_out_and_the_workflow_has_failed_all_the_same() -> None:
    story = survives(documents(STEPS % ("", ON_FAILURE)), crashing({"bad": 9}))
    assert story.state.status == "failed"
    assert story.said == ["good 1", "bad", "undo good 1"]
    assert story.asked == [("ask", {"prompt": "bad boom"})]
    assert story.told[0] == ["failed: step 'bad' failed: bad crashed undefined"]
    assert story.raw["answer"] == "answer 1"
    assert story.state.fault is not None
    assert story.state.fault.message == "step 'bad' failed: bad crashed"


def test_steps_for_the_case_of_a_failure_are_not_come_to_without_one() -> None:
    story = survives(documents(STEPS % ("", ON_FAILURE)))
    assert (story.state.status, story.said) == ("completed", ["good 1", "bad", "bad", "end 1"])
    assert "ask" not in story.state.root.records


def test_a_failure_in_the_steps_for_a_failure_ends_the_workflow() -> None:
    play = crashing({"bad": 9, "undo good 1": 9})
    story = survives(documents(STEPS % ("", ON_FAILURE)), play)
    assert (story.state.status, story.said) == ("failed", ["good 1", "bad", "undo good 1"])
    assert story.state.fault is not None
    assert "bad crashed" in story.state.fault.message
    assert errors(story) == ["step 'bad' failed: bad crashed", "step 'undo' failed: undo good 1 crashed"]


@pytest.mark.parametrize(("crashes", "status"), [(1, "completed"), (2, "completed"), (3, "failed")])
def test_the_whole_workflow_is_carried_out_again_from_its_first_state(crashes: int, status: str) -> None:
    text = STEPS % ("", f"on_error: retry_workflow\n  max_retries: 2\n  {ON_FAILURE}")
    story = survives(documents(text), crashing({"bad": crashes}))
    assert story.state.status == status
    assert errors(story) == ["step 'bad' failed: bad crashed"] * crashes
    assert story.raw["n"] == 1
    assert story.said.count("good 1") == crashes + (status == "completed")
    assert len({command.key for command in story.performed}) == len(story.performed)
    assert len(story.asked) == (status == "failed"), "the steps for a failure come when it is one for good"


def test_a_first_state_that_propagates_an_error_does_not_end_a_workflow_that_is_carried_out_again() -> None:
    text = """
name: main
default_state: {raw: {n: none, errors: []}}
state_schema: {computed: {strict: {from: raw.n, transform: "input.toFixed(1)", on_error: propagate}}}
steps:
  - {id: set, type: state_update, path: raw.n, value: 1}
  - {id: bad, type: Note, text: bad}
error_handling: {on_error: retry_workflow, max_retries: 1, error_collection: {enabled: true, state_path: raw.errors}}
"""
    story = survives(documents(text), crashing({"bad": 1}))
    assert (story.state.status, story.said, len(story.raw["errors"])) == ("completed", ["bad", "bad"], 1)


LANES = """
name: main
default_state: {raw: {n: 0, seen: []}}
steps:
  - {id: each, type: parallel_foreach, items: [a, b], sub_agent_task: task, wait_for_all: false}
  - {id: bad, type: Note, text: bad}
  - {id: end, type: Ask, prompt: "{{ seen.length }}"}
sub_agent_tasks:
  task: {steps: [{id: read, type: Ask, prompt: "{{ item }}"}, {id: say, type: Note, text: "{{ item }}", state_update: {path: raw.seen, operation: append, value: "{{ text }}"}}]}
error_handling: {on_error: retry_workflow, max_retries: 3}
"""


@pytest.mark.parametrize("order", ORDERS)
def test_tasks_that_are_under_way_end_with_the_workflow_that_is_carried_out_again(order: int | None) -> None:
    story = survives(documents(LANES), crashing({"bad": 2}), seed=order)
    assert story.state.status == "completed", story.state.fault
    assert story.state.frames == {}
    assert sorted(story.raw["seen"]) == ["a", "b"], "those of the last time, and none of an earlier one"


LOOSE = """
name: main
default_state: {raw: {seen: [], errors: []}}
steps:
  - {id: each, type: parallel_foreach, items: [bad, good], sub_agent_task: task, wait_for_all: false}
  - {id: middle, type: Ask, prompt: middle}
  - {id: last, type: Ask, prompt: last}
sub_agent_tasks:
  task: {steps: [{id: say, type: Note, text: "{{ item }}", state_update: {path: raw.seen, operation: append, value: "{{ text }}"}}]}
error_handling: {%s}
"""


@pytest.mark.parametrize("order", ORDERS)
def test_tasks_that_failed_while_nobody_waited_are_the_failure_of_the_workflow_at_its_end(
    order: int | None,
) -> None:
    asked = ["middle", "last"]
    again = documents(LOOSE % "on_error: retry_workflow, max_retries: 2")
    story = survives(again, crashing({"bad": 1}), seed=order)
    assert (story.state.status, [at for at, _ in story.asked]) == ("completed", asked * 2)
    assert sorted(story.raw["seen"]) == ["bad", "good"]
    story = survives(again, crashing({"bad": 9}), seed=order)
    assert (story.state.status, [at for at, _ in story.asked]) == ("failed", asked * 3)
    redacted = documents(LOOSE % 'on_failure: [{id: clean, type: Ask, prompt: "{{ error.message }}"}]')
    story = survives(redacted, crashing({"bad": 9}), seed=order)
    assert (story.state.status, [at for at, _ in story.asked]) == ("failed", [*asked, "clean"])
    assert "bad crashed" in story.asked[-1][1]["prompt"]
    assert story.state.frames == {}


@pytest.fixture
def language(monkeypatch: pytest.MonkeyPatch) -> Sluggish:
    sluggish = Sluggish(LANGUAGES["javascript"])
    monkeypatch.setattr(
        program, "language_of", lambda plan: {**LANGUAGES, "javascript": sluggish}[plan.language]
    )
    return sluggish


def test_a_first_state_that_takes_too_long_the_second_time(language: Sluggish) -> None:
    text = """
name: main
default_state: {raw: {n: "{{ 'SLOW'.length }}"}}
steps: [{id: bad, type: Note, text: bad}, {id: end, type: Note, text: end}]
error_handling: {on_error: retry_workflow, max_retries: 2, on_failure: [{id: ask, type: Ask, prompt: "{{ error.type }}"}]}
"""

    def play(address: str, inputs: Mapping[str, Value], nth: int) -> Outcome:
        language.too_slow = {"SLOW"}
        return crashing({"bad": 9})(address, inputs, nth)

    bundle = documents(text)
    story = World(bundle, play).run()
    assert (story.state.status, story.said) == ("failed", ["bad"])
    assert any(isinstance(event, ExpressionStopped) for event in story.events)
    with language.fast():
        assert replayed(bundle, story.events).state == story.state


@pytest.mark.rows("R9")
def test_a_fallback_is_made_of_the_state_as_it_is_when_it_is_needed() -> None:
    text = """
name: main
default_state: {raw: {n: 0, got: null}}
steps:
  - {type: state_update, path: raw.n, value: 20}
  - {id: bad, type: Note, text: bad, on_error: retry, retry_count: 1, retry_delay: 0, fallback_value: {ok: "{{ 1+1 }}", n: ["{{ n }} left"]}, state_update: {path: raw.got}}
  - {id: good, type: Note, text: "{{ got.ok }}", fallback_value: "{{ no.such }}"}
  - {id: worse, type: Note, text: worse, on_error: continue, fallback_value: "{{ n.no.such }}", error_state_update: {path: raw.why, value: "{{ error.message }}"}}
"""
    changed = {2: StateUpdated(2.5, [(["raw", "n"], "set", 30)])}
    story = survives(documents(text), crashing({"bad": 2, "worse": 1}), between=changed)
    assert (story.state.status, story.said) == ("completed", ["bad", "bad", 2, "worse"])
    assert story.raw["got"] == {"ok": 2, "n": ["30 left"]}
    assert "undefined" in story.raw["why"], "one that cannot be made is the failure of the step"


@pytest.mark.rows("R9")
def test_a_fallback_that_takes_too_long_is_found_again_as_it_was(language: Sluggish) -> None:
    text = """
name: main
steps: [{id: bad, type: Note, text: bad, fallback_value: "{{ 'SLOW' }}"}]
"""
    language.too_slow = {"SLOW"}
    bundle = documents(text)
    story = World(bundle, crashing({"bad": 1})).run()
    assert story.state.status == "failed"
    assert any(isinstance(event, ExpressionStopped) for event in story.events)
    with language.fast():
        assert replayed(bundle, story.events).state == story.state


CHANCE = """
name: %s
default_state: {raw: {token: "{{ uuid() }}", since: "{{ now() }}"}}
steps: [{id: say, type: Note, text: "{{ token }} {{ since }}"}, {id: bad, type: Note, text: bad}]
error_handling: {on_error: retry_workflow, max_retries: 3}
"""


@pytest.mark.parametrize(
    "around", ["", "name: main\nsteps: [{id: in, type: include_workflow, workflow: inner}]"]
)
def test_a_workflow_that_is_carried_out_again_has_another_chance_each_time(around: str) -> None:
    texts = [around, CHANCE % "inner"] if around else [CHANCE % "main"]
    story = survives(documents(*texts), crashing({"bad": 3}))
    assert story.state.status == "completed"
    said = [str(text).split() for text in story.said if text != "bad"]
    assert len({token for token, _ in said}) == len({since for _, since in said}) == 4
    again = survives(documents(*texts), crashing({"bad": 3}))
    assert again.said == story.said, "the same run has the same"
