"""Whatever stands in a file of steps: it is a plan, or a list of problems; and the schema takes what loads."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from workflows_mcp.dialects import Definition, load
from workflows_mcp.dialects.schema import workflow_schema
from workflows_mcp.dialects.stateful import CONTROL, TASK, WORKFLOW, keys_beside
from workflows_mcp.errors import DefinitionError, Problem
from workflows_mcp.plan.model import Branch, Jump
from workflows_mcp.steps.registry import default_registry

REGISTRY = default_registry()
VALIDATOR = Draft202012Validator(workflow_schema(REGISTRY))
WORDS = [
    "",
    "x",
    "a",
    "b",
    "true",
    "1",
    "@task",
    "confirm",
    "choice",
    "server",
    "continue",
    "make",
    "*",
    "_p",
    "t",
]
EXPRESSIONS = [
    "{{ state.a }}", "{{ inputs.any }}", "{{ state.zzz }}", "{{ 1 + 1 }}", "x {{ item }}", "{{", "{% if %}",
    "{{ state.a | default(1) }}", "{{ state }}", "{{ secrets.X }}", "state.a", "{{ a }}", "{{ state['a'][0] }}",
]  # fmt: skip
LITERALS = st.one_of(
    st.none(), st.booleans(), st.integers(-2, 200), st.floats(-2, 9, allow_nan=False), st.sampled_from(WORDS)
)
VALUES = st.recursive(
    LITERALS | st.sampled_from(EXPRESSIONS),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["a", "b", "_c"]), inner, max_size=2)
    ),
    max_leaves=4,
)
LIKELY: dict[str, Any] = {
    "if": st.sampled_from(["{{ state.a }}", "state.a", True]),
    "updates": st.dictionaries(st.sampled_from(["a", "b", "c"]), VALUES, min_size=1, max_size=3),
    "items": st.lists(LITERALS, max_size=3) | st.just("{{ state.a }}"),
    "task": st.sampled_from(["t", "u"]),
    "output_to": st.sampled_from(["a", "b", "out"]),
    "target": st.sampled_from(["a", "b", "c", "d"]),
    "max_iterations": st.sampled_from([1, "2", "{{ state.a }}"]),
    "duration_seconds": st.sampled_from([0, 1.5, "{{ state.a }}"]),
    "workflow": st.sampled_from(["other", "{{ state.a }}"]),
    "command": st.sampled_from(["make", "echo {{ state.a }}", 7]),
    "message": st.sampled_from(["Go?", "{{ state.a }}?"]),
    "prompt_type": st.sampled_from(["info", "text"]),
    "tool": st.sampled_from(["x.y", "{{ state.a }}"]),
    "instructions": st.just("Do {{ state.a }}"),
    "path": st.just("f"),
}
NEEDED = {
    "condition": ["if"], "set_state": ["updates"], "foreach": ["items", "task", "output_to"], "return": [],
    "goto": ["target", "max_iterations"], "wait": ["duration_seconds"], "workflow": ["workflow"],
    "shell": ["command"], "prompt": ["message", "prompt_type"], "mcp_call": ["tool"], "delegate": ["instructions"],
    "ReadFile": ["path"],
}  # fmt: skip


@st.composite
def steps(draw: st.DrawFn, depth: int = 0) -> dict[str, Any]:
    """A step that is nearly right, with values of any type in known places."""
    kind = draw(st.sampled_from(sorted(NEEDED)))
    step: dict[str, Any] = {"id": draw(st.sampled_from("abcdefgh")), "type": kind}
    if draw(st.integers(0, 5)):
        step["needs_state"] = draw(st.sampled_from([["*"], ["a"], [], ["a", "b"]]))
    for key in NEEDED[kind]:
        step[key] = draw(LIKELY[key])
    if kind == "condition":
        inner = st.lists(steps(depth=depth + 1), min_size=1, max_size=2) if depth < 2 else st.just([])
        step["then"] = draw(inner)
        if draw(st.booleans()):
            step["else"] = draw(inner)
    if kind in CONTROL:
        known = set(CONTROL[kind].keys)
    else:
        found = REGISTRY.find(kind, "stateful")
        assert found is not None
        known = {*keys_beside(found), *found.Inputs.model_fields}
    if not draw(st.integers(0, 2)):
        others = [*sorted(known - {"id", "type", "then", "else"}), "unknown"]
        step |= draw(st.dictionaries(st.sampled_from(others), VALUES, max_size=2))
    return step


@st.composite
def workflows(draw: st.DrawFn) -> dict[str, Any]:
    some = st.lists(steps(), min_size=1, max_size=4, unique_by=lambda step: step["id"])
    document: dict[str, Any] = {
        "initial_state": {"a": draw(VALUES), "b": 1},
        "inputs": {"any": None},
        "steps": draw(some),
        "tasks": {"t": {"steps": draw(some)}},
    }
    if not draw(st.integers(0, 3)):
        document["tasks"]["t"] |= draw(st.dictionaries(st.sampled_from(sorted(TASK)), VALUES, max_size=1))
    if not draw(st.integers(0, 3)):
        document |= draw(st.dictionaries(st.sampled_from(sorted(WORKFLOW)), VALUES, max_size=1))
    return document


def loaded(document: Any) -> Definition | list[Problem]:
    try:
        return load(json.dumps(document), file="w.yaml", registry=REGISTRY)
    except DefinitionError as error:
        return error.problems


@pytest.mark.rows("S1", "X12")
@pytest.mark.slow
@settings(
    max_examples=250, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)
@given(workflows())
@example(
    {"initial_state": {}, "steps": [{"id": "a", "type": "foreach", "agent": {}, "task": ["t"], "items": {}}]}
)
@example({"steps": [{"id": "a", "type": "goto", "target": "a", "max_iterations": {}}], "initial_state": None})
@example({"steps": {"id": "a"}, "tasks": {"t": {"steps": {"a": 1}}}, "inputs": []})
def test_any_file_of_steps_is_a_plan_or_a_list_of_problems(document: dict[str, Any]) -> None:
    definition = loaded(document)
    if isinstance(definition, list):
        assert all(problem.place is not None and problem.hint for problem in definition)
        return
    assert [error.message for error in VALIDATOR.iter_errors(document)] == []
    for plan in (definition.plan, *definition.plan.tasks):
        nodes = plan.body.nodes
        assert len({node.id for node in nodes}) == len(nodes)
        for index, node in enumerate(nodes):
            assert node.goes_to == -1 or index < node.goes_to <= len(nodes)
            if isinstance(node.do, Branch):
                assert index + 1 < node.do.otherwise <= len(nodes)
            if isinstance(node.do, Jump):
                assert 0 <= node.do.target < len(nodes)
                assert node.do.target != index
