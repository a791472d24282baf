"""A sub-agent has no user: no question to the user reaches it, not even through workflows that its task calls."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from workflows_mcp.errors import DefinitionError

Run = Callable[..., Any]

ASKS = """
name: asks
steps:
  - {id: really, type: prompt, needs_state: [], message: Really?, prompt_type: confirm, output_to: said}
"""
MIDDLE = """
name: middle
steps:
  - {id: on, type: workflow, needs_state: [], workflow: asks}
"""
STATEFUL = """
name: main
initial_state: {{out: []}}
steps:
  - {{id: each, type: foreach, needs_state: [], items: [1], task: one, agent: "@task", output_to: out}}
tasks:
  one:
    inputs: {{n: number}}
    initial_state: {{}}
    steps:
      - {{id: call, type: workflow, needs_state: [], workflow: {called}}}
"""
REACTIVE = """
name: main
default_state: {{raw: {{which: asks}}}}
steps:
  - {{id: each, type: parallel_foreach, items: [1], sub_agent_task: one}}
sub_agent_tasks:
  one:
    steps:
      - {{id: call, type: include_workflow, workflow: {called}}}
"""


@pytest.mark.rows("S17", "R12")
@pytest.mark.parametrize("text", [STATEFUL, REACTIVE], ids=["stateful", "reactive"])
@pytest.mark.parametrize("called", ["asks", "middle"])
def test_a_called_workflow_that_asks_the_user_is_refused_at_load(text: str, called: str, run: Run) -> None:
    with pytest.raises(DefinitionError) as refused:
        run(text.format(called=called), library={"asks": ASKS, "middle": MIDDLE})
    [problem] = [it for it in refused.value.problems if not it.warning]
    assert problem.code == "prompt_in_task"
    assert "step 'really' of workflow 'asks' asks the user, but the task 'one' runs in" in problem.message
    assert "ask before step 'each', keep the answer in the state" in problem.hint
    assert problem.place is not None
    assert f"workflow: {called}" in problem.place.text


@pytest.mark.rows("S17", "R12")
@pytest.mark.parametrize(
    ("text", "called"),
    [(STATEFUL, "\"{{ 'asks' }}\""), (REACTIVE, '"{{ which }}"')],
    ids=["stateful", "reactive"],
)
def test_a_question_of_a_workflow_that_is_chosen_at_run_time_fails_the_task(
    text: str, called: str, run: Run, workspace: Path
) -> None:
    answer = run(text.format(called=called), library={"asks": ASKS}).answer
    assert answer["status"] == "failed"
    assert answer["error"]["code"] == "prompt_in_task"
    assert "step 'really' asks the user, but the task 'one' runs in sub-agents" in answer["error"]["message"]
    assert "ask before the step that starts the task" in answer["error"]["hint"]


@pytest.mark.rows("S17")
def test_a_task_that_the_main_agent_carries_out_may_call_a_workflow_that_asks(run: Run) -> None:
    text = STATEFUL.format(called="asks").replace(', agent: "@task"', "")
    answer = run(text, library={"asks": ASKS}).answer
    assert answer["action"]["type"] == "prompt"
