"""Filters, tests and functions that are given what they can never take: the load says so."""

from __future__ import annotations

import pytest

from workflows_mcp.dialects import load
from workflows_mcp.errors import DefinitionError, Problem
from workflows_mcp.expressions.jinja.references import environment
from workflows_mcp.steps.registry import default_registry

TEXT = """
name: constants
initial_state: {x: [1], name: a}
steps:
  - {id: set, type: set_state, needs_state: ["*"], updates: {y: "%s"}}
"""
OPEN = {"map", "select", "reject", "selectattr", "rejectattr"}
"""Filters that take any number of arguments, for another filter or test."""


def problems_of(expression: str) -> list[Problem]:
    try:
        load(TEXT % expression, file="f.yaml", registry=default_registry())
    except DefinitionError as error:
        return [it for it in error.problems if not it.warning]
    return []


@pytest.mark.parametrize(
    ("expression", "message", "hint"),
    [
        ("{{ state.x | sum(start='a') }}", "'start' must be a number or a list, not text", "use join"),
        ("{{ state.x | sum(start={}) }}", "'start' must be a number or a list, not object", "use join"),
        ("{{ state.x | tojson(indent='a') }}", "'indent' must be a whole number, not text", "(indent=None)"),
        ("{{ state.name | split(1) }}", "'separator' must be text, not integer 1", "(separator=None"),
        ("{{ state.name | replace('a') }}", "filter 'replace'", "it takes (old, new, count=None)"),
        ("{{ state.name | upper(1) }}", "too many positional arguments", "it takes no arguments"),
        ("{{ state.name | truncate(leng=3) }}", "unexpected keyword argument 'leng'", "(length=255,"),
        ("{{ state.x is divisibleby }}", "test 'divisibleby'", "it takes (num)"),
        ("{{ regex_search('a') }}", "missing a required argument: 'text'", "it takes (pattern, text)"),
        ("{{ now(1) }}", "function 'now'", "it takes no arguments"),
        ("{{ [1, 'a'] | sum }}", "unsupported operand", "it would fail every time"),
        ("{{ 'x' | parse_json }}", "is not JSON", "ask for nothing but JSON"),
        ("{{ 1 / 0 }}", "division by zero", "it would fail every time"),
    ],
)
def test_constants_that_can_never_work_are_refused_at_load(expression: str, message: str, hint: str) -> None:
    [problem] = problems_of(expression)
    assert message in problem.message
    assert hint in problem.hint
    assert problem.place is not None
    assert problem.place.line == 5


@pytest.mark.parametrize(
    "expression",
    [
        "{{ state.x | sum(start=[]) }}",
        "{{ state.x | sum(start=1.5) }}",
        "{{ state.x | join(1) }}",
        "{{ state.name | int(default='none') }}",
        "{{ state.name | default(none, true) }}",
        "{{ state.x | map(attribute='a', default=0) | list }}",
        "{{ state.x | selectattr('a', 'equalto', 1) | list }}",
        "{{ state.x | flatten(levels=1) }}",
        "{{ state.x | batch(2, 'x') | list }}",
        "{{ state.x | round(2, 'floor') }}",
        "{{ state.name | indent('  ') }}",
        "{{ state.x is sameas(none) }}",
        "{{ 10 | round(1 + 1) }}",
        "{{ [[1], [2]] | sum(start=[]) }}",
        "{{ now().isoformat() }}",
        "{{ range(3) | list }}",
        "{% for i in range(3) %}{{ loop.index }}{% endfor %}",
    ],
)
def test_constants_that_work_are_taken(expression: str) -> None:
    assert problems_of(expression) == []


def test_every_filter_and_test_is_held_to_its_signature() -> None:
    known, many = environment(), ", ".join(["1"] * 20)
    taken = {name for name in known.filters if not problems_of(f"{{{{ state.x | {name}({many}) }}}}")}
    assert taken == OPEN
    words = [
        name for name in known.tests if name.isidentifier() and name not in ("in", "true", "false", "none")
    ]
    assert [name for name in words if not problems_of(f"{{{{ state.x is {name}({many}) }}}}")] == []
