"""Turns the source of an expression into a JavaScript function, and evaluates it on a scope.

    results[item].errors > limit      ->      function (__p0, limit) { … return ( __p0 > limit ); }

A program has two forms. The parameters of the short form are the values of the paths in the source, which are
looked up in Python. The parameters of the full form are the names that the source reads; it is compiled when
the program is created, which reports syntax errors, and runs where a path needs the rules of JavaScript.
Where one path extends another (`items` and `items.length`), only the shorter one becomes a parameter:
whatever changes one of them changes the other.

Most expressions in workflows are only a path or a literal. They are evaluated in Python, in a fraction of the
time. Where that needs JavaScript (a member of a text, a member of null), the result is UNCLEAR and the full
form runs.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import Any, NamedTuple

from workflows_mcp.errors import ExpressionError
from workflows_mcp.expressions.javascript.engine import (
    Arguments,
    Failed,
    Function,
    Invalid,
    OutOfMemory,
    Stopped,
    compile_function,
    decoded,
    encoded,
    evaluation_error,
    members_read,
    no_such_name,
    path_to_key,
    pick,
    run_function,
    syntax_error,
    too_large_to_send,
    truth,
)
from workflows_mcp.expressions.javascript.syntax import (
    Edit,
    Free,
    Source,
    Writer,
    Written,
    free_names,
    literal_text,
    mentions,
    refused,
    starts_of_last,
    unreadable,
    words,
)
from workflows_mcp.expressions.language import (
    BOOLEAN,
    KIND_NAMES,
    MISSING,
    UNSET,
    Kinds,
    KindsAt,
    Reference,
    Scope,
)
from workflows_mcp.limits import DEFAULT_LIMITS, Limits
from workflows_mcp.values import SECRET_OPEN, Value, disarmed, with_texts

LIMITS_NAME, NOW_NAME, SEED_NAME = "__limits__", "__now__", "__seed__"
OUTPUT = "output"
"""The name of the result in a check."""
_RETURNING = ("return", "throw", "while", "for", "do")
"""Words of statements that return a value or never end."""

Edits = Sequence[Edit]
Body = Callable[[Writer, Sequence[Edits]], None]
"""Writes the body of a function, with edits for each of its sources."""


# Programs by what they are written as


def of_value(text: str, source: Source) -> Program:
    def body(writer: Writer, edits: Sequence[Edits]) -> None:
        writer.add("return (\n")
        writer.add_source(source, edits[0])
        writer.add("\n);")

    return Program(text, [source], body)


def of_values(text: str, sources: Sequence[Source]) -> Program:
    """A program that returns the list of all values."""

    def body(writer: Writer, edits: Sequence[Edits]) -> None:
        writer.add("return [")
        for source, edits_there in zip(sources, edits, strict=True):
            writer.add("(\n")
            writer.add_source(source, edits_there)
            writer.add("\n),")
        writer.add("];")

    return Program(text, sources, body)


def of_transform(text: str, source: Source, check: Source | None) -> Program:
    """A compiled transform: an expression, a body, or statements that end in an expression.

    The first reading that compiles is used.
    """
    if not source.tokens:
        hint = "write JavaScript that returns a value made from 'input'"
        raise ExpressionError("the transform is empty", hint=hint, code="syntax")
    problems = []
    for start in (source.tokens[0].start, *starts_of_last(source)):
        program = Program(text, [source], _statements(source, start), check)
        try:
            program.compile()
        except ExpressionError as error:
            problems.append(error)
        else:
            return program
    program = Program(text, [source], _statements(source), check)
    try:
        program.compile()
    except ExpressionError as error:
        raise max(*problems, error, key=lambda problem: problem.offset) from None
    if not any(source.word(index) in _RETURNING for index in range(len(source.tokens))):
        hint = "end it with an expression, or write return before its value"
        raise ExpressionError("the transform returns no value", hint=hint, code="syntax")
    return program


def _statements(source: Source, last: int | None = None) -> Body:
    """Statements; the last one may be an expression that starts at `last`."""

    def body(writer: Writer, edits: Sequence[Edits]) -> None:
        if last is None:
            writer.add_source(source, edits[0])
            return
        returning = Edit(last, last, "\nreturn (\n", first=True)
        writer.add_source(source, [*edits[0], returning], _end(source))
        writer.add("\n);")

    return body


def _end(source: Source) -> int:
    """The end of the last statement, without its semicolon."""
    index = len(source.tokens) - 1
    while index > 0 and source.sign(index) == ";":
        index -= 1
    return source.tokens[index].end


# A program


def limits_of(scope: Scope) -> Limits:
    limits: Limits = scope.get(LIMITS_NAME, DEFAULT_LIMITS)
    return limits


class Program:
    def __init__(self, text: str, sources: Sequence[Source], body: Body, check: Source | None = None) -> None:
        every = [*sources, check] if check is not None else list(sources)
        for source in every:
            if (problem := refused(source)) is not None:
                raise problem
        names = [free_names(source) for source in every]
        if check is not None:
            names[-1] = [free for free in names[-1] if free.name != OUTPUT]
        self._text = text
        self._check_text = check.text if check is not None else ""
        self._free = tuple(free for in_source in names for free in in_source)
        self._members = members_read(self._free)
        self._names = [name for name in self._members if name != "this"]
        self._takes_time = any(mentions(source, "Date", "now") for source in every)
        self._takes_chance = any(mentions(source, "random", "uuid") for source in every)
        self.references = tuple(Reference(free.path, free.offset, free.optional) for free in self._free)

        uncut: list[Edits] = [()] * len(every)
        finds_keys = any(map(reads_computed_member, every))
        self._full = self._short = _form(self._names, body, check, uncut, finds_keys)
        self._parameters, edits = extract_parameters(list(zip(every, names, strict=True)))
        if any(edits):
            parameters = [parameter.name for parameter in self._parameters if parameter.name != "this"]
            self._short = _form(parameters, body, check, edits, any(map(reads_computed_member, every, edits)))

    def compile(self) -> None:
        """Compile the full form; raises ExpressionError for a syntax error."""
        try:
            compile_function(self._full.function, DEFAULT_LIMITS.javascript_bytes)
        except Failed as error:
            raise syntax_error(error, *self._place_of(error, self._full)) from None
        except (OutOfMemory, Stopped):
            raise unreadable("it is too large, or nested too deeply", 0) from None

    def run(self, scope: Scope) -> Value:
        """Its value as JSON data. Raises ExpressionError."""
        limits = limits_of(scope)
        form, values, this = self._arguments(scope)
        arguments = self._encode_arguments(values, this, scope, limits)
        try:
            seconds, max_bytes = limits.expression_seconds, limits.javascript_bytes
            result = run_function(form.function, arguments, seconds, max_bytes)
            value = None if result is None else decoded(result)
        except (Failed, Invalid, OutOfMemory, Stopped) as error:
            raise evaluation_error(error, *self._place_of(error, form), limits) from None
        except (RecursionError, ValueError) as error:
            problem = Failed(f"the result is nested too deeply, or is not JSON data: {error}")
            raise evaluation_error(problem, self._text, form.written, limits) from None
        if result is not None and SECRET_OPEN[0] in result:
            # an expression can forge the mark of a secret
            return with_texts(value, lambda text: disarmed(text, arguments.values))
        return value

    def _place_of(self, error: Exception, form: Form) -> tuple[str, Written]:
        """The source of an error."""
        in_check = isinstance(error, Invalid) or (isinstance(error, Failed) and error.in_check)
        if in_check and form.checking is not None:
            return self._check_text, form.checking
        return self._text, form.written

    def _arguments(self, scope: Scope) -> tuple[Form, list[Any], Any]:
        """The form to run, its arguments and `this`; the short form if all paths can be resolved."""
        values: list[Any] = []
        this = None
        for name, free, steps, continues in self._parameters:
            value = resolve(free, steps, scope, continues)
            if value is UNCLEAR:
                this = self._value("this", scope) if "this" in self._members else None
                return self._full, [self._value(name, scope) for name in self._names], this
            if name == "this":
                this = value
            else:
                values.append(value)
        return self._short, values, this

    def _value(self, name: str, scope: Scope) -> Any:
        if not name.startswith("_"):
            try:
                value = scope[name]
            except KeyError:
                pass
            else:
                return value if value is UNSET else pick(value, self._members[name])
        needed = [free for free in self._free if free.name == name and not free.may_be_missing]
        if needed:
            raise no_such_name(name, needed[0].offset, scope)
        return UNSET

    def _encode_arguments(self, values: list[Any], this: Any, scope: Scope, limits: Limits) -> Arguments:
        undefined = [position for position, value in enumerate(values) if value is UNSET]
        for position in undefined:
            values[position] = None
        try:
            text = encoded([values, undefined, None if this is UNSET else this])
        except (TypeError, ValueError, RecursionError) as error:
            message = f"a value in its scope is not JSON data: {error}"
            raise ExpressionError(message, code="javascript") from None
        if len(text) > limits.javascript_bytes // 4:
            raise too_large_to_send(self._text, len(text), limits)
        now = scope.get(NOW_NAME) if self._takes_time else None
        seed = scope.get(SEED_NAME) if self._takes_chance else None
        return Arguments(text, now, sha256(str(seed).encode()).hexdigest()[:32] if seed is not None else "")


class Form(NamedTuple):
    """A form of a program, as JavaScript."""

    function: Function
    written: Written
    checking: Written | None


def _form(
    names: Sequence[str], body: Body, check: Source | None, edits: Sequence[Edits], finds_keys: bool
) -> Form:
    writer = Writer(f"function ({', '.join(names)}) {{ 'use strict';\n")
    body(writer, edits)
    writer.add("\n}")
    written, checking = writer.written(), None
    if check is not None:
        renamed = ("__output" if name == OUTPUT else name for name in names)
        writer = Writer(f"function ({', '.join([*renamed, OUTPUT])}) {{ 'use strict';\nreturn (\n")
        writer.add_source(check, edits[-1], _end(check))
        writer.add("\n);\n}")
        checking = writer.written()
    function = Function(written.text, checking.text if checking is not None else "", finds_keys)
    return Form(function, written, checking)


# Paths replaced by parameters


Keys = tuple[object, ...]


class Parameter(NamedTuple):
    """The value after some steps of a path; after no step, it keeps the name of the path."""

    name: str
    free: Free
    steps: int
    continues: bool
    """JavaScript reads a member of it."""


def extract_parameters(
    sources: Sequence[tuple[Source, Sequence[Free]]],
) -> tuple[list[Parameter], list[list[Edit]]]:
    """The parameters, and for each source the edits that replace its paths with them."""
    shortest = _shortest([free for _, names in sources for free in names])
    parameters: dict[tuple[str, Keys], Parameter] = {}
    edits: list[list[Edit]] = []
    for source, names in sources:
        edits.append([])
        next_token = 0
        for free in names:
            if free.token < next_token:
                continue  # part of a path that was replaced
            keys = _keys(free)
            steps = next(length for length in range(len(keys) + 1) if keys[:length] in shortest[free.name])
            continues = free.continues or steps < len(keys)
            place = free.name, keys[:steps]
            known = parameters.get(place)
            if known is None:
                name = f"__p{len(parameters)}" if steps else free.name
                known = Parameter(name, free, steps, continues)
            parameters[place] = known._replace(continues=known.continues or continues)
            if steps:
                next_token = free.ends(steps)
                end = source.tokens[next_token - 1].end
                edits[-1].append(Edit(source.tokens[free.token].start, end, known.name))
    return list(parameters.values()), edits


def reads_computed_member(source: Source, replaced: Sequence[Edit] = ()) -> bool:
    """Whether JavaScript reads `object[key]` with a key that may have another spelling."""
    starts = [edit.start for edit in replaced]
    for index, held in source.holds.items():
        if held != "index":
            continue
        before = bisect_right(starts, source.tokens[index].start) - 1
        if before >= 0 and source.tokens[index].start < replaced[before].end:
            continue
        key = source.tokens[index + 1]
        fixed = source.partners[index] == index + 2 and key.kind in ("number", "string")
        if not fixed or (key.kind == "string" and not (literal_text(key) or "-").isidentifier()):
            return True
    return False


def _keys(free: Free) -> Keys:
    return tuple(("", key.name, *_keys(key)) if isinstance(key, Free) else key for key, _, _ in free.steps)


def _shortest(names: Sequence[Free]) -> dict[str, set[Keys]]:
    """The paths that do not extend another path, by name."""
    paths: dict[str, set[Keys]] = {}
    for free in names:
        paths.setdefault(free.name, set()).add(_keys(free))
    return {
        name: {keys for keys in every if not any(keys[:length] in every for length in range(len(keys)))}
        for name, every in paths.items()
    }


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
        value = self.literal if self.free is None else resolve(self.free, len(self.free.steps), scope)
        if value is UNCLEAR or not self.negations:
            return value
        return truth(value) is (self.negations % 2 == 0)


def simple(source: Source) -> Simple | None:
    """The expression, if it is simple."""
    tokens = source.tokens
    start = 0
    while source.sign(start) == "!":
        start += 1
    if start >= len(tokens) or tokens[start].kind not in ("name", "number", "string"):
        return None
    first = tokens[start]
    if len(tokens) == start + 1 and first.text in _CONSTANTS:
        return Simple(None, _CONSTANTS[first.text], start)
    if first.kind == "name":
        free = free_names(source)
        is_path = bool(free) and free[0].token == start and free[0].ends(len(free[0].steps)) == len(tokens)
        return Simple(free[0], None, start) if is_path else None
    if len(tokens) > start + 1:
        return None
    literal: Any = literal_text(first) if first.kind == "string" else _number(first.text)
    return None if literal is None else Simple(None, literal, start)


def _number(text: str) -> int | float | None:
    if _DECIMAL.fullmatch(text) is None:
        return None
    return whole_or_not(float(text)) if "." in text else int(text)


def whole_or_not(number: float) -> int | float:
    """2 for 2.0: JavaScript has one type of numbers."""
    return int(number) if number.is_integer() and abs(number) < 2**53 else number


def resolve(free: Free, steps: int, scope: Scope, continues: bool = False) -> Any:
    """The value after `steps` of a path; UNSET if undefined, UNCLEAR if only JavaScript can tell.

    If it `continues`, JavaScript reads more of it and must know whether a `?.` ended the path early.
    """
    if free.name.startswith("_"):
        return UNCLEAR
    try:
        value: Any = scope[free.name]
    except KeyError:
        return UNCLEAR
    for key, optional, _ in free.steps[:steps]:
        if value is None or value is UNSET:
            return UNSET if optional and not continues else UNCLEAR
        if isinstance(key, Free):
            part = resolve(key, len(key.steps), scope)
            value = _member(value, part) if type(part) is str or type(part) is int else UNCLEAR
        else:
            value = _member(value, key)
        if value is UNCLEAR:
            return UNCLEAR
    if type(value) is float:
        return whole_or_not(value) if value - value == 0 else None
    return value.plain() if hasattr(value, "plain") else value


def _member(value: Any, key: str | int) -> Any:
    """A member of something that is neither null nor undefined."""
    if key in _OF_EVERY_OBJECT:
        return UNCLEAR
    if isinstance(value, dict | Mapping):
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
