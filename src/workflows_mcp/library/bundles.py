"""A workflow with all that it calls by a fixed name: what a run is pinned to.

A run keeps the plans that it started with, so that editing a file never disturbs it. What a workflow imports
is part of it in any case: a name that is known only at run time may be one of those.

A workflow of the library calls those of the library. Where the user has one of the same name, a bundle holds
both: that of the library as `built-in:NAME`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from workflows_mcp.dialects import Definition, check_bundle, place_problems
from workflows_mcp.errors import DefinitionError, Problem, UnknownWorkflow
from workflows_mcp.library.imports import TASK, Imported, Importer
from workflows_mcp.plan.calls import called_workflows, fixed_name, renamed
from workflows_mcp.plan.layout import LAYOUTS
from workflows_mcp.plan.model import Bundle, Plan

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
