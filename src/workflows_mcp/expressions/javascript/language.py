"""Implements the JavaScript language of the reactive dialect: `{{ expression }}`, conditions, transforms.

    JavaScript().template("{{ files.length }}").evaluate({"files": ["a"]})                       # 1
    JavaScript().condition("has_errors && retry_count < 5").evaluate({…})                        # True
    JavaScript().transform("input.filter(f => f.endsWith('.ts'))").evaluate({"input": […]})
    JavaScript().code("cat {{ path }}").evaluate({"path": "a b"})          # Code(("cat ", ""), ("a b",))

A template that is exactly one expression returns its value as JSON data; any other template returns text.
Expressions see their scope and the JavaScript language, nothing else. They keep no state between evaluations
and return the same for the same scope. Syntax errors are found at load.

An expression becomes a function whose parameters are the names that it reads. Of each value, only what is
read is given to JavaScript:

    results[item].errors > limit      ->      function (results, item, limit) { … return ( … ); }
                                              {"results": {"a.ts": {"errors": 3}}, "item": "a.ts", "limit": 2}

Most expressions in workflows are only a path or a literal. They are evaluated in Python, in a fraction of the
time. Where that needs JavaScript (a member of a text, a member of null), the function runs.

A scope may also hold the time for `now()` and `new Date()` (`__now__`), the seed for random numbers
(`__seed__`) and the limits of the server (`__limits__`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from hashlib import sha256
from typing import Any, NamedTuple, TypeAlias

from workflows_mcp.errors import ExpressionError
from workflows_mcp.expressions.javascript.engine import (
    Arguments,
    Failed,
    Function,
    Invalid,
    OutOfMemory,
    Stopped,
    as_text,
    compile_function,
    decoded,
    encoded,
    no_such_name,
    run_function,
    too_large_to_send,
    too_long,
    truth,
)
from workflows_mcp.expressions.javascript.syntax import (
    Analysis,
    Free,
    Part,
    Source,
    Written,
    fault_of,
    literal_text,
    read,
    read_check,
    read_transform,
    returns_nothing,
    split,
    words,
)
from workflows_mcp.expressions.language import (
    BOOLEAN,
    KIND_NAMES,
    MISSING,
    STRING,
    UNSET,
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
from workflows_mcp.values import SECRET_OPEN, Value, disarmed, with_texts

_CACHED = 4096
_CONDITION_HINT = "a condition is one expression: {{ … }}, or the same without braces"


# Expressions


class ValueExpression:
    """Exactly one expression: its value keeps its type."""

    __slots__ = ("_program", "_simple", "references", "source")

    def __init__(self, text: str, source: Source) -> None:
        self.source = text
        self._program = Program(text, [source])
        self._simple = self._program.simple[0]
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
        self._program = _transform(text, read_check(validate) if validate.strip() else None)
        self.references = self._program.references

    def evaluate(self, scope: Scope) -> Value:
        return self._program.run(scope)


def _transform(text: str, check: Source | None) -> Program:
    """Compile the first reading of a transform that is valid."""
    problems = []
    for source in read_transform(text):
        if not source.is_sound:
            problems.append(fault_of(source))
            continue
        program = Program(text, [source], check=check)
        try:
            program.compile()
        except ExpressionError as error:
            problems.append(error)
            continue
        if returns_nothing(source):
            hint = "end it with an expression, or write return before its value"
            raise ExpressionError("the transform returns no value", hint=hint, code="syntax")
        return program
    raise max(problems, key=lambda problem: problem.offset)


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
        self._program = Program(text, sources, listed=True)
        self.references = self._program.references
        self._simple: list[Simple] | None = [one for one in self._program.simple if one is not None]
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
            if only is not None:
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


# Programs


LIMITS_NAME, NOW_NAME, SEED_NAME = "__limits__", "__now__", "__seed__"
OUTPUT = "output"
"""The name of the result in a check."""
_VARYING = re.compile(r"Date|now|random|uuid")
"""What reads the time, or random numbers."""


def limits_of(scope: Scope) -> Limits:
    limits: Limits = scope.get(LIMITS_NAME, DEFAULT_LIMITS)
    return limits


class Program:
    """A function made of sources: it returns the value of the one, or the list of their values."""

    def __init__(
        self, text: str, sources: Sequence[Source], *, listed: bool = False, check: Source | None = None
    ) -> None:
        every = [*sources, check] if check is not None else list(sources)
        analyses = [Analysis(source) for source in every]
        free = [one for analysis in analyses[: len(sources)] for one in analysis.free]
        if check is not None:
            free += [one for one in analyses[-1].free if one.name != OUTPUT]
        self.references = tuple(Reference(one.path, one.offset, one.optional) for one in free)
        self.simple = [simple(source, analysis) for source, analysis in zip(every, analyses, strict=True)]
        self._free = free
        self._members = members_read(one.path for one in free)
        self._is_computed = any(len(one.path) <= len(one.steps) for one in free)
        self._names = [name for name in self._members if name != "this"]
        self._varies = any(_VARYING.search(source.code) is not None for source in every)

        self._written = Written(text, f"function ({', '.join(self._names)}) {{ 'use strict';\n")
        self._written.text += "return [" if listed else ""
        for source, analysis in zip(sources, analyses, strict=False):
            self._written.add_source(source, analysis.edits, "" if listed else "return ")
            self._written.text += "," if listed else ";"
        self._written.text += "];\n}" if listed else "\n}"
        self._check = self._written
        if check is not None:
            names = ["__output" if name == OUTPUT else name for name in self._names]
            self._check = Written(check.text, f"function ({', '.join([*names, OUTPUT])}) {{ 'use strict';\n")
            self._check.add_source(check, analyses[-1].edits, "return ")
            self._check.text += ";\n}"
        self._function = Function(self._written.text, self._check.text if check is not None else "")
        shortest = {one.name: len(one.steps) for one in sorted(free, key=lambda one: -len(one.steps))}
        self._finds_keys = any(analysis.finds_keys for analysis in analyses) or any(
            one.is_spelled and shortest[one.name] < len(one.steps) for one in free
        )

    def compile(self) -> None:
        """Compile it; raises ExpressionError for a syntax error."""
        try:
            compile_function(self._function, DEFAULT_LIMITS.javascript_bytes)
        except (Failed, OutOfMemory, Stopped) as error:
            raise self._place_of(error).syntax_error(error) from None

    def run(self, scope: Scope) -> Value:
        """Its value as JSON data. Raises ExpressionError."""
        limits = limits_of(scope)
        arguments = self._arguments(scope, limits)
        try:
            seconds, max_bytes = limits.expression_seconds, limits.javascript_bytes
            result = run_function(self._function, arguments, seconds, max_bytes)
            value = None if result is None else decoded(result)
        except (Failed, Invalid, OutOfMemory, Stopped) as error:
            raise self._place_of(error).evaluation_error(error, limits) from None
        except (RecursionError, ValueError) as error:
            problem = Failed(f"the result is nested too deeply, or is not JSON data: {error}")
            raise self._written.evaluation_error(problem, limits) from None
        if result is not None and SECRET_OPEN[0] in result:
            # an expression can forge the mark of a secret
            return with_texts(value, lambda text: disarmed(text, arguments.values))
        return value

    def _place_of(self, error: Exception) -> Written:
        in_check = isinstance(error, Invalid) or (isinstance(error, Failed) and error.in_check)
        return self._check if in_check else self._written

    def _arguments(self, scope: Scope, limits: Limits) -> Arguments:
        members, finds_keys = self._members, self._finds_keys
        if self._is_computed:
            paths = [_path_in(one, scope) for one in self._free]
            members = members_read(paths)
            finds_keys |= any(
                len(path) <= len(one.steps) for path, one in zip(paths, self._free, strict=True)
            )
        values = [self._value(name, members, scope) for name in self._names]
        this = self._value("this", members, scope) if "this" in members else None
        undefined = [position for position, value in enumerate(values) if value is UNSET]
        for position in undefined:
            values[position] = None
        try:
            text = encoded([values, undefined, None if this is UNSET else this, finds_keys])
        except (TypeError, ValueError, RecursionError) as error:
            message = f"a value in its scope is not JSON data: {error}"
            raise ExpressionError(message, code="javascript") from None
        if len(text) > limits.javascript_bytes // 4:
            raise too_large_to_send(self._written.source, len(text), limits)
        if not self._varies:
            return Arguments(text)
        seed = scope.get(SEED_NAME)
        digest = sha256(str(seed).encode()).hexdigest()[:32] if seed is not None else ""
        return Arguments(text, scope.get(NOW_NAME), digest)

    def _value(self, name: str, members: Mapping[str, Members], scope: Scope) -> Any:
        if not name.startswith("_"):
            try:
                value = scope[name]
            except KeyError:
                pass
            else:
                return value if value is UNSET else pick(value, members[name])
        for free in self._free:
            if free.name == name and not free.may_be_missing:
                raise no_such_name(name, free.offset, scope)
        return UNSET


# The part of the scope that a program reads


Members: TypeAlias = "dict[str | int, Members] | None"
"""The members of a value that are read, each with its own members; None is the whole value."""


def members_read(paths: Iterable[Sequence[str | int]]) -> dict[str, Members]:
    """The members that are read, by name."""
    names: dict[str | int, Members] = {}
    for *before, last in paths:
        members: Members = names
        for part in before:
            if members is not None:
                members = members.setdefault(part, {})
        if members is not None:
            members[last] = None
    return {str(name): members for name, members in names.items()}


def _path_in(free: Free, scope: Scope) -> list[str | int]:
    """The path with the keys that other paths have now, up to one that only JavaScript can read."""
    path: list[str | int] = [free.name]
    for key, _ in free.steps:
        part = resolve(key, scope) if isinstance(key, Free) else key
        if type(part) is not str and type(part) is not int:
            break
        path.append(part)
    return path


def pick(value: Any, members: Members) -> Any:
    """The part of a value that is read, as an object with the keys that it is read by."""
    if members is not None and value is not None:
        read = {}
        for key, inside in members.items():
            member = _member(value, key)
            if member is UNCLEAR:
                break
            if member is not UNSET:
                read[str(key)] = pick(member, inside)
        else:
            return read
    return value.plain() if hasattr(value, "plain") else value


_NOT_OF_KEYS = re.compile(r"[^A-Za-z0-9_]")


def path_to_key(text: str) -> str:
    """A path as a key that needs no quotes."""
    return _NOT_OF_KEYS.sub("_", text)


# Paths and literals evaluated without JavaScript


class _Unclear:
    __slots__ = ()


UNCLEAR: Any = _Unclear()
_CONSTANTS: dict[str, Any] = {"true": True, "false": False, "null": None, "undefined": UNSET}
_DECIMAL = re.compile(r"(?:0|[1-9][0-9]{0,14})(?:\.[0-9]{1,12})?")
_OF_EVERY_OBJECT = words(
    """constructor hasOwnProperty isPrototypeOf propertyIsEnumerable toLocaleString toString valueOf toJSON
    __proto__ __defineGetter__ __defineSetter__ __lookupGetter__ __lookupSetter__"""
)


class Simple(NamedTuple):
    """A path or a literal, and the number of negations."""

    free: Free | None
    literal: Any
    negations: int

    def kinds(self, at: KindsAt) -> Kinds | None:
        """The possible types of the value; undefined counts as null."""
        if self.negations:
            return BOOLEAN
        if self.free is None:
            return frozenset({KIND_NAMES.get(type(self.literal), "null")})
        return at(self.free.path) if len(self.free.path) == len(self.free.steps) + 1 else None

    def evaluate(self, scope: Scope) -> Any:
        """The value; UNSET if undefined; UNCLEAR if only JavaScript can tell."""
        value = self.literal if self.free is None else resolve(self.free, scope)
        if value is UNCLEAR or not self.negations:
            return value
        return truth(value) is (self.negations % 2 == 0)


def simple(source: Source, analysis: Analysis) -> Simple | None:
    """The expression, if it is simple."""
    node, negations = source.whole, 0
    while node is not None and node.type == "unary_expression" and node.children[0].type == "!":
        node, negations = node.child_by_field_name("argument"), negations + 1
    if node is None:
        return None
    if node.type in _CONSTANTS:
        return Simple(None, _CONSTANTS[node.type], negations)
    if (free := analysis.paths.get(node.id)) is not None:
        return Simple(free, None, negations)
    text = source.text_of(node)
    literal: Any = _number(text) if node.type == "number" else literal_text(node, text)
    return None if literal is None else Simple(None, literal, negations)


def _number(text: str) -> int | float | None:
    if _DECIMAL.fullmatch(text) is None:
        return None
    return whole_or_not(float(text)) if "." in text else int(text)


def whole_or_not(number: float) -> int | float:
    """2 for 2.0: JavaScript has one type of numbers."""
    return int(number) if number.is_integer() and abs(number) < 2**53 else number


def resolve(free: Free, scope: Scope) -> Any:
    """The value of a path; UNSET if undefined, UNCLEAR if only JavaScript can tell."""
    if free.name.startswith("_"):
        return UNCLEAR
    try:
        value: Any = scope[free.name]
    except KeyError:
        return UNCLEAR
    for key, asked in free.steps:
        if value is None or value is UNSET:
            return UNSET if asked else UNCLEAR
        part = resolve(key, scope) if isinstance(key, Free) else key
        value = _member(value, part) if type(part) is str or type(part) is int else UNCLEAR
        if value is UNCLEAR:
            return UNCLEAR
    if type(value) is float:
        return whole_or_not(value) if value - value == 0 else None
    return value.plain() if hasattr(value, "plain") else value


def _member(value: Any, key: str | int) -> Any:
    """A member of something that is neither null nor undefined."""
    if key in _OF_EVERY_OBJECT:
        return UNCLEAR
    if type(value) is dict or isinstance(value, Mapping):
        text = key if type(key) is str else str(key)
        member = value.get(text, UNSET)
        return value.get(path_to_key(text), UNSET) if member is UNSET else member
    if isinstance(value, list):
        if type(key) is int:
            return value[key] if 0 <= key < len(value) else UNSET
        return len(value) if key == "length" else UNCLEAR
    if type(value) is str and key == "length":
        return len(value) if value.isascii() else len(value.encode("utf-16-le", "surrogatepass")) // 2
    if hasattr(value, "lookup"):
        member = value.lookup(key)
        return UNSET if member is MISSING else member
    return UNCLEAR
