"""Checks of results on every engine: a result counts only when all of its checks hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from support.process import Office
from workflows_mcp.errors import InvalidResult, NotExpected
from workflows_mcp.machine import Answered, Refused

pytestmark = pytest.mark.rows("P2")
InOffice = Callable[..., None]

GRAPH = """
name: fix
blocks:
  - id: write
    type: Delegate
    inputs: {instructions: "Write it"}
    result: {type: object, required: [files], properties: {files: {type: array, items: {type: string}}, note: {type: string}}}
    attempts: %(attempts)s
    verify: %(verify)s
  - {id: after, type: Shell, depends_on: [write], inputs: {command: 'printf "%%s" "${blocks.write.files[0]}"'}}
outputs: {said: "${blocks.after.stdout}", note: "${blocks.write.note}"}
"""
STATEFUL = """
name: fix
initial_state: {}
steps:
  - id: write
    type: delegate
    needs_state: []
    instructions: "Write it"
    result: {type: object, required: [files], properties: {files: {type: array, items: {type: string}}}}
    verify: ["result.files | length > 0", {command: "test -e {{ result.files[0] }}", message: "{{ result.files[0] }} must exist"}]
    output_to: written
  - {id: end, type: return, needs_state: [written], value: "{{ state.written.files[0] }}"}
"""
REACTIVE = """
name: fix
default_state: {raw: {written: null}}
steps:
  - id: write
    type: delegate
    instructions: "Write it"
    result: {type: object, required: [files], properties: {files: {type: array, items: {type: string}}}}
    verify: ["result.files.length > 0", {command: "test -e {{ result.files[0] }}", message: "{{ result.files[0] }} must exist"}]
    state_update: {path: raw.written, value: "{{ result.files[0] }}"}
  - {id: end, type: user_input, prompt: "{{ written }}"}
"""
BOTH = '["${result.files | length} > 0", {command: "test -e ${result.files[0]}", message: "${result.files[0]} must exist"}]'


def graph(verify: str = BOTH, attempts: int = 3) -> str:
    return GRAPH % {"verify": verify, "attempts": attempts}


@pytest.mark.parametrize(
    ("text", "end"), [(graph(), ""), (STATEFUL, ""), (REACTIVE, "end")], ids=["graph", "stateful", "reactive"]
)
def test_a_result_is_accepted_when_all_of_its_checks_hold(in_office: InOffice, text: str, end: str) -> None:
    async def scenario(office: Office) -> None:
        run = await office.start(text)
        action = (await office.status(run))["action"]
        assert len(action["checks"]) == 2
        assert "rejected_because" not in action
        action = (await office.submit(run, {"files": []}, "write"))["action"]
        assert action["step_id"].startswith("write")
        assert len(action["rejected_because"]) == 1
        assert "this must hold" in action["rejected_because"][0]
        assert action["results_left"] == 2
        action = (await office.submit(run, {"files": ["a.txt"]}))["action"]
        assert action["rejected_because"][0].startswith("a.txt must exist (")
        assert "exit code 1" in action["rejected_because"][0]
        assert action["results_left"] == 1
        await office.restart()
        office.write("a.txt")
        await office.submit(run, {"files": ["a.txt"]})
        record = await office.record(run, "write")
        assert (record.status, record.rejections, record.feedback) == ("completed", 2, [])
        assert [(it.round, it.passed, it.exit_code) for it in record.checks] == [
            (1, False, None),
            (2, True, None),
            (2, False, 1),
            (3, True, None),
            (3, True, 0),
        ]
        if end:
            assert await office.asked(run) == [end]
        else:
            assert await office.ended(run) == "completed"

    in_office(scenario)


def test_all_failed_checks_are_returned_together_and_commands_only_run_when_expressions_hold(
    in_office: InOffice,
) -> None:
    verify = """
      - {test: "${result.files | length} > 1", message: "two files are needed, not ${result.files | length}"}
      - {command: "echo x >> ran; echo one is wrong; exit 3", message: "fix one"}
      - "${result.note} != ''"
      - {command: "echo y >> ran; echo two is wrong >&2; exit 4"}
"""

    async def scenario(office: Office) -> None:
        run = await office.start(graph(verify))
        action = (await office.submit(run, {"files": ["a"], "note": ""}))["action"]
        first, second = action["rejected_because"]
        assert first.startswith("two files are needed, not 1 (this must hold: ")
        assert second.startswith("this must hold: ${result.note} != ''")
        assert not (office.workspace / "ran").exists()
        action = (await office.submit(run, {"files": ["a", "b"], "note": "n"}))["action"]
        first, second = action["rejected_because"]
        assert first.startswith("fix one (")
        assert "exit code 3\none is wrong" in first
        assert "exit code 4\ntwo is wrong" in second
        assert (office.workspace / "ran").read_text() == "x\ny\n"

    in_office(scenario)


def test_a_step_whose_results_are_rejected_too_often_fails_with_what_was_wrong(in_office: InOffice) -> None:
    async def scenario(office: Office) -> None:
        run = await office.start(graph(attempts=2))
        await office.submit(run, {"files": []})
        await office.submit(run, {"files": ["gone"]})
        assert await office.ended(run) == "failed"
        record = await office.record(run, "write")
        assert record.fault.code == "rejected"
        assert record.message.startswith("its result was rejected 2 times: gone must exist")
        assert record.outputs == {"files": [], "note": ""}
        assert (await office.record(run, "after")).status == "skipped"
        again = (await office.service.retry(run, wait_seconds=0))["workflow_id"]
        await office.follow(again)
        action = (await office.status(again))["action"]
        assert "rejected_because" not in action, "a retry begins with all of its attempts"
        office.write("there")
        await office.submit(again, {"files": ["there"]})
        assert await office.ended(again) == "completed"

    in_office(scenario)


def test_retry_begins_the_attempts_again(in_office: InOffice) -> None:
    text = graph(attempts=1).replace("type: Delegate", "type: Delegate\n    retry: {attempts: 2, delay: 1}")

    async def scenario(office: Office) -> None:
        run = await office.start(text)
        await office.submit(run, {"files": []})
        await office.advance(1.5)
        action = (await office.status(run))["action"]
        assert action.get("rejected_because"), "the next attempt should know why the first one failed"
        office.write("there")
        await office.submit(run, {"files": ["there"]})
        assert await office.ended(run) == "completed"
        record = await office.record(run, "write")
        assert (record.attempts, record.rejections) == (2, 0)

    in_office(scenario)


def test_a_result_that_does_not_fit_is_refused_before_any_check_and_costs_no_attempt(
    in_office: InOffice,
) -> None:
    async def scenario(office: Office) -> None:
        run = await office.start(graph(attempts=1))
        wrong: Any
        for wrong in ({}, {"files": "a"}, {"files": [1]}, "text", None, [], {"files": ["a"], "note": 1}):
            with pytest.raises(InvalidResult):
                await office.submit(run, wrong)
        assert {it.what for it in await office.events(run, Refused)} == {"result"}
        assert (await office.record(run, "write")).rejections == 0
        office.write("a")
        await office.submit(run, {"files": ["a"]})
        assert await office.ended(run) == "completed"

    in_office(scenario)


def test_the_same_result_is_checked_again_after_a_fix(in_office: InOffice) -> None:
    async def scenario(office: Office) -> None:
        run = await office.start(graph())
        answer = await office.submit(run, {"files": ["a"]}, "write")
        assert (await office.record(run, "write")).rejections == 1
        office.write("a")
        await office.submit(run, {"files": ["a"]}, "write")
        assert await office.asked(run) == ["write"], "this is the first result again, which may come twice"
        await office.submit(run, {"files": ["a"]}, answer["action"]["step_id"])
        assert await office.ended(run) == "completed"

    in_office(scenario)


def test_a_result_that_was_rejected_is_not_accepted_by_sending_it_again(in_office: InOffice) -> None:
    async def scenario(office: Office) -> None:
        run = await office.start(graph(attempts=3))
        step_id = "write"
        for left in (2, 1):
            answer = await office.submit(run, {"files": ["a"]}, step_id)
            assert answer["action"]["results_left"] == left
            with pytest.raises(NotExpected, match="it is asked again, as"):
                await office.submit(run, {"files": ["b"]}, step_id)
            step_id = answer["action"]["step_id"]
        await office.submit(run, {"files": ["a"]}, step_id)
        assert await office.ended(run) == "failed"

    in_office(scenario)


def test_an_accepted_result_sent_again_is_harmless(in_office: InOffice) -> None:
    text = graph() + "  "

    async def scenario(office: Office) -> None:
        run = await office.start(
            text.replace(
                "  - {id: after",
                "  - {id: more, type: Prompt, depends_on: [write], inputs: {prompt: x}}\n  - {id: after",
            )
        )
        office.write("a")
        await office.submit(run, {"files": ["a"]}, "write")
        await office.submit(run, {"files": ["a"]}, "write")
        with pytest.raises(NotExpected):
            await office.submit(run, {"files": ["b"]}, "write")
        assert len(await office.events(run, Answered)) == 1

    in_office(scenario)


def test_a_failure_that_an_agent_reports_is_not_checked_and_fails_the_step(in_office: InOffice) -> None:
    async def scenario(office: Office) -> None:
        run = await office.start(graph())
        await office.submit(run, {"is_error": True, "error": "cannot"}, "write")
        assert await office.ended(run) == "failed"
        record = await office.record(run, "write")
        assert (record.checks, record.message) == ([], "cannot")

    in_office(scenario)


def test_a_check_that_cannot_be_evaluated_does_not_hold(in_office: InOffice) -> None:
    verify = '["${result.note | length} > ${result.files[5]}", {command: "test ${result.files[7]}"}]'

    async def scenario(office: Office) -> None:
        run = await office.start(graph(verify))
        action = (await office.submit(run, {"files": ["a"], "note": "n"}))["action"]
        assert len(action["rejected_because"]) == 1
        only = graph('[{command: "test ${result.files[7]}", message: "no seventh"}]')
        run = await office.start(only)
        action = (await office.submit(run, {"files": ["a"], "note": "n"}))["action"]
        assert "files[7]" in action["rejected_because"][0]
        assert "no seventh" in action["rejected_because"][0]

    in_office(scenario)


def test_a_value_of_a_result_is_a_word_of_the_command_and_never_code(in_office: InOffice) -> None:
    async def scenario(office: Office) -> None:
        run = await office.start(graph('[{command: "test -e ${result.files[0]}"}]'))
        office.write("a")
        answer = await office.submit(run, {"files": ["a; touch passed || true"]})
        assert answer["action"]["rejected_because"]
        assert not (office.workspace / "passed").exists()

    in_office(scenario)


def test_files_that_a_check_changes_are_in_its_evidence(in_office: InOffice) -> None:
    async def scenario(office: Office) -> None:
        office.write("kept", "1")
        office.write("src/changed", "1")
        run = await office.start(graph('[{command: "echo 22 > src/changed; echo 3 > made; true"}]'))
        await office.submit(run, {"files": ["kept"]})
        assert await office.ended(run) == "completed"
        assert (await office.record(run, "write")).checks[0].changed == ["made", "src/changed"]

    in_office(scenario)


def test_a_hanging_check_is_ended_and_has_failed(in_office: InOffice) -> None:
    async def scenario(office: Office) -> None:
        verify = (
            '[{command: "echo begun; touch changed; sleep 97 & sleep 97", timeout: 0.5, message: "be quick"}]'
        )
        run = await office.start(graph(verify, attempts=2))
        action = (await office.submit(run, {"files": ["a"]}))["action"]
        assert action["rejected_because"][0].startswith("be quick (")
        assert "timed out after 0.5 s" in action["rejected_because"][0]
        assert "begun" in action["rejected_because"][0]
        assert (await office.record(run, "write")).checks[0].changed == ["changed"]
        await office.submit(run, {"files": ["a"]})
        assert await office.ended(run) == "failed"

    in_office(scenario, real_time=True)


def test_secrets_that_a_check_prints_are_in_no_event_and_no_answer(
    in_office: InOffice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORKFLOWS_SECRET_TOKEN", "tok-0123456789abc")
    verify = '[{command: "cat printed; exit 1", message: "no"}]'

    async def scenario(office: Office) -> None:
        office.write("printed", "it is tok-0123456789abc")
        run = await office.start(graph(verify))
        answer = await office.submit(run, {"files": ["a"], "note": "tok-0123456789abc"})
        assert "tok-0123" not in str(answer)
        assert "rejected_because" in answer["action"]
        assert "tok-0123" not in str(await office.events(run, object))
        assert "tok-0123" not in str(await office.state(run))

    in_office(scenario)


def test_cancelling_and_parking_end_a_check_that_is_under_way(in_office: InOffice) -> None:
    verify = '[{command: "touch begun; until [ -e go ]; do sleep 0.02; done"}]'

    async def scenario(office: Office) -> None:
        for end in ("cancel", "park"):
            for name in ("begun", "go"):
                (office.workspace / name).unlink(missing_ok=True)
            run = await office.start(graph(verify))
            await office.service.submit(run, {"files": ["a"]}, wait_seconds=0)
            await office.until(run, lambda state: any(it.kind == "verify" for it in state.frames.values()))
            assert (await office.status(run))["status"] == "running"
            if end == "cancel":
                await office.service.cancel(run)
                assert await office.ended(run) == "cancelled"
                continue
            await office.service.context_full(run)
            office.write("go")
            await office.service.resume_run(run, wait_seconds=0)
            assert await office.ended(run) == "completed"

    in_office(scenario, real_time=True)


def test_a_result_submitted_while_its_check_runs_is_harmless_and_another_is_refused(
    in_office: InOffice,
) -> None:
    verify = '[{command: "echo x >> ran; until [ -e go ]; do sleep 0.02; done"}]'

    async def scenario(office: Office) -> None:
        run = await office.start(graph(verify))
        await office.service.submit(run, {"files": ["a"]}, step_id="write", wait_seconds=0)
        await office.until(run, lambda state: any(it.kind == "verify" for it in state.frames.values()))
        await office.service.submit(run, {"files": ["a"]}, step_id="write", wait_seconds=0)
        with pytest.raises(NotExpected, match="is being checked"):
            await office.service.submit(run, {"files": ["b"]}, step_id="write", wait_seconds=0)
        office.write("go")
        assert await office.ended(run) == "completed"
        assert (await office.record(run, "write")).outputs["files"] == ["a"]
        assert (office.workspace / "ran").read_text() == "x\n"

    in_office(scenario, real_time=True)


ITEMS = """
name: items
initial_state: {}
steps:
  - {id: each, type: foreach, needs_state: [], items: [a, b], agent: "@task", task: one, output_to: found}
  - {id: end, type: return, needs_state: [found], value: "{{ state.found }}"}
tasks:
  one:
    inputs: {name: {type: string, required: true}}
    steps:
      - id: work
        type: delegate
        needs_state: []
        instructions: "Do {{ inputs.name }}"
        verify: ["inputs.name in result.response", {command: "test -e {{ inputs.name }}"}]
        output_to: done
      - {id: back, type: return, needs_state: [done], value: "{{ state.done.response }}"}
"""


def test_the_checks_of_a_sub_agents_task_see_its_item(in_office: InOffice) -> None:
    async def scenario(office: Office) -> None:
        run = await office.start(ITEMS)
        office.write("b")
        one, two = f"{run}.each.0", f"{run}.each.1"
        answer = await office.submit(one, "b", "work")
        assert answer["action"]["results_left"] == 2
        await office.submit(two, "b done", "work")
        answer = await office.submit(one, "a done", answer["action"]["step_id"])
        assert "exit code 1" in answer["action"]["rejected_because"][0]
        office.write("a")
        await office.submit(one, "a done", answer["action"]["step_id"])
        assert await office.ended(run) == "completed"
        assert (await office.state(run)).result == ["a done", "b done"]

    in_office(scenario)


FOR_EACH = """
name: each
blocks:
  - id: work
    type: Delegate
    for_each: [a, b]
    inputs: {instructions: "Do ${each.value}"}
    verify: ["${result.response} == ${each.value}", {command: "test -e ${each.value}"}]
outputs: {found: "${blocks.work.results}"}
"""


def test_the_checks_of_an_item_see_its_value(in_office: InOffice) -> None:
    async def scenario(office: Office) -> None:
        run = await office.start(FOR_EACH)
        office.write("a")
        office.write("b")
        await office.submit(run, "b", "work/0")
        assert (await office.record(run, "work/0")).rejections == 1
        await office.submit(run, "b", "work/1")
        await office.submit(run, "a", "work/0@v2")
        assert await office.ended(run) == "completed"

    in_office(scenario)


def test_a_step_in_a_loop_has_its_attempts_in_every_round(in_office: InOffice) -> None:
    text = """
name: loop
default_state: {raw: {n: 0}}
steps:
  - {id: loop, type: while, condition: "n < 2", max_iterations: 5, body: [
      {id: ask, type: delegate, instructions: "n is {{ n }}", attempts: 2, verify: ["result.response === String(n)"]},
      {type: state_update, path: raw.n, operation: increment}]}
  - {id: end, type: user_input, prompt: "{{ n }}"}
"""

    async def scenario(office: Office) -> None:
        run = await office.start(text)
        for number in ("0", "1"):
            answer = await office.submit(run, "wrong")
            assert answer["action"]["results_left"] == 1
            await office.submit(run, number)
        assert await office.asked(run) == ["end"]

    in_office(scenario)
