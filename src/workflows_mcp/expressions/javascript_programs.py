"""From the source of an expression to its value: written for the engine, given its scope, run within limits.

A program is a JavaScript function in two forms. The parameters of the short one are what the paths of the
source lead to, which are looked up before (`javascript_paths`). Those of the full one are the names that the
source reads; it is compiled when the program is made, so that what cannot be read is found then, and it is
run where only JavaScript knows what a path leads to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Any, NamedTuple

from workflows_mcp.errors import ExpressionError
from workflows_mcp.expressions.base import UNSET, Reference, Scope
from workflows_mcp.expressions.javascript_context import (
    Failed,
    Function,
    Given,
    Invalid,
    OutOfMemory,
    Stopped,
    compile_function,
    run_function,
)
from workflows_mcp.expressions.javascript_cuts import cut, looks_up
from workflows_mcp.expressions.javascript_faults import malformed, no_such_name, told, too_large_to_send
from workflows_mcp.expressions.javascript_names import free_names, mentions, refused
from workflows_mcp.expressions.javascript_paths import UNCLEAR, found
from workflows_mcp.expressions.javascript_rewriting import Edit, Writer, Written, starts_of_last
from workflows_mcp.expressions.javascript_source import Source, unreadable
from workflows_mcp.expressions.javascript_values import decoded, encoded, sent, wanted
from workflows_mcp.limits import DEFAULT_LIMITS, Limits
from workflows_mcp.values import SECRET_OPEN, Value, disarmed, with_texts

LIMITS_NAME, NOW_NAME, SEED_NAME = "__limits__", "__now__", "__seed__"
OUTPUT = "output"
"""What a check calls the result."""
_GIVES_VALUE = ("return", "throw", "while", "for", "do")
"""Of what is no expression: what gives a value, or never ends."""

Edits = Sequence[Edit]
Body = Callable[[Writer, Sequence[Edits]], None]
"""Writes the body of a function, with the edits that are to be made in each of its sources."""


def limits_of(scope: Scope) -> Limits:
    limits: Limits = scope.get(LIMITS_NAME, DEFAULT_LIMITS)
    return limits


class Form(NamedTuple):
    """One way of writing a program."""

    function: Function
    written: Written
    checking: Written | None


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
        self._wanted = wanted(self._free)
        self._names = [name for name in self._wanted if name != "this"]
        self._takes_time = any(mentions(source, "Date", "now") for source in every)
        self._takes_chance = any(mentions(source, "random", "uuid") for source in every)
        self.references = tuple(Reference(free.path, free.offset, free.optional) for free in self._free)

        uncut: list[Edits] = [()] * len(every)
        finds = any(map(looks_up, every))
        self._full = self._short = _form(self._names, body, check, uncut, finds)
        self._parameters, edits = cut(list(zip(every, names, strict=True)))
        if any(edits):
            parameters = [parameter.name for parameter in self._parameters if parameter.name != "this"]
            self._short = _form(parameters, body, check, edits, any(map(looks_up, every, edits)))

    def compile(self) -> None:
        """Raises ExpressionError if it cannot be read."""
        try:
            compile_function(self._full.function, DEFAULT_LIMITS.javascript_bytes)
        except Failed as error:
            raise malformed(error, *self._place_of(error, self._full)) from None
        except (OutOfMemory, Stopped):
            raise unreadable("it is too large, or nested too deeply", 0) from None

    def run(self, scope: Scope) -> Value:
        """Its value as JSON data. Raises ExpressionError."""
        limits = limits_of(scope)
        form, values, this = self._given(scope)
        given = self._written(values, this, scope, limits)
        try:
            result = run_function(form.function, given, limits.expression_seconds, limits.javascript_bytes)
            value = None if result is None else decoded(result)
        except (Failed, Invalid, OutOfMemory, Stopped) as error:
            raise told(error, *self._place_of(error, form), limits) from None
        except (RecursionError, ValueError) as error:
            problem = Failed(f"the result is nested too deeply, or no JSON data: {error}")
            raise told(problem, self._text, form.written, limits) from None
        if result is not None and SECRET_OPEN[0] in result:
            # an expression can put together what looks like the mark of a secret
            return with_texts(value, lambda text: disarmed(text, given.values))
        return value

    def _place_of(self, error: Exception, form: Form) -> tuple[str, Written]:
        """The source that an error arose in."""
        in_check = isinstance(error, Invalid) or (isinstance(error, Failed) and error.in_check)
        if in_check and form.checking is not None:
            return self._check_text, form.checking
        return self._text, form.written

    def _given(self, scope: Scope) -> tuple[Form, list[Any], Any]:
        """The arguments, and `this`: short if everything is clear."""
        values: list[Any] = []
        this = None
        for name, free, steps, goes_on in self._parameters:
            value = found(free, steps, scope, goes_on)
            if value is UNCLEAR:
                this = self._value("this", scope) if "this" in self._wanted else None
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
                return value if value is UNSET else sent(value, self._wanted[name])
        needed = [free for free in self._free if free.name == name and not free.may_lack]
        if needed:
            raise no_such_name(name, needed[0].offset, scope)
        return UNSET

    def _written(self, values: list[Any], this: Any, scope: Scope, limits: Limits) -> Given:
        undefined = [position for position, value in enumerate(values) if value is UNSET]
        for position in undefined:
            values[position] = None
        try:
            text = encoded([values, undefined, None if this is UNSET else this])
        except (TypeError, ValueError, RecursionError) as error:
            message = f"a value that is read is not JSON data: {error}"
            raise ExpressionError(message, code="javascript") from None
        if len(text) > limits.javascript_bytes // 4:
            raise too_large_to_send(self._text, len(text), limits)
        now = scope.get(NOW_NAME) if self._takes_time else None
        seed = scope.get(SEED_NAME) if self._takes_chance else None
        return Given(text, now, sha256(str(seed).encode()).hexdigest()[:32] if seed is not None else "")


def _form(
    names: Sequence[str], body: Body, check: Source | None, edits: Sequence[Edits], finds: bool
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
    function = Function(written.text, checking.text if checking is not None else "", finds)
    return Form(function, written, checking)


# What a program is written as


def of_value(text: str, source: Source) -> Program:
    def body(writer: Writer, edits: Sequence[Edits]) -> None:
        writer.add("return (\n")
        writer.add_source(source, edits[0])
        writer.add("\n);")

    return Program(text, [source], body)


def of_values(text: str, sources: Sequence[Source]) -> Program:
    """A program that gives the list of all values."""

    def body(writer: Writer, edits: Sequence[Edits]) -> None:
        writer.add("return [")
        for source, edits_there in zip(sources, edits, strict=True):
            writer.add("(\n")
            writer.add_source(source, edits_there)
            writer.add("\n),")
        writer.add("];")

    return Program(text, sources, body)


def of_transform(text: str, source: Source, check: Source | None) -> Program:
    """A compiled program of what may be written as an expression, as a body, or as statements that end in an
    expression: the first of them that can be read."""
    if not source.tokens:
        raise ExpressionError("the transform is empty", hint="it makes a value of 'input'", code="syntax")
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
    if not any(source.word(index) in _GIVES_VALUE for index in range(len(source.tokens))):
        hint = "let it end in an expression, or write return before its value"
        raise ExpressionError("the transform gives no value", hint=hint, code="syntax")
    return program


def _statements(source: Source, last: int | None = None) -> Body:
    """Statements, the last of which may be an expression that begins at `last`."""

    def body(writer: Writer, edits: Sequence[Edits]) -> None:
        if last is None:
            writer.add_source(source, edits[0])
            return
        gives = Edit(last, last, "\nreturn (\n", first=True)
        writer.add_source(source, [*edits[0], gives], _end(source))
        writer.add("\n);")

    return body


def _end(source: Source) -> int:
    """Where the last statement ends, without its semicolon."""
    index = len(source.tokens) - 1
    while index > 0 and source.sign(index) == ";":
        index -= 1
    return source.tokens[index].end
