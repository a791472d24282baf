"""A workflow with all that it calls by a fixed name: what a run is pinned to.

A run keeps the plans that it started with, so that editing a file never disturbs it. What a workflow imports
is part of it in any case: a name that is known only at run time may be one of those.

A workflow of the library calls those of the library. Where the user has one of the same name, a bundle holds
both: that of the library as `built-in:NAME`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from workflows_mcp.dialects import Definition, check_bundle, place_problems
from workflows_mcp.errors import DefinitionError, Problem, UnknownWorkflow
from workflows_mcp.plan import LAYOUTS, Bundle, Call, Node, Plan, Steps, called_workflows, fixed_name, renamed
from workflows_mcp.settings import Settings
from workflows_mcp.values import did_you_mean

# ----------------------------------------------------------------------------------------------------
# Which files may be read as definitions.
#
#     reach = reach_of(settings)
#     reach.allows(Path("/project/.workflows/x.yaml"))      # True, unless it is a link that leads elsewhere
#
# A definition is quoted where it is wrong, so a file that no step may read is no definition either: neither
# by `imports` nor through a link in a project. The user's own directories may hold links to wherever the
# user wants.


HINT = (
    "keep definitions in the working directory or in ~/.workflows, or add their directory to "
    "WORKFLOWS_ALLOWED_PATHS (allowed_paths in workflows.toml)"
)


@dataclass(frozen=True, slots=True)
class Reach:
    own: tuple[Path, ...] = ()
    """Directories of the user: links in them may lead anywhere."""
    roots: tuple[Path, ...] = ()
    """Where every other file must lie, after links have been followed."""

    def allows(self, path: Path) -> bool:
        if any(Path(os.path.abspath(path)).is_relative_to(it) for it in self.own):
            return True
        real = Path(os.path.realpath(path))
        return any(real.is_relative_to(os.path.realpath(it)) for it in (*self.own, *self.roots))

    def with_root(self, directory: Path) -> Reach:
        return replace(self, roots=(*self.roots, directory))


def reach_of(settings: Settings, builtin: Path) -> Reach:
    """As the steps: the working directory and `allowed_paths`, where files may be read at all."""
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
    """Those that are not links out of the workspace."""
    return [it for it in directories if Path(os.path.realpath(it)).is_relative_to(workspace)]


# ----------------------------------------------------------------------------------------------------
# What files that a workflow imports give it: the workflows in them, and tasks.
#
#     imports: ["shared/check-standards.yaml", "shared/tasks.yaml"]
#
# A path is looked for beside the file that imports it, then in the directories of definitions, and only
# where definitions may be read (`reach`): of another file not even is said whether it exists. A file with
# steps gives its workflow, which goes before one of the same name in the catalogue; a file that has only
# `sub_agent_tasks` gives those. Imports of imported files count too, after the file's own; a circle is
# fine.


TASK = "#"

"""How the name of a task begins that is in none of the files that are known yet; and what parts a workflow
from its task."""

_SUFFIXES = ("", ".yaml", ".yml")

_JOINED = 64


@dataclass(slots=True)
class Imported:
    """What a workflow has through its imports, by name; the first file that gives a name counts."""

    workflows: dict[str, Definition] = field(default_factory=dict)
    tasks: dict[str, str] = field(default_factory=dict)
    """The full name of each task: `shared:tasks#process_batch`"""
    documents: list[tuple[int, Definition]] = field(default_factory=list)
    """Each with the position of the import that leads to it."""
    elsewhere: dict[str, str] = field(default_factory=dict)
    """Tasks that only the workflow of their own file can hand out, and that file."""
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

"""Plans whose tasks were found in other files: what was read, the tasks, and the plan that came of it. The
same files give the same plan, so that runs share it."""


class Importer:
    """Finds imported files. `read` gives the definition in a file; `folders` are the directories of
    definitions, the strongest first."""

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
        """All that a definition imports, with what those files import."""
        found = Imported()
        self._follow(definition, found, set(), None)
        return found

    def joined(self, definition: Definition, imported: Imported) -> tuple[Plan, list[Problem]]:
        """The plan with its imported tasks called by their full names, and what is wrong with that."""
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
        """Where a file can be that is imported by this text."""
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
    message = f"'{text}' may not be imported: it is outside of the directories that may be read"
    return Problem("forbidden", message, HINT, ("imports", index))


def _missing(text: str, index: int, places: Sequence[Path]) -> Problem:
    listed = ", ".join(dict.fromkeys(map(str, places)))
    hint = f"looked for: {listed}" if listed else "name a file, e.g. shared/common-tasks.yaml"
    return Problem("missing_import", f"there is no file '{text}'", hint, ("imports", index))


def with_tasks(definition: Definition, imported: Imported) -> tuple[Plan, list[Problem]]:
    """The plan with its imported tasks called by their full names, and what is wrong with that."""
    plan, problems = definition.plan, []

    def resolved(part: Plan) -> Plan:
        if not any(_wanted(node) for node in part.body.nodes):
            return part
        nodes = []
        for node in part.body.nodes:
            task = _wanted(node)
            if task in imported.tasks:
                do = msgspec.structs.replace(node.do, workflow=imported.tasks[task])
                nodes.append(msgspec.structs.replace(node, do=do))
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
    """The task that a node calls and that is still to be found; empty if there is none."""
    called = node.do.workflow if isinstance(node.do, Call) else None
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

"""The definition of this name in a bundle; raises UnknownWorkflow or DefinitionError."""


KeyOf = Callable[[str, Definition], str]

"""The name in the bundle of what a definition calls by a name."""


def assemble(
    main: Definition,
    find: Find,
    known: Iterable[str] = (),
    importer: Importer | None = None,
    key_of: KeyOf = lambda name, _: name,
) -> tuple[Bundle, list[Problem]]:
    """The bundle, and warnings: a workflow that is called and is wrong fails when it is reached.

    Raises DefinitionError with all that is wrong with the calls of `main`.

    `known` are the names of all workflows there are, for the nearest spelling of an unknown one.
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
        """What each name means."""
        self._imported: set[str] = set()
        self.failed: set[str] = set()
        self.warnings: list[Problem] = []
        self._waiting: list[str] = []

    def take(self, main: Definition) -> None:
        """Take a workflow, and whatever it leads to."""
        self._choose(main.plan.name, main)
        while self._waiting:
            self._one(self._waiting.pop(0))

    def _choose(self, name: str, definition: Definition) -> Definition:
        """What the name means, which is what it meant first."""
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
            return None  # the call is reported where it stands
        except DefinitionError as error:
            self.failed.add(name)
            first = next((it for it in error.problems if not it.warning), error.problems[0])
            where = f" ({first.place})" if first.place is not None else ""
            problem = Problem(
                "broken_workflow",
                f"workflow '{name}' cannot be run: {first.message}{where}",
                f"the call fails when it is reached; workflows-mcp validate {name} shows all that is wrong",
                _place_of_call(by.plan, name),
                warning=True,
            )
            self.warnings += place_problems([problem], by.text, by.plan.file)
            return None

    def _check(
        self, chosen: Definition, found: Definition, by: Definition, path: tuple[str | int, ...]
    ) -> None:
        """That a name means the same file in the whole of a run."""
        if chosen.plan.file == found.plan.file:
            return
        name = found.plan.name
        message = f"'{name}' is a workflow in {found.plan.file}, and another one in {chosen.plan.file}"
        hint = "in one run a name can stand for one of them only: give one of them another name"
        problem = Problem("name_collision", message, hint, path)
        self.problems += place_problems([problem], by.text, by.plan.file)


def _place_of_call(plan: Plan, called: str) -> tuple[str | int, ...]:
    for part in (plan, *plan.tasks):
        for node in part.body.nodes:
            if fixed_name(node.do) == called:
                return (*node.at, *LAYOUTS[plan.dialect].workflow)
    return ()
