"""Implements the JavaScript language of the reactive dialect: `{{ expression }}`, conditions, transforms.

    JavaScript().template("{{ files.length }}").evaluate({"files": ["a"]})                       # 1
    JavaScript().condition("has_errors && retry_count < 5").evaluate({…})                        # True
    JavaScript().transform("input.filter(f => f.endsWith('.ts'))").evaluate({"input": […]})
    JavaScript().code("cat {{ path }}").evaluate({"path": "a b"})          # Code(("cat ", ""), ("a b",))

A template that is exactly one expression returns its value as JSON data; any other template returns text.
Expressions see their scope and the JavaScript language, nothing else. They keep no state between evaluations
and return the same for the same scope. Syntax errors are found at load.

A scope may also hold the time for `now()` and `new Date()` (`__now__`), the seed for random numbers
(`__seed__`) and the limits of the server (`__limits__`).
"""

from __future__ import annotations

from functools import lru_cache

from workflows_mcp.errors import ExpressionError
from workflows_mcp.expressions.javascript.engine import as_text, too_long, truth
from workflows_mcp.expressions.javascript.programs import (
    UNCLEAR,
    Simple,
    limits_of,
    of_transform,
    of_value,
    of_values,
    simple,
)
from workflows_mcp.expressions.javascript.syntax import Part, Source, read, split
from workflows_mcp.expressions.language import (
    BOOLEAN,
    STRING,
    UNSET,
    Code,
    CodeTemplate,
    Constant,
    ConstantCode,
    Expression,
    Kinds,
    KindsAt,
    Scope,
    braces,
)
from workflows_mcp.values import SECRET_OPEN, Value, disarmed

_CACHED = 4096
_CONDITION_HINT = "a condition is one expression: {{ … }}, or the same without braces"


class ValueExpression:
    """Exactly one expression: its value keeps its type."""

    __slots__ = ("_program", "_simple", "references", "source")

    def __init__(self, text: str, source: Source) -> None:
        self.source = text
        self._simple = simple(source)
        self._program = of_value(text, source)
        self.references = self._program.references
        if self._simple is None:
            self._program.compile()

    def kinds(self, at: KindsAt) -> Kinds | None:
        return None if self._simple is None else self._simple.kinds(at)

    def evaluate(self, scope: Scope) -> Value:
        if self._simple is not None:
            value = self._simple.evaluate(scope)
            if value is not UNCLEAR:
                return None if value is UNSET else value
        return self._program.run(scope)


class TruthExpression(ValueExpression):
    """A condition."""

    __slots__ = ()

    def kinds(self, at: KindsAt) -> Kinds | None:
        return BOOLEAN

    def evaluate(self, scope: Scope) -> Value:
        return truth(super().evaluate(scope))


class Transform:
    """JavaScript that turns `input` into a value.

    It is an expression, a body with `return`, or statements that end in an expression. If there is
    `validate`, it must be true for the result, which it can read as `output`.
    """

    __slots__ = ("_program", "references", "source")

    def __init__(self, text: str, validate: str) -> None:
        self.source = text
        self._program = of_transform(text, read(text), read(validate) if validate.strip() else None)
        self.references = self._program.references

    def evaluate(self, scope: Scope) -> Value:
        return self._program.run(scope)


class _Interpolated:
    """Text with expressions in it."""

    __slots__ = ("_program", "_simple", "_texts", "references", "source")

    def __init__(self, text: str, parts: list[Part]) -> None:
        texts, sources = [""], []
        for part in parts:
            if part.source is None:
                texts[-1] += part.text
            else:
                sources.append(part.source)
                texts.append("")
        self.source = text
        self._texts = tuple(texts)
        self._program = of_values(text, sources)
        self.references = self._program.references
        found = [simple(source) for source in sources]
        self._simple: list[Simple] | None = [one for one in found if one is not None]
        if len(self._simple) < len(sources):
            self._simple = None
            self._program.compile()

    def _values(self, scope: Scope) -> list[Value]:
        if self._simple is not None:
            values = [one.evaluate(scope) for one in self._simple]
            if UNCLEAR not in values:
                return [None if value is UNSET else value for value in values]
        found: list[Value] = self._program.run(scope)
        return found


class TextExpression(_Interpolated):
    __slots__ = ()

    def kinds(self, at: KindsAt) -> Kinds | None:
        return STRING

    def evaluate(self, scope: Scope) -> Value:
        values = [as_text(value) for value in self._values(scope)]
        text = self._texts[0] + "".join(
            value + following for value, following in zip(values, self._texts[1:], strict=True)
        )
        limits = limits_of(scope)
        if len(text) > limits.expression_chars:
            raise too_long(self.source, len(text), limits)
        # a mark put together from texts and values is not the mark of a secret
        return disarmed(text, "\n".join(values)) if SECRET_OPEN[0] in text else text


class JavaScriptCode(_Interpolated):
    """A command: its text and the values in it stay apart."""

    __slots__ = ()

    @property
    def known_texts(self) -> tuple[str, ...]:
        return self._texts

    def offset(self, number: int) -> int:
        return braces(self.source, number)

    def evaluate(self, scope: Scope) -> Code:
        return Code(self._texts, tuple(self._values(scope)))


class JavaScript:
    """The language; it has no state, its results are cached by source."""

    resolves_keys = True

    def is_dynamic(self, text: str) -> bool:
        return "{{" in text

    @staticmethod
    @lru_cache(maxsize=_CACHED)
    def template(text: str) -> Expression:
        if "{{" not in text:
            return Constant(text)
        parts = split(text)
        only = _only(parts)
        exact = text.removesuffix("\n")  # the line break that a block of YAML ends with
        if only is None or exact != exact.strip():
            return TextExpression(text, parts)
        return ValueExpression(text, only)

    @staticmethod
    @lru_cache(maxsize=_CACHED)
    def condition(text: str) -> Expression:
        if not text.strip():
            raise ExpressionError("the condition is empty", hint=_CONDITION_HINT, code="syntax")
        braced = text.lstrip().startswith("{{")
        try:
            only = _only(split(text)) if braced else read(text)
            if only is not None and (only.tokens or braced):
                return TruthExpression(text, only)
        except ExpressionError:
            if braced or "{{" not in text:
                raise
        raise ExpressionError(
            "the condition is text with expressions in it, which would always be true",
            hint=_CONDITION_HINT,
            offset=max(text.find("{{", 1), 0),
            code="syntax",
        )

    @staticmethod
    def output(text: str) -> Expression:
        return JavaScript.template(text)

    @staticmethod
    @lru_cache(maxsize=_CACHED)
    def code(text: str) -> CodeTemplate:
        return JavaScriptCode(text, split(text)) if "{{" in text else ConstantCode(text)

    @staticmethod
    @lru_cache(maxsize=_CACHED)
    def transform(text: str, validate: str = "") -> Transform:
        return Transform(text, validate)

    @staticmethod
    def pieces(text: str) -> tuple[str, ...]:
        """The sources of the expressions in a template, with their braces."""
        return tuple("{{" + part.text + "}}" for part in split(text) if part.source is not None)


class OldJavaScript(JavaScript):
    """The language of plans before version 3.

    White space around a single expression is ignored, and the keys of mappings are text.
    """

    resolves_keys = False

    @staticmethod
    @lru_cache(maxsize=_CACHED)
    def template(text: str) -> Expression:
        padded = text != text.strip() and "{{" in text and _only(split(text)) is not None
        return JavaScript.template(text.strip() if padded else text)

    @staticmethod
    def output(text: str) -> Expression:
        return OldJavaScript.template(text)


def _only(parts: list[Part]) -> Source | None:
    """The expression, if there is exactly one, with only white space around it."""
    sources = [part.source for part in parts if part.source is not None]
    has_text = any(part.text.strip() for part in parts if part.source is None)
    return sources[0] if len(sources) == 1 and not has_text else None
