"""The errors that a user can see, as one tree.

    raise RequestError("port 8000 is in use", hint="choose another port with --http")

An error says what is wrong, where, and how to fix it. MCP, the terminal and logs show the same text. This
module imports no other module of the package.

    WorkflowsError
    ├── DefinitionError      a workflow file is invalid; has all of its problems
    ├── RequestError         a request cannot be fulfilled; nothing has changed
    │   ├── UnknownWorkflow
    │   ├── UnknownRun
    │   ├── InvalidInputs    inputs of a workflow are invalid; names all of them
    │   ├── InvalidResult    an agent's result does not match its action
    │   ├── NotExpected      an answer to a question that is not open
    │   └── MissingSecret    secrets of a workflow are missing or unusable; names all of them
    ├── ExpressionError      an expression is malformed, or its value does not exist
    ├── StepError            a step could not run
    │   └── Forbidden        policy does not allow what a step needs
    └── StoreError           the store of runs cannot be used
        ├── Damaged          stored data of a run is missing or was changed
        └── LeaseLost        another process drives this run now; the write is rejected
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

LINE_CHARS = 160
"""The number of characters of a long line that are shown."""


@dataclass(frozen=True, slots=True)
class Place:
    """A position in a definition file; `text` is the whole line."""

    file: str
    line: int
    column: int
    text: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"

    def excerpt(self) -> tuple[str, int]:
        """Return the line, cut around the column if it is long, and the position of the column in it."""
        position = self.column - 1
        if len(self.text) <= LINE_CHARS:
            return self.text, position
        start = max(0, min(position - LINE_CHARS // 2, len(self.text) - LINE_CHARS))
        before = "…" if start else ""
        after = "…" if start + LINE_CHARS < len(self.text) else ""
        return before + self.text[start : start + LINE_CHARS] + after, position - start + len(before)

    def snippet(self) -> str:
        """Return the line with a mark below the column, as a compiler does."""
        margin = f"{self.line:>5} | "
        text, position = self.excerpt()
        return f"{margin}{text}\n{' ' * (len(margin) - 2)}| {' ' * position}^"


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem of a definition.

    `path` is the path of the value in the document, e.g. ("blocks", 3, "inputs", "command"); `offset` is a
    position in the text of that value. The reader of the file turns both into a `place`.
    """

    code: str
    message: str
    hint: str = ""
    path: tuple[str | int, ...] = ()
    offset: int = 0
    on_key: bool = False
    place: Place | None = None
    warning: bool = False

    def at(self, place: Place | None) -> Problem:
        return replace(self, place=place)

    def __str__(self) -> str:
        kind = "warning: " if self.warning else ""
        lines = [f"{self.place}: {kind}{self.message}" if self.place else f"{kind}{self.message}"]
        if self.place and self.place.text:
            lines.append(self.place.snippet())
        if self.hint:
            lines.append(f"      = {self.hint}")
        return "\n".join(lines)


class WorkflowsError(Exception):
    """The root of the tree: a code for programs, a message for people, a hint how to fix it."""

    code = "error"

    def __init__(self, message: str, *, hint: str = "", code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        if code is not None:
            self.code = code

    def __str__(self) -> str:
        return f"{self.message}\n{self.hint}" if self.hint else self.message


class DefinitionError(WorkflowsError):
    code = "invalid_definition"

    def __init__(self, problems: Sequence[Problem], *, name: str = "", draft: object = None) -> None:
        self.problems = list(problems)
        self.name = name
        self.draft = draft
        """The part of the definition that could be read, for further checks."""
        count = len(self.problems)
        what = f"workflow '{name}'" if name else "the workflow"
        super().__init__(f"{what} has {count} problem{'s' if count != 1 else ''}")

    def __str__(self) -> str:
        return "\n".join([self.message + ":", *(str(problem) for problem in self.problems)])


class RequestError(WorkflowsError):
    code = "invalid_request"


class UnknownWorkflow(RequestError):
    code = "unknown_workflow"


class UnknownRun(RequestError):
    code = "unknown_run"


class InvalidInputs(RequestError):
    code = "invalid_inputs"


class InvalidResult(RequestError):
    """`for_user` is the message for a user who filled in a form, without steps and schemas."""

    code = "invalid_result"

    def __init__(self, message: str, *, hint: str = "", for_user: str = "") -> None:
        super().__init__(message, hint=hint)
        self.for_user = for_user or message


class NotExpected(RequestError):
    code = "not_expected"


class MissingSecret(RequestError):
    code = "missing_secret"


TOO_SLOW = "too_slow"
TOO_LARGE = "too_large"
"""The codes of an expression that exceeded a limit. One that was too slow may succeed next time."""


class ExpressionError(WorkflowsError):
    """`offset` is the position of the error in the source of the expression."""

    code = "expression"

    def __init__(self, message: str, *, hint: str = "", offset: int = 0, code: str | None = None) -> None:
        super().__init__(message, hint=hint, code=code)
        self.offset = offset


class StepError(WorkflowsError):
    code = "step_failed"


class Forbidden(StepError):
    code = "forbidden"


class StoreError(WorkflowsError):
    code = "store"


class Damaged(StoreError):
    code = "damaged"


class LeaseLost(StoreError):
    code = "lease_lost"
