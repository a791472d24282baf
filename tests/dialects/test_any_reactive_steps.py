"""Whatever stands in a reactive file: it is a plan, or a list of problems; and the schema takes what loads."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from workflows_mcp.dialects import Definition, load
from workflows_mcp.dialects.reactive import TASK, WORKFLOW
from workflows_mcp.dialects.reactive_state import COMPUTED as COMPUTED_KEYS
from workflows_mcp.dialects.reactive_steps import CONTROL, keys_beside
from workflows_mcp.dialects.schema import workflow_schema
from workflows_mcp.errors import DefinitionError, Problem
from workflows_mcp.plan.codec import decode_plan, encode_plan
from workflows_mcp.plan.model import Branch, Each, Leave, While
from workflows_mcp.steps.registry import default_registry

REGISTRY = default_registry()
VALIDATOR = Draft202012Validator(workflow_schema(REGISTRY))
WORDS = [
    "", "x", "a", "true", "1", "fail", "continue", "retry", "raw.a", "raw.b.c", "state.d", "computed.e", "a.b",
    "json", "set", "append", "retry_failed", "input.length", "raw", "raw.a[0]", "t", "file",
]  # fmt: skip
EXPRESSIONS = [
    "{{ a }}", "{{ inputs.any }}", "{{ zzz }}", "{{ 1 + 1 }}", "x {{ item }}", "{{", "{{ a | length }}",
    "raw.b.{{ item }}", "raw.{{ a }}", "{{ secrets.X }}", "{{ computed.e }}", "{{ a => }}", "{{ a?.b ?? 1 }}",
]  # fmt: skip
LITERALS = st.one_of(
    st.none(), st.booleans(), st.integers(-2, 2000), st.floats(-2, 9, allow_nan=False), st.sampled_from(WORDS)
)
VALUES = st.recursive(
    LITERALS | st.sampled_from(EXPRESSIONS),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(["a", "path", "value", "type"]), inner, max_size=2)
    ),
    max_leaves=4,
)
CHANGES = st.fixed_dictionaries(
    {"path": st.sampled_from(["raw.a", "state.d", "raw.b.{{ item }}", "raw.a[0]", 'raw.b["x.y"]'])},
    optional={
        "value": VALUES,
        "operation": st.sampled_from(["set", "append", "increment", "merge"]),
        "transform": st.sampled_from(["input + 1", "{{ result }}", "return input"]),
    },
)
LIKELY: dict[str, Any] = {
    "condition": st.sampled_from(["{{ a }}", "a > 1", True]),
    "items": st.lists(LITERALS, max_size=3) | st.just("{{ a }}"),
    "sub_agent_task": st.sampled_from(["t", "u"]),
    "workflow": st.sampled_from(["other", "{{ a }}"]),
    "path": st.sampled_from(["raw.a", "raw.b.{{ item | path_to_key }}"]),
    "value": VALUES,
    "message": st.sampled_from(["Go?", "{{ a }}?"]),
    "duration_seconds": st.sampled_from([0, 1.5, "{{ a }}"]),
    "command": st.sampled_from(["make", "echo {{ a }}", 7]),
    "prompt": st.just("Which?"),
    "method": st.sampled_from(["x.y", "{{ a }}"]),
    "file": st.just("f"),
    "hints": st.just("{{ a }}"),
    "state_update": CHANGES | st.lists(CHANGES, max_size=2),
    "error_state_update": CHANGES,
    "updates": st.lists(CHANGES, min_size=1, max_size=2),
    "on_error": st.sampled_from(["fail", "continue", "retry"]),
    "retry_count": st.sampled_from([0, 2, "{{ a }}", "{{ a | length }}"]),
    "retry_delay": st.sampled_from([0, 1000, "{{ a }}"]),
    "timeout": st.sampled_from([1, 5000, "{{ a }}"]),
    "max_iterations": st.sampled_from([1, "2", "{{ a }}"]),
    "on_sub_agent_error": st.fixed_dictionaries(
        {}, optional={"strategy": st.sampled_from(["retry_failed", "continue", "fail_all"]), "collect_errors": st.booleans()}
    ),
}  # fmt: skip
NEEDED = {
    "conditional": ["condition"], "while": ["condition"], "foreach": ["items"], "break": [], "continue": [],
    "sequential": [], "parallel_foreach": ["items", "sub_agent_task"], "include_workflow": ["workflow"],
    "state_update": ["path", "value"], "user_message": ["message"], "exit": [], "wait": ["duration_seconds"],
    "shell_command": ["command"], "agent_shell_command": ["command"], "user_input": ["prompt"],
    "mcp_call": ["method"], "apply_hints": ["file", "hints"],
}  # fmt: skip
INSIDE = {
    "conditional": ["then", "else"], "while": ["body"], "foreach": ["steps"], "sequential": ["steps"],
    "include_workflow": ["on_complete"],
}  # fmt: skip


@st.composite
def steps(draw: st.DrawFn, depth: int = 0, in_loop: bool = False) -> dict[str, Any]:
    """A step that is nearly right, with values of any type in known places."""
    kind = draw(st.sampled_from(sorted(NEEDED.keys() - (() if in_loop else {"break", "continue"}))))
    inside = steps(depth=depth + 1, in_loop=in_loop or kind in ("while", "foreach"))
    step: dict[str, Any] = {"type": kind}
    if draw(st.booleans()):
        step["id"] = draw(st.sampled_from(["a", "b", "c", "d_{{ item }}", "{{ a }}", 7]))
    for key in NEEDED[kind]:
        step[key] = draw(LIKELY[key])
    for key in INSIDE.get(kind, ()):
        step[key] = draw(st.lists(inside, min_size=1, max_size=2)) if depth < 2 else [{"type": "exit"}]
    if kind in CONTROL:
        known = set(CONTROL[kind].keys)
    else:
        found = REGISTRY.find(kind, "reactive")
        assert found is not None
        known = {*keys_beside(found), *found.Inputs.model_fields}
    known -= {"id", "type", *INSIDE.get(kind, ())}
    for key in draw(st.lists(st.sampled_from(sorted(known & LIKELY.keys()) or ["when"]), max_size=2)):
        step.setdefault(key, draw(LIKELY.get(key, st.just("{{ a }}"))))
    if not draw(st.integers(0, 3)):
        step |= draw(st.dictionaries(st.sampled_from([*sorted(known), "unknown"]), VALUES, max_size=2))
    return step


COMPUTED = st.fixed_dictionaries(
    {"from": st.sampled_from(["raw.a", ["raw.a", "computed.e"]]), "transform": st.sampled_from(["input", "a.length", "e"])},
    optional={"on_error": st.sampled_from(["ignore", "propagate"]), "validate": st.just("output > 1")},
) | st.dictionaries(st.sampled_from(sorted(COMPUTED_KEYS)), VALUES, max_size=3)  # fmt: skip


@st.composite
def workflows(draw: st.DrawFn) -> dict[str, Any]:
    some = st.lists(steps(), min_size=1, max_size=4)
    document: dict[str, Any] = {
        "default_state": {"raw": {"a": draw(VALUES), "b": {}}, "state": {"d": 1}},
        "state_schema": {"raw": {"a": "any"}, "computed": {"e": {"from": "raw.a", "transform": "input"}}},
        "inputs": {"any": None},
        "steps": draw(some),
        "sub_agent_tasks": {"t": {"steps": draw(some)}},
    }
    if draw(st.booleans()):
        document["state_schema"]["computed"]["f"] = draw(COMPUTED)
    if not draw(st.integers(0, 2)):
        task = st.dictionaries(st.sampled_from(sorted(TASK)), VALUES, max_size=1)
        document["sub_agent_tasks"]["t"] |= draw(task)
    if not draw(st.integers(0, 2)):
        document |= draw(st.dictionaries(st.sampled_from(sorted(WORKFLOW)), VALUES, max_size=1))
    return document


def loaded(document: Any) -> Definition | list[Problem]:
    try:
        return load(json.dumps(document), file="w.yaml", registry=REGISTRY)
    except DefinitionError as error:
        return error.problems


@pytest.mark.rows("R13", "X12")
@pytest.mark.slow
@settings(
    max_examples=250, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)
@given(workflows())
@example(
    {
        "state_schema": {"raw": ["a"], "computed": {"x": {"from": {}, "transform": {}, "static": 1}}},
        "steps": [{}],
    }
)
@example({"default_state": [], "steps": {"type": "a"}, "sub_agent_tasks": {"t": {"steps": {}, "inputs": []}}})
@example({"workflow": {"steps": [{"type": "exit"}]}})
@example(
    {"steps": [{"type": "while", "condition": {}, "body": [{"type": "break", "when": []}]}], "imports": [1]}
)
def test_any_reactive_file_is_a_plan_or_a_list_of_problems(document: dict[str, Any]) -> None:
    definition = loaded(document)
    if isinstance(definition, list):
        assert all(problem.place is not None and problem.hint for problem in definition)
        return
    assert [error.message for error in VALIDATOR.iter_errors(document)] == []
    assert decode_plan(encode_plan(definition.plan)) == definition.plan
    for plan in (definition.plan, *definition.plan.tasks):
        nodes = plan.body.nodes
        assert len({node.id for node in nodes}) == len(nodes)
        for index, node in enumerate(nodes):
            heads = [head for head in node.loops if isinstance(nodes[head].do, While | Each)]
            assert heads == list(node.loops) == sorted(node.loops)
            assert node.goes_to == -1 or node.goes_to in heads or index < node.goes_to <= len(nodes)
            if isinstance(node.do, Branch | While | Each):
                assert node.do.otherwise in heads or index + 1 < node.do.otherwise <= len(nodes)
            if isinstance(node.do, Leave):
                assert node.do.target == heads[-1] or node.do.loop == heads[-1]
