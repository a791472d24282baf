"""Claims of uniqueness in docstrings, each as a test."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from pathlib import Path

import workflows_mcp

ROOT = Path(workflows_mcp.__file__).parent
MAY_ASK_FOR_A_DIALECT = ("dialects/", "mcp_server/compat/", "plan/codec.py")
"""The dialects themselves, the tools of earlier servers, and the upgrade of stored plans."""
MCP_SERVER = sorted((ROOT / "mcp_server").rglob("*.py"))
PRIVATE = re.compile(r"_[a-z]\w*")


def private_reaches(tree: ast.AST) -> list[str]:
    """Private attributes of other objects, and private names that are imported from the library."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and PRIVATE.fullmatch(node.attr):
            if not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")):
                found.append(ast.unparse(node))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "mcp":
            names = [*(node.module or "").split("."), *(it.name for it in node.names)]
            found += [name for name in names if PRIVATE.fullmatch(name)]
    return [name for name in found if not name.endswith("._replace") and name != "os._exit"]


def inherited_reaches(module: str) -> list[str]:
    """Private attributes that a class shares with a class of the library that it extends."""
    found = []
    loaded = importlib.import_module(module)
    for name, it in inspect.getmembers(loaded, inspect.isclass):
        bases = [base for base in it.__mro__ if base.__module__.split(".")[0] in ("mcp", "mcp_types")]
        if it.__module__ != module or not bases:
            continue
        theirs = {
            attr for base in bases for attr in re.findall(r"self\.(_[a-z]\w*)", inspect.getsource(base))
        }
        own = set(re.findall(r"(?:self\.|def )(_[a-z]\w*)", inspect.getsource(it)))
        found += [f"{name}.{attr}" for attr in sorted(theirs & own)]
    return found


def test_only_sdk_reaches_into_private_parts_of_the_mcp_library() -> None:
    wrong: dict[str, list[str]] = {}
    for path in MCP_SERVER:
        module = ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__")
        reaches = private_reaches(ast.parse(path.read_text(encoding="utf-8"))) + inherited_reaches(module)
        if reaches:
            wrong[module] = reaches
    assert list(wrong) == ["workflows_mcp.mcp_server.sdk"], wrong


def questions_about_dialects(tree: ast.AST) -> list[str]:
    """Comparisons of a dialect with names of dialects."""
    return [
        ast.unparse(node)
        for node in ast.walk(tree)
        if isinstance(node, ast.Compare) and not isinstance(node.ops[0], ast.Is | ast.IsNot)
        for operand in (node.left, *node.comparators)
        if (isinstance(operand, ast.Name) and operand.id == "dialect")
        or (isinstance(operand, ast.Attribute) and operand.attr == "dialect")
    ]


def test_nobody_outside_of_the_dialects_asks_for_the_dialect() -> None:
    """What differs between dialects is a field of the plan, or of the step type."""
    wrong = {}
    for path in sorted(ROOT.rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        found = questions_about_dialects(ast.parse(path.read_text(encoding="utf-8")))
        if found and not name.startswith(MAY_ASK_FOR_A_DIALECT):
            wrong[name] = found
    assert wrong == {}


READ_RUNS = {"run_view", "tasks", "progress", "state", "history", "trace", "report"}
"""The modules of `answers` that read the records and frames of a run; `history`, `trace` and `report` replay journals."""


def test_only_a_few_modules_of_answers_read_the_inside_of_a_run() -> None:
    wrong = []
    for path in sorted((ROOT / "answers").glob("*.py")):
        if path.stem in READ_RUNS:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            inside = ("records", "frames", "machine.state")
            if isinstance(node, ast.Attribute) and ast.unparse(node).endswith(inside):
                wrong.append(f"{path.name}:{node.lineno} {ast.unparse(node)}")
    assert wrong == []


def test_only_one_module_makes_the_events_that_people_decide_with() -> None:
    """What only a person may decide is checked in one place: `runs/decisions.py`."""
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        calls = [
            it.func
            for it in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(it, ast.Call)
        ]
        names = {it.id if isinstance(it, ast.Name) else getattr(it, "attr", "") for it in calls}
        if made := names & {"Decided", "BudgetRaised"}:
            found[path.relative_to(ROOT).as_posix()] = made
    assert found == {"runs/decisions.py": {"Decided", "BudgetRaised"}}
