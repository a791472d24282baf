"""Tasks that a reactive workflow hands to sub-agents: what they are called, what they know, whose state they change,
and when the workflow goes on."""

from __future__ import annotations

import asyncio

import pytest

from support.fragments import workflow
from support.programs import Programs
from support.reactive_agents import played
from support.rendered import Service
from workflows_mcp.errors import DefinitionError
from workflows_mcp.settings.model import Settings

AFTER = '- {id: after, type: user_message, message: "all done"}\n'
LOOK = """
sub_agent_tasks:
  look:
    steps:
      - {id: check, type: mcp_call, method: check, params: {path: "{{ item }}", as: "{{ task_id }}"}}
"""


def handing_out(items: str, more: str = "") -> str:
    return f"- id: each\n  type: parallel_foreach\n  items: {items}\n  sub_agent_task: look\n{more}"


# What tasks are called, and what they know


@pytest.mark.rows("R15", "R16")
@pytest.mark.parametrize(
    ("items", "names"),
    [
        ("[src/a.ts, src/b.ts]", ["look.item0", "look.item1"]),
        ("[{id: a}, {id: b}]", ["a", "b"]),
        ("[{id: a}, {id: a}, {name: c}]", ["a", "look.item1", "look.item2"]),
        ("[{id: 7}]", ["7"]),
    ],
)
def test_a_task_is_called_by_the_id_of_its_item_or_by_its_position(
    items: str, names: list[str], settings: Settings
) -> None:
    run = played(settings, {name: [True] for name in names}, yaml=workflow(handing_out(items) + AFTER, LOOK))
    tasks = run.handed[0].definition["tasks"]
    assert [task["task_id"] for task in tasks] == names
    assert all("task_id" not in task["context"] for task in tasks), "a sub-agent is told one id"
    for name in names:
        assert run.agents.handed[name][0].definition["params"]["as"] == name
    assert run.messages == ["all done"]


@pytest.mark.rows("R15", "R16")
def test_a_task_knows_its_item_its_inputs_and_what_it_is_one_of(settings: Settings) -> None:
    task = """
sub_agent_tasks:
  look:
    inputs:
      path: "{{ item.path }}"
      size: "{{ item.lines * 2 }}"
    steps:
      - type: mcp_call
        method: check
        params:
          inputs: ["{{ path }}", "{{ inputs.size }}"]
          item: "{{ item }}"
          place: "{{ index + 1 }} of {{ total }}"
          context: "{{ context.lines }}"
          field: "{{ lines }}"
          run: ["{{ workflow_id }}", "{{ parent.workflow.id }}"]
          state: "{{ limit }}"
"""
    steps = handing_out('"{{ files }}"')
    state = "default_state: {raw: {limit: 9, files: [{id: x, path: a.ts, lines: 3}, {id: y, path: b.ts, lines: 4}]}}"
    run = played(settings, {"x": [True], "y": [True]}, yaml=workflow(steps, state, task))
    run_id = run.agents.run_id
    assert run.agents.handed["y"][0].definition["params"] == {
        "inputs": ["b.ts", 8],
        "item": {"id": "y", "path": "b.ts", "lines": 4},
        "place": "2 of 2",
        "context": 4,
        "field": 4,
        "run": [run_id, run_id],
        "state": 9,
    }


# Whose state they change


@pytest.mark.rows("R8", "R16")
def test_tasks_share_the_state_of_the_workflow(settings: Settings) -> None:
    task = """
state_schema: {computed: {seen: {from: raw.results, transform: Object.keys(input).length}}}
sub_agent_tasks:
  look:
    steps:
      - {type: mcp_call, method: check, state_update: {path: "raw.results.{{ task_id }}"}}
      - {type: state_update, path: raw.done, operation: increment}
"""
    state = "default_state: {raw: {results: {}, done: 0}}"
    steps = (
        handing_out("[{id: a}, {id: b}, {id: c}]")
        + '- {type: user_message, message: "{{ seen }} of {{ done }}"}\n'
    )
    run = played(settings, {"a": [1], "b": [2], "c": [3]}, yaml=workflow(steps, state, task))
    assert run.state == {"results": {"a": 1, "b": 2, "c": 3}, "done": 3, "seen": 3}
    assert run.messages == ["3 of 3"]


@pytest.mark.rows("R16")
def test_a_task_that_declares_a_state_has_its_own(settings: Settings) -> None:
    task = """
sub_agent_tasks:
  look:
    default_state: {raw: {done: 100}}
    state_schema: {computed: {twice: {from: raw.done, transform: input * 2}}}
    steps:
      - {type: state_update, path: raw.done, operation: increment}
      - {type: mcp_call, method: check, params: {own: "{{ done }}", twice: "{{ twice }}", outer: "{{ global.done }}"}}
"""
    steps = handing_out("[{id: a}, {id: b}]")
    run = played(
        settings, {"a": [1], "b": [2]}, yaml=workflow(steps, "default_state: {raw: {done: 0}}", task)
    )
    for name in ("a", "b"):
        assert run.agents.handed[name][0].definition["params"] == {"own": 101, "twice": 202, "outer": 0}
    assert run.state == {"done": 0}


@pytest.mark.rows("R15")
def test_what_came_of_the_tasks_can_be_kept(settings: Settings) -> None:
    steps = handing_out("[{id: a}, {id: b}]", "  on_sub_agent_error: {strategy: continue}\n")
    steps += "  state_update: {path: raw.ends, transform: 'result.map(it => `${it.task_id} ${it.status}`)'}\n"
    run = played(settings, {"a": [1], "b": [{"is_error": True, "error": "no"}]}, yaml=workflow(steps, LOOK))
    assert run.state["ends"] == ["a completed", "b failed"]


# When the workflow goes on


@pytest.mark.rows("R15")
def test_nothing_to_hand_out_is_nothing_to_wait_for(settings: Settings) -> None:
    run = played(settings, yaml=workflow(handing_out("[]") + AFTER, LOOK))
    assert (run.answer["status"], run.messages) == ("completed", ["all done"])
    assert [it.type for it in run.handed] == ["user_message"]


@pytest.mark.rows("R15", "R16")
def test_tasks_that_ask_nothing_of_an_agent_are_carried_out_by_the_server(
    settings: Settings, programs: Programs
) -> None:
    programs.add("lint", 'echo "linted $1"')
    task = """
sub_agent_tasks:
  look:
    steps:
      - type: shell_command
        command: lint {{ item.id }}
        state_update: {path: "raw.results.{{ task_id }}"}
"""
    run = played(settings, yaml=workflow(handing_out("[{id: a}, {id: b}]") + AFTER, task))
    assert sorted(programs.calls) == ["lint a", "lint b"]
    assert run.state == {"results": {"a": "linted a\n", "b": "linted b\n"}}
    assert [it.type for it in run.handed] == ["user_message"]


@pytest.mark.rows("R15")
def test_a_workflow_goes_on_at_once_where_it_does_not_wait_for_all(settings: Settings) -> None:
    steps = handing_out("[{id: a}, {id: b}]", "  wait_for_all: false\n")
    steps += "- {id: ask, type: user_input, prompt: meanwhile?, state_update: {path: raw.said}}\n"

    async def go() -> None:
        async with Service.open(settings) as service:
            answer = await service.start(text=workflow(steps, LOOK))
            run_id = answer["workflow_id"]
            asked = {it["step_id"]: it for it in [answer["action"], *answer.get("more_actions", [])]}
            assert set(asked) == {"each", "ask"}
            answer = await service.submit(run_id, "yes", step_id="ask")
            assert answer["status"] != "completed", "its end waits for the tasks"
            for task in asked["each"]["parameters"]["tasks"]:
                await service.next_step(task["workflow_id"])
                await service.submit(task["workflow_id"], {"ok": True})
            answer = await service.status(run_id, wait_seconds=10)
            assert (answer["status"], answer["state"]) == ("completed", {"said": "yes"})

    asyncio.run(asyncio.wait_for(go(), 30))


@pytest.mark.rows("R9", "R15")
def test_exit_ends_at_once_and_cancels_the_tasks_that_are_open(settings: Settings) -> None:
    steps = handing_out("[{id: a}, {id: b}]", "  wait_for_all: false\n")
    steps += "- {id: ask, type: user_input, prompt: enough?, state_update: {path: raw.said}}\n"
    steps += "- {id: leave, type: exit, when: \"{{ said == 'yes' }}\"}\n"
    steps += "- {type: state_update, path: raw.behind, value: true}\n"

    async def go() -> None:
        async with Service.open(settings) as service:
            answer = await service.start(text=workflow(steps, LOOK))
            run_id = answer["workflow_id"]
            asked = {it["step_id"]: it for it in [answer["action"], *answer.get("more_actions", [])]}
            [first, second] = [task["workflow_id"] for task in asked["each"]["parameters"]["tasks"]]
            await service.next_step(first)
            answer = await service.submit(run_id, "yes", step_id="ask")
            assert (answer["status"], answer["state"]) == ("completed", {"said": "yes"})
            assert not {"action", "error", "failures"} & answer.keys()
            for task in (first, second):
                assert (await service.status(task))["status"] == "cancelled"

    asyncio.run(asyncio.wait_for(go(), 30))


@pytest.mark.rows("R15", "R16")
def test_a_task_can_be_driven_by_its_name_and_its_run(settings: Settings) -> None:
    async def go() -> None:
        async with Service.open(settings) as service:
            answer = await service.start(text=workflow(handing_out("[{id: a}]") + AFTER, LOOK))
            run_id = answer["workflow_id"]
            step = await service.next_step(run_id, task_id="a")
            assert step["action"]["parameters"]["tool"] == "check"
            await service.submit(f"{run_id}.a", {"ok": True})
            assert (await service.status(run_id))["messages"] == ["all done"]

    asyncio.run(asyncio.wait_for(go(), 30))


@pytest.mark.rows("R12", "R15")
def test_messages_of_a_run_and_of_its_tasks_reach_the_main_agent_once_and_no_sub_agent(
    settings: Settings,
) -> None:
    task = """
sub_agent_tasks:
  look:
    steps:
      - {type: user_message, message: "{{ task_id }} begins"}
      - {id: check, type: mcp_call, method: check}
      - {type: user_message, message: "{{ task_id }} ends"}
"""
    steps = '- {type: user_message, message: "first"}\n' + handing_out("[{id: a}]") + AFTER
    steps += '- {id: ask, type: user_input, prompt: all right?}\n- {type: user_message, message: "last"}\n'
    run = played(settings, {"a": [True], None: ["yes"]}, yaml=workflow(steps, task))
    told = [it.definition.get("message") or it.step for it in run.handed]
    assert told == ["first", "a begins", "each", "a ends", "all done", "ask", "last"]
    told = [it.definition.get("message") or it.step for it in run.agents.handed["a"]]
    assert told[0] == "check"
    assert "a begins" not in told


# Prompts


@pytest.mark.rows("R15", "R23")
def test_sub_agents_get_the_standard_prompt_or_the_one_of_the_author(settings: Settings) -> None:
    own = "  sub_agent_prompt_override: You look at {{ kind }} files.\n"
    state = "default_state: {raw: {kind: TypeScript}}"

    async def go() -> None:
        async with Service.open(settings) as service:
            usual = await service.start(text=workflow(handing_out("[{id: a}]"), LOOK, state))
            other = await service.start(text=workflow(handing_out("[{id: a}]", own), LOOK, state))
            assert "get_next_step" in usual["action"]["sub_agent_prompt"]
            prompt = other["action"]["sub_agent_prompt"]
            assert prompt.startswith("You look at TypeScript files.\n\n<workflow-server-rules>")
            assert "get_next_step(workflow_id='{workflow_id}')" in prompt, "the protocol is always there"
            assert "You do one task of a workflow" not in prompt

    asyncio.run(asyncio.wait_for(go(), 30))


@pytest.mark.rows("R12", "R16")
def test_a_task_cannot_ask_the_user_and_an_unknown_task_is_told(settings: Settings) -> None:
    asking = "sub_agent_tasks: {look: {steps: [{type: user_input, prompt: really?}]}}"

    async def go() -> None:
        async with Service.open(settings) as service:
            with pytest.raises(DefinitionError, match="asks the user"):
                await service.start(text=workflow(handing_out("[{id: a}]"), asking))
            text = workflow(
                handing_out("[{id: a}]").replace("sub_agent_task: look", "sub_agent_task: lok"), LOOK
            )
            with pytest.raises(DefinitionError, match="look"):
                await service.start(text=text)

    asyncio.run(asyncio.wait_for(go(), 30))
