from __future__ import annotations

import json
from typing import Any

import pytest

from workflows_mcp.answers.answer import FindPlace, answer_about
from workflows_mcp.answers.previews import format_path, parse_path
from workflows_mcp.answers.run_view import run_view_of
from workflows_mcp.answers.state import snapshot_of, state_of
from workflows_mcp.errors import Place, RequestError
from workflows_mcp.limits import Limits
from workflows_mcp.machine.events import Answered, CancelRequested, Parked, Resumed, StepDone, StepFailed
from workflows_mcp.machine.machine import Machine
from workflows_mcp.machine.state import Fault
from workflows_mcp.steps.registry import StepRegistry

LIMITS = Limits()
NOON = 1_794_830_400.0  # 2026-11-16T12:00:00Z


def nowhere(fault: Fault) -> Place | None:
    return None


def answer_of(
    machine: Machine, registry: StepRegistry, limits: Limits = LIMITS, place: FindPlace = nowhere
) -> dict[str, Any]:
    view = run_view_of(machine, now=machine.state.started_at + 71, limits=limits)
    return answer_about(view, registry, limits, place=place).rendered()


def run_state(machine: Machine, registry: StepRegistry, limits: Limits, **asked: Any) -> dict[str, Any]:
    view = run_view_of(machine, now=machine.state.changed_at, limits=limits, alone=True)
    return state_of(view, snapshot_of(view), registry, limits, **asked)


def test_a_run_that_needs_the_agent_carries_the_action_and_says_since_when(
    build: Any, registry: StepRegistry
) -> None:
    machine = build.started(build.plan("ask", build.ask("approve"), build.work("deploy", 0)), at=NOON)
    answer = answer_of(machine, registry)
    action = answer.pop("action")
    assert action["step_id"] == "approve"
    assert answer == {
        "workflow_id": "wf_1",
        "workflow": "ask",
        "status": "pending_action",
        "progress": {"done": 0, "total": 2},
        "why": "waiting for your answer to 'approve' since 12:00:00Z",
        "next": "submit_result(workflow_id='wf_1', step_id='approve', result=…); then 'deploy'",
    }


def test_a_question_is_pending_even_while_other_steps_run(build: Any, registry: StepRegistry) -> None:
    machine = build.started(
        build.plan("both", build.ask("one"), build.confirm("two"), build.work("build")), at=NOON
    )
    answer = answer_of(machine, registry)
    assert answer["status"] == "pending_action"
    assert answer["action"]["step_id"] == "one"
    assert [more["step_id"] for more in answer["more_actions"]] == ["two"]
    assert "running 'build' for 1 min 11 s" in answer["why"]


def test_a_running_run_says_what_runs_and_for_how_long(build: Any, registry: StepRegistry) -> None:
    blocks = [build.work(f"step{number}") for number in range(5)]
    answer = answer_of(build.started(build.plan("busy", *blocks)), registry)
    assert answer["status"] == "running"
    assert answer["why"].startswith("running 'step0' for 1 min 11 s, 'step1'")
    assert answer["why"].endswith("and 2 more")
    assert "action" not in answer
    assert "outputs" not in answer


def test_the_time_for_which_a_run_was_parked_is_not_counted_as_work(
    build: Any, registry: StepRegistry
) -> None:
    machine = build.started(build.plan("busy", build.work("build")), at=NOON)
    machine.apply(Parked(NOON + 10))
    machine.apply(Resumed(NOON + 40))
    machine.apply(Parked(NOON + 45))
    machine.apply(Resumed(NOON + 60))
    assert answer_of(machine, registry)["why"] == "running 'build' for 26 s"


def test_a_completed_run_has_outputs_and_no_reason_to_wait(build: Any, registry: StepRegistry) -> None:
    machine = build.started(
        build.plan("done", build.work("build"), outputs={"log": "${blocks.build.outputs.stdout}"})
    )
    machine.apply(StepDone(1001.0, "build#1", {"stdout": "fine"}))
    assert answer_of(machine, registry) == {
        "workflow_id": "wf_1",
        "workflow": "done",
        "status": "completed",
        "progress": {"done": 1, "total": 1},
        "outputs": {"log": "fine"},
        "next": "nothing; get_workflow_state(workflow_id='wf_1') has the details and step ids; "
        "control_workflow(workflow_id='wf_1', action='fork', step_id=…) redoes one of these steps and what "
        "follows it: 'build'",
    }


def test_a_failed_run_names_the_block_its_place_and_what_it_printed_last(
    build: Any, registry: StepRegistry
) -> None:
    machine = build.started(
        build.plan("outer", build.call("ci", "inner")), build.plan("inner", build.work("test"))
    )
    printed = "x" * 600 + "\nlast line\n"
    machine.apply(
        StepDone(1001.0, "ci/test#1", {"stdout": "out", "stderr": printed}, ok=False, message="exit code 2")
    )

    def place(fault: Fault) -> Place | None:
        assert fault.workflow == "inner"
        return Place("inner.yaml", 7, 3, "  - id: test")

    error = answer_of(machine, registry, place=place)["error"]
    assert error["code"] == "block_failed"
    assert "block 'ci' failed: block 'test' failed: exit code 2" in error["message"]
    assert error["block"] == "ci/test"
    assert error["place"] == "inner.yaml:7:3"
    assert error["line"] == "- id: test"
    assert error["printed"].endswith("last line")
    assert error["printed"].startswith("…xxx")
    assert len(error["printed"]) == 501


def test_stdout_is_what_a_block_printed_when_stderr_is_empty(build: Any, registry: StepRegistry) -> None:
    machine = build.started(build.plan("one", build.work("test")))
    machine.apply(StepDone(1001.0, "test#1", {"stdout": "from stdout", "stderr": " \n"}, ok=False))
    assert answer_of(machine, registry)["error"]["printed"] == "from stdout"


def test_a_crashed_step_gives_its_code_and_message(build: Any, registry: StepRegistry) -> None:
    machine = build.started(build.plan("one", build.work("test")))
    machine.apply(StepFailed(1001.0, "test#1", "forbidden", "may not write /etc/passwd"))
    answer = answer_of(machine, registry)
    assert answer["status"] == "failed"
    assert answer["error"]["code"] == "forbidden"
    assert "may not write /etc/passwd" in answer["error"]["message"]
    assert "outputs" not in answer


def test_a_cancelled_run_says_the_reason_if_there_is_one(build: Any, registry: StepRegistry) -> None:
    machine = build.started(build.plan("one", build.work("test")))
    machine.apply(CancelRequested(1001.0))
    assert answer_of(machine, registry)["status"] == "cancelled"
    assert "error" not in answer_of(machine, registry)
    machine = build.started(build.plan("one", build.work("test")))
    machine.apply(CancelRequested(1001.0, "no longer needed"))
    assert answer_of(machine, registry)["error"] == {"code": "cancelled", "message": "no longer needed"}


def test_what_was_under_way_when_a_run_was_cancelled_is_not_done(build: Any, registry: StepRegistry) -> None:
    blocks = [build.work("build"), build.ask("sure", 0), build.work("lint"), build.work("deploy", 1)]
    machine = build.started(build.plan("cut", *blocks))
    machine.apply(StepDone(1001.0, "build#1", {"stdout": ""}))
    machine.apply(CancelRequested(1002.0))
    assert answer_of(machine, registry)["progress"] == {"done": 1, "total": 4}


def test_a_block_that_has_failed_by_itself_is_over_and_not_done(build: Any, registry: StepRegistry) -> None:
    machine = build.started(build.plan("two", build.work("test"), build.work("lint")))
    machine.apply(StepFailed(1001.0, "test#1", "forbidden", "may not"))
    machine.apply(CancelRequested(1002.0))
    assert answer_of(machine, registry)["progress"] == {"done": 0, "failed": 1, "total": 2}


def completed_with(build: Any, **outputs: Any) -> Machine:
    plan = build.plan(
        "done", build.work("build"), outputs={name: f"${{blocks.build.{name}}}" for name in outputs}
    )
    machine: Machine = build.started(plan)
    machine.apply(StepDone(1001.0, "build#1", outputs))
    return machine


@pytest.mark.rows("X6")
def test_a_long_output_is_cut_with_a_note_whose_call_reads_the_rest(
    build: Any, registry: StepRegistry
) -> None:
    log = "".join(f"line {number}\n" for number in range(2000))
    machine = completed_with(build, log=log)
    shown = answer_of(machine, registry)["outputs"]["log"]
    assert shown.startswith(log[:4000])
    note = "get_workflow_state(workflow_id='wf_1', paths=[\"outputs.log\"], offset=4000)"
    assert shown[4000:] == f"… [cut: {len(log)} characters in all; read on with {note}]"

    read = ""
    offset: int | None = 0
    while offset is not None:
        state = run_state(machine, registry, LIMITS, paths=["outputs.log"], offset=offset, limit=5000)
        read += state["values"]["outputs.log"]
        assert state["slices"]["outputs.log"]["total"] == len(log)
        offset = state["slices"]["outputs.log"].get("next_offset")
    assert read == log


def test_an_answer_stays_below_its_limit_however_much_there_is(build: Any, registry: StepRegistry) -> None:
    many = {f"log{number}": "é" * 100_000 for number in range(40)}
    rows = [{"id": number, "text": "y" * 300} for number in range(3000)]
    machine = completed_with(build, rows=rows, **many)
    for view in (
        answer_of(machine, registry),
        run_state(machine, registry, LIMITS),
        run_state(machine, registry, LIMITS, paths=["outputs.rows"]),
        run_state(machine, registry, LIMITS, paths=["blocks.build", "outputs", "outputs.log1"]),
        run_state(machine, registry, LIMITS, paths=["outputs.log1"], limit=90_000),
    ):
        assert len(json.dumps(view, ensure_ascii=False)) < LIMITS.answer_chars * 1.1
    slices = run_state(machine, registry, LIMITS, paths=["outputs.rows"])["slices"]["outputs.rows"]
    assert slices["total"] == 3000
    assert slices["unit"] == "items"
    assert slices["next_offset"] == slices["length"]


def test_a_long_prompt_is_cut_and_its_note_leads_to_the_rest(build: Any, registry: StepRegistry) -> None:
    prompt = "Read this. " * 1000
    machine = build.started(build.plan("ask", build.ask("one", prompt=prompt)))
    answer = answer_of(machine, registry)
    shown = answer["action"]["parameters"]["prompt"]
    assert 'paths=["actions.one.parameters.prompt"], offset=4000' in shown
    state = run_state(machine, registry, LIMITS, paths=["actions.one.parameters.prompt"], offset=4000)
    assert state["values"]["actions.one.parameters.prompt"] == prompt[4000:]
    assert answer["action"]["result_schema"]["required"] == ["response"]


def test_the_overview_has_every_block_in_short(build: Any, registry: StepRegistry) -> None:
    machine = build.started(
        build.plan(
            "outer",
            build.work("build"),
            build.call("ci", "inner", 0),
            build.work("last", 1),
            inputs={"who": build.text_input},
        ),
        build.plan("inner", build.work("test"), build.ask("approve", 0)),
        who="Ada",
    )
    machine.apply(StepDone(1002.0, "build#1", {"stdout": "long text"}))
    machine.apply(StepDone(1003.5, "ci/test#1", {"stdout": "x"}, ok=False, message="exit code 1"))
    state = run_state(machine, registry, LIMITS)
    assert state["inputs"] == {"who": "Ada"}
    assert state["blocks"]["build"] == {
        "type": "Work",
        "status": "completed",
        "outcome": "success",
        "seconds": 2.0,
        "outputs": ["stdout"],
    }
    inner = state["blocks"]["ci"]["blocks"]["test"]
    assert (inner["outcome"], inner["message"], inner["seconds"]) == ("failure", "exit code 1", 1.5)


def test_paths_lead_to_any_value_of_a_run(build: Any, registry: StepRegistry) -> None:
    machine = build.started(
        build.plan("outer", build.call("ci", "inner")), build.plan("inner", build.work("test"))
    )
    machine.apply(StepDone(1001.0, "ci/test#1", {"files": ["a", {"b.c": 5}]}))
    paths = [
        "blocks.ci.blocks.test.outputs.files[0]",
        'blocks.ci.blocks.test.files[1]["b.c"]',
        "blocks.ci.blocks.test.metadata.status",
        "metadata.status",
    ]
    values = run_state(machine, registry, LIMITS, paths=paths)["values"]
    assert list(values.values()) == ["a", 5, "completed", "completed"]


def test_lists_and_objects_are_read_in_slices(build: Any, registry: StepRegistry) -> None:
    machine = completed_with(build, rows=list(range(10)), table={str(n): n for n in range(10)})
    state = run_state(machine, registry, LIMITS, paths=["outputs.rows", "outputs.table"], offset=4, limit=3)
    assert state["values"]["outputs.rows"] == [4, 5, 6]
    assert state["values"]["outputs.table"] == {"4": 4, "5": 5, "6": 6}
    assert state["slices"]["outputs.rows"] == {
        "offset": 4,
        "length": 3,
        "total": 10,
        "unit": "items",
        "next_offset": 7,
    }


def test_a_long_text_in_a_slice_of_a_list_says_its_own_place(build: Any, registry: StepRegistry) -> None:
    machine = completed_with(build, rows=["short", "x" * 5000, "y" * 5000])
    state = run_state(machine, registry, LIMITS, paths=["outputs.rows"], offset=2)
    assert 'paths=["outputs.rows[2]"], offset=4000' in state["values"]["outputs.rows"][0]


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("outputs.lgo", "did you mean 'log'?"),
        ("blocks.biuld.stdout", "did you mean 'build'?"),
        ("nothing", "a reference starts with one of: actions, blocks, inputs, metadata, outputs"),
        ("outputs.log.more", "'outputs.log' is text, which has no fields"),
    ],
)
def test_a_path_that_leads_nowhere_says_what_exists(
    build: Any, registry: StepRegistry, path: str, said: str
) -> None:
    machine = completed_with(build, log="x")
    with pytest.raises(RequestError) as refused:
        run_state(machine, registry, LIMITS, paths=[path])
    assert said in str(refused.value)


@pytest.mark.parametrize("text", ["", "a..b", "a[", "a['x", "[0]", "a b"])
def test_what_is_no_path_is_refused(text: str) -> None:
    with pytest.raises(RequestError, match="path"):
        parse_path(text)


@pytest.mark.parametrize("path", [("a", "b", 0, "c"), ("outputs", "a.b", "c d"), ("x", 'q"uo\\te', 12)])
def test_a_path_that_is_written_is_read_again_the_same(path: tuple[str | int, ...]) -> None:
    assert parse_path(format_path(path)) == path


def test_an_answered_question_is_not_pending_any_more(build: Any, registry: StepRegistry) -> None:
    machine = build.started(build.plan("ask", build.ask("one"), build.work("build", 0)))
    machine.apply(Answered(1001.0, "one", {"response": "yes"}))
    answer = answer_of(machine, registry)
    assert answer["status"] == "running"
    assert answer["progress"] == {"done": 1, "total": 2}
