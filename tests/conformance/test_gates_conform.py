"""Gates on every engine: what only a person can decide waits for one, wherever it stands."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from support.process import ADA, AGENT, GRACE, Office
from workflows_mcp.errors import NotExpected, RequestError
from workflows_mcp.machine import Answered, Decided, Identity

pytestmark = pytest.mark.rows("P1")
InOffice = Callable[..., None]

GRAPH = """
name: release
inputs: {version: {type: string, default: "1.2"}}
blocks:
  - {id: build, type: Shell, inputs: {command: "true"}}
  - {id: approve, type: Gate, depends_on: [build], inputs: {message: "Release ${inputs.version}?"}}
  - id: publish
    type: Shell
    depends_on: [approve]
    inputs: {command: 'printf "%s" "${blocks.approve.by}: ${blocks.approve.comment}"'}
outputs: {said: "${blocks.publish.stdout}", approved: "${blocks.approve.approved}", via: "${blocks.approve.via}"}
"""
STATEFUL = """
name: release
inputs: {version: {type: string, default: "1.2"}}
initial_state: {}
steps:
  - {id: approve, type: gate, needs_state: [], message: "Release {{ inputs.version }}?", output_to: approval}
  - id: end
    type: return
    needs_state: [approval]
    value: {said: "{{ state.approval.by }}: {{ state.approval.comment }}", approved: "{{ state.approval.approved }}", via: "{{ state.approval.via }}"}
"""
REACTIVE = """
name: release
inputs: {version: {type: string, default: "1.2"}}
default_state: {raw: {approval: null}}
steps:
  - {id: approve, type: gate, message: "Release {{ version }}?", state_update: {path: raw.approval, value: "{{ result }}"}}
  - {id: ask, type: user_input, prompt: "{{ approval.by }}: {{ approval.comment }}"}
"""


def outcome(status: dict[str, object]) -> object:
    return status.get("result", status.get("outputs"))


@pytest.mark.parametrize("text", [GRAPH, STATEFUL], ids=["graph", "stateful"])
def test_a_run_waits_at_a_gate_until_a_person_decides(in_office: InOffice, text: str) -> None:
    async def scenario(office: Office) -> None:
        run = await office.start(text)
        waiting = await office.status(run)
        assert waiting["status"] == "waiting"
        assert "action" not in waiting
        assert waiting["decisions"][0]["message"] == "Release 1.2?"
        assert waiting["decisions"][0]["choices"] == ["approve", "reject"]
        assert f"workflows-mcp answer {run}" in waiting["decisions"][0]["how"]
        await office.restart()
        await office.decide(run, "approve", by=GRACE, comment=" fine ")
        done = await office.status(run)
        assert done["status"] == "completed"
        assert outcome(done) == {"said": "grace: fine", "approved": True, "via": "form"}
        decided = (await office.events(run, Decided))[0]
        assert (decided.choice, decided.by, decided.comment) == ("approve", GRACE, "fine")

    in_office(scenario)


def test_a_gate_of_a_reactive_workflow_writes_its_decision_to_the_state(in_office: InOffice) -> None:
    async def scenario(office: Office) -> None:
        run = await office.start(REACTIVE)
        assert await office.gates(run) == ["approve"]
        await office.decide(run, "approve", comment="now")
        action = (await office.status(run))["action"]
        assert action["parameters"]["prompt"] == "ada: now"

    in_office(scenario)


def test_no_answer_of_an_agent_opens_a_gate_and_each_try_is_recorded(in_office: InOffice) -> None:
    async def scenario(office: Office) -> None:
        run = await office.start(GRAPH)
        for result in ({"decision": "approve"}, "approve", {"is_error": True, "error": "x"}, {}):
            with pytest.raises(NotExpected, match="only a person can decide"):
                await office.submit(run, result, "approve")
        with pytest.raises(NotExpected):
            await office.engine.send(run, lambda _, now: Answered(now, "approve", {"decision": "approve"}))
        with pytest.raises(RequestError, match="only a person can decide 'approve'"):
            await office.decide(run, "approve", by=AGENT)
        assert await office.gates(run) == ["approve"]
        refusals = await office.refusals(run)
        assert [what for what, _ in refusals] == ["gate"] * 5
        await office.decide(run, "approve")
        assert await office.ended(run) == "completed"

    in_office(scenario)


def test_only_an_approver_decides(in_office: InOffice) -> None:
    text = GRAPH.replace("inputs: {message:", "inputs: {approvers: [managers, bob], message:")

    async def scenario(office: Office) -> None:
        run = await office.start(text)
        for name in ("ada", "managers2", "MANAGERS"):
            with pytest.raises(RequestError, match="not one of the approvers of 'approve': managers, bob"):
                await office.decide(run, "approve", by=Identity(name, "terminal", human=True))
        with pytest.raises(RequestError, match="only a person"):
            await office.decide(run, "approve", by=Identity("grace", "mcp"))
        assert [what for what, _ in await office.refusals(run)] == ["gate"] * 4
        await office.decide(run, "approve", by=GRACE)
        assert await office.ended(run) == "completed"

    in_office(scenario, approvers={"managers": ("grace",)})


@pytest.mark.parametrize(
    ("rule", "status", "next_status"),
    [
        ("", "failed", "skipped"),
        ("on_reject: fail, ", "failed", "skipped"),
        ("on_reject: continue, ", "completed", "completed"),
    ],
)
def test_a_rejection_fails_the_run_or_lets_it_continue(
    in_office: InOffice, rule: str, status: str, next_status: str
) -> None:
    async def scenario(office: Office) -> None:
        run = await office.start(GRAPH.replace("type: Gate, ", f"type: Gate, {rule}"))
        await office.decide(run, "reject", comment="not yet")
        assert await office.ended(run) == status
        gate = await office.record(run, "approve")
        assert gate.outputs["approved"] is False
        assert gate.outputs["comment"] == "not yet"
        assert gate.message == "ada rejected it: not yet"
        assert gate.by == ADA
        assert (await office.record(run, "publish")).status == next_status
        if status == "failed":
            assert "ada rejected it: not yet" in (await office.status(run))["error"]["message"]

    in_office(scenario)


def test_a_choice_is_named_in_any_case_or_by_its_number_and_nothing_else_counts(in_office: InOffice) -> None:
    text = GRAPH.replace("inputs: {message:", "inputs: {choices: [now, tonight, reject], message:")

    async def scenario(office: Office) -> None:
        for given, meant in (("TONIGHT", "tonight"), ("1", "now"), (" 2 ", "tonight")):
            run = await office.start(text)
            for wrong in ("", "4", "0", "approve", "now tonight"):
                with pytest.raises(RequestError, match="is not a choice of 'approve'"):
                    await office.decide(run, wrong)
            await office.decide(run, given)
            assert (await office.record(run, "approve")).outputs["decision"] == meant

    in_office(scenario)


def test_a_gate_that_nobody_decides_in_time_fails_and_a_late_decision_is_refused(in_office: InOffice) -> None:
    text = GRAPH.replace("type: Gate, ", "type: Gate, timeout: 30m, ")

    async def scenario(office: Office) -> None:
        run = await office.start(text)
        await office.advance(1799)
        assert await office.gates(run) == ["approve"]
        await office.restart()
        await office.advance(2)
        assert await office.ended(run) == "failed"
        assert (await office.record(run, "approve")).message == "timed out after 1800 s"
        with pytest.raises(NotExpected):
            await office.decide(run, "approve")

    in_office(scenario)


def test_a_gate_without_a_timeout_waits_for_ever(in_office: InOffice) -> None:
    async def scenario(office: Office) -> None:
        for text in (GRAPH, STATEFUL, REACTIVE):
            run = await office.start(text)
            await office.advance(40 * 86400)
            assert await office.gates(run) == ["approve"]

    in_office(scenario)


def test_a_gate_can_continue_when_nobody_decides_and_counts_as_not_approved(in_office: InOffice) -> None:
    text = GRAPH.replace("type: Gate, ", "type: Gate, timeout: 60, on_timeout: continue, ").replace(
        "depends_on: [approve]", "depends_on: [{block: approve, required: false}]"
    )

    async def scenario(office: Office) -> None:
        run = await office.start(text)
        await office.advance(61)
        assert await office.ended(run) == "completed"
        assert (await office.record(run, "approve")).outputs["approved"] is False

    in_office(scenario)


CALLED = """
name: outer
blocks:
  - {id: ci, type: Workflow, inputs: {workflow: release}}
  - {id: each, type: Workflow, for_each: [one, two], inputs: {workflow: release, inputs: {version: "${each.value}"}}}
  - {id: after, type: Shell, depends_on: [ci], inputs: {command: "true"}}
"""


def test_gates_inside_of_calls_and_items_are_open_at_once_and_decided_one_by_one(in_office: InOffice) -> None:
    async def scenario(office: Office) -> None:
        office.define("release", GRAPH)
        run = await office.start(CALLED)
        assert await office.gates(run) == ["ci/approve", "each/0/approve", "each/1/approve"]
        shown = {it["step_id"]: it["message"] for it in (await office.status(run))["decisions"]}
        assert shown == {
            "ci/approve": "Release 1.2?",
            "each/0/approve": "Release one?",
            "each/1/approve": "Release two?",
        }
        with pytest.raises(NotExpected, match="3 decisions are open: name one"):
            await office.decide(run, "approve")
        with pytest.raises(NotExpected, match="waits for no decision"):
            await office.decide(run, "approve", "approve")
        await office.decide(run, "approve", "each/1/approve", comment="1")
        with pytest.raises(NotExpected, match="waits for no decision"):
            await office.decide(run, "approve", "each/1/approve")
        await office.decide(run, "reject", "ci/approve")
        await office.decide(run, "approve", "each/0/approve", comment="0")
        assert await office.ended(run) == "failed"
        assert (await office.record(run, "each/1")).outputs["said"] == "ada: 1"
        assert (await office.record(run, "after")).status == "skipped"
        assert [it.address for it in await office.events(run, Decided)] == [
            "each/1/approve",
            "ci/approve",
            "each/0/approve",
        ]

    in_office(scenario)


TASKS = """
name: tasks
initial_state: {}
steps:
  - {id: each, type: foreach, needs_state: [], items: [a, b], agent: "@task", task: one, output_to: found}
  - {id: end, type: return, needs_state: [found], value: "{{ state.found }}"}
tasks:
  one:
    inputs: {name: {type: string, required: true}}
    steps:
      - {id: work, type: delegate, needs_state: [], instructions: "Do {{ inputs.name }}", output_to: done}
      - {id: approve, type: gate, needs_state: [done], message: "Keep {{ inputs.name }}: {{ state.done.response }}?", output_to: kept}
      - {id: back, type: return, needs_state: [kept], value: "{{ inputs.name }} {{ state.kept.decision }}"}
"""


def test_a_sub_agent_cannot_pass_the_gate_of_its_task_nor_that_of_another(in_office: InOffice) -> None:
    async def scenario(office: Office) -> None:
        run = await office.start(TASKS)
        first, second = f"{run}.each.0", f"{run}.each.1"
        await office.submit(first, "A", "work")
        waiting = await office.status(first)
        assert waiting["status"] == "waiting"
        assert waiting["decisions"][0]["step_id"] == "approve"
        for workflow_id, step in (
            (first, "approve"),
            (second, "approve"),
            (run, "each/0/approve"),
            (first, None),
        ):
            with pytest.raises(NotExpected):
                await office.submit(workflow_id, {"decision": "approve"}, step)
        await office.submit(second, "B", "work")
        await office.decide(first, "approve", "approve")
        await office.decide(run, "approve", "each/1/approve")
        assert await office.ended(run) == "completed"
        assert (await office.state(run)).result == ["a approve", "b approve"]

    in_office(scenario)


def test_a_gate_with_retry_asks_again_after_a_rejection(in_office: InOffice) -> None:
    text = GRAPH.replace("type: Gate, ", "type: Gate, retry: {attempts: 2, delay: 1}, ")

    async def scenario(office: Office) -> None:
        run = await office.start(text)
        await office.decide(run, "reject")
        await office.advance(2)
        assert await office.gates(run) == ["approve"]
        await office.decide(run, "approve")
        assert await office.ended(run) == "completed"

    in_office(scenario)


def test_a_parked_run_takes_no_decision_before_it_is_resumed(in_office: InOffice) -> None:
    async def scenario(office: Office) -> None:
        run = await office.start(GRAPH)
        await office.service.context_full(run)
        assert "decisions" not in await office.status(run)
        with pytest.raises(NotExpected):
            await office.decide(run, "approve", "approve")
        await office.service.resume_run(run, wait_seconds=0)
        await office.decide(run, "approve", "approve")
        assert await office.ended(run) == "completed"

    in_office(scenario)


def test_a_retry_and_a_fork_ask_again_what_was_not_decided_and_keep_what_was(in_office: InOffice) -> None:
    text = GRAPH.replace('command: "true"', "command: 'test -e ready'")
    two = GRAPH + ""

    async def scenario(office: Office) -> None:
        office.define("release", two)
        run = await office.start(text)
        assert await office.ended(run) == "failed"
        office.write("ready")
        again = await office.follow((await office.service.retry(run, wait_seconds=0))["workflow_id"])
        assert await office.gates(again) == ["approve"]
        await office.decide(again, "approve", comment="yes")
        assert await office.ended(again) == "completed"
        fork = (await office.service.fork(again, "publish", wait_seconds=0))["workflow_id"]
        await office.follow(fork)
        assert await office.ended(fork) == "completed", "the decision stays in force for what follows it"
        asked = (await office.service.fork(again, "build", wait_seconds=0))["workflow_id"]
        await office.follow(asked)
        assert await office.gates(asked) == ["approve"], "the decision was about another build"

    in_office(scenario)
