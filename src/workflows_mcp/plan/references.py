"""Finds all references of a plan, with their paths in the document.

It parses templates, conditions and outputs once, when a file is loaded; text that cannot be parsed is a
problem with its position. `plan.checks` checks whether the references exist.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol, cast

from workflows_mcp.errors import ExpressionError, Problem
from workflows_mcp.expressions import Dollar, Language, OldDollar, Reference, Refusal
from workflows_mcp.plan.model import NO_ITEMS, Expr, ExprKind, Path, Plan, exprs_in
from workflows_mcp.values import Value


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

    def __getitem__(self, name: str) -> Language:
        language = self._made.get(name)
        if language is None:
            language = self._made[name] = self._makers[name]()
        return language

    def __iter__(self) -> Iterator[str]:
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)


LANGUAGES: Mapping[str, Language] = _Languages({"dollar": Dollar, "jinja": _jinja, "javascript": _javascript})
_OLD_LANGUAGES: Mapping[str, Language] = _Languages(
    {"dollar": OldDollar, "jinja": _old_jinja, "javascript": _old_javascript}
)


def language_of(plan: Plan) -> Language:
    """The language of a plan's expressions, in the version of the plan."""
    return (LANGUAGES if plan.semantics >= 3 else _OLD_LANGUAGES)[plan.language]


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


_METHODS: Mapping[ExprKind, str] = {"path": "template", "settings": "with_variables"}


def parser_of(language: Language, kind: ExprKind) -> Callable[[str], Any]:
    """The function of a language that parses texts of this kind."""
    return cast(Callable[[str], Any], getattr(language, _METHODS.get(kind, kind), language.template))


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
        return self._find(value, path, parser_of(self.language, "settings"))

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
        return self._read(text, path, parser_of(self.language, "transform"))

    def in_expr(self, expr: Expr) -> list[Use]:
        match expr.kind:
            case "literal":
                return []
            case "condition":
                return self.in_condition(expr.source, expr.at)
            case "path":
                return [use._replace(path=expr.at) for use in self.in_value(list(expr.source), expr.at)]
            case "transform":
                return self.in_transform(expr.source, expr.at)
        return self._find(expr.source, expr.at, parser_of(self.language, expr.kind))

    def in_part(self, part: Any) -> list[Use]:
        """All references of a node, or of another part of a plan."""
        return [use for expr in exprs_in(part) for use in self.in_expr(expr)]

    def in_plan(self, plan: Plan) -> Uses:
        return Uses([self.in_part(node) for node in plan.body.nodes], self.in_part(plan.outputs))

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
