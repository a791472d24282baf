"""Every built-in workflow: it loads, says what it is for, is documented and is run by a test."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.rendered import Service
from workflows_mcp.library.catalog import Catalog, builtin_directory
from workflows_mcp.plan.model import Call, Do, Graph, Node, Plan, Return
from workflows_mcp.settings.model import Settings
from workflows_mcp.steps.registry import default_registry

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted(builtin_directory().rglob("*.yaml"))
KINDS = ("ci", "examples", "files", "git", "node", "python", "reactive", "stateful")


def name_of(file: Path) -> str:
    """A workflow is called like its file; examples say that they are."""
    return f"example-{file.stem}" if file.parent.name == "examples" else file.stem


NAMES = [name_of(file) for file in FILES]


def result_output(plan: Plan) -> list[str]:
    """The names of what a workflow gives: its outputs, the parts of the value that it returns at its end, or the
    fields of its state that follow from others."""
    if isinstance(plan.body, Graph):
        return list(plan.outputs)
    if plan.dialect == "reactive":
        return list(plan.computed)
    last = plan.body.nodes[-1].do
    assert isinstance(last, Return)
    assert last.value is not None
    return list(last.value.source)


@pytest.fixture
def catalog(settings: Settings) -> Catalog:
    return Catalog.of(settings, default_registry())


@pytest.mark.rows("G22")
def test_the_library_has_workflows_of_every_kind_and_nothing_else() -> None:
    assert {file.parent.relative_to(builtin_directory()).as_posix() for file in FILES} == set(KINDS)
    named = {
        *("setup-python-env", "run-pytest", "lint-python", "python-ci-pipeline"),
        *("git-checkout-branch", "commit-and-push", "conditional-deploy"),
    }
    assert named <= set(NAMES)


@pytest.mark.rows("G22")
@pytest.mark.parametrize("file", FILES, ids=NAMES)
def test_a_workflow_loads_without_problems_and_warnings(file: Path, settings: Settings) -> None:
    problems = Service.open(settings).validate(file.read_text(encoding="utf-8"), file=str(file))
    assert [str(problem) for problem in problems] == []


@pytest.mark.parametrize("file", FILES, ids=NAMES)
def test_a_workflow_says_what_it_is_for_and_what_it_takes_and_gives(file: Path, catalog: Catalog) -> None:
    plan = catalog.definition(name_of(file)).plan
    assert plan.tags
    assert ("example" in plan.tags) == (file.parent.name == "examples")
    assert len(plan.description) > 50 or plan.name == "example-hello"
    assert [name for name, spec in plan.inputs.items() if not spec.description] == []
    assert [name for name, spec in plan.inputs.items() if spec.type == "any"] == []
    assert result_output(plan)
    asks = any(getattr(node.do, "step", "") in ("Prompt", "UserPrompt") for node in plan.body.nodes)
    assert not asks or "interactive" in plan.tags


@pytest.mark.parametrize("name", NAMES)
def test_whether_a_failure_counts_is_never_left_to_who_happens_to_look_at_it(
    name: str, catalog: Catalog
) -> None:
    """A reference such as ${blocks.x.succeeded} makes the failure of x a matter of course. In a library that must
    be on purpose: where it is so, the block says on_failure."""

    def can_fail(node: Node) -> bool:
        return isinstance(node.do, Call) or (isinstance(node.do, Do) and node.do.may_fail)

    nodes = catalog.definition(name).plan.body.nodes
    assert [node.id for node in nodes if can_fail(node) and node.tolerated and node.on_failure is None] == []


def test_a_workflow_that_does_not_ask_and_changes_nothing_says_so() -> None:
    read_only = {file.stem for file in FILES if "read-only" in file.read_text(encoding="utf-8")}
    assert read_only == {"git-status", "lint-python"}


@pytest.mark.parametrize("file", FILES, ids=NAMES)
def test_a_workflow_is_in_the_table_of_the_library_with_its_inputs_and_outputs(
    file: Path, catalog: Catalog
) -> None:
    plan = catalog.definition(name_of(file)).plan
    text = (ROOT / "docs" / "library.md").read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith(f"| `{plan.name}` |")]
    assert len(rows) == 1, f"docs/library.md needs one row for {plan.name}"
    _, purpose, inputs, outputs = rows[0].strip("| ").split(" | ")
    assert len(purpose) > 10
    required = [name for name, spec in plan.inputs.items() if spec.required]
    optional = [name for name, spec in plan.inputs.items() if not spec.required]
    assert re.findall(r"\*\*`(\w+)`\*\*", inputs) == required
    assert re.findall(r"(?<!\*)`(\w+)`", inputs) == optional
    assert re.findall(r"`(\w+)`", outputs) == result_output(plan)


def test_the_table_has_nothing_that_is_not_in_the_library() -> None:
    text = (ROOT / "docs" / "library.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^\| `([\w-]+)` \|", text, flags=re.M)) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_workflow_is_run_by_a_test(name: str) -> None:
    tests = [path for path in Path(__file__).parent.glob("test_*.py") if path != Path(__file__)]
    assert any(f'"{name}"' in path.read_text(encoding="utf-8") for path in tests)
