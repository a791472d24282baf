"""Compiles the text of a workflow to a checked plan, in any of the three dialects.

    definition = load(text, file="deploy.yaml", registry=default_registry(), limits=limits)
    definition.plan

One DefinitionError reports all problems of a file, each with file, line, column, source line and hint.
`check_bundle` checks the calls between workflows, once all of them are loaded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from workflows_mcp.dialects.recognition import dialect_of
from workflows_mcp.dialects.yaml.source import Document, collector_paused, read_document, unwrapped
from workflows_mcp.errors import DefinitionError, Problem
from workflows_mcp.limits import DEFAULT_LIMITS, Limits
from workflows_mcp.plan import MOST_PROBLEMS, Bundle, Plan, check_calls
from workflows_mcp.steps import StepRegistry
from workflows_mcp.values import SECRET_OPEN, Value, may_hold_mark


@dataclass(frozen=True, slots=True)
class Definition:
    """A workflow that is ready to run, with its source text."""

    plan: Plan
    text: str
    warnings: list[Problem] = field(default_factory=list)


def load(
    text: str,
    *,
    file: str,
    registry: StepRegistry,
    limits: Limits = DEFAULT_LIMITS,
    state_access: str = "enforce",
) -> Definition:
    """Compiles one file; raises DefinitionError with all its problems.

    `file` is its name in messages; its stem is the name of a workflow without `name`. `state_access` is the
    default for files that do not set it.
    """
    with collector_paused():
        document = unwrapped(read_document(text, file, limits))
        dialect = dialect_of(document.value)
        if isinstance(dialect, Problem):
            raise DefinitionError(_in_order([*document.problems, *_placed([dialect], document)]))
        if dialect == "stateful":
            from workflows_mcp.dialects.stateful import compile_stateful  # import only what is used

            plan, problems = compile_stateful(document, registry, limits, state_access=state_access)
        elif dialect == "reactive":
            from workflows_mcp.dialects.reactive import compile_reactive

            plan, problems = compile_reactive(document, registry, limits)
        else:
            from workflows_mcp.dialects.graph import compile_graph

            plan, problems = compile_graph(document, registry)
        problems += _marks_of_secrets(document)
        found = _in_order([*document.problems, *_placed(problems, document)])
        # A large file has many nodes: release them before the garbage collector runs again.
        del document
    if any(not problem.warning for problem in found):
        draft = Definition(plan, text)
        raise DefinitionError(_shortened(found), name=plan.name, draft=draft)
    return Definition(plan, text, _shortened(found))


def check_bundle(bundle: Bundle, sources: Mapping[str, str], known: Iterable[str] = ()) -> list[Problem]:
    """Checks all calls; raises DefinitionError if a call of the main workflow is wrong.

    A wrong call of another workflow is a warning: it fails when the run reaches it.

    `sources` are the texts of the workflows by name; `known` are the names of all existing workflows.
    """
    found: list[Problem] = []
    for name, problems in check_calls(bundle, known).items():
        if name != bundle.main:
            problems = [  # noqa: PLW2901
                it if it.code == "circular_call" else replace(it, warning=True) for it in problems
            ]
        found += place_problems(problems, sources.get(name, ""), bundle.plans[name].file)
    if any(not problem.warning for problem in found):
        raise DefinitionError(found, name=bundle.main)
    return found


def place_problems(problems: Iterable[Problem], text: str, file: str) -> list[Problem]:
    """Adds places in the file with this text to the problems, and sorts them."""
    try:
        document = unwrapped(read_document(text, file))
    except DefinitionError:
        return list(problems)
    return _in_order(_placed(problems, document))


def _marks_of_secrets(document: Document) -> list[Problem]:
    """Reports text that looks like the mark of a secret: a run would take it for one."""

    def find(value: Value, path: tuple[str | int, ...]) -> Iterator[tuple[str | int, ...]]:
        if isinstance(value, str):
            if SECRET_OPEN in value:
                yield path
        elif isinstance(value, dict | list):
            for key, item in value.items() if isinstance(value, dict) else enumerate(value):
                yield from find(item, (*path, key))

    if not may_hold_mark(document.value):
        return []
    hint = "write ${secrets.NAME} where a step takes it"
    return [
        Problem(
            "secret_mark",
            f"'{SECRET_OPEN}…' is reserved for secrets and cannot be written in a file",
            hint,
            path,
        )
        for path in find(document.value, ())
    ]


def _placed(problems: Iterable[Problem], document: Document) -> list[Problem]:
    return [
        problem
        if problem.place is not None
        else problem.at(document.place(problem.path, problem.offset, problem.on_key))
        for problem in problems
    ]


def _shortened(problems: list[Problem]) -> list[Problem]:
    """The first problems, and a last one that says there are more."""
    if len(problems) <= MOST_PROBLEMS:
        return problems
    last = Problem(
        "more",
        "there are more problems after this line",
        "fix the problems above first: many may have the same cause",
        place=problems[MOST_PROBLEMS].place,
        warning=problems[MOST_PROBLEMS].warning,
    )
    return [*problems[:MOST_PROBLEMS], last]


def _in_order(problems: Iterable[Problem]) -> list[Problem]:
    """Errors before warnings, both in the order of the file."""

    def position(problem: Problem) -> tuple[bool, int, int]:
        place = problem.place
        return (problem.warning, place.line, place.column) if place else (problem.warning, 0, 0)

    return sorted(problems, key=position)
