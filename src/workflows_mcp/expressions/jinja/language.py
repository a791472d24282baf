"""Implements the Jinja language of the stateful dialect: `{{ expression }}` and `{% statement %}`.

    Jinja().template("{{ state.files | length }}").evaluate({"state": {"files": ["a"]}})    # 1
    Jinja().condition("state.score > 90").evaluate({"state": {"score": 95}})                # True
    Jinja().code("cat {{ inputs.path }}").evaluate({"inputs": {"path": "a b"}})
                                                                           # Code(("cat ", ""), ("a b",))

A template that is exactly one expression returns its value as JSON data; any other template returns text. An
undefined name is an error that shows the reference, the names that exist and the nearest spelling. Templates
run in the sandbox (`sandbox.py`), within the limits of the server.

A scope may also hold the time for `now()` (`__now__`) and the limits of the server (`__limits__`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import date, datetime
from functools import lru_cache
from typing import Any, TypeVar

from jinja2 import Template, TemplateSyntaxError, nodes
from jinja2.parser import Parser
from jinja2.utils import missing

from workflows_mcp.errors import TOO_SLOW, ExpressionError
from workflows_mcp.expressions.deadline import TookTooLong, call_within
from workflows_mcp.expressions.jinja.references import (
    Found,
    Fragment,
    environment,
    kinds_of,
    path_of,
    read,
)
from workflows_mcp.expressions.jinja.sandbox import (
    MissingName,
    TooLong,
    as_text,
    joined,
    largest,
    line_of,
    measure,
    plain,
)
from workflows_mcp.expressions.language import (
    BOOLEAN,
    MISSING,
    STRING,
    Code,
    CodeTemplate,
    Constant,
    ConstantCode,
    Expression,
    Kinds,
    KindsAt,
    Reference,
    Scope,
    braces,
)
from workflows_mcp.limits import DEFAULT_LIMITS, Limits
from workflows_mcp.values import (
    SECRET_MARK,
    SECRET_OPEN,
    Value,
    did_you_mean,
    disarmed,
    kind_of,
    may_hold_mark,
    secret_mark,
    to_json,
    with_texts,
)

LIMITS_NAME = "__limits__"
_CACHED = 4096
_CONDITION_HINT = "a condition is one expression: {{ … }}, or the same without braces"


class Jinja:
    """The language; it has no state, its results are cached by source."""

    resolves_keys = True

    def is_dynamic(self, text: str) -> bool:
        return _has_expressions(text)

    @staticmethod
    @lru_cache(maxsize=_CACHED)
    def template(text: str) -> Expression:
        if not _has_expressions(text):
            return Constant(text)
        parsed, only = _parse(text)
        exact = text.removesuffix("\n")  # the line break that a block of YAML ends with
        if only is None or exact != exact.strip():
            return TextExpression(text, parsed)
        return ValueExpression(text, parsed, only)

    @staticmethod
    @lru_cache(maxsize=_CACHED)
    def condition(text: str) -> Expression:
        if not text.strip():
            raise ExpressionError("the condition is empty", hint=_CONDITION_HINT, code="syntax")
        braced = text.lstrip().startswith(("{{", "{%", "{#"))
        try:
            parsed, only = _parse(text, braced=braced)
        except ExpressionError:
            if braced or "{{" not in text:
                raise
            only = None
        if only is None:
            raise ExpressionError(
                "the condition is text with expressions in it, which would always be true",
                hint=_CONDITION_HINT,
                offset=max(text.find("{{", 1), 0),
                code="syntax",
            )
        return TruthExpression(text, parsed, only)

    @staticmethod
    def output(text: str) -> Expression:
        return Jinja.template(text)

    @staticmethod
    def check_constant(text: str, expression: Expression) -> None:
        """Evaluate an expression without references, to raise its ExpressionError before a run.

        Errors of the limits and of the sandbox are left to the run.
        """
        if expression.references or not isinstance(expression, _Sourced) or "now" in text:
            return
        try:
            expression.evaluate({})
        except ExpressionError as error:
            cause = error.__context__
            cause = cause.cause if isinstance(cause, FragmentError) else cause or error
            misused = isinstance(cause, TypeError | ValueError | ArithmeticError | ExpressionError)
            if misused and error.code != TOO_SLOW:
                error.hint = error.hint or "it reads nothing from the run, so it would fail every time"
                raise

    @staticmethod
    @lru_cache(maxsize=_CACHED)
    def code(text: str) -> CodeTemplate:
        if not _has_expressions(text):
            return ConstantCode(text)
        parsed, _ = _parse(text)
        assert parsed.tree is not None
        return JinjaCode(text, parsed, parsed.tree)


class OldJinja(Jinja):
    """The language of plans before version 3.

    White space around a single expression is ignored, and the keys of mappings are text.
    """

    resolves_keys = False

    @staticmethod
    @lru_cache(maxsize=_CACHED)
    def template(text: str) -> Expression:
        return Jinja.template(text.strip() if _is_padded(text) else text)

    @staticmethod
    def output(text: str) -> Expression:
        return OldJinja.template(text)


def _is_padded(text: str) -> bool:
    """Whether the text is one expression with white space around it."""
    return text != text.strip() and _has_expressions(text) and _parse(text)[1] is not None


def _has_expressions(text: str) -> bool:
    return "{{" in text or "{%" in text


def _parse(text: str, *, braced: bool = True) -> tuple[Parsed, nodes.Node | None]:
    """Parse a template, or an expression without braces; also return the expression if it is exactly one."""
    try:
        tree = Parser(environment(), text).parse() if braced else _parse_expression(text)
        found = read(tree, environment())
    except (ExpressionError, TemplateSyntaxError, RecursionError) as error:
        raise syntax_error(error, text) from None
    texts, expressions = _parts_of(tree) or ((), ())
    only = expressions[0] if len(expressions) == 1 and not "".join(texts).strip() else None
    return Parsed(text, tree, found), only


def _parse_expression(text: str) -> nodes.Template:
    parser = Parser(environment(), f"{text} }}}}", state="variable")
    expression = parser.parse_tuple(with_condexpr=True)
    parser.stream.expect("variable_end")
    tree = nodes.Template([nodes.Output([expression], lineno=1), *parser.subparse()], lineno=1)
    tree.set_environment(environment())
    return tree


def _parts_of(tree: nodes.Template) -> tuple[tuple[str, ...], list[nodes.Expr]] | None:
    """The expressions of a template, and the texts around them; None if they depend on `{% %}`."""
    texts = [""]
    expressions: list[nodes.Expr] = []
    for statement in tree.body:
        if not isinstance(statement, nodes.Output):
            return None
        for node in statement.nodes:
            if isinstance(node, nodes.TemplateData):
                texts[-1] += node.data
            else:
                texts.append("")
                expressions.append(node)
    return tuple(texts), expressions


# Compiled templates


class _Sourced:
    __slots__ = ("_parsed", "references", "source")

    def __init__(self, source: str, parsed: Parsed) -> None:
        self.source = source
        self._parsed = parsed
        self.references = parsed.found.references


class ValueExpression(_Sourced):
    """Exactly one expression: its value keeps its type."""

    __slots__ = ("_kinds", "_path")

    def __init__(self, source: str, parsed: Parsed, node: nodes.Node) -> None:
        super().__init__(source, parsed)
        found = path_of(node)
        self._path = found[0] if found is not None and self.references else None
        self._kinds = kinds_of(node)

    def kinds(self, at: KindsAt) -> Kinds | None:
        return self._kinds if self._path is None else at(self._path)

    def evaluate(self, scope: Scope) -> Value:
        if self._path is not None:
            value = _value_at(self._path, scope)
            if value is not MISSING:
                return value
        return _without_forged_marks(self._parsed.run(scope, _value), self.references, scope)


class TextExpression(_Sourced):
    """Text with expressions and statements in it."""

    __slots__ = ()

    def kinds(self, at: KindsAt) -> Kinds | None:
        return STRING

    def evaluate(self, scope: Scope) -> Value:
        return _without_forged_marks(self._parsed.run(scope, _text), self.references, scope)


class TruthExpression(ValueExpression):
    """A condition. Null, zero and empty values are false."""

    __slots__ = ()

    def kinds(self, at: KindsAt) -> Kinds | None:
        return BOOLEAN

    def evaluate(self, scope: Scope) -> Value:
        return bool(super().evaluate(scope))


class JinjaCode(_Sourced):
    """A command: its text and the values in it stay apart."""

    __slots__ = ("known_texts",)

    def __init__(self, source: str, parsed: Parsed, tree: nodes.Template) -> None:
        super().__init__(source, parsed)
        parts = _parts_of(tree)
        self.known_texts = parts and parts[0]

    def offset(self, number: int) -> int:
        return braces(self.source, number)

    def evaluate(self, scope: Scope) -> Code:
        code = self._parsed.run(scope, _code)
        values = (_without_forged_marks(value, self.references, scope) for value in code.values)
        return Code(code.texts, tuple(values))


# Evaluation


Result = TypeVar("Result")


class Parsed:
    """A parsed template, compiled on first evaluation."""

    __slots__ = ("_template", "found", "source", "tree")

    def __init__(self, source: str, tree: nodes.Template, found: Found) -> None:
        self.source = source
        self.found = found
        self.tree: nodes.Template | None = tree
        self._template: Template | None = None

    def run(self, scope: Scope, use: Callable[[Iterator[Fragment]], Result]) -> Result:
        """The result of `use` for the fragments of the template. Raises ExpressionError."""
        limits: Limits = scope.get(LIMITS_NAME, DEFAULT_LIMITS)
        try:
            template = self._template or self._compiled()
            return call_within(limits.expression_seconds, _run, template, scope, limits, use)
        except Exception as error:
            references = self.found.references
            raise evaluation_error(error, self.source, references, scope, limits) from None

    def _compiled(self) -> Template:
        if self.found.takes_patterns:
            import regex  # noqa: F401  not first in a call that can be interrupted
        tree = self.tree
        if tree is None:  # another thread has just compiled it
            assert self._template is not None
            return self._template
        template = self._template = environment().from_string(tree)
        self.tree = None
        return template


def _run(
    template: Template, scope: Scope, limits: Limits, use: Callable[[Iterator[Fragment]], Result]
) -> Result:
    largest.set(limits.expression_chars)
    fragments: Any = template.root_render_func(environment().context(scope))
    try:
        return use(fragments)
    except Exception as error:
        if fragments.gi_frame is None:
            raise
        # `use` failed for a fragment; the template is suspended at that fragment.
        raise FragmentError(error, template.get_corresponding_lineno(fragments.gi_frame.f_lineno)) from None


def _value(fragments: Iterator[Fragment]) -> Value:
    return next(plain(fragment[0]) for fragment in fragments if type(fragment) is tuple)


def _text(fragments: Iterator[Fragment]) -> str:
    return joined(fragment[0] if type(fragment) is tuple else fragment for fragment in fragments)


def _code(fragments: Iterator[Fragment]) -> Code:
    texts, values, length = [""], [], 0
    for fragment in fragments:
        if isinstance(fragment, str):
            texts[-1] += fragment
            length += len(fragment)
        else:
            values.append(plain(fragment[0]))
            texts.append("")
            length += len(as_text(values[-1]))
        measure(length)
    return Code(tuple(texts), tuple(values))


def _value_at(path: tuple[str | int, ...], scope: Scope) -> Any:
    """The value at a path in plain data; MISSING if only the template can decide."""
    value: Any = scope
    for part in path:
        kind = type(value)
        if kind is dict or value is scope:
            value = value.get(part, MISSING)
        elif kind is list and type(part) is int and part < len(value):
            value = value[part]
        else:
            return MISSING
    return MISSING if hasattr(value, "plain") else value


def _without_forged_marks(value: Value, references: tuple[Reference, ...], scope: Scope) -> Value:
    """Disarm marks of secrets that an expression has put together from harmless texts."""
    if SECRET_OPEN[0] not in value if isinstance(value, str) else not may_hold_mark(value):
        return value
    names = {str(path[1]) for path, _, _ in references if path[0] == "secrets" and len(path) > 1}
    data = {name: part for name, part in scope.items() if isinstance(part, str | list | dict)}
    marks = [*map(secret_mark, names), *(mark[0] for mark in SECRET_MARK.finditer(to_json(data)))]
    genuine = "".join(marks)
    return with_texts(value, lambda text: disarmed(text, genuine))


# Errors


_RAW_HINT = "put literal {{ or {% between {% raw %} and {% endraw %}"
_SYNTAX_HINTS = {
    "&": "write: and",
    "|": "write: or; a single bar applies a filter",
    "!": "write: not",
    "?": "write: this if condition else that",
    "=": "write == to compare",
    "$": "write the name without $",
}
_TOO_DEEP = "the expression is nested too deeply"
_SHOWN = 80


class FragmentError(Exception):
    """An error in the use of a fragment, with the position of the fragment in the source."""

    def __init__(self, cause: Exception, position: int) -> None:
        super().__init__(str(cause))
        self.cause = cause
        self.position = position


def syntax_error(
    error: ExpressionError | TemplateSyntaxError | RecursionError, source: str
) -> ExpressionError:
    """The error for malformed source."""
    if isinstance(error, RecursionError):
        return ExpressionError(_TOO_DEEP, code="syntax")
    offset = error.offset if isinstance(error, ExpressionError) else error.lineno - 1
    offset = min(offset, max(len(source) - 1, 0))
    if isinstance(error, ExpressionError):
        error.offset = offset
        return error
    at_start = source[:offset].rstrip().endswith(("{{", "{%"))
    hint = _RAW_HINT if at_start else _SYNTAX_HINTS.get(source[offset : offset + 1], "")
    message = re.sub(r" at \d+$", "", error.message or "it is malformed")
    return ExpressionError(
        f"the expression cannot be read: {message}", hint=hint, offset=offset, code="syntax"
    )


def evaluation_error(
    error: Exception,
    source: str,
    references: Iterable[Reference],
    scope: Scope,
    limits: Limits,
) -> ExpressionError:
    """The ExpressionError for an error during evaluation."""
    position = line_of(error)
    if isinstance(error, FragmentError):
        position, error = error.position, error.cause
    offset = position - 1
    if isinstance(error, MissingName):
        return _undefined_name(error, offset, references, scope)
    if isinstance(error, ExpressionError):
        error.offset = offset
        return error
    if isinstance(error, TookTooLong):
        return ExpressionError(
            f"the expression took longer than {limits.expression_seconds:g} seconds and was stopped",
            hint=f"shorten its loops, or raise {limits.setting('expression_seconds')}",
            offset=offset,
            code=TOO_SLOW,
        )
    if isinstance(error, RecursionError):
        return ExpressionError(f"{_TOO_DEEP}, or a macro calls itself", offset=offset)
    hint = ""
    if isinstance(error, TooLong):
        hint = f"raise {limits.setting('expression_chars')} to allow it"
    elif isinstance(error, TypeError) and "concatenate" in str(error):
        hint = "use ~ to join values of any type as text"
    return ExpressionError(f"`{_excerpt(source, offset)}`: {_message_of(error)}", hint=hint, offset=offset)


def _excerpt(source: str, offset: int) -> str:
    """The line of an error, from its braces on."""
    start = source.rfind("\n", 0, offset) + 1
    start = max(start, source.rfind("{", 0, offset + 1) - 1)
    line = source[start:].split("\n", 1)[0].strip()
    return line if len(line) <= _SHOWN else line[: _SHOWN - 1] + "…"


_KINDS = {
    "datetime.datetime": "time",
    "datetime.date": "day",
    "str": "text",
    "int": "integer",
    "float": "number",
    "bool": "boolean",
    "dict": "object",
    "NoneType": "null",
    "builtin_function_or_method": "method",
    "function": "function",
}
_KIND = re.compile(rf"""['"]?\b({"|".join(_KINDS)})\b['"]?""")
_NO_LENGTH = re.compile(r"^object of type ('\w+') has no len\(\)$")


def _message_of(error: Exception) -> str:
    message = str(error) or type(error).__name__
    if isinstance(error, TypeError):
        message = _NO_LENGTH.sub(r"\1 has no length", message)
        return _KIND.sub(lambda found: _KINDS[found[1]], message)
    return message


# Errors: names that do not exist


_KINDS_OF_TIME = {datetime: "time", date: "day"}


def _undefined_name(
    error: MissingName, offset: int, references: Iterable[Reference], scope: Scope
) -> ExpressionError:
    """The error for an undefined name; it shows the whole reference if there is one."""
    owner, name = error.owner, error.name
    for reference in references:
        position, found_in = _first_missing(reference, scope)
        if position >= 0 and reference.path[position] == name and found_in is owner:
            parent = str(Reference(reference.path[:position], 0)) if position else ""
            message, hint = _nothing_there(parent, owner, name, scope)
            message = f"'{reference}' does not exist: {message}"
            return ExpressionError(message, hint=hint, offset=reference.offset, code="undefined")
    computed = next((root for root in ("state", "inputs") if owner is scope.get(root)), "")
    message, hint = _nothing_there(computed, owner, name, scope)
    if computed == "state":
        hint += f"{'; ' if hint else ''}a step sees only the fields in its needs_state"
    return ExpressionError(message, hint=hint, offset=offset, code="undefined")


def _first_missing(reference: Reference, scope: Scope) -> tuple[int, Any]:
    """The index of the first missing part of a reference, and its parent; -1 if nothing is missing."""
    value: Any = missing
    for position, part in enumerate(reference.path):
        if position == 0:
            if part not in scope:
                return 0, missing
            value = scope[str(part)]
        elif isinstance(value, Mapping) and str(part) in value:
            value = value[str(part)]
        elif isinstance(value, list | str) and isinstance(part, int) and part < len(value):
            value = value[part]
        else:
            return position, value
    return -1, value


def _nothing_there(parent: str, owner: Any, name: Any, scope: Scope) -> tuple[str, str]:
    """Message and hint for a `name` missing in `owner`; `parent` is the path of `owner` if known."""
    if owner is missing:
        for root in ("state", "inputs"):
            fields = scope.get(root)
            if isinstance(fields, dict) and name in fields:
                return f"there is no '{name}'", f"did you mean '{root}.{name}'?"
        known = [known for known in scope if not known.startswith("_")]
        return f"there is no '{name}'", did_you_mean(str(name), known, what="there is")
    here = f"'{parent}'" if parent else f"the {_KINDS_OF_TIME.get(type(owner)) or kind_of(owner)}"
    if isinstance(owner, Mapping):
        names = [str(known) for known in owner]
    elif hasattr(type(owner), "names"):
        names = owner.names()
    elif isinstance(owner, list | tuple) and isinstance(name, int):
        return f"{here} has no position {name}: it has {len(owner)} items", "positions count from 0"
    elif parent:
        return f"{here} is {kind_of(owner)}, it has no '{name}'", ""
    else:
        return f"{here} has no '{name}'", ""
    return f"{here} has no '{name}'", did_you_mean(str(name), names, what=f"{here} has")
