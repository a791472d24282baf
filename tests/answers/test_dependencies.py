"""What a field of a reactive state follows from, and what follows from it."""

from __future__ import annotations

from typing import Any

import pytest

from support.plans import Plan
from workflows_mcp.answers.explain import Dependencies
from workflows_mcp.errors import RequestError
from workflows_mcp.plan.model import Computed, InputSpec, Steps

PLAN = Plan(
    "check",
    "reactive",
    Steps(()),
    inputs={"branch": InputSpec("string")},
    initial_state={"raw": {"results": {}}, "state": {"mode": "fast"}},
    raw_types={"files": "array"},
    known=("extra", "files", "mode", "results"),
    config={"size": 3},
    computed={
        "total": Computed(("raw.results.errors",), transform="input.length"),
        "valid": Computed(("raw.files",), transform="input.filter(f => f.endsWith(ending))"),
        "ending": Computed(static=True, value=".ts"),
        "batches": Computed(
            ("computed.valid", "config.size"), many=True, transform="[input[0], mode, total]"
        ),
    },
)


def found(field: str) -> dict[str, Any]:
    return Dependencies(PLAN).of(field)


@pytest.mark.rows("R20")
def test_a_field_follows_from_its_sources_and_from_what_its_transform_mentions() -> None:
    assert found("valid") == {
        "direct_deps": ["raw.files", "computed.ending"],
        "all_deps": ["raw.files", "computed.ending"],
        "dependents": ["computed.batches"],
    }
    batches = found("computed.batches")
    assert batches["direct_deps"] == ["computed.valid", "config.size", "state.mode", "computed.total"]
    assert batches["all_deps"] == [
        "computed.valid",
        "config.size",
        "state.mode",
        "computed.total",
        "raw.files",
        "computed.ending",
        "raw.results.errors",
    ]


@pytest.mark.rows("R20")
def test_what_follows_from_a_part_of_a_field_follows_from_the_field() -> None:
    for field in ("results", "raw.results", "raw.results.errors", "raw.results.errors.first"):
        assert found(field)["dependents"] == ["computed.total", "computed.batches"], field
    assert found("raw.results.warnings")["dependents"] == []
    assert found("ending") == {
        "direct_deps": [],
        "all_deps": [],
        "dependents": ["computed.valid", "computed.batches"],
    }
    assert found("inputs.branch") == {"direct_deps": [], "all_deps": [], "dependents": []}


@pytest.mark.rows("R20")
def test_a_field_that_there_is_not_is_refused_with_the_nearest() -> None:
    with pytest.raises(RequestError, match="no field 'vald'") as refused:
        found("vald")
    assert "did you mean 'valid'" in refused.value.hint
    with pytest.raises(RequestError, match=r"no field 'computed\.files'"):
        found("computed.files")
