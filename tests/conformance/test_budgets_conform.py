"""Budgets on every engine: what agents may do is counted, and new work waits for a person beyond it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from support.process import ADA, AGENT, Office
from workflows_mcp.errors import NotExpected, RequestError
from workflows_mcp.machine import Answered, BudgetRaised

pytestmark = pytest.mark.rows("P5")
InOffice = Callable[..., None]

CHAIN = """
name: chain
budget: {%s}
blocks:
  - {id: one, type: Prompt, inputs: {prompt: "1"}}
  - {id: two, type: Prompt, depends_on: [one], inputs: {prompt: "2"}}
  - {id: three, type: Prompt, depends_on: [two], inputs: {prompt: "3"}}
"""


def chain(budget: str) -> str:
    return CHAIN % budget


async def answer_all(office: Office, run: str) -> int:
    """Answer all that is asked, until nothing is; returns how often."""
    count = 0
    while asked := await office.questions(run):
        await office.submit(run, "ok", asked[0])
        count += 1
    return count


def test_new_work_waits_when_a_budget_is_used_up_and_starts_when_a_person_allows_more(
    in_office: InOffice,
) -> None:
    async def scenario(office: Office) -> None:
        run = await office.start(chain("agent_steps: 2"))
        assert await answer_all(office, run) == 2
        status = await office.status(run)
        assert status["status"] == "waiting"
        assert "action" not in status
        decision = status["decisions"][0]
        assert decision["step_id"] == "three"
        assert decision["message"] == (
            "The budget of the run is used up: agent_steps (the limit is 2). What has begun continues; new "
            "work waits."
        )
        assert f"workflows-mcp budget {run} agent_steps=" in decision["how"]
        await office.restart()
        with pytest.raises(NotExpected, match="person"):
            await office.submit(run, "yes", "three")
        await office.allow(run, agent_steps=3)
        assert await answer_all(office, run) == 1
        assert await office.ended(run) == "completed"
        raised = (await office.events(run, BudgetRaised))[0]
        assert (raised.limits, raised.by, raised.owner) == ({"agent_steps": 3}, ADA, "")

    in_office(scenario)


def test_a_raise_that_is_not_enough_keeps_the_work_waiting(in_office: InOffice) -> None:
    async def scenario(office: Office) -> None:
        run = await office.start(chain("agent_steps: 1, tokens: 100"))
        await office.submit(run, {"response": "yes"}, "one")
        for name, limit in (("agent_steps", 1.0), ("tokens", 500.0), ("time", 60.0)):
            await office.service.raise_budget(run, {name: limit}, by=ADA)
            await office.settle(run)
            assert await office.under_way(run, "budget") == ["two"]
        await office.allow(run, agent_steps=9)
        assert await office.asked(run) == ["two"]

    in_office(scenario)


def test_an_agent_cannot_raise_a_budget_and_its_try_is_recorded(in_office: InOffice) -> None:
    async def scenario(office: Office) -> None:
        run = await office.start(chain("agent_steps: 1"))
        await office.submit(run, "yes", "one")
        with pytest.raises(RequestError, match="only a person can raise a budget"):
            await office.allow(run, by=AGENT, agent_steps=9)
        with pytest.raises(RequestError, match="only a person"):
            await office.decide(run, "allow", by=AGENT)
        assert [what for what, _ in await office.refusals(run)] == ["gate", "gate"]
        assert await office.under_way(run, "budget") == ["two"]

    in_office(scenario)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"agent_step": 3.0}, "a budget has no 'agent_step'"),
        ({"agent_steps": 0.0}, "must be a number above 0"),
        ({"agent_steps": -1.0}, "must be a number above 0"),
        ({"agent_steps": float("nan")}, "must be a number above 0"),
    ],
)
def test_a_limit_that_is_none_is_refused(in_office: InOffice, given: dict[str, float], message: str) -> None:
    async def scenario(office: Office) -> None:
        run = await office.start(chain("agent_steps: 1"))
        with pytest.raises(RequestError, match=message):
            await office.service.raise_budget(run, given, by=ADA)

    in_office(scenario)


def test_a_limit_of_a_budget_that_nothing_has_is_refused(in_office: InOffice) -> None:
    async def scenario(office: Office) -> None:
        run = await office.start(chain("agent_steps: 1"))
        with pytest.raises(RequestError, match="'two' has no budget"):
            await office.allow(run, of="two", agent_steps=4)
        assert not await office.events(run, BudgetRaised)

    in_office(scenario)


def test_a_budget_that_is_used_up_can_fail_the_step(in_office: InOffice) -> None:
    async def scenario(office: Office) -> None:
        run = await office.start(chain("agent_steps: 1, on_exceeded: fail"))
        await office.submit(run, "yes", "one")
        assert await office.ended(run) == "failed"
        assert (await office.record(run, "two")).fault.code == "budget"
        assert (
            "the budget of the run is used up: agent_steps" in (await office.status(run))["error"]["message"]
        )

    in_office(scenario)


def test_a_budget_that_is_used_up_can_park_the_run_and_a_raise_resumes_it(in_office: InOffice) -> None:
    async def scenario(office: Office) -> None:
        run = await office.start(chain("agent_steps: 1, on_exceeded: stop"))
        await office.submit(run, "yes", "one")
        assert (await office.state(run)).parked is not None
        assert (await office.status(run))["decisions"][0]["step_id"] == "two"
        await office.restart()
        await office.service.resume_run(run, wait_seconds=0)
        await office.settle(run)
        assert await office.asked(run) == [], "an agent that resumes it has no more budget than before"
        await office.allow(run, agent_steps=10)
        assert (await office.state(run)).parked is None
        assert await answer_all(office, run) == 2
        assert await office.ended(run) == "completed"

    in_office(scenario)


def test_the_time_of_a_budget_counts_from_the_start_and_a_question_that_is_open_may_be_answered(
    in_office: InOffice,
) -> None:
    async def scenario(office: Office) -> None:
        run = await office.start(chain("time: 1h"))
        await office.submit(run, "yes", "one")
        await office.advance(3601)
        await office.submit(run, "yes", "two")
        assert (await office.record(run, "two")).status == "completed"
        assert await office.under_way(run, "budget") == ["three"]
        assert (await office.status(run))["decisions"][0]["message"].startswith(
            "The budget of the run is used up: time (the limit is 3600)."
        )
        await office.allow(run, time=7200)
        assert await office.asked(run) == ["three"]

    in_office(scenario)


def test_tokens_that_agents_report_are_counted_with_all_attempts(in_office: InOffice) -> None:
    text = """
    name: tokens
    budget: {tokens: 100}
    blocks:
      - {id: one, type: Delegate, inputs: {instructions: "1"}, verify: ["${result.response} == 'good'"]}
      - {id: two, type: Delegate, depends_on: [one], inputs: {instructions: "2"}}
    """

    async def scenario(office: Office) -> None:
        run = await office.start(text)
        for tokens in (-5, True, "many", 60):
            result = {"response": "bad", "tokens_used": tokens}
            try:
                await office.submit(run, result)
            except RequestError:
                continue
        await office.submit(run, {"response": "good", "tokens_used": 30})
        assert (await office.state(run)).spent[""].tokens == (await office.record(run, "one")).tokens
        assert (await office.record(run, "one")).tokens >= 90

    in_office(scenario)


def test_what_a_step_with_a_schema_reports_beside_its_result_is_counted_and_not_stored(
    in_office: InOffice,
) -> None:
    text = """
    name: tokens
    budget: {tokens: 50}
    blocks:
      - {id: one, type: Delegate, inputs: {instructions: "1"}, result: {type: object, required: [n], properties: {n: {type: integer}}, additionalProperties: false}}
      - {id: two, type: Delegate, depends_on: [one], inputs: {instructions: "${blocks.one.n}"}}
    """

    async def scenario(office: Office) -> None:
        run = await office.start(text)
        await office.submit(run, {"n": 1, "tokens_used": 60})
        record = await office.record(run, "one")
        assert (record.outputs, record.tokens) == ({"n": 1}, 60)
        assert await office.under_way(run, "budget") == ["two"]

    in_office(scenario)


def test_a_rejected_result_costs_a_step_of_the_budget(in_office: InOffice) -> None:
    text = """
    name: it
    budget: {agent_steps: 2}
    blocks:
      - {id: one, type: Delegate, inputs: {instructions: "1"}, attempts: 5, verify: ["${result.response} == 'good'"]}
    """

    async def scenario(office: Office) -> None:
        run = await office.start(text)
        await office.submit(run, "bad")
        await office.submit(run, "worse")
        assert await office.under_way(run, "budget") == ["one"]
        await office.allow(run, agent_steps=3)
        action = (await office.status(run))["action"]
        assert action["results_left"] == 3
        assert action["rejected_because"]
        await office.submit(run, "good")
        assert await office.ended(run) == "completed"

    in_office(scenario)


FAN_OUT = """
name: fan
budget: {%s}
initial_state: {}
steps:
  - {id: each, type: foreach, needs_state: [], items: [a, b, c, d], agent: "@task", task: one, output_to: found%s}
  - {id: end, type: return, needs_state: [found], value: "{{ state.found }}"}
tasks:
  one:
    inputs: {name: {type: string, required: true}}
    steps:
      - {id: work, type: delegate, needs_state: [], instructions: "Do {{ inputs.name }}", output_to: done}
      - {id: back, type: return, needs_state: [done], value: "{{ inputs.name }} {{ state.done.response }}"}
"""


@pytest.mark.parametrize("more", ["", ", max_parallel: 1", ", sequential: true"])
def test_a_budget_that_runs_out_in_a_fan_out_stops_new_work_and_loses_nothing(
    in_office: InOffice, more: str
) -> None:
    async def scenario(office: Office) -> None:
        run = await office.start(FAN_OUT % ("sub_agents: 2", more))
        assert await answer_all(office, run) == 2
        assert (await office.status(run))["status"] == "waiting"
        await office.restart()
        await office.allow(run, sub_agents=3)
        assert await answer_all(office, run) == 1
        await office.allow(run, sub_agents=4)
        assert await answer_all(office, run) == 1
        assert await office.ended(run) == "completed"
        assert (await office.state(run)).result == ["a ok", "b ok", "c ok", "d ok"]
        assert len(await office.events(run, Answered)) == 4

    in_office(scenario)


def test_steps_inside_of_tasks_count_for_the_run(in_office: InOffice) -> None:
    async def scenario(office: Office) -> None:
        run = await office.start(FAN_OUT % ("agent_steps: 3", ""))
        assert await answer_all(office, run) == 3
        assert await office.under_way(run, "budget") == ["each/3/work"]
        task = await office.status(f"{run}.each.3")
        assert task["status"] == "waiting"
        assert task["decisions"][0]["step_id"] == "work"
        await office.allow(run, agent_steps=4)
        assert await answer_all(office, run) == 1
        assert await office.ended(run) == "completed"

    in_office(scenario)


def test_a_fan_out_above_the_threshold_waits_for_a_person_before_any_task_starts(in_office: InOffice) -> None:
    async def scenario(office: Office) -> None:
        run = await office.start(FAN_OUT % ("confirm_above: 3", ""))
        assert await office.asked(run) == []
        decision = (await office.status(run))["decisions"][0]
        assert decision["message"] == "'each' starts about 4 sub-agents. Start them?"
        await office.restart()
        await office.decide(run, "allow")
        assert await answer_all(office, run) == 4
        assert await office.ended(run) == "completed"
        small = await office.start(FAN_OUT % ("confirm_above: 4", ""))
        assert len(await office.asked(small)) == 4

    in_office(scenario)


def test_a_fan_out_that_a_person_stops_cancels_the_run(in_office: InOffice) -> None:
    async def scenario(office: Office) -> None:
        run = await office.start(FAN_OUT % ("confirm_above: 1", ""))
        await office.decide(run, "stop", comment="too many")
        assert await office.ended(run) == "cancelled"

    in_office(scenario)


def test_a_confirmation_counts_for_the_fan_out_that_it_was_given_for(in_office: InOffice) -> None:
    text = """
    name: two
    budget: {confirm_above: 1}
    blocks:
      - {id: left, type: Workflow, inputs: {workflow: fan}}
      - {id: right, type: Workflow, inputs: {workflow: fan}}
    """

    async def scenario(office: Office) -> None:
        office.define("fan", FAN_OUT.replace("budget: {%s}\n", "") % "")
        run = await office.start(text)
        assert await office.under_way(run, "budget") == ["left/each", "right/each"]
        assert len((await office.status(run))["decisions"]) == 2
        await office.decide(run, "allow", "left/each")
        assert await office.under_way(run, "budget") == ["right/each"]
        assert len(await office.asked(run)) == 4
        await office.decide(run, "allow", "right/each")
        assert len(await office.asked(run)) == 8

    in_office(scenario)


CALLS = """
name: outer
budget: {agent_steps: 5}
blocks:
  - {id: first, type: Workflow, budget: {agent_steps: 1}, inputs: {workflow: chain}}
  - {id: second, type: Workflow, inputs: {workflow: chain}}
"""


def test_a_call_and_the_workflow_that_it_calls_have_budgets_of_their_own(in_office: InOffice) -> None:
    async def scenario(office: Office) -> None:
        office.define("chain", chain("agent_steps: 2"))
        run = await office.start(CALLS)
        assert await answer_all(office, run) == 3
        held = {it["step_id"]: it["how"] for it in (await office.status(run))["decisions"]}
        assert set(held) == {"first/two", "second/three"}
        assert held["first/two"] == (
            f"in a terminal: workflows-mcp budget {run} agent_steps=2 --of first (the new limit in all); "
            f"or workflows-mcp cancel {run}"
        )
        assert f"workflows-mcp budget {run} agent_steps=4 --of second/ " in held["second/three"]
        await office.allow(run, of="first", agent_steps=3)
        assert await answer_all(office, run) == 1
        await office.allow(run, of="second/", agent_steps=3)
        assert await answer_all(office, run) == 1
        assert await office.under_way(run, "budget") == ["first/three"]
        await office.allow(run, of="first/", agent_steps=3)
        assert await office.under_way(run, "budget") == ["first/three"]
        await office.allow(run, agent_steps=6)
        assert await answer_all(office, run) == 1
        assert await office.ended(run) == "completed"

    in_office(scenario)


def test_the_budget_of_a_loop_counts_its_items(in_office: InOffice) -> None:
    text = FAN_OUT.replace("budget: {%s}\n", "") % ", budget: {agent_steps: 1, sub_agents: 3}"

    async def scenario(office: Office) -> None:
        run = await office.start(text)
        assert await answer_all(office, run) == 1
        assert await office.under_way(run, "budget") == ["each/1/work", "each/2/work", "each/3"]
        await office.allow(run, of="each", agent_steps=9)
        assert await answer_all(office, run) == 2
        await office.allow(run, of="each", sub_agents=9)
        assert await answer_all(office, run) == 1
        assert await office.ended(run) == "completed"

    in_office(scenario)


def test_a_retry_and_a_fork_do_not_give_agents_more_than_the_budget(in_office: InOffice) -> None:
    text = """
    name: it
    budget: {agent_steps: 2}
    blocks:
      - {id: one, type: Prompt, inputs: {prompt: "1"}}
      - {id: check, type: Shell, depends_on: [one], inputs: {command: "test -e ready"}}
      - {id: two, type: Prompt, depends_on: [one], inputs: {prompt: "2"}}
      - {id: three, type: Prompt, depends_on: [check, two], inputs: {prompt: "3"}}
    """

    async def scenario(office: Office) -> None:
        run = await office.start(text)
        await answer_all(office, run)
        assert await office.ended(run) == "failed"
        office.write("ready")
        again = (await office.service.retry(run, wait_seconds=0))["workflow_id"]
        await office.follow(again)
        assert await office.under_way(again, "budget") == ["three"]
        await office.allow(again, agent_steps=3)
        fork = (await office.service.fork(again, "one", keep=True, wait_seconds=0))["workflow_id"]
        await office.follow(fork)
        assert await office.under_way(fork, "budget") == ["one"], "what was done before the fork counts"
        await office.allow(fork, agent_steps=6)
        assert await answer_all(office, fork) == 3
        assert await office.ended(fork) == "completed"

    in_office(scenario)


def test_a_budget_of_zero_lets_no_agent_begin(in_office: InOffice) -> None:
    async def scenario(office: Office) -> None:
        run = await office.start(chain("agent_steps: 0"))
        assert await office.under_way(run, "budget") == ["one"]
        await office.allow(run, agent_steps=3)
        assert await answer_all(office, run) == 3

    in_office(scenario)


def test_cancelling_a_run_that_waits_for_more_budget_ends_it(in_office: InOffice) -> None:
    async def scenario(office: Office) -> None:
        run = await office.start(chain("agent_steps: 0"))
        await office.service.cancel(run)
        assert await office.ended(run) == "cancelled"
        with pytest.raises(RequestError):
            await office.allow(run, agent_steps=3)

    in_office(scenario)


def test_a_run_without_a_budget_has_nothing_to_raise(in_office: InOffice) -> None:
    text = """
    name: it
    blocks:
      - {id: one, type: Prompt, inputs: {prompt: "1"}}
    """

    async def scenario(office: Office) -> None:
        run = await office.start(text)
        with pytest.raises(NotExpected, match="has no budget"):
            await office.allow(run, agent_steps=3)

    in_office(scenario)


LOOP = """
name: loop
budget: {agent_steps: 2}
default_state: {raw: {n: 0}}
steps:
  - {id: loop, type: while, condition: "n < 3", max_iterations: 5, body: [
      {id: ask, type: delegate, instructions: "n is {{ n }}"},
      {type: state_update, path: raw.n, operation: increment}]}
"""


def test_every_round_of_a_loop_counts(in_office: InOffice) -> None:
    async def scenario(office: Office) -> None:
        run = await office.start(LOOP)
        assert await answer_all(office, run) == 2
        await office.restart()
        await office.allow(run, agent_steps=3)
        assert await answer_all(office, run) == 1
        assert await office.ended(run) == "completed"

    in_office(scenario)
