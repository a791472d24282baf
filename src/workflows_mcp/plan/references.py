"""Finds all references of a plan, with their paths in the document.

It parses templates, conditions and outputs once, when a file is loaded; text that cannot be parsed is a
problem with its position. `plan.checks` checks whether the references exist.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import NamedTuple, Protocol, cast

from workflows_mcp.errors import ExpressionError, Problem
from workflows_mcp.expressions import Dollar, Expression, Language, OldDollar, Reference, Refusal
from workflows_mcp.plan.layout import LAYOUTS, Layout
from workflows_mcp.plan.model import (
    NO_ITEMS,
    Branch,
    Call,
    Change,
    Checkpoint,
    Do,
    Each,
    Jump,
    Node,
    Plan,
    Return,
    SetState,
    Tell,
    UpdateState,
    Wait,
    While,
)
from workflows_mcp.values import Value

Path = tuple[str | int, ...]


def _jinja() -> Language:
    from workflows_mcp.expressions import Jinja

    return Jinja()


def _javascript() -> Language:
    from workflows_mcp.expressions import JavaScript

    return JavaScript()


def _old_jinja() -> Language:
    from workflows_mcp.expressions import OldJinja

    return OldJinja()


def _old_javascript() -> Language:
    from workflows_mcp.expressions import OldJavaScript

    return OldJavaScript()


Refusals = Callable[[tuple[str, ...]], Iterable[Refusal]]


class _Languages(Mapping[str, Language]):
    """Creates each language when it is first needed, because importing Jinja is slow."""

    def __init__(self, makers: dict[str, Callable[[], Language]]) -> None:
        self._makers = makers
        self._made: dict[str, Language] = {}

    def __getitem__(self, dialect: str) -> Language:
        language = self._made.get(dialect)
        if language is None:
            language = self._made[dialect] = self._makers[dialect]()
        return language

    def __iter__(self) -> Iterator[str]:
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)


LANGUAGES: Mapping[str, Language] = _Languages({"graph": Dollar, "stateful": _jinja, "reactive": _javascript})
"""The expression language of each dialect."""
_OLD_LANGUAGES: Mapping[str, Language] = _Languages(
    {"graph": OldDollar, "stateful": _old_jinja, "reactive": _old_javascript}
)


def language_of(plan: Plan) -> Language:
    """The language of a plan's expressions, in the version of the plan."""
    return (LANGUAGES if plan.semantics >= 3 else _OLD_LANGUAGES)[plan.dialect]


STATE_WORDS = frozenset(["succeeded", "failed", "skipped", "status", "outcome"])
"""The words for the outcome of a block in `${blocks.id.…}`."""
_OUTCOME_OUTPUTS = frozenset(["success", "exit_code"])


class Use(NamedTuple):
    """A reference, and the path of the text that contains it."""

    reference: Reference
    path: Path
    on_key: bool = False
    """It is in the key at the end of the path, not in the value."""


class Uses(NamedTuple):
    """The references of a plan: those of each block, and those of the outputs."""

    by_node: list[list[Use]]
    in_outputs: list[Use]


class _Parsed(Protocol):
    @property
    def references(self) -> tuple[Reference, ...]: ...


class _Transforms(Protocol):
    """A language with transforms, which can be more than an expression."""

    def transform(self, text: str) -> _Parsed: ...


def config_reader(language: Language) -> Callable[[str], Expression]:
    """The parser for settings of a step besides its inputs."""
    return cast(Callable[[str], Expression], getattr(language, "with_variables", language.template))


Foreign = Callable[[str], ExpressionError | None]


class ReferenceReader:
    """Finds references in values; stores malformed expressions in `problems`."""

    def __init__(self, language: Language, foreign: Foreign | None = None) -> None:
        """`foreign` finds expressions in the syntax of another language."""
        self.language = language
        self.problems: list[Problem] = []
        self._foreign = foreign
        self._check_constant: Callable[[str, _Parsed], None] | None
        self._check_constant = getattr(language, "check_constant", None)

    def in_value(self, value: Value, path: Path) -> list[Use]:
        return self._find(value, path, self.language.template)

    def in_literal(self, value: Value, path: Path) -> list[Use]:
        """Finds references in text of another language, where foreign expressions are allowed."""
        foreign, self._foreign = self._foreign, None
        try:
            return self.in_value(value, path)
        finally:
            self._foreign = foreign

    def in_config(self, value: Value, path: Path) -> list[Use]:
        """Finds references in settings of a step, whose variables belong to the step."""
        return self._find(value, path, config_reader(self.language))

    def in_code(self, value: Value, path: Path, refusals: Refusals | None = None) -> list[Use]:
        """Finds references in code; `refusals` returns the values that cannot be in this code."""
        found = len(self.problems)
        uses = self._find(value, path, self.language.code)
        if refusals is None or not isinstance(value, str) or len(self.problems) > found:
            return uses
        if self.language.is_dynamic(value):
            template = self.language.code(value)
            for refusal in refusals(template.known_texts) if template.known_texts is not None else ():
                offset = template.offset(refusal.number)
                self.problems.append(Problem("value_in_code", refusal.message, refusal.hint, path, offset))
        return uses

    def in_condition(self, text: str, path: Path) -> list[Use]:
        before = len(self.problems)
        self._refuse_foreign(text, path)
        if len(self.problems) > before:
            return []  # one mistake, one problem
        return self._read(text, path, self.language.condition)

    def in_output(self, value: Value, path: Path) -> list[Use]:
        return self._find(value, path, self.language.output)

    def in_transform(self, text: str, path: Path) -> list[Use]:
        return self._read(text, path, cast(_Transforms, self.language).transform)

    def in_change(self, change: Change, at: Path) -> list[Use]:
        """Finds references in a change of the node at `at`."""
        at = (*at, *change.at)
        uses = [Use(it.reference, (*at, "path")) for it in self.in_value(list(change.path), (*at, "path"))]
        uses += self.in_value(change.value, (*at, "value"))
        if change.transform:
            dynamic = self.language.is_dynamic(change.transform)
            read = self.in_value if dynamic else self.in_transform
            uses += read(change.transform, (*at, "transform"))
        return uses

    def in_node(self, node: Node, layout: Layout) -> list[Use]:
        """All references of a node, with their paths in its document."""
        uses: list[Use] = []

        def add(value: Value, part: Path) -> None:
            uses.extend(self.in_value(value, (*node.at, *part)))

        match node.do:
            case Call(workflow=workflow, inputs=inputs, timeout=timeout):
                add(workflow, layout.workflow)
                add(inputs, layout.given)
                add(timeout, layout.timeout)
            case Do() as do:
                for name, value in do.inputs.items():
                    if name in do.literal:
                        continue
                    read = self.in_code if name in do.code else self.in_value
                    uses += read(value, (*node.at, *layout.inputs, name))
                uses += self.in_config(do.config, node.at)
                add(do.timeout, layout.timeout)
            case Branch(test=test):
                uses += self.in_condition(test, (*node.at, *layout.test))
            case Jump(most=most):
                add(most, layout.most)
            case SetState(updates=updates):
                add(updates, layout.updates)
            case Return(value=value):
                add(value, layout.value)
            case Wait(seconds=seconds, message=message):
                add(seconds, layout.seconds)
                add(message, layout.message)
            case While(test=test, most=most):
                uses += self.in_condition(test, (*node.at, *layout.test))
                add(most, layout.most)
            case Each(items=items):
                add(items, layout.items)
            case Tell(message=message):
                add(message, layout.message)
            case Checkpoint(parameters=parameters):
                add(parameters, layout.parameters)
            case UpdateState(changes=changes):
                uses += [use for change in changes for use in self.in_change(change, node.at)]
        for change in (*node.changes, *node.error_changes):
            uses += self.in_change(change, node.at)
        add(node.retry, layout.retry)
        add(node.fallback, layout.fallback)
        conditions = [node.condition]
        if (each := node.for_each) is not None:
            add(each.items, layout.items)
            add(each.max_parallel, layout.max_parallel)
            add(each.prompt, layout.prompt)
            conditions.append(each.condition)
        for condition in conditions:
            if condition is not None:
                uses += self.in_condition(condition, (*node.at, *layout.condition))
        return uses

    def in_plan(self, plan: Plan) -> Uses:
        return Uses(
            [self.in_node(node, LAYOUTS[plan.dialect]) for node in plan.body.nodes],
            self.in_output(plan.outputs, ("outputs",)),
        )

    def _find(self, value: Value, path: Path, parse: Callable[[str], _Parsed]) -> list[Use]:
        if isinstance(value, str):
            self._refuse_foreign(value, path)
            return self._read(value, path, parse) if self.language.is_dynamic(value) else []
        if not isinstance(value, dict | list):
            return []
        uses: list[Use] = []
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            if isinstance(key, str) and self.language.resolves_keys and self.language.is_dynamic(key):
                uses += self._read(key, (*path, key), self.language.template, on_key=True)
            if isinstance(item, str | dict | list):
                uses += self._find(item, (*path, key), parse)
        return uses

    def _refuse_foreign(self, text: str, path: Path) -> None:
        error = self._foreign(text) if self._foreign is not None else None
        if error is not None:
            self.problems.append(Problem(error.code, error.message, error.hint, path, error.offset))

    def _read(
        self, text: str, path: Path, parse: Callable[[str], _Parsed], *, on_key: bool = False
    ) -> list[Use]:
        try:
            parsed = parse(text)
            if self._check_constant is not None:
                self._check_constant(text, parsed)
            return [Use(reference, path, on_key) for reference in parsed.references]
        except ExpressionError as error:
            self.problems.append(Problem(error.code, error.message, error.hint, path, error.offset, on_key))
            return []


def secrets_in(uses: Iterable[Use]) -> tuple[str, ...]:
    """The names of the secrets in these references."""
    paths = (use.reference.path for use in uses)
    return tuple(sorted({str(path[1]) for path in paths if path[0] == "secrets" and len(path) > 1}))


def blocks_asked_about(uses: Iterable[Use]) -> frozenset[str]:
    """The ids of the blocks whose outcome is read."""
    paths = (use.reference.path for use in uses)
    return frozenset(
        str(path[1])
        for path in paths
        if path[0] == "blocks"
        and any(word in STATE_WORDS for word in (path[3:4] if path[2:3] == ("metadata",) else path[2:3]))
    )


def watched_blocks(uses: Iterable[Use], repeated: Collection[str] = ()) -> set[str]:
    """The ids of the blocks that references watch for failures.

    `repeated` are the blocks with items, whose items can be watched too.
    """
    watched: set[str] = set()
    for path in (use.reference.path for use in uses):
        if path[0] != "blocks" or len(path) < 2 or path[1] in watched:
            continue
        block, rest = str(path[1]), path[1:]
        if _reads_outcome(rest) or (block in repeated and _reads_outcome_of_items(rest)):
            watched.add(block)
    return watched


def _reads_outcome_of_items(path: Path) -> bool:
    if any(part in ("failed_keys", "skipped_keys") for part in path[1:3]):
        return True
    inside = path[2:] if path[1:2] == ("items",) else path[1:]
    return bool(inside) and inside[0] not in NO_ITEMS and inside[0] != "outputs" and _reads_outcome(inside)


def _reads_outcome(path: Path) -> bool:
    """`path` starts with the id of the block."""
    match path:
        case (_,) | (_, "metadata"):
            return True
        case (_, "metadata", word, *_):
            return word in STATE_WORDS
        case (_, "outputs", word, *_):
            return word in _OUTCOME_OUTPUTS
        case (_, word, *_):
            return word in STATE_WORDS or word in _OUTCOME_OUTPUTS
    return False
