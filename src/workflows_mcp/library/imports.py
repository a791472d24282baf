"""What files that a workflow imports give it: the workflows in them, and tasks.

    imports: ["shared/check-standards.yaml", "shared/tasks.yaml"]

A path is looked for beside the file that imports it, then in the directories of definitions, and only where
definitions may be read (`reach`): of another file not even is said whether it exists. A file with
steps gives its workflow, which goes before one of the same name in the catalogue; a file that has only
`sub_agent_tasks` gives those. Imports of imported files count too, after the file's own; a circle is fine.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from workflows_mcp.dialects import Definition, place_problems
from workflows_mcp.errors import DefinitionError, Problem
from workflows_mcp.library.reach import HINT, Reach
from workflows_mcp.plan.model import Call, Node, Plan, Steps
from workflows_mcp.values import did_you_mean

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
    message = f"'{text}' may not be imported: it is outside of the directories that steps may read"
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
            f"{imported.elsewhere[task]} has steps, and its tasks are its own: put the task into a file that"
            " has only sub_agent_tasks"
        )
    message = f"there is no task '{task}', in this file or in those that it imports"
    return Problem("unknown_task", message, hint, (*node.at, "sub_agent_task"))
