"""What a state begins with, and how deep it may become: items in the state of tasks, lists of errors, a limit."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import pytest

from support.reactive_agents import played
from support.rendered import Service
from workflows_mcp.limits import Limits
from workflows_mcp.settings.model import Settings

OWN_STATE = """
name: own-state
default_state: {raw: {seen: {}}}
steps:
  - {id: each, type: parallel_foreach, items: [{id: a, path: a.py}, {id: b, path: b.py}], sub_agent_task: look}
sub_agent_tasks:
  look:
    default_state: {raw: {about: "{{ task_id }} of {{ total }}: {{ item.path }}"}}
    steps:
      - {id: check, type: mcp_call, method: check, params: {about: "{{ about }}"}}
"""
ERRORS = """
name: errors
default_state: {raw: {n: 0}}
error_handling: {error_collection: {enabled: true, state_path: raw.errors}}
steps:
  - id: each
    type: parallel_foreach
    items: []
    sub_agent_task: look
    on_sub_agent_error: {strategy: continue, collect_errors: true}
  - {type: state_update, path: raw.n, value: "{{ errors.length + sub_agent_errors.length }}"}
sub_agent_tasks: {look: {steps: [{type: mcp_call, method: check}]}}
"""
DEEPER = """
name: deeper
initial_state: {tree: []}
steps:
  - {id: grow, type: set_state, needs_state: [tree], updates: {tree: ["{{ state.tree }}"]}}
  - {id: again, type: goto, needs_state: [], target: grow, max_iterations: 3000, on_limit: continue}
"""
DEEPER_REACTIVE = """
name: deeper
default_state: {raw: {tree: []}}
steps:
  - id: grow
    type: while
    condition: "true"
    max_iterations: 3000
    on_limit: continue
    body: [{type: state_update, path: raw.tree, value: ["{{ tree }}"]}]
"""


def ended(settings: Settings, text: str) -> dict[str, Any]:
    async def go() -> dict[str, Any]:
        async with Service.open(settings) as service:
            return dict(await service.start(text=text, wait_seconds=30))

    return asyncio.run(asyncio.wait_for(go(), 60))


@pytest.mark.rows("R16")
def test_the_first_state_of_a_task_reads_its_item_and_its_id(settings: Settings) -> None:
    run = played(settings, {"a": [True], "b": [True]}, yaml=OWN_STATE)
    told = [run.agents.handed[name][0].definition["params"]["about"] for name in ("a", "b")]
    assert told == ["a of 2: a.py", "b of 2: b.py"]


@pytest.mark.rows("R14", "R16")
def test_lists_of_errors_are_empty_where_nothing_has_failed(settings: Settings) -> None:
    answer = ended(settings, ERRORS)
    assert answer["state"] == {"n": 0, "errors": [], "sub_agent_errors": []}


@pytest.mark.rows("S14")
@pytest.mark.parametrize("text", [DEEPER, DEEPER_REACTIVE], ids=["stateful", "reactive"])
@pytest.mark.parametrize(("limit", "most"), [(200, 200), (20, 20), (5000, 200)])
def test_a_state_that_is_nested_too_deeply_is_refused_with_the_limit(
    text: str, limit: int, most: int, settings: Settings
) -> None:
    limited = dataclasses.replace(settings, limits=Limits(state_depth=limit))
    answer = ended(limited, text)
    assert answer["status"] == "failed"
    assert f"nested more than {most} deep (WORKFLOWS_LIMIT_STATE_DEPTH)" in answer["error"]["message"]


@pytest.mark.rows("S14")
def test_a_path_that_leads_too_deep_is_refused_with_the_limit(settings: Settings) -> None:
    path = ".".join(["raw", *["a"] * 3000])
    answer = ended(
        settings,
        f"name: path\ndefault_state: {{}}\nsteps: [{{type: state_update, path: {path}, value: 1}}]\n",
    )
    assert answer["status"] == "failed"
    assert "nested more than 200 deep (WORKFLOWS_LIMIT_STATE_DEPTH)" in answer["error"]["message"]


@pytest.mark.rows("R16")
def test_the_id_of_the_run_is_known_in_steps_and_in_first_states(settings: Settings) -> None:
    text = """
name: ids
default_state: {raw: {first: "{{ workflow_id }}"}}
steps:
  - {type: state_update, path: raw.later, value: "{{ workflow_id }}"}
"""
    answer = ended(settings, text)
    assert answer["state"] == {"first": answer["workflow_id"], "later": answer["workflow_id"]}


@pytest.mark.rows("R7")
def test_a_field_of_the_state_goes_before_the_id_of_the_run_which_transforms_do_not_see(
    settings: Settings,
) -> None:
    text = """
name: ids
default_state: {raw: {workflow_id: mine, n: 1}}
state_schema: {computed: {seen: {from: raw.n, transform: "typeof workflow_id"}}}
steps:
  - {type: state_update, path: raw.found, value: "{{ workflow_id }}"}
"""
    assert ended(settings, text)["state"] == {
        "workflow_id": "mine",
        "n": 1,
        "found": "mine",
        "seen": "string",
    }
    answer = ended(settings, text.replace("workflow_id: mine, ", ""))
    assert answer["state"] == {"n": 1, "found": answer["workflow_id"], "seen": "undefined"}
