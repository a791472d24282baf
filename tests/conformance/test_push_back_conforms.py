"""A person who rejects sends a step back on every engine: it runs again with all that depends on it."""

from __future__ import annotations

import textwrap
from collections.abc import Callable

import pytest

from support.process import ADA, AGENT, GRACE, Office
from workflows_mcp.errors import NotExpected, RequestError
from workflows_mcp.machine import Decided, Identity, Reopened

pytestmark = pytest.mark.rows("P6")
InOffice = Callable[..., None]

GRAPH = """
name: release
blocks:
  - {id: other, type: Shell, inputs: {command: "echo other >> ran"}}
  - id: write
    type: Delegate
    inputs: {instructions: "Write it. ${rejection.comment} (${rejection.count})"}
  - {id: check, type: Shell, depends_on: [write], inputs: {command: 'printf "%s\\n" "check ${blocks.write.response}" >> ran'}}
  - {id: beside, type: Shell, depends_on: [other], inputs: {command: "echo beside >> ran"}}
  - {id: talk, type: Prompt, inputs: {prompt: "Something else?"}}
  - id: approve
    type: Gate
    depends_on: [check, beside]
    on_reject: {back_to: write}
    inputs: {message: "Release ${blocks.write.response}?"}
  - {id: publish, type: Shell, depends_on: [approve], inputs: {command: "echo publish >> ran"}}
outputs: {text: "${blocks.write.response}", by: "${blocks.approve.by}"}
"""


def ran(office: Office) -> list[str]:
    return (office.workspace / "ran").read_text().splitlines()


def test_only_what_depends_on_the_step_runs_again_and_its_agent_reads_why(in_office: InOffice) -> None:
    async def scenario(office: Office) -> None:
        run = await office.start(GRAPH)
        await office.submit(run, "one", "write")
        await office.submit(run, "no", "talk")
        await office.restart()
        await office.decide(run, "reject", comment="too short")
        action = (await office.status(run))["action"]
        assert action["step_id"] == "write@2"
        assert action["parameters"]["instructions"] == "Write it. too short (1)"
        assert action["sent_back"] == {"comment": "too short", "by": "ada", "gate": "approve", "count": 1}
        await office.restart()
        assert sorted(ran(office)) == ["beside", "check one", "other"]
        with pytest.raises(NotExpected):
            await office.submit(run, "two", "write")
        await office.submit(run, "two", "write@2")
        assert (await office.status(run))["decisions"][0]["message"] == "Release two?"
        await office.decide(run, "approve", by=GRACE)
        assert await office.ended(run) == "completed"
        assert (await office.state(run)).outputs == {"text": "two", "by": "grace"}
        assert sorted(ran(office)) == ["beside", "check one", "check two", "other", "publish"]
        assert (await office.record(run, "talk")).outputs["response"] == "no"
        (back,) = await office.events(run, Reopened)
        assert (back.decision.choice, back.decision.by, back.decision.comment) == ("reject", ADA, "too short")
        assert [it.choice for it in await office.events(run, Decided)] == ["approve"]

    in_office(scenario)


def test_a_step_can_be_sent_back_again_and_again(in_office: InOffice) -> None:
    async def scenario(office: Office) -> None:
        run = await office.start(GRAPH)
        await office.submit(run, "no", "talk")
        step = "write"
        for number in range(1, 5):
            await office.submit(run, f"try {number}", step)
            await office.decide(run, "reject", comment=f"not {number}", by=ADA if number % 2 else GRACE)
            action = (await office.status(run))["action"]
            assert action["sent_back"]["count"] == number
            assert action["sent_back"]["comment"] == f"not {number}"
            step = action["step_id"]
            assert step == f"write@{number + 1}"
        await office.submit(run, "good", step)
        await office.decide(run, "approve")
        assert await office.ended(run) == "completed"

    in_office(scenario)


def test_other_branches_continue_meanwhile_and_keep_their_questions(in_office: InOffice) -> None:
    async def scenario(office: Office) -> None:
        run = await office.start(GRAPH)
        await office.submit(run, "one", "write")
        before = (await office.state(run)).frames["talk"]
        await office.decide(run, "reject", comment="no")
        assert (await office.state(run)).frames["talk"].event == before.event
        assert set(await office.questions(run)) == {"talk", "write@2"}
        await office.submit(run, "said", "talk")
        await office.submit(run, "two", "write@2")
        await office.decide(run, "approve")
        assert await office.ended(run) == "completed"

    in_office(scenario)


def test_only_a_person_and_only_an_approver_can_send_back(in_office: InOffice) -> None:
    text = GRAPH.replace("inputs: {message:", "inputs: {approvers: [grace], message:")

    async def scenario(office: Office) -> None:
        run = await office.start(text)
        await office.submit(run, "one", "write")
        for by in (AGENT, ADA, Identity("grace", "token")):
            with pytest.raises(RequestError):
                await office.decide(run, "reject", by=by)
        assert not await office.events(run, Reopened)
        await office.decide(run, "reject", by=GRACE)
        assert "write@2" in await office.questions(run)

    in_office(scenario)


def test_a_decision_about_what_was_shown_before_is_refused(in_office: InOffice) -> None:
    async def scenario(office: Office) -> None:
        run = await office.start(GRAPH)
        await office.submit(run, "one", "write")
        (shown,) = await office.service.decisions.open(run)
        await office.decide(run, "reject")
        with pytest.raises(NotExpected):
            await office.service.decide(run, "approve", by=GRACE, step_id="approve", shown=shown)
        await office.submit(run, "two", "write@2")
        with pytest.raises(NotExpected, match="is asked again"):
            await office.service.decide(run, "approve", by=GRACE, step_id="approve", shown=shown)
        with pytest.raises(NotExpected, match="is asked again"):
            await office.service.answer_form(run, "approve", {"decision": "approve"}, by=GRACE)
        assert await office.gates(run) == ["approve"]
        (now,) = await office.service.decisions.open(run)
        await office.service.answer_form(run, now.step_id, {"decision": "approve"}, by=GRACE)
        assert (await office.record(run, "approve")).status == "completed"

    in_office(scenario)


STATEFUL = """
name: plan
initial_state: {}
steps:
  - {id: first, type: delegate, needs_state: [], instructions: "Read", output_to: read}
  - {id: write, type: delegate, needs_state: [read], instructions: "Write {{ state.read.response }}. {{ rejection.comment }}", output_to: written}
  - {id: approve, type: gate, needs_state: [written], message: "{{ state.written.response }}?", on_reject: {back_to: write}, output_to: approval}
  - {id: end, type: return, needs_state: [written, approval], value: "{{ state.written.response }} {{ state.approval.by }}"}
"""
REACTIVE = """
name: plan
default_state: {raw: {n: 0, written: ""}}
state_schema:
  computed:
    loud: {from: raw.written, transform: "input.toUpperCase()"}
steps:
  - {id: first, type: delegate, instructions: "Read"}
  - {type: state_update, path: raw.n, operation: increment}
  - {id: write, type: delegate, instructions: "Write {{ n }}. {{ rejection.comment }}", state_update: {path: raw.written, value: "{{ result.response }}"}}
  - {type: state_update, path: raw.n, operation: increment}
  - {id: approve, type: gate, message: "{{ loud }} {{ n }}?", on_reject: {back_to: write}}
  - {id: end, type: delegate, instructions: "{{ loud }} {{ n }}"}
"""


@pytest.mark.parametrize(("text", "message"), [(STATEFUL, "one?"), (REACTIVE, "ONE 2?")])
def test_the_state_is_as_it_was_before_the_step_that_is_sent_back(
    in_office: InOffice, text: str, message: str
) -> None:
    async def scenario(office: Office) -> None:
        run = await office.start(text)
        await office.submit(run, "r", "first")
        await office.submit(run, "one", "write")
        assert (await office.status(run))["decisions"][0]["message"] == message
        await office.restart()
        await office.decide(run, "reject", comment="again")
        action = (await office.status(run))["action"]
        assert action["step_id"] == "write@2"
        assert action["parameters"]["instructions"] == (
            "Write r. again" if text is STATEFUL else "Write 1. again"
        )
        await office.submit(run, "two", "write@2")
        shown = (await office.status(run))["decisions"][0]["message"]
        assert shown == ("two?" if text is STATEFUL else "TWO 2?")
        await office.decide(run, "approve")
        if text is STATEFUL:
            assert await office.ended(run) == "completed"
            assert (await office.state(run)).result == "two ada"
        else:
            action = (await office.status(run))["action"]
            assert action["parameters"]["instructions"] == "TWO 2"

    in_office(scenario)


LOOP = """
name: loop
default_state: {raw: {n: 0, texts: []}}
steps:
  - {id: loop, type: while, condition: "n < 2", max_iterations: 9, body: [
      {id: write, type: delegate, instructions: "Write {{ n }} {{ rejection.comment }}", state_update: {path: raw.texts, operation: append, value: "{{ result.response }}"}},
      {id: approve, type: gate, message: "{{ texts.join() }}?", on_reject: {back_to: write}},
      {type: state_update, path: raw.n, operation: increment}]}
  - {id: end, type: delegate, instructions: "{{ texts.join() }}"}
"""


def test_in_a_loop_only_the_round_of_the_gate_is_done_again(in_office: InOffice) -> None:
    async def scenario(office: Office) -> None:
        run = await office.start(LOOP)
        await office.submit(run, "a")
        await office.decide(run, "approve")
        await office.submit(run, "bad")
        assert (await office.status(run))["decisions"][0]["message"] == "a,bad?"
        await office.decide(run, "reject", comment="no")
        action = (await office.status(run))["action"]
        assert action["parameters"]["instructions"] == "Write 1 no"
        await office.submit(run, "b")
        assert (await office.status(run))["decisions"][0]["message"] == "a,b?"
        await office.decide(run, "approve")
        assert (await office.status(run))["action"]["parameters"]["instructions"] == "a,b"

    in_office(scenario)


CALLED = """
name: outer
blocks:
  - {id: left, type: Workflow, inputs: {workflow: plan}}
  - {id: each, type: Workflow, for_each: [a, b], inputs: {workflow: plan}}
  - {id: after, type: Shell, depends_on: [left, each], inputs: {command: "true"}}
"""


def test_in_a_call_and_in_an_item_only_its_own_steps_run_again(in_office: InOffice) -> None:
    async def scenario(office: Office) -> None:
        office.define("plan", STATEFUL)
        run = await office.start(CALLED)
        for place in ("left", "each/0", "each/1"):
            await office.submit(run, f"r {place}", f"{place}/first")
            await office.submit(run, f"one {place}", f"{place}/write")
        await office.decide(run, "reject", "each/1/approve", comment="no b")
        await office.decide(run, "reject", "left/approve", comment="no left")
        assert set(await office.questions(run)) == {"each/1/write@2", "left/write@2"}
        assert await office.gates(run) == ["each/0/approve"]
        await office.restart()
        await office.submit(run, "two b", "each/1/write@2")
        await office.submit(run, "two left", "left/write@2")
        for place in ("left", "each/0", "each/1"):
            name = f"{place}/approve"
            await office.decide(run, "approve", name)
        assert await office.ended(run) == "completed"
        assert (await office.record(run, "each/1")).outputs["result"] == "two b ada"
        assert (await office.record(run, "each/0")).outputs["result"] == "one each/0 ada"

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
      - {id: work, type: delegate, needs_state: [], instructions: "Do {{ inputs.name }} {{ rejection.comment }}", output_to: done}
      - {id: approve, type: gate, needs_state: [done], message: "Keep {{ state.done.response }}?", on_reject: {back_to: work}}
      - {id: back, type: return, needs_state: [done], value: "{{ state.done.response }}"}
"""


def test_a_task_of_a_sub_agent_is_sent_back_to_the_same_task(in_office: InOffice) -> None:
    async def scenario(office: Office) -> None:
        run = await office.start(TASKS)
        one, two = f"{run}.each.0", f"{run}.each.1"
        await office.submit(one, "A", "work")
        await office.decide(one, "reject", "approve", comment="louder")
        action = (await office.status(one))["action"]
        assert (action["step_id"], action["parameters"]["instructions"]) == ("work@2", "Do a louder")
        assert (await office.status(two))["action"]["step_id"] == "work"
        await office.submit(one, "AA", "work@2")
        await office.submit(two, "B", "work")
        await office.decide(one, "approve")
        await office.decide(two, "approve")
        assert await office.ended(run) == "completed"
        assert (await office.state(run)).result == ["AA", "B"]

    in_office(scenario)


def test_what_was_sent_back_can_be_retried_and_forked(in_office: InOffice) -> None:
    text = GRAPH.replace('command: "echo publish >> ran"', 'command: "test -e ready"')

    async def scenario(office: Office) -> None:
        run = await office.start(text)
        await office.submit(run, "no", "talk")
        await office.submit(run, "one", "write")
        await office.decide(run, "reject", comment="no")
        await office.submit(run, "two", "write@2")
        await office.decide(run, "approve")
        assert await office.ended(run) == "failed"
        office.write("ready")
        again = (await office.service.retry(run, wait_seconds=0))["workflow_id"]
        await office.follow(again)
        assert await office.ended(again) == "completed"
        assert (await office.state(again)).outputs == {"text": "two", "by": "ada"}
        fork = (await office.service.fork(again, "write", wait_seconds=0))["workflow_id"]
        await office.follow(fork)
        action = (await office.status(fork))["action"]
        assert action["parameters"]["instructions"] == "Write it. no (1)"
        await office.submit(fork, "three")
        await office.decide(fork, "reject", comment="still no")
        assert (await office.status(fork))["action"]["parameters"]["instructions"] == "Write it. still no (2)"

    in_office(scenario)


def test_a_budget_and_checks_still_count_after_a_push_back(in_office: InOffice) -> None:
    text = GRAPH.replace("name: release", "name: release\nbudget: {agent_steps: 3}").replace(
        "    type: Delegate\n", "    type: Delegate\n    verify: [\"${result.response} != 'bad'\"]\n"
    )

    async def scenario(office: Office) -> None:
        run = await office.start(text)
        await office.submit(run, "no", "talk")
        await office.submit(run, "one", "write")
        await office.decide(run, "reject")
        answer = await office.submit(run, "bad", "write@2")
        assert "action" not in answer
        assert await office.under_way(run, "budget") == ["write"]
        await office.allow(run, agent_steps=4)
        action = (await office.status(run))["action"]
        assert action["rejected_because"]
        await office.submit(run, "two", action["step_id"])
        await office.decide(run, "approve")
        assert await office.ended(run) == "completed"

    in_office(scenario)


def test_a_command_beside_the_steps_that_are_sent_back_is_not_started_again(in_office: InOffice) -> None:
    text = """
    name: it
    blocks:
      - {id: write, type: Delegate, inputs: {instructions: "Write"}}
      - {id: approve, type: Gate, depends_on: [write], on_reject: {back_to: write}, inputs: {message: "?"}}
      - {id: slow, type: Shell, inputs: {command: "echo begun >> ran; until [ -e go ]; do sleep 0.02; done; echo over >> ran"}}
    """

    async def scenario(office: Office) -> None:
        run = (await office.service.start(text=textwrap.dedent(text), wait_seconds=0))["workflow_id"]
        await office.until(run, lambda _: (office.workspace / "ran").exists())
        await office.service.submit(run, "one", step_id="write", wait_seconds=0)
        await office.service.decide(run, "reject", by=ADA, wait_seconds=0)
        await office.service.submit(run, "two", step_id="write@2", wait_seconds=0)
        await office.service.decide(run, "approve", by=ADA, wait_seconds=0)
        office.write("go")
        assert await office.ended(run) == "completed"
        assert ran(office) == ["begun", "over"]
        await office.check_journal(run)

    in_office(scenario, real_time=True)


def test_a_gate_whose_step_was_skipped_fails_when_it_is_rejected(in_office: InOffice) -> None:
    text = GRAPH.replace(
        "    type: Delegate\n",
        "    type: Delegate\n    depends_on: [other]\n    condition: ${blocks.other.failed}\n",
    ).replace("depends_on: [write]", "depends_on: [{block: write, required: false}]")

    async def scenario(office: Office) -> None:
        run = await office.start(text)
        await office.decide(run, "reject", comment="no")
        await office.submit(run, "no", "talk")
        assert await office.ended(run) == "failed"
        assert (await office.record(run, "approve")).message == "ada rejected it: no"

    in_office(scenario)
