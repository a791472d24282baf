"""docs/stateful-dialect.md says what there is: every key, every step type with what it takes, every rule."""

from __future__ import annotations

import re
from pathlib import Path

from workflows_mcp.dialects import load
from workflows_mcp.dialects.document import INPUT
from workflows_mcp.dialects.stateful import ABOUT, CONTROL, TASK, WORKFLOW
from workflows_mcp.dialects.steps import LEFT_OUT
from workflows_mcp.plan.inputs import RULES
from workflows_mcp.plan.model import Steps
from workflows_mcp.steps.registry import default_registry

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "stateful-dialect.md").read_text(encoding="utf-8")
OWN = ("shell", "mcp_call", "prompt", "delegate")
"""The step types that are carried out and that no other dialect has by these names."""
EVERYWHERE = {"on_timeout", "retry"}
"""Said once for all types."""


def section(heading: str) -> str:
    assert f"\n{heading}\n" in TEXT
    level = heading.split(maxsplit=1)[0]
    found = TEXT.split(f"\n{heading}\n")[1]
    return re.split(rf"\n#{{2,{len(level)}}} ", found)[0]


def unnamed(names: list[str], text: str) -> list[str]:
    return [name for name in names if f"`{name}`" not in text]


def test_every_key_of_a_workflow_a_task_an_input_and_a_step_is_in_its_table() -> None:
    assert unnamed(list(WORKFLOW), section("## A workflow")) == []
    assert unnamed(list(TASK), section("## Tasks")) == []
    assert unnamed([*INPUT, *RULES], section("### Inputs")) == []
    assert unnamed([*ABOUT, *EVERYWHERE], section("### Steps")) == []


def test_every_step_type_has_a_section_with_all_that_it_takes() -> None:
    registry = default_registry()
    taken = {kind: [key for key in it.keys if key not in ABOUT] for kind, it in CONTROL.items()}
    for name in OWN:
        step = registry.find(name, "stateful")
        assert step is not None
        left_out = LEFT_OUT.get(step.name, ())
        taken[name] = [key for key in step.Inputs.model_fields if key not in left_out]
    listed = section("### Steps")
    for kind, keys in taken.items():
        assert f"[`{kind}`](#{kind})" in listed
        assert unnamed([key for key in keys if key not in EVERYWHERE], section(f"### {kind}")) == []


def test_the_first_example_is_a_workflow_without_problems() -> None:
    [text] = re.findall(r"```yaml\n(name: deploy\n.*?)```", TEXT, flags=re.S)
    definition = load(text, file="deploy.yaml", registry=default_registry())
    assert definition.warnings == []
    assert isinstance(definition.plan.body, Steps)
