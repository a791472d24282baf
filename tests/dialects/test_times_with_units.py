"""Times can have units, and long numbers of a budget `_`, in every dialect."""

from __future__ import annotations

import json
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from workflows_mcp.dialects import load
from workflows_mcp.dialects.schema import workflow_schema
from workflows_mcp.errors import DefinitionError
from workflows_mcp.plan import Do, Plan
from workflows_mcp.steps import default_registry

HEADS: dict[str, dict[str, Any]] = {
    "graph": {},
    "stateful": {"initial_state": {}},
    "reactive": {"default_state": {"raw": {}}},
}


VALIDATOR = Draft202012Validator(workflow_schema(default_registry()))


def fits_schema(given: dict[str, Any]) -> bool:
    """Whether an editor accepts it."""
    return VALIDATOR.is_valid(given)


def document(dialect: str, step: dict[str, Any], **more: Any) -> dict[str, Any]:
    unit: dict[str, Any] = {"id": "a", **step}
    if dialect == "graph":
        given = {key: unit.pop(key) for key in ("instructions", "command", "message") if key in unit}
        return {"name": "w", **more, "blocks": [{**unit, "inputs": given}]}
    unit |= {"needs_state": []} if dialect == "stateful" else {}
    return {"name": "w", **HEADS[dialect], **more, "steps": [unit]}


def plan_of(given: dict[str, Any]) -> Plan:
    return load(json.dumps(given), file="w.yaml", registry=default_registry()).plan


STEPS = [
    ("graph", {"type": "Delegate", "instructions": "x"}),
    ("graph", {"type": "Shell", "command": "true"}),
    ("graph", {"type": "Gate", "message": "x"}),
    ("stateful", {"type": "delegate", "instructions": "x"}),
    ("stateful", {"type": "shell", "command": "true", "on_error": "fail"}),
    ("stateful", {"type": "gate", "message": "x"}),
    ("reactive", {"type": "delegate", "instructions": "x"}),
    ("reactive", {"type": "shell_command", "command": "true"}),
    ("reactive", {"type": "gate", "message": "x"}),
]


@pytest.mark.rows("X7", "P8")
@pytest.mark.parametrize(("dialect", "step"), STEPS, ids=lambda it: it if isinstance(it, str) else it["type"])
def test_a_timeout_with_units_means_the_same_in_every_dialect(dialect: str, step: dict[str, Any]) -> None:
    given = document(dialect, {**step, "timeout": "1h 30m"})
    do = plan_of(given).body.nodes[0].do
    assert isinstance(do, Do)
    assert do.timeout is not None
    assert do.timeout.source in (5400, "1h 30m")
    assert fits_schema(given)


@pytest.mark.rows("X7", "P8")
@pytest.mark.parametrize(("dialect", "step"), STEPS, ids=lambda it: it if isinstance(it, str) else it["type"])
def test_a_time_with_an_unknown_unit_is_an_error(dialect: str, step: dict[str, Any]) -> None:
    given = document(dialect, {**step, "timeout": "3 weeks"})
    with pytest.raises(DefinitionError, match="'timeout'"):
        plan_of(given)
    assert not fits_schema(given)


@pytest.mark.parametrize("dialect", HEADS)
def test_a_timeout_without_units_of_a_task_in_words_has_the_unit_of_its_dialect(dialect: str) -> None:
    kind = "Delegate" if dialect == "graph" else "delegate"
    do = plan_of(document(dialect, {"type": kind, "instructions": "x", "timeout": 9000})).body.nodes[0].do
    assert isinstance(do, Do)
    assert do.timeout is not None
    assert do.timeout.source == (9 if dialect == "reactive" else 9000)


@pytest.mark.rows("P5")
@pytest.mark.parametrize("dialect", HEADS)
def test_a_budget_is_written_the_same_in_every_dialect(dialect: str) -> None:
    kind = "Gate" if dialect == "graph" else "gate"
    budget = {"tokens": "2_000_000", "time": "4h", "agent_steps": 200, "on_exceeded": "stop"}
    given = document(dialect, {"type": kind, "message": "x"}, budget=budget)
    found = plan_of(given).budget
    assert found is not None
    assert (found.tokens, found.time, found.agent_steps, found.on_exceeded) == (2_000_000, 14400, 200, "stop")
    assert fits_schema(given)
    for wrong in ({"tokens": "20_00"}, {"time": "soon"}, {"agent_steps": -1}):
        bad = document(dialect, {"type": kind, "message": "x"}, budget=wrong)
        with pytest.raises(DefinitionError, match=f"'{next(iter(wrong))}'"):
            plan_of(bad)
        assert not fits_schema(bad)
