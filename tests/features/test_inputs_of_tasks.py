"""A task takes its inputs from its item, or says how to bind them: it never runs with inputs that are all null."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from workflows_mcp.errors import DefinitionError, InvalidInputs

Run = Callable[..., Any]

STATEFUL = """
inputs: {{paths: {{type: list, validation: {{item_type: string}}, default: [a.py]}}}}
initial_state: {{files: [a.py], found: []}}
steps:
  - {{id: all, type: foreach, needs_state: ["files"], items: {items}, task: review, output_to: found}}
  - {{id: give, type: return, needs_state: [found], value: "{{{{ state.found }}}}"}}
tasks:
  review:
    inputs: {inputs}
    initial_state: {{}}
    steps:
      - {{id: give, type: return, needs_state: [], value: "{{{{ inputs.diff }}}} of {{{{ inputs.file }}}}"}}
"""
REACTIVE = """
default_state: {{raw: {{files: [a.py]}}}}
steps:
  - {{id: all, type: parallel_foreach, items: {items}, sub_agent_task: review}}
sub_agent_tasks:
  review:
    inputs: {inputs}
    steps:
      - {{id: say, type: shell_command, command: "printf %s {{{{ file }}}}",
          state_update: {{path: raw.said}}}}
"""
TWO = "{diff: {type: string}, file: {type: string}}"


@pytest.mark.rows("S5", "R16")
@pytest.mark.parametrize(
    ("text", "items"),
    [
        (STATEFUL, "[a.py]"),
        (STATEFUL, '"{{ inputs.paths }}"'),
        (STATEFUL, "[{path: a.py}]"),
        (REACTIVE, "[a.py]"),
    ],
    ids=["texts", "an input whose items are texts", "objects with other keys", "texts of a reactive task"],
)
def test_items_that_bind_none_of_several_inputs_are_refused_at_load(text: str, items: str, run: Run) -> None:
    with pytest.raises(DefinitionError) as caught:
        run(text.format(items=items, inputs=TWO))
    [problem] = caught.value.problems
    assert problem.code == "missing_input"
    assert "takes none of its inputs ('diff', 'file') from the item" in problem.message
    assert "make each item an object: {diff: …, file: …}, or declare one input only" in problem.hint
    assert problem.place is not None
    assert problem.place.line == (5 if text is STATEFUL else 4)


@pytest.mark.rows("S5")
def test_items_that_are_known_later_fail_the_task_with_the_way_to_bind_them(run: Run) -> None:
    answer = run(STATEFUL.format(items='"{{ state.files }}"', inputs=TWO)).answer
    assert answer["status"] == "failed"
    assert (
        "takes none of its inputs ('diff', 'file') from the item text \"a.py\"" in answer["error"]["message"]
    )
    assert "make each item an object" in answer["error"]["hint"]


@pytest.mark.rows("S5")
@pytest.mark.parametrize(
    ("items", "inputs", "result"),
    [
        ("[{diff: d, file: f}]", TWO, ["d of f"]),
        ("[{file: f}]", "{diff: {type: string, default: all}, file: {type: string}}", ["all of f"]),
        ("[f]", "{diff: {type: string, default: all}, file: {type: string, default: it}}", ["all of it"]),
    ],
    ids=["both keys", "one key and a default", "defaults only"],
)
def test_inputs_with_keys_or_defaults_are_bound(items: str, inputs: str, result: list[str], run: Run) -> None:
    assert run(STATEFUL.format(items=items, inputs=inputs)).answer["result"] == result


FIELDS = """
default_state: {raw: {size: 0, files: []}}
state_schema: {raw: {size: number, files: array}}
steps: [{id: grow, type: state_update, path: raw.size, operation: increment}]
"""


def test_an_input_that_becomes_a_field_is_converted_to_its_declared_type(run: Run) -> None:
    assert run(FIELDS, {"size": "4", "files": '["a"]'}).answer["status"] == "completed"
    with pytest.raises(InvalidInputs, match=r"input 'size' must be a number, .* not text"):
        run(FIELDS, {"size": "many"})
