"""The arguments of filters and tests are checked when a file is loaded."""

from __future__ import annotations

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


def test_the_arguments_of_every_filter_and_test_are_checked() -> None:
    known, many = environment(), ", ".join(["1"] * 20)
    taken = {name for name in known.filters if not problems_of(f"{{{{ state.x | {name}({many}) }}}}")}
    assert taken == OPEN
    words = [
        name for name in known.tests if name.isidentifier() and name not in ("in", "true", "false", "none")
    ]
    assert [name for name in words if not problems_of(f"{{{{ state.x is {name}({many}) }}}}")] == []
