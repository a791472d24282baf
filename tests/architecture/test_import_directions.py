"""Who may know whom, and that the interpreter is pure: read off the source itself."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "src" / "workflows_mcp"
EVERYBODY = {"errors", "values", "limits", "settings"}

MAY_KNOW: dict[str, set[str]] = {
    "errors": set(),
    "values": set(),
    "limits": set(),
    "settings_files": set(),
    "settings_http": set(),
    "descriptors": set(),
    "trust": {"settings_files"},
    "settings": {"settings_files", "settings_http", "trust"},
    "temporal_dev": set(),
    "expressions": set(),
    "plan": {"expressions"},
    "machine": {"plan", "expressions"},
    "policy": {"settings_http"},
    "steps": {"policy", "expressions"},
    "dialects": {"steps", "plan", "expressions"},
    "library": {"dialects", "steps", "plan"},
    "engines": {"steps", "policy", "machine", "plan", "expressions", "temporal_dev"},
    "agent": {"steps", "machine", "plan", "expressions"},
    "resuming": {"agent", "engines", "steps", "machine"},
    "telling": {"agent", "engines", "machine"},
    "driving": {"telling", "agent", "engines", "steps", "machine"},
    "listing": {"driving", "agent", "engines", "steps", "machine"},
    "continuing": {"resuming", "agent", "engines", "machine", "plan", "expressions"},
    "redoing": {"continuing", "agent", "engines", "machine", "plan"},
    "stepping": {"continuing", "resuming", "driving", "agent", "engines", "steps", "machine", "plan"},
    "describing": {"agent", "library", "dialects", "plan"},
    "debugging": {"driving", "agent", "engines", "steps", "machine", "plan"},
    "watching": {"agent", "machine", "plan"},
    "observing": {"watching", "driving", "agent", "engines", "library", "machine", "plan"},
    "acting": {"policy"},
    "asking": {"telling", "driving", "agent", "engines", "steps"},
    "service": {
        "acting",
        "asking",
        "debugging",
        "listing",
        "observing",
        "describing",
        "stepping",
        "driving",
        "telling",
        "resuming",
        "redoing",
        "agent",
        "engines",
        "dialects",
        "library",
        "steps",
        "policy",
        "machine",
        "plan",
    },
    "starting": {"policy", "engines"},
    "mcp_server": {"service", "descriptors", "settings_http", "starting"},
    "cli": {"service", "watching", "mcp_server", "temporal_dev", "descriptors", "settings_http", "trust"},
    "__main__": {"cli"},
}

PURE = ("expressions", "plan", "machine")
IMPURE_MODULES = {
    "asyncio", "io", "multiprocessing", "os", "pathlib", "random", "secrets", "shutil", "signal", "socket",
    "subprocess", "sys", "tempfile", "threading", "time", "uuid",
}  # fmt: skip
IMPURE_CALLS = {"open", "print", "input", "exec", "eval", "now", "today", "utcnow"}
WATCHES_A_CLOCK = {"expressions/bounds.py"}
"""The one place that may: it stops what runs too long."""


def modules() -> Iterator[tuple[str, str, ast.Module]]:
    """Every module: its path, the part that it belongs to, and its syntax tree."""
    for path in sorted(SOURCE.rglob("*.py")):
        relative = path.relative_to(SOURCE)
        part = relative.parts[0].removesuffix(".py")
        if part != "__init__":
            yield relative.as_posix(), part, ast.parse(path.read_text(encoding="utf-8"))


def imports(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            module = node.module or ""
            yield from (
                [f"{module}.{name.name}" for name in node.names] if module == "workflows_mcp" else [module]
            )


def test_imports_point_down_only() -> None:
    wrong = []
    for path, part, tree in modules():
        for name in imports(tree):
            if not name.startswith("workflows_mcp."):
                continue
            known = name.split(".")[1]
            if known not in {part, "__version__", *EVERYBODY, *MAY_KNOW[part]}:
                wrong.append(f"{path} knows {known}")
    assert wrong == []


@pytest.mark.parametrize("part", PURE)
def test_the_interpreter_does_no_io_reads_no_clock_and_throws_no_dice(part: str) -> None:
    wrong = []
    for path, owner, tree in modules():
        if owner != part or path in WATCHES_A_CLOCK:
            continue
        wrong += [f"{path} imports {name}" for name in imports(tree) if name.split(".")[0] in IMPURE_MODULES]
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
                if name in IMPURE_CALLS:
                    wrong.append(f"{path}:{node.lineno} calls {name}()")
    assert wrong == []


def test_every_module_says_what_it_is_for() -> None:
    assert [path for path, _, tree in modules() if not ast.get_docstring(tree)] == []


def test_only_the_terminal_writes_to_stdout() -> None:
    wrong = []
    for path, part, tree in modules():
        if part == "cli":
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
                wrong.append(f"{path}:{node.lineno}")
    assert wrong == []


def test_frames_are_opened_in_one_place_only() -> None:
    """A frame that is opened elsewhere has no event number, so that nothing knows which execution it is."""
    found = [
        (path.relative_to(SOURCE).as_posix(), function.name)
        for path in sorted(SOURCE.rglob("*.py"))
        for function in ast.walk(ast.parse(path.read_text()))
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store)
        if ast.unparse(node.value).split(".")[-1] == "frames"
    ]
    assert found == [("machine/machine.py", "open_frame")]
