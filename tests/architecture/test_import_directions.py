"""Who may know whom, and that the interpreter is pure: read off the source itself."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "src" / "workflows_mcp"
EVERYBODY = {"errors", "values", "limits", "lazy", "settings"}

MAY_KNOW: dict[str, set[str]] = {
    "errors": set(),
    "values": set(),
    "limits": set(),
    "lazy": set(),
    "settings": set(),
    "temporal_dev": set(),
    "expressions": set(),
    "plan": {"expressions"},
    "machine": {"plan", "expressions"},
    "policy": set(),
    "steps": {"policy", "plan", "expressions"},
    "dialects": {"steps", "plan", "expressions"},
    "library": {"dialects", "steps", "plan"},
    "engines": {"steps", "policy", "machine", "plan", "expressions", "temporal_dev"},
    "answers": {"steps", "machine", "plan", "expressions"},
    "runs": {
        "answers",
        "engines",
        "library",
        "dialects",
        "steps",
        "policy",
        "machine",
        "plan",
        "expressions",
    },
    "hook": set(),
    "mcp_server": {"runs", "answers", "hook"},
    "cli": {"runs", "answers", "mcp_server", "temporal_dev", "hook"},
    "__main__": {"cli", "hook"},
}
"""Which packages a package may import from. docs/how-it-works.md has a simpler picture."""

PURE = ("expressions", "plan", "machine")
IMPURE_MODULES = {
    "asyncio", "io", "multiprocessing", "os", "pathlib", "random", "secrets", "shutil", "signal", "socket",
    "subprocess", "sys", "tempfile", "threading", "time", "uuid",
}  # fmt: skip
IMPURE_CALLS = {"open", "print", "input", "exec", "eval", "now", "today", "utcnow"}
WATCHES_A_CLOCK = {"expressions/deadline.py"}
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


def public_names(package: str) -> set[str]:
    tree = ast.parse((SOURCE / package / "__init__.py").read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return set(ast.literal_eval(node.value))
    return set()


def test_packages_import_only_the_public_names_of_others() -> None:
    packages = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    public = {package: public_names(package) for package in packages}
    wrong = []
    for path, part, tree in modules():
        for node in ast.walk(tree):
            if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("workflows_mcp."):
                continue
            _, package, *inside = str(node.module).split(".")
            if package not in packages or part in {package, "__main__"}:
                continue
            names = {name.name for name in node.names}
            if inside or not names <= public[package]:
                wrong.append(f"{path}:{node.lineno} imports {names} from {node.module}")
    assert wrong == []


def test_public_names_are_all_used_by_other_packages() -> None:
    used: dict[str, set[str]] = {}
    for _, part, tree in modules():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.count(".") == 1:
                package = node.module.split(".")[1]
                if package != part:
                    used.setdefault(package, set()).update(name.name for name in node.names)
    packages = sorted(path.parent.name for path in SOURCE.glob("*/__init__.py"))
    assert [(it, name) for it in packages for name in public_names(it) - used.get(it, set())] == []


def import_cycles(package: str) -> list[set[str]]:
    """Modules of a package that import each other, wherever the import stands."""
    known = {
        f"workflows_mcp.{path.removesuffix('.py').replace('/', '.')}": tree
        for path, part, tree in modules()
        if part == package
    }
    edges: dict[str, set[str]] = {}
    for module, tree in known.items():
        found = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                whole = {f"{node.module}.{name.name}" for name in node.names}
                found |= (whole & known.keys()) or ({node.module} & known.keys())
        edges[module] = found - {module}

    def reached(start: str) -> set[str]:
        seen: set[str] = set()
        waiting = [start]
        while waiting:
            for other in edges[waiting.pop()] - seen:
                seen.add(other)
                waiting.append(other)
        return seen

    reach = {module: reached(module) for module in edges}
    return [
        {it for it in reach[module] if module in reach[it]} for module in edges if module in reach[module]
    ]


@pytest.mark.parametrize(
    "package", sorted(MAY_KNOW.keys() - {"errors", "values", "limits", "lazy", "__main__"})
)
def test_no_modules_of_a_package_import_each_other(package: str) -> None:
    assert import_cycles(package) == []


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


@pytest.mark.parametrize(
    ("library", "module"), [("_quickjs", "engine.py"), ("tree_sitter_javascript", "syntax.py")]
)
def test_only_one_module_imports_the_engine_and_one_the_parser_of_javascript(
    library: str, module: str
) -> None:
    found = [path for path, _, tree in modules() if library in imports(tree)]
    assert found == [f"expressions/javascript/{module}"]


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
