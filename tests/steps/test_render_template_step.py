from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from workflows_mcp.errors import Forbidden, StepError
from workflows_mcp.limits import Limits
from workflows_mcp.policy.handles import World
from workflows_mcp.policy.rules import Policy
from workflows_mcp.steps.base import StepResult
from workflows_mcp.steps.template import RenderTemplate

RunStep = Callable[..., StepResult]
RENDER = RenderTemplate()
README = """\
# {{ name }}

Shell Output: {{ output }}

## Features
{% for feature in features %}
- {{ feature }}
{% endfor %}
"""


@pytest.mark.rows("G12")
def test_a_template_becomes_text(run_step: RunStep) -> None:
    variables = {"name": "Test", "output": "from the shell\n", "features": ["one", "two"]}
    outputs = run_step(RENDER, {"template": README, "variables": variables}).outputs
    text = "# Test\n\nShell Output: from the shell\n\n\n## Features\n\n- one\n\n- two\n"
    assert outputs == {
        "rendered": text,
        "content": text,
        "output_path": "",
        "size_bytes": len(text),
        "success": True,
    }


@pytest.mark.rows("G12")
def test_the_text_can_be_written_to_a_file(run_step: RunStep, workspace: Path) -> None:
    outputs = run_step(
        RENDER, {"template": "é {{ x }}", "variables": {"x": 1}, "output_path": "a/b.md"}
    ).outputs
    assert outputs["output_path"] == str(workspace / "a" / "b.md")
    assert outputs["size_bytes"] == 4
    assert (workspace / "a" / "b.md").read_text() == "é 1"
    with pytest.raises(StepError, match="does not exist"):
        run_step(RENDER, {"template": "x", "output_path": "no/b.md", "create_parents": False})
    with pytest.raises(Forbidden):
        run_step(RENDER, {"template": "x", "output_path": "/etc/b.md"})


@pytest.mark.rows("G12")
def test_a_missing_variable_is_an_error_unless_not_strict(run_step: RunStep) -> None:
    inputs = {"template": "\n{{ usr }}", "variables": {"user": "x"}}
    with pytest.raises(StepError, match=r"line 2(.|\n)*did you mean 'user'"):
        run_step(RENDER, inputs)
    assert run_step(RENDER, {**inputs, "strict": False}).outputs["rendered"] == "\n"


def test_values_are_not_templates_themselves(run_step: RunStep) -> None:
    outputs = run_step(RENDER, {"template": "{{ x }}", "variables": {"x": "{{ 1 + 1 }} ${inputs.y}"}}).outputs
    assert outputs["rendered"] == "{{ 1 + 1 }} ${inputs.y}"


def test_templates_keep_to_the_limits(run_step: RunStep, workspace: Path, tmp_path: Path) -> None:
    limits = Limits(expression_seconds=0.05, expression_chars=100)
    small = World(Policy(workspace, limits=limits), "run-1", tmp_path / "scratch")
    endless = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    with pytest.raises(StepError, match="WORKFLOWS_LIMIT_EXPRESSION_SECONDS"):
        run_step(RENDER, {"template": endless}, at=small)
    with pytest.raises(StepError, match="at most 100 are allowed"):
        run_step(RENDER, {"template": "x" * 101}, at=small)


def test_only_writing_a_file_changes_the_world() -> None:
    assert RENDER.changes_world({"template": "x"}) is False
    assert RENDER.changes_world({"template": "x", "output_path": "f"}) is True
