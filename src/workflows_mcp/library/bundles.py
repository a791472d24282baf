"""Bundles a workflow with all workflows that it calls by a fixed name.

A run keeps the plans that it started with, so editing a file never disturbs it. A bundle contains all imports
of a workflow, because it may call one of them by a name that only the run knows.

A workflow of the library calls other workflows of the library. If the user has one of the same name, a bundle
contains both, the one of the library as `built-in:NAME`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from workflows_mcp.dialects import Definition, check_bundle, place_problems
from workflows_mcp.errors import DefinitionError, Problem, UnknownWorkflow
from workflows_mcp.plan import (
    Bundle,
    Call,
    Node,
    Plan,
    Steps,
    called_workflows,
    calling,
    fixed_name,
    place_of_call,
    renamed,
)
from workflows_mcp.settings import Settings
from workflows_mcp.values import did_you_mean

# ----------------------------------------------------------------------------------------------------
# The files that may be read as definitions.
#
#     reach = reach_of(settings)
#     reach.allows(Path("/project/.workflows/x.yaml"))      # True, unless it is a link that leads elsewhere
#
# Errors quote the text of a definition. So a file that no step may read cannot be a definition either,
# neither by `imports` nor through a link in a project. Links in the user's own directories may lead anywhere.


HINT = (
    "keep definitions in the working directory or in ~/.workflows, or add their directory to "
    "WORKFLOWS_ALLOWED_PATHS (allowed_paths in workflows.toml)"
)


@dataclass(frozen=True, slots=True)
class Reach:
    own: tuple[Path, ...] = ()
    """Directories of the user: links in them may lead anywhere."""
    roots: tuple[Path, ...] = ()
    """The directories that must contain every other file, after its links are resolved."""

    def allows(self, path: Path) -> bool:
        if any(Path(os.path.abspath(path)).is_relative_to(it) for it in self.own):
            return True
        real = Path(os.path.realpath(path))
        return any(real.is_relative_to(os.path.realpath(it)) for it in (*self.own, *self.roots))

    def with_root(self, directory: Path) -> Reach:
        return replace(self, roots=(*self.roots, directory))


def reach_of(settings: Settings, builtin: Path) -> Reach:
    """Allows what steps may read: the working directory and `allowed_paths`."""
    workspace = Path(os.path.realpath(settings.workspace))
    user = Path.home()
    project = {it for it in settings.definition_directories if it.is_relative_to(workspace)}
    project -= {user / ".aromcp" / "workflows", user / ".workflows"}
    own = tuple(it for it in settings.definition_directories if it not in project)
    denied = "read_files" in settings.denied_capabilities
    return Reach(
        (builtin, *own),
        tuple(_inside(workspace, project)) if denied else (workspace, *settings.allowed_paths),
    )


def _inside(workspace: Path, directories: set[Path]) -> list[Path]:
    """The directories that are not links out of the workspace."""
    return [it for it in directories if Path(os.path.realpath(it)).is_relative_to(workspace)]


# ----------------------------------------------------------------------------------------------------
# Resolves the imports of a workflow: other workflows, and tasks.
#
#     imports: ["shared/check-standards.yaml", "shared/tasks.yaml"]
#
# A path is relative to the file that imports it, or to a directory of definitions. It must be in the reach of
# definitions; for other files, errors do not reveal whether they exist. A file with steps provides its
# workflow, which takes precedence over one of the same name in the catalog; a file that has only
# `sub_agent_tasks` provides those. Imports of imported files count too, after the file's own; they may be
# circular.


TASK = "#"

"""Starts the name of a task that is not resolved yet; separates a workflow from its task in a full name."""

_SUFFIXES = ("", ".yaml", ".yml")

_JOINED = 64


@dataclass(slots=True)
class Imported:
    """The imports of a workflow, by name; the first file with a name counts."""

    workflows: dict[str, Definition] = field(default_factory=dict)
    tasks: dict[str, str] = field(default_factory=dict)
    """The full name of each task: `shared:tasks#process_batch`"""
    documents: list[tuple[int, Definition]] = field(default_factory=list)
    """Each with the position of the import that leads to it."""
    elsewhere: dict[str, str] = field(default_factory=dict)
    """Tasks that only the workflow of their own file can use, with that file."""
    problems: list[Problem] = field(default_factory=list)

    def take(self, definition: Definition, position: int) -> None:
        plan = definition.plan
        self.documents.append((position, definition))
        if plan.body.nodes:
            self.workflows.setdefault(plan.name, definition)
        for task in plan.tasks:
            name = task.name.rpartition(TASK)[2]
            if plan.body.nodes:
                self.elsewhere.setdefault(name, plan.file)
            else:
                self.tasks.setdefault(name, task.name)


Joined = dict[int, tuple[Plan, dict[str, str], Plan]]

"""Plans with tasks from other files: the plan as read, the tasks, and the result.

The same files give the same plan, so that runs share it."""


class Importer:
    """Finds imported files.

    `read` returns the definition in a file; `folders` are the directories of definitions, in order of
    precedence.
    """

    def __init__(
        self,
        read: Callable[[Path], Definition],
        folders: Sequence[Path],
        reach: Reach,
        joined: Joined | None = None,
    ) -> None:
        self._read = read
        self._folders = folders
        self._reach = reach
        self._joined = {} if joined is None else joined

    def imported(self, definition: Definition) -> Imported:
        """The imports of a definition, and the imports of those files."""
        found = Imported()
        self._follow(definition, found, set(), None)
        return found

    def joined(self, definition: Definition, imported: Imported) -> tuple[Plan, list[Problem]]:
        """The plan with full names for its imported tasks, and problems with them."""
        known = self._joined.get(id(definition.plan))
        if known is not None and known[0] is definition.plan and known[1] == imported.tasks:
            return known[2], []
        plan, problems = with_tasks(definition, imported)
        if not problems and plan is not definition.plan:
            while len(self._joined) >= _JOINED:
                self._joined.pop(next(iter(self._joined)))
            self._joined[id(definition.plan)] = (definition.plan, imported.tasks, plan)
        return plan, problems

    def _follow(self, definition: Definition, found: Imported, seen: set[Path], position: int | None) -> None:
        plan = definition.plan
        further: list[tuple[int, Definition]] = []
        for index, text in enumerate(plan.imports):
            places = self._places(text, plan.file)
            allowed = [place for place in places if self._reach.allows(place)]
            path = next((place for place in allowed if place.is_file()), None)
            if path is None:
                problem = _missing(text, index, allowed) if allowed or not places else _forbidden(text, index)
                found.problems += place_problems([problem], definition.text, plan.file)
            elif path not in seen:
                seen.add(path)
                try:
                    imported = self._read(path)
                except DefinitionError as error:
                    found.problems += error.problems
                    continue
                further.append((index if position is None else position, imported))
                found.take(imported, further[-1][0])
        for at, imported in further:
            self._follow(imported, found, seen, at)

    def _places(self, text: str, file: str) -> list[Path]:
        """The possible paths of an imported file."""
        given = Path(text).expanduser()
        if not given.name:
            return []
        beside = [Path(file).parent] if file and not file.startswith("<") else []
        return [
            Path(os.path.abspath((folder / given).with_name(given.name + suffix)))
            for folder in (*beside, *self._folders)
            for suffix in (_SUFFIXES if given.suffix not in _SUFFIXES[1:] else ("",))
        ]


def _forbidden(text: str, index: int) -> Problem:
    message = f"'{text}' cannot be imported: it is outside of the directories that may be read"
    return Problem("forbidden", message, HINT, ("imports", index))


def _missing(text: str, index: int, places: Sequence[Path]) -> Problem:
    listed = ", ".join(dict.fromkeys(map(str, places)))
    hint = f"looked for: {listed}" if listed else "name a file, e.g. shared/common-tasks.yaml"
    return Problem("missing_import", f"there is no file '{text}'", hint, ("imports", index))


def with_tasks(definition: Definition, imported: Imported) -> tuple[Plan, list[Problem]]:
    """The plan with full names for its imported tasks, and problems with them."""
    plan, problems = definition.plan, []

    def resolved(part: Plan) -> Plan:
        if not any(_wanted(node) for node in part.body.nodes):
            return part
        nodes = []
        for node in part.body.nodes:
            task = _wanted(node)
            if task in imported.tasks:
                nodes.append(calling(node, imported.tasks[task]))
            else:
                if task:
                    problems.append(_unknown_task(task, node, plan, imported))
                nodes.append(node)
        return msgspec.structs.replace(part, body=Steps(tuple(nodes)))

    tasks = tuple(map(resolved, plan.tasks))
    whole = resolved(plan)
    if whole is not plan or any(new is not old for new, old in zip(tasks, plan.tasks, strict=True)):
        whole = msgspec.structs.replace(whole, tasks=tasks)
    return whole, place_problems(problems, definition.text, plan.file) if problems else []


def _wanted(node: Node) -> str:
    """The unresolved task that a node calls; empty if there is none."""
    called = node.do.name if isinstance(node.do, Call) else None
    return called.removeprefix(TASK) if isinstance(called, str) and called.startswith(TASK) else ""


def _unknown_task(task: str, node: Node, plan: Plan, imported: Imported) -> Problem:
    own = [it.name.rpartition(TASK)[2] for it in plan.tasks]
    hint = did_you_mean(task, [*own, *imported.tasks], what="tasks")
    if task in imported.elsewhere:
        hint = (
            f"{imported.elsewhere[task]} has steps, so only it can use its tasks: move the task to a file"
            " that has only sub_agent_tasks"
        )
    message = f"there is no task '{task}', in this file or in those that it imports"
    return Problem("unknown_task", message, hint, (*node.at, "sub_agent_task"))


Find = Callable[[str], Definition]

"""Returns the definition with this name in a bundle; raises UnknownWorkflow or DefinitionError."""


KeyOf = Callable[[str, Definition], str]

"""Returns the name in the bundle for a name that a definition calls."""


def assemble(
    main: Definition,
    find: Find,
    known: Iterable[str] = (),
    importer: Importer | None = None,
    key_of: KeyOf = lambda name, _: name,
) -> tuple[Bundle, list[Problem]]:
    """Creates the bundle; returns warnings for called workflows that have errors.

    Such a call fails when the run reaches it. Raises DefinitionError for all wrong calls of `main`.

    `known` are the names of all existing workflows, to suggest the nearest one for an unknown name.
    """
    assembly = _Assembly(find, importer, key_of)
    assembly.take(main)
    bundle = Bundle(main.plan.name, assembly.plans, assembly.sources)
    if assembly.problems:
        raise DefinitionError(assembly.problems, name=main.plan.name)
    warnings = check_bundle(bundle, assembly.sources, [*known, *assembly.failed])
    return bundle, [*assembly.warnings, *warnings]


class _Assembly:
    def __init__(self, find: Find, importer: Importer | None, key_of: KeyOf) -> None:
        self.find = find
        self.importer = importer
        self.key_of = key_of
        self.plans: dict[str, Plan] = {}
        self.sources: dict[str, str] = {}
        self.problems: list[Problem] = []
        self._chosen: dict[str, Definition] = {}
        """The definition that each name stands for."""
        self._imported: set[str] = set()
        self.failed: set[str] = set()
        self.warnings: list[Problem] = []
        self._waiting: list[str] = []

    def take(self, main: Definition) -> None:
        """Adds a workflow, and all workflows that it calls."""
        self._choose(main.plan.name, main)
        while self._waiting:
            self._one(self._waiting.pop(0))

    def _choose(self, name: str, definition: Definition) -> Definition:
        """The definition for a name; the first one for each name counts."""
        if name not in self._chosen:
            self._chosen[name] = definition
            self._waiting.append(name)
        return self._chosen[name]

    def _one(self, name: str) -> None:
        definition = self._chosen[name]
        plan, through_imports = definition.plan, Imported()
        if plan.imports and self.importer is not None:
            through_imports = self.importer.imported(definition)
            plan, problems = self.importer.joined(definition, through_imports)
            self.problems += [*through_imports.problems, *problems]
        names = {plan.name: name} if plan.name != name else {}
        self.sources[name] = definition.text
        for position, imported in through_imports.documents:
            other = imported.plan.name
            self._imported.add(other)
            self._check(self._choose(other, imported), imported, definition, ("imports", position))
        for called in called_workflows(plan):
            if TASK in called or called in through_imports.workflows or called in self.failed:
                continue
            key = self.key_of(called, definition)
            if key != called:
                names[called] = key
            if key in self._chosen and key not in self._imported:
                continue
            found = self._found(called, key, definition)
            if found is not None:
                self._check(self._choose(key, found), found, definition, _place_of_call(plan, called))
        self.plans[name] = renamed(plan, names) if names else plan

    def _found(self, name: str, key: str, by: Definition) -> Definition | None:
        try:
            return self.find(key)
        except UnknownWorkflow:
            return None  # `check_bundle` reports the call
        except DefinitionError as error:
            self.failed.add(name)
            first = next((it for it in error.problems if not it.warning), error.problems[0])
            where = f" ({first.place})" if first.place is not None else ""
            problem = Problem(
                "broken_workflow",
                f"workflow '{name}' cannot be run: {first.message}{where}",
                f"the call fails when the run reaches it; workflows-mcp validate {name} shows all errors",
                _place_of_call(by.plan, name),
                warning=True,
            )
            self.warnings += place_problems([problem], by.text, by.plan.file)
            return None

    def _check(
        self, chosen: Definition, found: Definition, by: Definition, path: tuple[str | int, ...]
    ) -> None:
        """Reports a name that stands for two files in one run."""
        if chosen.plan.file == found.plan.file:
            return
        name = found.plan.name
        message = f"'{name}' is a workflow in {found.plan.file}, and another one in {chosen.plan.file}"
        hint = "give one of the two another name: in one run, a name stands for one workflow"
        problem = Problem("name_collision", message, hint, path)
        self.problems += place_problems([problem], by.text, by.plan.file)


def _place_of_call(plan: Plan, called: str) -> tuple[str | int, ...]:
    for part in (plan, *plan.tasks):
        for node in part.body.nodes:
            if fixed_name(node.do) == called:
                return place_of_call(node)
    return ()
