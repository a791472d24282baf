"""Runs JavaScript functions in QuickJS: one context per thread, without a host, within limits.

    function = Function("function (n) { return n + 1; }")
    run_function(function, Arguments("[[1], [], null]"), 5.0, 64 * 1024**2)       # "2"

A context is frozen when it is created (`prelude.js`), so expressions can share it. It is replaced after a
timeout, after it ran out of memory, and after many thousand runs. Compiled functions are cached. QuickJS is
imported on first use.

QuickJS measures the processor time of the whole process, and the prelude measures wall time. So a function
that was stopped although its own thread has hardly run is tried once more, with more time.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Mapping
from functools import cache
from importlib import resources
from math import isnan
from typing import Any, NamedTuple

import msgspec

from workflows_mcp.errors import TOO_LARGE, TOO_SLOW, ExpressionError
from workflows_mcp.expressions.deadline import PerThread, processor_seconds
from workflows_mcp.expressions.language import UNSET, Scope
from workflows_mcp.limits import Limits
from workflows_mcp.values import Value, did_you_mean, from_json, to_json

STACK_BYTES = 768 * 1024
OWN_BYTES = 4 * 1024 * 1024
"""The memory of the context and its compiled functions, in addition to that of a run."""
_MAX_RUNS = 50_000
_MAX_FUNCTIONS = 1_000
_MAX_CHARS = 200_000
_COMPILING_SECONDS = 5.0
_MAX_TRIES = 2
_RETRY_FACTOR = 4
"""The factor for the time of the second try, after other threads used up the first."""

_PLACE = re.compile(r"<input>:(\d+):(\d+)")


# Running a function


class Function(NamedTuple):
    """A JavaScript function as text."""

    text: str
    check: str = ""
    """A second function, called with the result as well, that returns whether it is valid."""


class Arguments(NamedTuple):
    """The arguments of a call."""

    values: str
    """JSON: the values, the indexes of undefined ones, `this`, and whether keys have other spellings."""
    now: float | None = None
    seed: str = ""
    """32 hexadecimal digits, or empty."""


class Stopped(Exception):
    """The function ran too long."""


class OutOfMemory(Exception):
    pass


class Failed(Exception):
    """An error in JavaScript, with its line and column in the function."""

    def __init__(self, message: str, place: tuple[int, int] | None = None, in_check: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.place = place
        self.in_check = in_check


class Invalid(Exception):
    """The check rejected the result."""

    def __init__(self, result: str) -> None:
        super().__init__(result)
        self.result = result


def compile_function(function: Function, max_bytes: int) -> None:
    """Compile a function; raises Failed for a syntax error."""
    try:
        _of_thread(max_bytes).compiled(function)
    except (Stopped, OutOfMemory):
        _contexts.value = None
        raise


def run_function(function: Function, arguments: Arguments, seconds: float, max_bytes: int) -> str | None:
    """Run a function. Returns JSON text, or None for undefined.

    Raises Stopped, OutOfMemory, Failed or Invalid.
    """
    allowed = seconds
    for tries in range(_MAX_TRIES):
        last = tries == _MAX_TRIES - 1
        context = _of_thread(max_bytes)
        began = processor_seconds()
        try:
            return context.run(function, arguments, allowed)
        except Stopped:
            _contexts.value = None
            if last or processor_seconds() - began > seconds / 2:
                raise
            allowed *= _RETRY_FACTOR
        except OutOfMemory:
            _contexts.value = None
            if last or context.runs == 1:  # earlier runs may have used the memory
                raise
    raise AssertionError("the last try returns or raises")


_contexts: PerThread[_Context] = PerThread()


def _of_thread(max_bytes: int) -> _Context:
    context = _contexts.value
    if context is None or context.runs >= _MAX_RUNS:
        context = _contexts.value = _Context()
    context.limit(max_bytes)
    return context


@cache
def _prelude() -> str:
    """The code that sets up a context, on one line: an error on any other line is in the expression."""
    return resources.files(__package__).joinpath("prelude.js").read_text("utf-8").replace("\n", " ")


class _Context:
    def __init__(self) -> None:
        import _quickjs  # not `quickjs`, which starts a thread when it is imported

        self.runs = 0
        self._errors: Any = (_quickjs.JSException, _quickjs.StackOverflow)
        self._engine: Any = _quickjs.Context()
        self._engine.set_max_stack_size(STACK_BYTES)
        self._evaluate: Any = self._engine.eval
        self._runner: Any = self._evaluate(_prelude())
        self._text_of: Any = self._evaluate("(function (made) { return made.toString(); })")
        self._functions: OrderedDict[Function, Any] = OrderedDict()
        self._chars = 0
        self._bytes = 0
        self._seconds = 0.0

    def limit(self, max_bytes: int) -> None:
        if max_bytes != self._bytes:
            self._bytes = max_bytes
            self._engine.set_memory_limit(max_bytes + OWN_BYTES)

    def run(self, function: Function, arguments: Arguments, seconds: float) -> str | None:
        self.runs += 1
        compiled_function = self.compiled(function)
        now = float("nan") if arguments.now is None else arguments.now * 1000.0
        if seconds != self._seconds:
            self._seconds = seconds
            self._engine.set_time_limit(seconds)
        try:
            result: str | None = compiled_function(arguments.values, now, arguments.seed, seconds)
        except self._errors as error:
            raise _error_from(str(error)) from None
        return result

    def compiled(self, function: Function) -> Any:
        compiled_function = self._functions.get(function)
        if compiled_function is not None:
            self._functions.move_to_end(function)
            return compiled_function
        compute = self._made(function.text)
        check = self._made(function.check, is_check=True) if function.check else None
        compiled_function = self._functions[function] = self._runner(compute, check)
        self._chars += len(function.text)
        while len(self._functions) > 1 and (
            len(self._functions) > _MAX_FUNCTIONS or self._chars > _MAX_CHARS
        ):
            oldest, _ = self._functions.popitem(last=False)
            self._chars -= len(oldest.text)
        return compiled_function

    def _made(self, text: str, is_check: bool = False) -> Any:
        self._seconds = _COMPILING_SECONDS
        self._engine.set_time_limit(_COMPILING_SECONDS)
        try:
            compiled_function = self._evaluate(f"({text})")
            if self._text_of(compiled_function) == text:
                return compiled_function
        except self._errors as error:
            fault = _error_from(str(error))
            if isinstance(fault, Failed):
                fault.in_check = is_check
            raise fault from None
        _contexts.value = None  # the source was more than one function
        raise Failed("SyntaxError: it is not one expression", in_check=is_check)


def _error_from(message: str) -> Exception:
    """The exception for an error message of the prelude's runner, or of the engine."""
    if message.startswith("["):
        try:
            kind, *rest = from_json(message.split("\n", 1)[0])
        except ValueError:
            return OutOfMemory(message)
        match kind:
            case "stopped":
                return Stopped()
            case "memory":
                return OutOfMemory()
            case "invalid":
                return Invalid(rest[0] if rest and rest[0] is not None else "undefined")
            case "thrown":
                text, in_check = rest
                return Failed(text, in_check=in_check)
            case _:
                name, text, stack, in_check = rest
                return Failed(f"{name}: {text}", _place(stack), in_check)
    if "interrupted" in message:
        return Stopped()
    if "Error:" not in message or "out of memory" in message:
        return OutOfMemory(message)
    text, _, stack = message.partition("\n")
    return Failed(text, _place(stack))


def _place(stack: str) -> tuple[int, int] | None:
    """The innermost place in the expression; the code of the prelude is on line 1."""
    for found in _PLACE.finditer(stack):
        if (line := int(found[1])) > 1:
            return line, int(found[2])
    return None


# Values for the engine, and values from it


_HALF = re.compile(r"(?<!\\)((?:\\\\)*)\\ud[89a-f][0-9a-f]{2}")
_GIANT = re.compile(r"\d{19}")


def encoded(value: Any) -> str:
    """A value as JSON text. Raises TypeError, ValueError or RecursionError if it is not JSON data."""
    return _encode(value).decode("utf-8")


def _plain(value: Any) -> Any:
    if hasattr(value, "plain"):
        return value.plain()
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"a value of type {type(value).__name__} is not JSON data")


_encode = msgspec.json.Encoder(enc_hook=_plain).encode


def decoded(text: str) -> Value:
    """Parse JSON text from the engine. Raises ValueError or RecursionError.

    Half a character, which the engine writes as an escape, becomes U+FFFD.
    """
    value = from_json(_HALF.sub(r"\1\\ufffd", text) if "\\ud" in text else text)
    return _without_giants(value) if _GIANT.search(text) else value


def _without_giants(value: Value) -> Value:
    """Replace integers of more than 64 bits with floats, as in JavaScript."""
    if isinstance(value, dict):
        return {key: _without_giants(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_giants(item) for item in value]
    return float(value) if type(value) is int and abs(value) >= 2**63 else value


def known_names(scope: Scope) -> list[str]:
    """The names that expressions can use."""
    return [name for name in scope if not name.startswith("_")]


# Values as JavaScript reads them: as true or false, and as text


_WHOLE_FLOAT = re.compile(r"\.0(?=[,\]}e])|\de")


def truth(value: Any) -> bool:
    """Whether the value is true in JavaScript."""
    if value is None or value is UNSET:
        return False
    if isinstance(value, float):
        return value != 0 and not isnan(value)
    return bool(value) if isinstance(value, int | str) else True


def as_text(value: Value) -> str:
    """A value inside a text, in JavaScript's spelling."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    if value is True:
        return "true"
    if value is False:
        return "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return number_text(value)
    written = to_json(value)
    return to_json(_with_numbers(value)) if _WHOLE_FLOAT.search(written) else written


def number_text(number: float) -> str:
    """A number as JavaScript writes it: 2, not 2.0; 1e-7, not 1e-07; 0.00001, not 1e-05."""
    if number.is_integer() and abs(number) < 1e21:
        return str(int(number))
    mantissa, _, exponent = repr(number).partition("e")
    if not exponent:
        return mantissa
    power = int(exponent)
    if -7 < power < 0:
        sign = "-" if mantissa.startswith("-") else ""
        return f"{sign}0.{'0' * (-power - 1)}{mantissa.lstrip('-').replace('.', '')}"
    return f"{mantissa}e{'+' if power > 0 else '-'}{abs(power)}"


def _with_numbers(value: Value) -> Value:
    """Replace floats with integers where they are whole."""
    if isinstance(value, float):
        return (
            int(value)
            if value.is_integer() and abs(value) < 1e21
            else msgspec.Raw(number_text(value).encode())
        )
    if isinstance(value, dict):
        return {key: _with_numbers(item) for key, item in value.items()}
    return [_with_numbers(item) for item in value] if isinstance(value, list | tuple) else value


# Errors


_SHOWN = 80
_MIB = 1024 * 1024
_MEMBER_OF_NOTHING = re.compile(r"cannot read property '(.+)' of (?:undefined|null)")
_LAST_WORD = re.compile(r"\w+$")
_WORD = re.compile(r"\w+")
_PYTHON_WORDS = {
    "and": "write: &&",
    "or": "write: ||",
    "not": "write: !",
    "is": "write: ===",
    "if": "write: condition ? this : that",
}
_PYTHON_NAMES = {"True": "true", "False": "false", "None": "null"}
_HOST_NAMES = frozenset(
    ["process", "require", "console", "fetch", "window", "globalThis", "setTimeout", "Promise"]
)


def unreadable(message: str, offset: int, hint: str = "") -> ExpressionError:
    return ExpressionError(
        f"the expression cannot be read: {message}", hint=hint, offset=offset, code="syntax"
    )


def syntax_error(error: Failed, source: str, offset: int) -> ExpressionError:
    """The error for source that the engine cannot compile."""
    words = [_WORD.match(source, offset), _LAST_WORD.search(source[:offset].rstrip())]
    hints = [_PYTHON_WORDS[word[0]] for word in words if word is not None and word[0] in _PYTHON_WORDS]
    return unreadable(error.message.removeprefix("SyntaxError: "), offset, hints[0] if hints else "")


def evaluation_error(error: Exception, source: str, offset: int | None, limits: Limits) -> ExpressionError:
    """The error for what happened at a place of the source, if that is known, during evaluation."""
    what = f"`{excerpt(source)}`"
    if isinstance(error, Stopped):
        return ExpressionError(
            f"{what} took longer than {limits.expression_seconds:g} seconds and was stopped",
            hint=f"shorten its loops, or raise {limits.setting('expression_seconds')}",
            code=TOO_SLOW,
        )
    if isinstance(error, OutOfMemory):
        return ExpressionError(
            f"{what} needs more than {limits.javascript_bytes / _MIB:g} MiB of memory",
            hint=f"look for a value that keeps growing, or raise {limits.setting('javascript_bytes')}",
            code=TOO_LARGE,
        )
    if isinstance(error, Invalid):
        return ExpressionError(
            f"{_cut(error.result)} is not valid: {what} is false for it", code="javascript"
        )
    assert isinstance(error, Failed)
    if offset is None:
        return ExpressionError(f"{error.message} in {what}", code="javascript")
    message = f"{error.message} in `{excerpt(source, offset)}`"
    return ExpressionError(message, hint=_hint(error.message), offset=offset, code="javascript")


def too_large_to_send(source: str, size: int, limits: Limits) -> ExpressionError:
    return ExpressionError(
        f"the values that `{excerpt(source)}` reads are too large: {size / _MIB:.1f} MiB",
        hint=f"raise {limits.setting('javascript_bytes')} to allow it",
        code=TOO_LARGE,
    )


def too_long(source: str, length: int, limits: Limits) -> ExpressionError:
    return ExpressionError(
        f"`{excerpt(source)}` returns a text of {length:,} characters, and at most"
        f" {limits.expression_chars:,} are allowed",
        hint=f"raise {limits.setting('expression_chars')} to allow it",
        code=TOO_LARGE,
    )


def no_such_name(name: str, offset: int, scope: Scope) -> ExpressionError:
    if name in _PYTHON_NAMES:
        hint = f"write: {_PYTHON_NAMES[name]}"
    elif name in _HOST_NAMES:
        hint = "an expression cannot use the outside world; use a step for that"
    else:
        hint = did_you_mean(name, known_names(scope))
    return ExpressionError(f"there is no '{name}'", hint=hint, offset=offset, code="undefined")


def excerpt(source: str, offset: int = 0) -> str:
    """The line at `offset`, or the whole source if it has one line; shortened if long."""
    if "\n" in source.strip():
        offset = offset or len(source) - len(source.lstrip())
        source = source[source.rfind("\n", 0, offset) + 1 :].split("\n", 1)[0]
    return _cut(source.strip())


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"


def _hint(message: str) -> str:
    if found := _MEMBER_OF_NOTHING.search(message):
        return f"the value before '{found[1]}' does not exist; write ?. instead of . to get undefined"
    return ""
