"""Where JavaScript runs: one context for each thread, without a host, within limits.

A context is frozen when it is made (`javascript_prelude`), so it serves one expression after the other; after
one that was stopped, or that went out of memory, and after many thousands, it is thrown away. Functions are
compiled once and kept. This is the only module that knows the engine, which is imported when it is first
needed; it knows nothing of templates and scopes.

The engine's own limit of time counts what the whole process works, and the clock what the whole machine does.
Where one of them has stopped a function for which the processor has hardly worked, it gets another try.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from typing import Any, NamedTuple

from workflows_mcp.expressions.bounds import PerThread, processor_seconds
from workflows_mcp.expressions.javascript_prelude import PRELUDE
from workflows_mcp.values import from_json

STACK_BYTES = 768 * 1024
OWN_BYTES = 4 * 1024 * 1024
"""What the context itself and the compiled functions may take, beside what a function takes that is run."""
_MOST_RUNS = 50_000
_MOST_FUNCTIONS = 1_000
_MOST_CHARS = 200_000
_COMPILING_SECONDS = 5.0
_MOST_TRIES = 2
_MORE_SECONDS = 4
"""How many times as long it gets when others have used its time up."""
_PLACE = re.compile(r"<input>:(\d+):(\d+)")


class Function(NamedTuple):
    """A JavaScript function as text."""

    text: str
    check: str = ""
    """Another one, which is called with the result as well, and says whether it is valid."""
    finds: bool = False
    """Whether what is not found under a key is looked for under its other spelling."""


class Given(NamedTuple):
    """What a function is called with."""

    values: str
    """JSON: the arguments, the positions of those that are undefined, and `this`."""
    now: float | None = None
    seed: str = ""
    """32 hexadecimal digits, or nothing."""


class Stopped(Exception):
    """It took too long."""


class OutOfMemory(Exception):
    pass


class Failed(Exception):
    """What JavaScript says that is wrong, and the line and column of the function where it is."""

    def __init__(self, message: str, place: tuple[int, int] | None = None, in_check: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.place = place
        self.in_check = in_check


class Invalid(Exception):
    """The check was not content with the result."""

    def __init__(self, result: str) -> None:
        super().__init__(result)
        self.result = result


def compile_function(function: Function, most_bytes: int) -> None:
    """Raises Failed if it cannot be read."""
    try:
        _of_thread(most_bytes).compiled(function)
    except (Stopped, OutOfMemory):
        _contexts.value = None
        raise


def run_function(function: Function, given: Given, seconds: float, most_bytes: int) -> str | None:
    """The result as JSON text; None if it is undefined. Raises Stopped, OutOfMemory, Failed, Invalid."""
    allowed = seconds
    for tries in range(_MOST_TRIES):
        last = tries == _MOST_TRIES - 1
        context = _of_thread(most_bytes)
        began = processor_seconds()
        try:
            return context.run(function, given, allowed)
        except Stopped:
            _contexts.value = None
            if last or processor_seconds() - began > seconds / 2:
                raise
            allowed *= _MORE_SECONDS
        except OutOfMemory:
            _contexts.value = None
            if last or context.runs == 1:  # what others have left behind can be to blame
                raise
    raise AssertionError("the last try returns or raises")


_contexts: PerThread[_Context] = PerThread()


def _of_thread(most_bytes: int) -> _Context:
    context = _contexts.value
    if context is None or context.runs >= _MOST_RUNS:
        context = _contexts.value = _Context()
    context.limit(most_bytes)
    return context


class _Context:
    def __init__(self) -> None:
        import _quickjs  # not `quickjs`, which starts a thread when it is imported

        self.runs = 0
        self._errors: Any = (_quickjs.JSException, _quickjs.StackOverflow)
        self._engine: Any = _quickjs.Context()
        self._engine.set_max_stack_size(STACK_BYTES)
        self._evaluate: Any = self._engine.eval
        self._runner: Any = self._evaluate(PRELUDE)
        self._text_of: Any = self._evaluate("(function (made) { return made.toString(); })")
        self._functions: OrderedDict[Function, Any] = OrderedDict()
        self._chars = 0
        self._bytes = 0
        self._seconds = 0.0

    def limit(self, most_bytes: int) -> None:
        if most_bytes != self._bytes:
            self._bytes = most_bytes
            self._engine.set_memory_limit(most_bytes + OWN_BYTES)

    def run(self, function: Function, given: Given, seconds: float) -> str | None:
        self.runs += 1
        made = self.compiled(function)
        now = float("nan") if given.now is None else given.now * 1000.0
        if seconds != self._seconds:
            self._seconds = seconds
            self._engine.set_time_limit(seconds)
        try:
            result: str | None = made(given.values, now, given.seed, seconds)
        except self._errors as error:
            raise _told(str(error)) from None
        return result

    def compiled(self, function: Function) -> Any:
        made = self._functions.get(function)
        if made is not None:
            self._functions.move_to_end(function)
            return made
        compute = self._made(function.text)
        check = self._made(function.check, is_check=True) if function.check else None
        made = self._functions[function] = self._runner(compute, check, function.finds)
        self._chars += len(function.text)
        while len(self._functions) > 1 and (
            len(self._functions) > _MOST_FUNCTIONS or self._chars > _MOST_CHARS
        ):
            oldest, _ = self._functions.popitem(last=False)
            self._chars -= len(oldest.text)
        return made

    def _made(self, text: str, is_check: bool = False) -> Any:
        self._seconds = _COMPILING_SECONDS
        self._engine.set_time_limit(_COMPILING_SECONDS)
        try:
            made = self._evaluate(f"({text})")
            if self._text_of(made) == text:
                return made
        except self._errors as error:
            fault = _told(str(error))
            if isinstance(fault, Failed):
                fault.in_check = is_check
            raise fault from None
        _contexts.value = None  # something else was run than one function
        raise Failed("SyntaxError: it is not one expression", in_check=is_check)


def _told(message: str) -> Exception:
    """What the runner of the prelude reports, or the engine itself."""
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
                said, in_check = rest
                return Failed(said, in_check=in_check)
            case _:
                name, said, stack, in_check = rest
                return Failed(f"{name}: {said}", _place(stack), in_check)
    if "interrupted" in message:
        return Stopped()
    if "Error:" not in message or "out of memory" in message:
        return OutOfMemory(message)
    said, _, stack = message.partition("\n")
    return Failed(said, _place(stack))


def _place(stack: str) -> tuple[int, int] | None:
    """The innermost place in the expression: the prelude has all its code on its first line."""
    for found in _PLACE.finditer(stack):
        if (line := int(found[1])) > 1:
            return line, int(found[2])
    return None
