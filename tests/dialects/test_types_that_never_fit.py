"""Values whose types are known before a run: where they can never be converted, the load says so."""

from __future__ import annotations

import pytest

from workflows_mcp.dialects import check_bundle, load
from workflows_mcp.errors import DefinitionError, Problem
from workflows_mcp.plan.model import Bundle
from workflows_mcp.steps.registry import default_registry

CALLED = """
name: called
inputs:
  n: {type: integer, required: false, default: 1}
  files: {type: list, required: false}
  must: {type: list, required: false, default: []}
blocks: [{id: a, type: Shell, inputs: {command: "true"}}]
"""
STATEFUL = """
name: main
inputs: {count: {type: integer}, names: {type: list, required: true}, note: {type: string}}
initial_state: {text: a, flag: true, later: false, mixed: 1, list: [], copy: true}
tasks:
  look:
    inputs: {n: {type: integer}, deep: {type: boolean, default: false}}
    steps: [{id: see, type: shell, command: "true", on_error: fail}]
  one:
    inputs: {n: {type: integer}}
    steps: [{id: see-one, type: shell, command: "true", on_error: fail}]
steps:
  - {id: set, type: set_state, updates: {mixed: "{{ inputs.names }}", copy: "{{ state.flag }}"}}
  - {id: run, type: shell, command: ls, output_to: out, needs_state: [], on_error: fail}
  - %s
"""
REACTIVE = """
name: main
inputs: {count: {type: integer}}
default_state: {raw: {size: 0, files: [], free: 3, made: "{{ inputs.count }}"}}
state_schema:
  raw: {size: number, files: array, made: number}
  computed: {fixed: {static: true, value: 5}, found: {from: raw.files, transform: input}}
config: {limit: 3, names: [a]}
sub_agent_tasks:
  look:
    inputs: {n: integer, deep: {type: boolean, default: false}}
    steps: [{type: user_message, message: seen}]
  one:
    inputs: {n: integer}
    steps: [{type: user_message, message: seen}]
steps:
  - {type: state_update, path: raw.free, value: [1]}
  - %s
"""
FOREACH = '{id: each, type: foreach, task: look, output_to: done, needs_state: ["*"], items: %s}'
WORKFLOW = '{id: call, type: workflow, workflow: called, needs_state: ["*"], inputs: %s}'
LOOP = "{type: foreach, items: %s, steps: [{type: user_message, message: seen}]}"
LANES = "{type: parallel_foreach, sub_agent_task: look, items: %s}"
ONE, LANES_OF_ONE = FOREACH.replace("look", "one"), LANES.replace("look", "one")
INCLUDE = "{type: include_workflow, workflow: called, inputs: %s}"


def problems_of(text: str) -> list[Problem]:
    """The errors of a workflow, also of its calls."""
    try:
        found = [load(it, file="f.yaml", registry=default_registry()) for it in (text, CALLED)]
        bundle = Bundle("main", {it.plan.name: it.plan for it in found})
        check_bundle(bundle, {it.plan.name: it.text for it in found})
    except DefinitionError as error:
        return [it for it in error.problems if not it.warning]
    return []


@pytest.mark.rows("S6", "R6")
@pytest.mark.parametrize(
    ("text", "step", "found"),
    [
        (STATEFUL, FOREACH % '"{{ inputs.count }}"', "a list or an object, not integer"),
        (STATEFUL, FOREACH % '"{{ inputs.note }}"', "a list or an object, not text"),
        (STATEFUL, FOREACH % '"{{ state.text }}"', "a list or an object, not text"),
        (STATEFUL, FOREACH % '"{{ state.copy }}"', "a list or an object, not boolean"),
        (STATEFUL, FOREACH % '"{{ state.list | length }}"', "a list or an object, not integer"),
        (STATEFUL, FOREACH % '" {{ state.list }}"', "a list or an object, not text"),
        (REACTIVE, LOOP % '"{{ inputs.count }}"', "a list, not integer"),
        (REACTIVE, LOOP % '"{{ size }}"', "a list, not integer or number"),
        (REACTIVE, LOOP % '"{{ raw.size }}"', "a list, not integer or number"),
        (REACTIVE, LOOP % '"{{ config.limit }}"', "a list, not integer"),
        (REACTIVE, LOOP % '"{{ fixed }}"', "a list, not integer"),
        (REACTIVE, LOOP % '"{{ !files }}"', "a list, not boolean"),
        (REACTIVE, LANES % '"{{ size }}"', "a list or an object, not integer or number"),
        (REACTIVE, LANES % '"files {{ files }}"', "a list or an object, not text"),
    ],
)
def test_a_loop_over_what_is_never_a_list_is_refused_at_load(text: str, step: str, found: str) -> None:
    [problem] = problems_of(text % step)
    assert (problem.code, problem.message) == ("wrong_type", f"items takes {found}")
    assert problem.hint
    assert problem.place is not None
    assert "items:" in problem.place.text


@pytest.mark.rows("S6", "R6")
@pytest.mark.parametrize(
    ("text", "step", "found"),
    [
        (STATEFUL, WORKFLOW % "{n: many}", "input 'n' of workflow 'called' must be a whole number"),
        (STATEFUL, WORKFLOW % '{n: "{{ inputs.names }}"}', "'n' of workflow 'called' takes integer, not list"),
        (STATEFUL, WORKFLOW % '{files: "{{ state.flag }}"}', "'files' of workflow 'called' takes list, not boolean"),
        (STATEFUL, WORKFLOW % '{files: "{{ state.out }}"}', "'files' of workflow 'called' takes list, not object"),
        (STATEFUL, WORKFLOW % '{n: ["{{ inputs.count }}"]}', "'n' of workflow 'called' takes integer, not list"),
        (STATEFUL, WORKFLOW % '"{{ inputs.names }}"', "the inputs of a call must be an object, not list"),
        (STATEFUL, ONE % "[1, many]", "input 'n' of the task 'one' must be a whole number"),
        (STATEFUL, FOREACH % "[{n: 1, deep: 3}]", "input 'deep' of the task 'look' must be true or false"),
        (REACTIVE, INCLUDE % '{files: "{{ fixed }}"}', "'files' of workflow 'called' takes list, not integer"),
        (REACTIVE, INCLUDE % '{n: "{{ config.names }}"}', "'n' of workflow 'called' takes integer, not list"),
        (REACTIVE, LANES_OF_ONE % "[1, many]", "input 'n' of the task 'one' must be a whole number"),
        (REACTIVE, LANES % "[{n: 1, deep: 3}]", "input 'deep' of the task 'look' must be true or false"),
    ],
)  # fmt: skip
def test_an_input_that_can_never_be_converted_is_refused_at_load(text: str, step: str, found: str) -> None:
    [problem] = problems_of(text % step)
    assert problem.code == "wrong_type"
    assert found in problem.message
    assert "takes" in problem.hint
    assert problem.place is not None
    assert step in problem.place.text


@pytest.mark.parametrize(
    ("text", "step"),
    [
        (STATEFUL, FOREACH % '"{{ inputs.names }}"'),
        (STATEFUL, FOREACH % '"{{ state.mixed }}"'),
        (STATEFUL, FOREACH % '"{{ state.out }}"'),
        (STATEFUL, FOREACH % '"{{ state.text | lines }}"'),
        (STATEFUL, ONE % '["1", 2, 3.0, {n: "4"}]'),
        (STATEFUL, FOREACH % '[{n: "4", deep: "true"}]'),
        (STATEFUL, WORKFLOW % '{n: "7", files: "[1]"}'),
        (STATEFUL, WORKFLOW % '{n: "{{ inputs.note }}", files: "{{ state.text }}"}'),
        (STATEFUL, WORKFLOW % '{n: null, files: null, must: "{{ state.mixed }}"}'),
        (REACTIVE, LOOP % '"{{ files }}"'),
        (REACTIVE, LOOP % '"{{ found }}"'),
        (REACTIVE, LOOP % '"{{ free }}"'),
        (REACTIVE, LOOP % '"{{ made }}"'),
        (REACTIVE, LOOP % '"{{ count }}"'),
        (REACTIVE, LANES % '"{{ files }}"'),
        (REACTIVE, LANES_OF_ONE % '["1", {n: 2}]'),
        (REACTIVE, INCLUDE % '{n: "{{ size }}", must: "{{ found }}", files: "{{ size }}"}'),
    ],
)
def test_what_could_work_when_it_runs_is_not_refused(text: str, step: str) -> None:
    assert problems_of(text % step) == []
