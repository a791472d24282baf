"""What exists is documented: every command, tool, step type, setting, limit and error code."""

from __future__ import annotations

import argparse
import ast
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

from workflows_mcp import errors
from workflows_mcp.cli.main import build_parser
from workflows_mcp.limits import Limits
from workflows_mcp.settings import _READERS
from workflows_mcp.steps.registry import default_registry

ROOT = Path(__file__).resolve().parents[2]


def document(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def codes() -> Iterator[str]:
    """Every code that an error or a problem can have, read off the source."""
    for value in vars(errors).values():
        if isinstance(value, type) and issubclass(value, errors.WorkflowsError):
            yield value.code
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            given = [keyword.value for keyword in node.keywords if keyword.arg == "code"]
            if name in ("Problem", "Fault", "StepFailed"):
                given += node.args[:1] if name != "StepFailed" else node.args[2:3]
            for value in given:
                if isinstance(value, ast.Constant) and isinstance(value.value, str):
                    yield value.value


def test_every_error_code_is_in_the_table_of_errors() -> None:
    text = document("docs/errors.md")
    assert sorted({code for code in codes() if f"`{code}`" not in text} - {"error"}) == []


def test_every_setting_and_every_limit_is_in_the_settings() -> None:
    text = document("docs/settings.md")
    assert [name for name in _READERS if f"`WORKFLOWS_{name.upper()}`" not in text] == []
    assert [item.name for item in fields(Limits) if f"`{item.name.upper()}`" not in text] == []


PAGES = {"graph": "docs/graph-dialect.md", "stateful": "docs/stateful-dialect.md"}


def test_every_step_type_with_its_inputs_and_outputs_is_in_the_page_of_a_dialect_that_has_it() -> None:
    registry = default_registry()
    missing = []
    for name in registry.own_names():
        step = registry.get(name)
        dialect, called = next(iter((step.offered or {"graph": name}).items()))
        heading = f"\n### {called}\n"
        text = document(PAGES[dialect])
        if heading not in text:
            missing.append(name)
            continue
        section = text.split(heading)[1].split("\n### ")[0].split("\n## ")[0]
        code = " ".join(re.findall(r"`([^`]+)`", section))
        shown = [field.alias or key for key, field in step.Inputs.model_fields.items()]
        given = [key for key in step.Outputs.model_fields if key != step.gives]
        missing += [
            f"{name}: {key}" for key in [*shown, *given] if not re.search(rf"(?<![\w-]){key}(?![\w-])", code)
        ]
    assert missing == []


def test_every_name_that_a_step_type_has_in_a_dialect_is_in_the_page_of_that_dialect() -> None:
    registry = default_registry()
    offered = [it for name in registry.own_names() for it in registry.get(name).offered.items()]
    assert [it for it in offered if f"\n### {it[1]}\n" not in document(PAGES[it[0]])] == []


def test_every_command_is_in_the_readme() -> None:
    text = document("README.md")
    actions = build_parser()._subparsers
    assert actions is not None
    choices = next(a.choices for a in actions._actions if isinstance(a, argparse._SubParsersAction))
    assert [name for name in choices if f" {name} " not in text and name != "serve"] == []


def test_every_tool_is_in_the_readme() -> None:
    from workflows_mcp.mcp_server.tools.core import core_tools

    assert [tool.name for tool in core_tools() if f"`{tool.name}`" not in document("README.md")] == []
