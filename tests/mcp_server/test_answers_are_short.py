"""What an agent reads: each value once, the call that comes next in every answer, and no more than that."""

from __future__ import annotations

from typing import Any

import pytest

ASKING = """\
name: asking
blocks:
  - id: approve
    type: Prompt
    inputs: {prompt: "Ship it?", confirm: true}
  - id: where
    type: Prompt
    depends_on: [approve]
    condition: ${blocks.approve.outputs.confirmed}
    inputs: {prompt: "Where to?", choices: [staging, production]}
outputs:
  approved: ${blocks.approve.outputs.confirmed}
  said: ${blocks.approve.outputs.response}
  where: ${blocks.where.outputs.response}
"""
CALLING = """\
name: calling
initial_state: {}
steps:
  - {id: look, type: mcp_call, needs_state: [], tool: web_search, parameters: {query: ants}, output_to: found}
  - {id: judge, type: delegate, needs_state: [found], agent: "@reviewer", instructions: "Judge {{ state.found }}"}
"""
FAILING = """\
name: failing
blocks:
  - {id: first, type: Shell, inputs: {command: "true"}}
  - {id: second, type: Shell, depends_on: [first], inputs: {command: "exit 3"}}
  - {id: third, type: Shell, depends_on: [second], inputs: {command: "true"}}
"""


def test_each_value_is_sent_once_and_the_next_call_is_named(place: Any) -> None:
    async def work(agent: Any) -> None:
        run = await agent.call("start_workflow", yaml=CALLING)
        run_id = run["workflow_id"]
        assert run["action"]["parameters"] == {"tool": "web_search", "args": {"query": "ants"}}
        assert set(run) == {"workflow_id", "status", "action", "next"}
        assert set(run["action"]) == {"step_id", "type", "instructions", "parameters"}
        assert run["next"] == f"submit_result(workflow_id='{run_id}', step_id='look', result=…)"
        run = await agent.call("submit_result", workflow_id=run_id, result="many legs")
        assert run["action"]["parameters"] == {"instructions": "Judge many legs", "agent": "@reviewer"}
        run = await agent.call("submit_result", workflow_id=run_id, result="fine")
        assert run["status"] == "completed"
        assert "state" not in run
        details = f"get_workflow_state(workflow_id='{run_id}') has the details and step ids"
        fork = f"control_workflow(workflow_id='{run_id}', action='fork', step_id=…)"
        redoes = "redoes one of these steps and what follows it: 'look', 'judge'"
        report = f"workflows-mcp report {run_id} --expect "
        assert run["next"].startswith(f"nothing; {details}; {fork} {redoes}; {report}")

    place.serve(work)


@pytest.mark.parametrize(
    ("said", "approved"),
    [
        ("Yes, go ahead", True),
        ("Yes.", True),
        ("y", True),
        (True, True),
        ("no, not yet", False),
        ("No", False),
    ],
)
def test_a_prompt_asks_for_yes_or_no_and_for_one_of_its_choices(
    place: Any, said: object, approved: bool
) -> None:
    async def work(agent: Any) -> None:
        run = await agent.call("start_workflow", yaml=ASKING)
        run = await agent.call("submit_result", workflow_id=run["workflow_id"], result=said)
        if approved:
            assert run["action"]["parameters"] == {
                "prompt": "Where to?",
                "choices": ["staging", "production"],
            }
            refused = await agent.refused("submit_result", workflow_id=run["workflow_id"], result="mars")
            assert "ask the user again" in refused
            run = await agent.call("submit_result", workflow_id=run["workflow_id"], result="Production")
        assert run["outputs"] == {
            "approved": approved,
            "said": "yes" if approved else "no",
            "where": "production" if approved else "",
        }

    place.serve(work)


def test_what_else_the_user_says_with_a_no_or_a_choice_is_kept_as_a_comment(place: Any) -> None:
    stateful = (
        "name: s\ninitial_state: {}\nsteps:\n"
        "  - {id: ok, type: prompt, prompt_type: confirm, message: Fine?, needs_state: [], output_to: ok}\n"
        "  - {id: r, type: return, needs_state: [ok], value: '{{ state.ok }}'}\n"
    )

    async def work(agent: Any) -> None:
        graph = ASKING.replace(
            "said: ${blocks.approve.outputs.response}", "why: ${blocks.approve.outputs.comment}"
        )
        run = await agent.call("start_workflow", yaml=graph)
        answer = {"confirmed": "no", "comment": "the tests are red"}
        run = await agent.call("submit_result", workflow_id=run["workflow_id"], result=answer)
        assert run["outputs"] == {"approved": False, "why": "the tests are red", "where": ""}
        run = await agent.call("start_workflow", yaml=graph)
        run = await agent.call("submit_result", workflow_id=run["workflow_id"], result=True)
        answer = {"response": "production", "comment": "at noon"}
        run = await agent.call("submit_result", workflow_id=run["workflow_id"], result=answer)
        assert run["outputs"] == {"approved": True, "why": "", "where": "production"}
        run = await agent.call("start_workflow", yaml=stateful)
        no = {"confirmed": False, "comment": "the tests are red"}
        run = await agent.call("submit_result", workflow_id=run["workflow_id"], result=no)
        assert run["result"] == no

    place.serve(work)


def test_a_prompt_has_choices_or_asks_for_yes_or_no(place: Any) -> None:
    async def work(agent: Any) -> None:
        text = ASKING.replace("choices: [", "confirm: true, choices: [")
        found = await agent.call("validate_workflow_yaml", yaml_content=text)
        assert "'choices' and 'confirm' exclude each other" in found["problems"][0]["message"]
        for name in ("choices", "options", "enum"):  # the old names are understood
            one = (
                f"name: one\nblocks: [{{id: a, type: Prompt, inputs: {{prompt: Which?, {name}: [x, y]}}}}]\n"
            )
            run = await agent.call("start_workflow", yaml=one)
            assert run["action"]["parameters"] == {"prompt": "Which?", "choices": ["x", "y"]}

    place.serve(work)


def test_a_refused_answer_of_the_user_is_asked_for_again_and_nothing_is_suggested(place: Any) -> None:
    async def work(agent: Any) -> None:
        run = await agent.call("start_workflow", yaml=ASKING)
        refused = await agent.refused(
            "submit_result", workflow_id=run["workflow_id"], result="yes, but only if the tests pass"
        )
        assert "ask the user again" in refused
        assert '"confirmed":true' not in refused.replace(" ", "")
        assert "for example" not in refused

    place.serve(work)


def test_a_failed_run_says_how_far_it_came_and_how_to_retry_or_fork_it(place: Any) -> None:
    async def work(agent: Any) -> None:
        run = await agent.call("start_workflow", yaml=FAILING)
        assert run["progress"]["total"] == 3
        assert run["progress"]["failed"] == 1
        control = f"control_workflow(workflow_id='{run['workflow_id']}', action="
        assert f"{control}'retry')" in run["next"]
        redoes = "redoes one of these steps and what follows it: 'first'"
        assert f"{control}'fork', step_id=…) {redoes}" in run["next"]

    place.serve(work)


def test_the_status_of_a_run_that_waits_says_what_follows_with_its_condition(place: Any) -> None:
    async def work(agent: Any) -> None:
        run = await agent.call("start_workflow", yaml=ASKING)
        status = await agent.call("get_workflow_status", workflow_id=run["workflow_id"])
        assert status["next"].endswith("then 'where' if ${blocks.approve.outputs.confirmed}")
        assert status["progress"] == {"done": 0, "total": 2}

    place.serve(work)


TWO = """\
name: two
blocks:
  - {id: one, type: Prompt, inputs: {prompt: One?}}
  - {id: other, type: Prompt, inputs: {prompt: Other?}}
"""
WORKING = """\
name: working
blocks:
  - {id: work, type: Shell, inputs: {command: "until [ -f go ]; do sleep 0.02; done"}}
"""
HOPELESS = """\
name: hopeless
inputs: {n: {type: any, default: {}}}
blocks:
  - {id: x, type: Shell, inputs: {command: "echo ${inputs.n.no}"}}
"""
STEPS = """\
name: steps
initial_state: {n: 1, seen: []}
steps:
  - {id: ask, type: prompt, needs_state: [], message: "Go on?", prompt_type: confirm}
  - id: many
    type: condition
    needs_state: [n]
    if: "{{ state.n > 1 }}"
    then: [{id: all, type: wait, needs_state: [], duration_seconds: 1}]
  - {id: each, type: foreach, needs_state: [], items: [1, 2], task: one, agent: "@task", output_to: seen}
tasks:
  one:
    inputs: {n: number}
    steps:
      - {id: look, type: delegate, needs_state: [], instructions: Look}
      - {id: stop, type: fail, needs_state: [], message: "no way"}
"""


def test_next_is_the_exact_call_however_a_run_stands(place: Any) -> None:
    async def work(agent: Any) -> None:
        run = await agent.call("start_workflow", yaml=TWO)
        about = f"workflow_id='{run['workflow_id']}'"
        first = f"submit_result({about}, step_id='one', result=…)"
        assert run["next"] == f"{first}, and so for each of more_actions"
        run = await agent.call(
            "control_workflow", workflow_id=run["workflow_id"], action="context_full", reason="full"
        )
        assert (run["status"], run["next"]) == ("waiting", f"control_workflow({about}, action='resume')")
        run = await agent.call("control_workflow", workflow_id=run["workflow_id"], action="resume")
        run = await agent.call("submit_result", workflow_id=run["workflow_id"], step_id="one", result="1")
        assert run["next"] == f"submit_result({about}, step_id='other', result=…)"
        run = await agent.call("control_workflow", workflow_id=run["workflow_id"], action="cancel")
        continues, _, report = run["next"].partition("; ")
        assert (
            continues
            == f"control_workflow({about}, action='retry') continues where it was cancelled, in a new run"
        )
        assert report.startswith(f"workflows-mcp report {run['workflow_id']} --expect ")

        run = await agent.call("start_workflow", yaml=WORKING, wait_seconds=0)
        assert run["next"] == f"get_workflow_status(workflow_id='{run['workflow_id']}') waits for it"
        (place.workspace / "go").touch()
        run = await agent.call("start_workflow", yaml=HOPELESS)
        assert (run["status"], run["next"].partition("; ")[0]) == (
            "failed",
            "fix the workflow or its inputs, and start it again",
        )
        done = HOPELESS + "  - {id: y, type: Shell, inputs: {command: 'echo y >> done'}}\n"
        run = await agent.call("start_workflow", yaml=done)
        about = f"workflow_id='{run['workflow_id']}', action="
        retry = f"control_workflow({about}'retry', definition=…) keeps what was done, after you fixed the workflow"
        assert run["next"].startswith(f"{retry}; control_workflow({about}'fork', step_id=…)")
        retried = await agent.call(
            "control_workflow",
            workflow_id=run["workflow_id"],
            action="retry",
            definition=done.replace("${inputs.n.no}", "x"),
        )
        assert (retried["status"], retried["forked_from"]) == ("completed", run["workflow_id"])
        assert (place.workspace / "done").read_text() == "y\n"
        refused = await agent.refused(
            "control_workflow", workflow_id=run["workflow_id"], action="fork", step_id="y", definition="nope"
        )
        assert "nope" in refused

    place.serve(work)


def test_next_in_a_sequence_and_for_the_agent_of_a_task_and_the_prompt_is_sent_once(place: Any) -> None:
    async def work(agent: Any) -> None:
        run = await agent.call("start_workflow", yaml=STEPS)
        run_id = run["workflow_id"]
        status = await agent.call("get_workflow_status", workflow_id=run_id)
        assert status["next"].endswith("; then 'many' if {{ state.n > 1 }}")
        run = await agent.call("submit_result", workflow_id=run_id, result="yes")
        action = run["action"]
        prompt = action["sub_agent_prompt"]
        task = action["parameters"]["tasks"][0]["workflow_id"]
        its = await agent.call("get_next_step", workflow_id=task)
        assert its["action"]["step_id"] == "look"
        status = (await agent.call("get_workflow_status", workflow_id=run_id))["action"]
        assert "sub_agent_prompt" not in status
        assert (
            "As before, with the same sub_agent_prompt (get_next_step shows it again)"
            in status["instructions"]
        )
        assert (await agent.call("get_next_step", workflow_id=run_id))["action"]["sub_agent_prompt"] == prompt
        its = await agent.call("submit_result", workflow_id=task, result="seen")
        assert (its["status"], its["next"]) == ("failed", "nothing: reply with the status and the error")

    place.serve(work)


ROUNDS = """\
name: rounds
default_state: {raw: {n: 0}}
steps:
  - id: each
    type: foreach
    items: [a, b]
    steps:
      - id: fix
        type: while
        condition: "{{ n < 2 }}"
        max_iterations: 5
        body:
          - {id: ask, type: user_input, prompt: "And now?", state_update: {path: raw.last}}
          - {id: count, type: state_update, path: raw.n, operation: increment}
      - {id: reset, type: state_update, path: raw.n, value: 0}
"""


def test_progress_says_which_round_of_which_loop_it_is_and_counts_a_step_once(place: Any) -> None:
    async def work(agent: Any) -> None:
        run = await agent.call("start_workflow", yaml=ROUNDS)
        seen = []
        for item, count in ((1, 1), (1, 2), (2, 1), (2, 2)):
            status = await agent.call("get_workflow_status", workflow_id=run["workflow_id"])
            loops = f"item {item} of 2 of 'each', round {count} of at most 5 of 'fix'"
            assert status["progress"]["loop"] == loops
            seen.append(status["progress"]["total"])
            run = await agent.call("submit_result", workflow_id=run["workflow_id"], result="x")
        assert run["progress"]["done"] == run["progress"]["total"]
        assert {*seen, run["progress"]["total"]} == {5}

    place.serve(work)
