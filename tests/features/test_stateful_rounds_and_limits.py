"""Steps that are come to again, that wait, that are tried again; and the limits of a run of steps: each through the
service, from YAML to answer."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from support.rendered import Service
from support.sessions import Serve, serving, steps
from workflows_mcp.engines.sqlite.engine import SqliteEngine
from workflows_mcp.errors import NotExpected
from workflows_mcp.settings.model import Settings


@pytest.fixture
def serve(settings: Settings) -> Serve:
    return serving(settings)


# Going back and forth


LOOP = steps(
    '{id: top, type: set_state, needs_state: [n], updates: {n: "{{ state.n + 1 }}"}}',
    '{id: improve, type: delegate, needs_state: [n], instructions: "round {{ state.n }}", output_to: said}',
    '{id: keep, type: set_state, needs_state: [all, said], updates: {all: "{{ state.all + [state.said.response] }}"}}',
    "{id: check, type: condition, needs_state: [said], if: \"{{ state.said.response == 'good' }}\", then: ["
    "{id: stop, type: goto, target: end, max_iterations: 1}]}",
    "{id: again, type: goto, target: top, max_iterations: 2, on_limit: continue}",
    "{id: gave-up, type: set_state, needs_state: [], updates: {gave_up: true}}",
    '{id: end, type: return, needs_state: [n, all], value: {rounds: "{{ state.n }}", all: "{{ state.all }}"}}',
    state="{n: 0, all: [], gave_up: false}",
)


@pytest.mark.rows("S15")
@pytest.mark.parametrize(
    ("answers", "rounds", "gave_up"),
    [(["good"], 1, False), (["bad", "good"], 2, False), (["bad", "worse", "still bad"], 3, True)],
)
def test_a_goto_goes_back_so_many_times_and_forward_over_what_lies_between(
    serve: Any, answers: list[str], rounds: int, gave_up: bool
) -> None:
    async def work(service: Service) -> None:
        answer = await service.start(text=LOOP)
        for number, said in enumerate(answers, 1):
            assert answer["action"]["parameters"]["instructions"] == f"round {number}"
            step = answer["action"]["step_id"]
            answer = await service.submit(answer["workflow_id"], said, step_id=step)
        assert answer["result"] == {"rounds": rounds, "all": answers}
        assert answer["state"]["gave_up"] is gave_up

    serve(work)


@pytest.mark.rows("S15")
def test_a_late_answer_to_an_earlier_round_does_not_answer_this_one(serve: Any) -> None:
    async def work(service: Service) -> None:
        answer = await service.start(text=LOOP)
        run_id, first = answer["workflow_id"], answer["action"]["step_id"]
        answer = await service.submit(run_id, "bad", step_id=first)
        second = answer["action"]["step_id"]
        # The answer got lost, so the agent says it again: it is told what is asked now.
        assert await service.submit(run_id, "bad", step_id=first) == answer
        # Somebody else was slow to say something else.
        with pytest.raises(NotExpected) as refused:
            await service.submit(run_id, "good", step_id=first)
        assert second in refused.value.hint
        answer = await service.status(run_id)
        assert answer["action"]["parameters"]["instructions"] == "round 2"
        answer = await service.submit(run_id, "good", step_id=second)
        assert answer["result"] == {"rounds": 2, "all": ["bad", "good"]}

    serve(work)


@pytest.mark.rows("S15")
@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        pytest.param(
            (
                '{id: top, type: set_state, needs_state: [n], updates: {n: "{{ state.n + 1 }}"}}',
                '{id: out, type: goto, target: end, max_iterations: 1, needs_state: [n], when: "{{ state.n == 3 }}"}',
                "{id: again, type: goto, target: top, max_iterations: 5}",
                '{id: end, type: return, needs_state: [n], value: "{{ state.n }}"}',
            ),
            3,
            id="a goto that its condition skips has not jumped",
        ),
        pytest.param(
            (
                '{id: outer, type: set_state, needs_state: [n], updates: {n: "{{ state.n + 1 }}"}}',
                '{id: inner, type: set_state, needs_state: [n, said], updates: {said: "{{ state.said ~ state.n }}"}}',
                "{id: more, type: goto, target: inner, max_iterations: 2, on_limit: continue}",
                "{id: again, type: goto, target: outer, max_iterations: 2, on_limit: continue}",
                '{id: end, type: return, needs_state: [said], value: "{{ state.said }}"}',
            ),
            "111222333",
            id="an inner loop has all its rounds in every round of the outer one",
        ),
    ],
)
def test_a_goto_counts_jumps_anew_in_every_round_around_it(
    serve: Any, lines: tuple[str, ...], expected: object
) -> None:
    async def work(service: Service) -> None:
        answer = await service.start(text=steps(*lines, state='{n: 0, said: ""}'))
        assert (answer["status"], str(answer["result"])) == ("completed", str(expected))

    serve(work)


STATEFUL = steps(
    '{id: top, type: set_state, needs_state: [n], updates: {n: "{{ state.n + 1 }}"}}',
    "{id: loop, type: goto, target: top, max_iterations: 3%s}",
    state="{n: 0}",
)
REACTIVE = """
name: it
default_state: {raw: {n: 0}}
steps:
  - id: loop
    type: while
    condition: "{{ n < 100 }}"
    max_iterations: 3%s
    body: [{type: state_update, path: raw.n, operation: increment}]
"""


@pytest.mark.rows("S15", "R13")
@pytest.mark.parametrize("text", [STATEFUL, REACTIVE], ids=["goto", "while"])
def test_a_loop_that_reaches_its_limit_fails_unless_it_says_that_it_continues(serve: Any, text: str) -> None:
    async def work(service: Service) -> None:
        inside = text is STATEFUL
        answer = await service.start(text=text % "")
        error = answer["error"]
        assert (answer["status"], error["code"], error["block"]) == ("failed", "max_iterations", "loop")
        assert "3 times" in error["message"]
        assert "on_limit: continue" in error["hint"]
        told = ", on_limit: continue" if inside else "\n    on_limit: continue"
        answer = await service.start(text=text % told)
        assert (answer["status"], answer["state"]["n"]) == ("completed", 4 if inside else 3)

    serve(work)


# Time, and trying again


@pytest.mark.rows("S8")
def test_a_wait_goes_on_by_itself_also_when_its_time_comes_while_no_server_runs(settings: Settings) -> None:
    text = steps(
        '{id: nap, type: wait, needs_state: [], duration_seconds: "{{ inputs.seconds }}", message: "zzz"}',
        "{id: end, type: return, needs_state: [], value: awake}",
        rest="inputs: {seconds: {type: number, required: true}}\n",
    )

    async def begin() -> tuple[str, str]:
        async with Service.open(settings) as service:
            short = await service.start(text=text, inputs={"seconds": 0.3}, wait_seconds=0)
            long = await service.start(text=text, inputs={"seconds": 1000}, wait_seconds=0)
            assert (short["status"], long["status"]) == ("waiting", "waiting")
            return short["workflow_id"], long["workflow_id"]

    async def go_on(short: str, long: str) -> None:
        async with Service.open(settings) as service:
            answer = await service.status(short, wait_seconds=20)
            assert (answer["status"], answer["result"]) == ("completed", "awake")
            assert (await service.status(long))["status"] == "waiting"

    started = time.time()
    ids = asyncio.run(begin())
    while time.time() < started + 0.5:
        time.sleep(0.05)
    asyncio.run(asyncio.wait_for(go_on(*ids), 30))


@pytest.mark.rows("S8")
def test_a_wait_takes_as_long_as_it_says(serve: Any) -> None:
    async def work(service: Service) -> None:
        text = steps("{id: nap, type: wait, needs_state: [], duration_seconds: 0.4}")
        started = time.monotonic()
        answer = await service.start(text=text)
        assert answer["status"] == "completed"
        assert 0.4 <= time.monotonic() - started < 5

    serve(work)


@pytest.mark.rows("S8")
def test_a_number_may_be_an_expression_that_reads_nothing(serve: Any) -> None:
    async def work(service: Service) -> None:
        text = steps('{id: nap, type: wait, needs_state: [], duration_seconds: "{{ 100 * 60 }}"}')
        answer = await service.start(text=text, wait_seconds=0)
        assert answer["status"] == "waiting"
        step = await service.step(answer["workflow_id"])
        assert step["duration"] == 6000

    serve(work)


RETRIED = steps(
    "{id: call, type: mcp_call, needs_state: [], tool: tracker.create, parameters: {n: 1}, output_to: got,"
    " retry: {attempts: 3, delay: 0}}",
    '{id: end, type: return, needs_state: [got], value: "{{ state.got }}"}',
)


@pytest.mark.rows("S8")
def test_a_tool_that_failed_is_asked_for_again_as_often_as_the_step_says(serve: Any) -> None:
    async def work(service: Service) -> None:
        failed = {"is_error": True, "error": "busy"}
        for answers, status in (([failed, failed, {"id": 7}], "completed"), ([failed] * 3, "failed")):
            answer = await service.start(text=RETRIED)
            for result in answers:
                action = answer["action"]
                assert action["parameters"]["args"] == {"n": 1}
                answer = await service.submit(answer["workflow_id"], result, step_id=action["step_id"])
            assert answer["status"] == status
            if status == "completed":
                assert answer["result"] == {"id": 7}
            else:
                assert "the tool 'tracker.create' failed: busy" in answer["error"]["message"]

    serve(work)


def test_a_failure_that_is_told_twice_does_not_use_up_two_tries(serve: Any) -> None:
    async def work(service: Service) -> None:
        answer = await service.start(text=RETRIED)
        run_id, first = answer["workflow_id"], answer["action"]["step_id"]
        failed = {"is_error": True, "error": "busy"}
        answer = await service.submit(run_id, failed, step_id=first)
        for _ in range(3):
            assert await service.submit(run_id, failed, step_id=first) == answer
        answer = await service.submit(run_id, {"id": 7}, step_id=answer["action"]["step_id"])
        assert (answer["status"], answer["result"]) == ("completed", {"id": 7})

    serve(work)


# Limits


DEEP = steps(
    "{id: rows, type: foreach, needs_state: [], items: [[1], [2]], task: row, output_to: table}",
    rest="tasks:\n  row:\n    inputs: {cells: array}\n    steps:\n"
    "      - {id: cells, type: foreach, needs_state: [], items: [1], task: cell, output_to: got}\n"
    "  cell:\n    inputs: {value: number}\n    steps:\n"
    "      - {id: back, type: return, needs_state: [], value: 1}\n",
)


@pytest.mark.rows("S14")
@pytest.mark.parametrize(
    ("limits", "text", "words"),
    [
        (
            {"state_bytes": 100},
            steps("{id: s, type: set_state, needs_state: [], updates: {x: \"{{ 'y' * 200 }}\"}}"),
            "at most 100 are allowed (WORKFLOWS_LIMIT_STATE_BYTES)",
        ),
        (
            {"expression_chars": 50},
            steps("{id: s, type: set_state, needs_state: [], updates: {x: \"{{ 'y' * 200 }}\"}}"),
            "200 characters, and at most 50 are allowed",
        ),
        (
            {"expression_seconds": 0.1},
            steps(
                '{id: s, type: set_state, needs_state: [], updates: {x: "{% for i in range(99999) %}'
                '{% for j in range(99999) %}{% endfor %}{% endfor %}"}}'
            ),
            "took longer than 0.1 seconds",
        ),
        (
            {"task_depth": 1},
            DEEP,
            "tasks are nested 2 deep; the limit is 1 (WORKFLOWS_LIMIT_TASK_DEPTH)",
        ),
    ],
)
def test_a_limit_can_be_set_and_is_named_with_its_setting(
    serve: Any, limits: dict[str, Any], text: str, words: str
) -> None:
    async def work(service: Service) -> None:
        answer = await service.start(text=text)
        assert answer["status"] == "failed"
        assert words in answer["error"]["message"]
        setting = f"WORKFLOWS_LIMIT_{next(iter(limits)).upper()}"
        assert setting in answer["error"]["message"] + answer["error"].get("hint", "")

    serve(work, **limits)


ASKING = """tasks:
  one:
    inputs: {n: number}
    steps:
      - {id: do, type: delegate, needs_state: [], instructions: "{{ inputs.n }}", output_to: said}
  two:
    inputs: {n: number}
    steps:
      - {id: inner, type: foreach, needs_state: [], items: [1, 2], task: one, output_to: out}
"""


@pytest.mark.rows("S14")
def test_no_more_tasks_begin_than_there_is_room_for_what_they_ask(serve: Any) -> None:
    each = "{id: each, type: foreach, needs_state: [], items: [1, 2, 3], task: one, output_to: out}"

    async def work(service: Service) -> None:
        answer = await service.start(text=steps(each, rest=ASKING))
        assert len(answer["more_actions"]) == 1
        for _ in range(3):
            await service.submit(answer["action"]["workflow_id"], "done")
            answer = await service.status(answer["workflow_id"])
        assert answer["status"] == "completed"

    serve(work, pending_actions=2)


@pytest.mark.rows("S14")
def test_more_actions_than_may_wait_at_once_are_refused_with_what_to_write(serve: Any) -> None:
    each = "{id: each, type: foreach, needs_state: [], items: [1, 2], task: two, output_to: out}"

    async def work(service: Service) -> None:
        answer = await service.start(text=steps(each, rest=ASKING))
        while answer["status"] == "pending_action":
            await service.submit(answer["action"]["workflow_id"], "done")
            answer = await service.status(answer["workflow_id"])
        error = answer["error"]
        assert (answer["status"], error["code"]) == ("failed", "pending_actions")
        assert "the limit is 2 (WORKFLOWS_LIMIT_PENDING_ACTIONS)" in error["message"]
        assert "max_parallel" in error["hint"]

    serve(work, pending_actions=2)


@pytest.mark.rows("S12", "S15")
def test_an_answer_of_an_earlier_round_that_is_repeated_is_harmless_and_another_one_is_refused(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither reads the journal again: it would cost more with every answer."""

    text = """
name: rounds
initial_state: {count: 0}
steps:
  - {id: ask, type: prompt, prompt_type: text, message: "{{ state.count }}?", needs_state: [count], output_to: said}
  - {id: more, type: set_state, needs_state: [count], updates: {count: "{{ state.count + 1 }}"}}
  - {id: again, type: goto, target: ask, max_iterations: 3}
"""

    async def work() -> None:
        async with Service.open(settings) as service:
            run = (await service.start(text=text))["workflow_id"]
            second = await service.submit(run, "one", step_id="ask")
            assert second["action"]["step_id"] == "ask@2"
            assert await service.submit(run, "one", step_id="ask") == second
            third = await service.submit(run, "two", step_id="ask@2")
            monkeypatch.delattr(SqliteEngine, "journal")
            assert await service.submit(run, "one", step_id="ask") == third
            assert await service.submit(run, "two", step_id="ask@2") == third
            for step_id, result in (("ask", "two"), ("ask@2", "one")):
                with pytest.raises(NotExpected, match="asked again, as 'ask@3'"):
                    await service.submit(run, result, step_id=step_id)

    asyncio.run(asyncio.wait_for(work(), 30))
