"""What exists is documented: every command, tool, step type, setting, limit and error code."""

from __future__ import annotations

import argparse
import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml

from workflows_mcp import errors
from workflows_mcp.cli.main import build_parser
from workflows_mcp.dialects import load, reactive_steps, stateful
from workflows_mcp.dialects.graph import BLOCK
from workflows_mcp.dialects.recognition import DIALECTS, STATEFUL_KEYS, dialect_of
from workflows_mcp.expressions import dollar
from workflows_mcp.expressions.javascript import syntax
from workflows_mcp.expressions.jinja import functions, references
from workflows_mcp.limits import Limits
from workflows_mcp.settings.model import _READERS, TOOLSETS
from workflows_mcp.steps.output_formats import FORMATS
from workflows_mcp.steps.prompts import AnswerRules
from workflows_mcp.steps.registry import default_registry
from workflows_mcp.values import to_json

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


PAGES = {
    "graph": "docs/graph-dialect.md",
    "stateful": "docs/stateful-dialect.md",
    "reactive": "docs/reactive-dialect.md",
}


def section(page: str, name: str) -> str:
    """What a page says about a step type; empty where it has no such heading."""
    _, heading, rest = document(page).partition(f"\n### {name}\n")
    return rest.split("\n### ")[0].split("\n## ")[0] if heading else ""


def test_every_step_type_with_its_inputs_and_outputs_is_in_the_page_of_a_dialect_that_has_it() -> None:
    registry = default_registry()
    missing = []
    for name in registry.own_names():
        step = registry.get(name)
        dialect, called = next(iter((step.dialect_names or {"graph": name}).items()))
        text = section(PAGES[dialect], called)
        if not text:
            missing.append(name)
            continue
        prose = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
        code = " ".join(re.findall(r"`([^`]+)`", prose))
        shown = [field.alias or key for key, field in step.Inputs.model_fields.items()]
        given = [key for key in step.Outputs.model_fields if key != step.result_output]
        missing += [
            f"{name}: {key}" for key in [*shown, *given] if not re.search(rf"(?<![\w-]){key}(?![\w-])", code)
        ]
    assert missing == []


def test_every_name_that_a_step_type_has_in_a_dialect_is_in_the_page_of_that_dialect() -> None:
    registry = default_registry()
    offered = [it for name in registry.own_names() for it in registry.get(name).dialect_names.items()]
    assert [it for it in offered if f"\n### {it[1]}\n" not in document(PAGES[it[0]])] == []


def test_every_output_format_and_every_rule_for_an_answer_is_in_the_page_of_the_reactive_dialect() -> None:
    formats = section(PAGES["reactive"], "shell_command")
    assert [name for name in ("output_format", *FORMATS) if f"`{name}`" not in formats] == []
    rules = section(PAGES["reactive"], "user_input")
    assert [name for name in AnswerRules.model_fields if f"`{name}`" not in rules] == []


def test_every_command_is_in_the_readme() -> None:
    text = document("README.md")
    actions = build_parser()._subparsers
    assert actions is not None
    choices = next(a.choices for a in actions._actions if isinstance(a, argparse._SubParsersAction))
    assert [name for name in choices if f" {name} " not in text and name != "serve"] == []


def test_every_toolset_is_in_the_readme() -> None:
    text = document("README.md")
    assert [name for name in TOOLSETS if f"`{name}`" not in text] == []


def test_every_tool_of_a_toolset_and_every_prompt_is_in_its_page() -> None:
    from workflows_mcp.mcp_server.prompts import prompts_of
    from workflows_mcp.mcp_server.toolsets import tools_of

    text = document("docs/toolsets.md")
    names = [tool.name for tool in tools_of(TOOLSETS)] + [it.offered.name for it in prompts_of(TOOLSETS)]
    assert [name for name in names if not re.search(rf"`{name}[`(]", text)] == []
    assert [name for name in TOOLSETS if f"| `{name}` |" not in text] == []


def rows_of(heading: str) -> list[tuple[str, str]]:
    """The first cell of each row of a table for users of another system, and what it is here."""
    table = ("\n" + document("docs/choosing.md")).partition(f"\n{heading}\n")[2].partition("\n#")[0]
    cells = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| ")]
    return [(it[0], it[-1]) for it in cells if set(it[0]) != {"-"}][1:]


def spans(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


def test_the_page_about_choosing_names_the_keys_that_each_dialect_is_known_by() -> None:
    rows = rows_of("# Which dialect?")
    found = {}
    for first, _ in rows:
        keys = spans(first.partition(":")[2])
        found[re.findall(r"\[(\w+)\]", first)[0]] = dialect_of({key: [] for key in keys})
    assert found == {dialect: dialect for dialect in DIALECTS}
    for page in ("README.md", "docs/choosing.md"):
        for name in re.findall(r"\]\(((?:docs/)?[\w-]+\.md)\)", document(page)):
            assert ((ROOT / page).parent / name).is_file(), name
    assert "(docs/choosing.md)" in document("README.md")


@pytest.mark.parametrize("system", ["GitHub Actions", "Airflow"])
def test_users_of_another_system_can_write_what_the_page_about_choosing_says_in_a_graph(system: str) -> None:
    rows = rows_of(f"## {system}")
    assert len(rows) >= 6
    for first, here in rows:
        block: dict[str, Any] = {"id": "it", "type": "Shell", "depends_on": ["build", "a"], "inputs": {}}
        read = []
        for span in spans(here):
            if pair := re.fullmatch(r"(\w+): (.+)", span):
                block[pair[1]] = yaml.safe_load(pair[2])
            elif span.startswith("${"):
                read.append(span.replace("blocks.id.outputs.x", "blocks.a.outputs.stdout"))
            else:
                assert span.rstrip(":") in {"blocks", "b", *default_registry().own_names(), *BLOCK}, span
        if block["type"] == "Shell":
            block["inputs"] = {"command": "true", "env": {f"X{at}": it for at, it in enumerate(read)}}
        if first.startswith("`if:"):
            block["condition"] = " and ".join([block["condition"], *read])
            block["inputs"] = {"command": "true"}
        others = [{"id": name, "type": "Shell", "inputs": {"command": "true"}} for name in ("build", "a")]
        workflow = {"name": "w", "inputs": {"x": {"type": "string"}}, "blocks": [*others, block]}
        load(to_json(workflow), file="w.yaml", registry=default_registry())


@pytest.mark.parametrize(("system", "dialects"), [("LangGraph", {"stateful"}), ("Temporal", set(DIALECTS))])
def test_what_the_page_about_choosing_names_for_users_of_another_system_exists(
    system: str, dialects: set[str]
) -> None:
    registry = default_registry()
    names = {it for name in registry.own_names() for it in registry.get(name).dialect_names.items()}
    names |= {("graph", name) for name in ("ExecuteWorkflow", *BLOCK)}
    for dialect, control in (("stateful", stateful.CONTROL), ("reactive", reactive_steps.CONTROL)):
        names |= {(dialect, key) for name, it in control.items() for key in (name, *it.keys)}
    known = {name for dialect, name in names if dialect in dialects} | STATEFUL_KEYS | {"fork"}
    rows = rows_of(f"## {system}")
    assert len(rows) >= 6
    named = {it.partition(":")[0] for _, here in rows for it in spans(here)}
    commands = {it for it in named if it.startswith("workflows-mcp ")}
    assert named - commands - known == set()
    assert [it for it in commands if f"{it} " not in document("README.md")] == []


OF_JAVASCRIPT = {"atob", "btoa", "isFinite", "isNaN", "parseFloat", "parseInt", "undefined"} | {
    f"{code}URI{of}" for code in ("decode", "encode") for of in ("", "Component")
}
"""Functions that expressions have because JavaScript has them."""


def test_every_filter_function_and_test_of_every_dialect_is_documented() -> None:
    page = document("docs/expressions.md")
    graph = document("docs/graph-dialect.md").partition("### Filters")[2].partition("\n## ")[0]
    of_graph, rest = page.partition("## Stateful")[::2]
    of_stateful, of_reactive = rest.partition("## Reactive")[::2]

    def unnamed(names: Iterable[str], text: str) -> list[str]:
        return sorted(it for it in names if it.isidentifier() and not re.search(rf"`\.?{it}[`(]", text))

    environment = references.environment()
    assert unnamed(dollar.FILTERS, of_graph) == []
    assert unnamed(dollar.FILTERS, graph) == []
    assert unnamed(environment.filters, of_stateful) == []
    assert unnamed(environment.tests, of_stateful) == []
    assert unnamed(environment.functions, of_stateful) == []
    methods = {name for _, names in functions.METHODS_OF_TIME for name in names}
    assert unnamed(methods, of_stateful) == []
    assert unnamed(syntax.FILTERS, of_reactive) == []
    of_language = {it for it in syntax.GLOBALS if it[0].islower()}
    assert unnamed(of_language - OF_JAVASCRIPT, of_reactive) == []
