from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from support.questions import open_actions
from workflows_mcp.answers.results import already_answered, check_result
from workflows_mcp.answers.run_view import run_view_of
from workflows_mcp.errors import InvalidResult, NotExpected
from workflows_mcp.machine.events import Answered
from workflows_mcp.machine.machine import Machine
from workflows_mcp.steps.registry import StepRegistry
from workflows_mcp.values import to_json


def answer(machine: Machine, registry: StepRegistry, step_id: str | None, result: Any) -> None:
    address, step_result = check_result(run_view_of(machine), registry, step_id, result)
    at = machine.state.changed_at + 1
    machine.apply(Answered(at, address, step_result.outputs, step_result.ok, step_result.message))


def test_an_action_has_the_question_with_its_values_in_place(build: Any, registry: StepRegistry) -> None:
    machine = build.started(
        build.plan(
            "ask",
            build.ask("count", prompt="How many ${inputs.things}?"),
            inputs={"things": build.text_input},
        ),
        things="cats",
    )
    (action,) = open_actions(machine, registry)
    assert action.step_id == "count"
    assert action.type == "prompt"
    assert action.parameters == {"prompt": "How many cats?"}
    assert action.result_schema["required"] == ["response"]


def test_a_question_of_a_called_workflow_carries_its_whole_address(
    build: Any, registry: StepRegistry
) -> None:
    machine = build.started(
        build.plan("outer", build.call("ci", "inner")), build.plan("inner", build.ask("approve"))
    )
    assert [action.step_id for action in open_actions(machine, registry)] == ["ci/approve"]
    assert check_result(run_view_of(machine), registry, "ci/approve", "yes")[0] == "ci/approve"


@pytest.mark.parametrize(
    "result",
    [{"response": "7"}, "7", 7, '{"response": "7"}'],
    ids=["object", "bare", "number", "json-text"],
)
def test_a_text_is_taken_in_every_form_that_models_send(
    build: Any, registry: StepRegistry, result: Any
) -> None:
    machine = build.started(build.plan("ask", build.ask("count")))
    assert check_result(run_view_of(machine), registry, None, result)[1].outputs == {"response": "7"}


@pytest.mark.parametrize(
    "result", [True, "true", "yes", {"confirmed": True}, '{"confirmed": true}', '{"confirmed": "yes"}']
)
def test_a_confirmation_is_taken_in_every_form_that_models_send(
    build: Any, registry: StepRegistry, result: Any
) -> None:
    machine = build.started(build.plan("ask", build.confirm("sure")))
    assert check_result(run_view_of(machine), registry, None, result)[1].outputs == {"yes": True}


@pytest.mark.parametrize("text", ['{"other": 1}', "[1, 2]", "true", "null", ' "quoted" ', "  spaced  "])
def test_text_that_happens_to_be_json_stays_the_text_that_was_asked_for(
    build: Any, registry: StepRegistry, text: str
) -> None:
    machine = build.started(build.plan("ask", build.ask("count")))
    assert check_result(run_view_of(machine), registry, None, text)[1].outputs == {"response": text}


@pytest.mark.parametrize("as_sent", [dict, to_json], ids=["object", "json-text"])
def test_a_result_that_does_not_fit_is_refused_with_the_schema_and_an_example(
    build: Any, registry: StepRegistry, as_sent: Callable[[Any], Any]
) -> None:
    machine = build.started(build.plan("ask", build.confirm("sure")))
    with pytest.raises(InvalidResult) as refused:
        check_result(run_view_of(machine), registry, None, as_sent({"confirmed": "maybe", "extra": 1}))
    text = str(refused.value)
    assert "'confirmed' must be true or false, not text \"maybe\"" in text
    assert "'extra' is not known here" in text
    assert '{"confirmed":true}' in text
    assert '"required":["confirmed"]' in text
    assert open_actions(machine, registry)[0].step_id == "sure"


def test_with_several_questions_the_result_must_say_which(build: Any, registry: StepRegistry) -> None:
    machine = build.started(build.plan("ask", build.ask("one"), build.confirm("two")))
    with pytest.raises(NotExpected, match="2 actions are pending: pass the step_id") as refused:
        check_result(run_view_of(machine), registry, None, "yes")
    assert refused.value.hint == "pending now: 'one', 'two'"
    assert check_result(run_view_of(machine), registry, "two", True)[0] == "two"


def test_an_old_question_is_refused_with_the_current_one(build: Any, registry: StepRegistry) -> None:
    machine = build.started(build.plan("ask", build.ask("one"), build.confirm("two", 0)))
    answer(machine, registry, "one", "first")
    with pytest.raises(
        NotExpected, match="'one' does not wait for an answer: it has been answered"
    ) as refused:
        check_result(run_view_of(machine), registry, "one", "second")
    assert refused.value.hint == "pending now: 'two'"
    with pytest.raises(NotExpected, match=r"no such step; did you mean 'two'\?"):
        check_result(run_view_of(machine), registry, "tow", True)


def test_an_ended_run_takes_no_result_and_says_how_it_ended(build: Any, registry: StepRegistry) -> None:
    machine = build.started(build.plan("ask", build.ask("one")))
    answer(machine, registry, None, "done")
    with pytest.raises(NotExpected, match="the run wf_1 has ended: it is completed"):
        check_result(run_view_of(machine), registry, None, "again")


def test_a_working_run_takes_no_result_and_says_how_to_wait(build: Any, registry: StepRegistry) -> None:
    machine = build.started(build.plan("ask", build.work("build"), build.ask("one", 0)))
    with pytest.raises(NotExpected, match="asks nothing of you now") as refused:
        check_result(run_view_of(machine), registry, None, "early")
    assert "get_workflow_status(workflow_id='wf_1', wait_seconds=30)" in str(refused.value)
    with pytest.raises(NotExpected, match="asks nothing of you now"):
        check_result(run_view_of(machine), registry, "one", "early")


def test_the_same_answer_again_is_recognised_and_another_is_not(build: Any, registry: StepRegistry) -> None:
    machine = build.started(build.plan("ask", build.ask("one"), build.confirm("two", 0)))
    assert not already_answered(run_view_of(machine), registry, "one", "first")
    answer(machine, registry, "one", "first")
    assert already_answered(run_view_of(machine), registry, "one", "first")
    assert already_answered(run_view_of(machine), registry, "one", {"response": "first"})
    assert not already_answered(run_view_of(machine), registry, "one", "second")
    assert not already_answered(run_view_of(machine), registry, "two", True)
    assert not already_answered(run_view_of(machine), registry, "nothing", True)
    # Without a step id it is meant for the question that is pending.
    assert not already_answered(run_view_of(machine), registry, None, "first")
    answer(machine, registry, "two", True)
    assert machine.state.status == "completed"
    assert already_answered(run_view_of(machine), registry, None, True)
    assert already_answered(run_view_of(machine), registry, "one", "first")
    assert not already_answered(run_view_of(machine), registry, None, False)


def test_a_question_whose_inputs_came_out_wrong_can_still_be_ended(
    build: Any, registry: StepRegistry
) -> None:
    machine = build.started(
        build.plan("ask", build.ask("one", prompt="${inputs.text}"), inputs={"text": build.text_input}),
        text="x",
    )
    machine.state.root.records["one"].inputs = {"prompt": ["not", "text"]}
    (action,) = open_actions(machine, registry)
    assert "are invalid (prompt:" in action.instructions
    _, step_result = check_result(run_view_of(machine), registry, "one", {})
    assert not step_result.ok
    assert step_result.outputs == {"response": ""}
