"""Every error that a user can see, as one small tree.

An error says where, what, and what to do. It is raised where it is known, worded once, and shown the
same through MCP, the terminal and a log. This module knows nothing of any other part.

    WorkflowsError
    ├── DefinitionError      a workflow file is wrong; carries all of its problems
    ├── RequestError         what was asked for cannot be done; nothing has changed
    │   ├── UnknownWorkflow
    │   ├── UnknownRun
    │   ├── InvalidInputs    values for a workflow's inputs do not fit; names all of them
    │   ├── InvalidResult    an agent's result does not fit its action
    │   ├── NotExpected      an answer to a question that nobody asks (any more)
    │   └── MissingSecret    secrets that a workflow uses are not there, or cannot be used; names all of them
    ├── ExpressionError      an expression is malformed, or its value does not exist
    ├── StepError            a step could not be carried out
    │   └── Forbidden        policy does not allow what a step wants
    └── StoreError           the store of runs cannot be used
        ├── Damaged          something that was written of a run is gone, or is not what was written
        └── LeaseLost        another process drives this run now; what was to be written is refused
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

LINE_CHARS = 160
"""How much of a long line is shown."""


@dataclass(frozen=True, slots=True)
class Place:
    """A position in a definition file; `text` is the whole line that stands there."""

    file: str
    line: int
    column: int
    text: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"

    def excerpt(self) -> tuple[str, int]:
        """The line, or of a long line what is around the column; and the position of the column in it."""
        position = self.column - 1
        if len(self.text) <= LINE_CHARS:
            return self.text, position
        start = max(0, min(position - LINE_CHARS // 2, len(self.text) - LINE_CHARS))
        before = "…" if start else ""
        after = "…" if start + LINE_CHARS < len(self.text) else ""
        return before + self.text[start : start + LINE_CHARS] + after, position - start + len(before)

    def snippet(self) -> str:
        """The line with a mark below the column, as a compiler shows it."""
        margin = f"{self.line:>5} | "
        text, position = self.excerpt()
        return f"{margin}{text}\n{' ' * (len(margin) - 2)}| {' ' * position}^"


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong in a definition.

    `path` leads to the value in the document, e.g. ("blocks", 3, "inputs", "command"); `offset` is a
    position inside the text of that value. Whoever has the file turns both into a `place`.
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
    """The root of the tree: a code for programs, a message for people, a hint on what to do."""

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
        """As much of the definition as could be read, for whoever looks for further problems."""
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
    """`for_user` says the same to somebody who has filled in a form, and knows no steps and schemas."""

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
"""The code of an expression that was stopped because it took too long: nobody can say that it would be
stopped again."""


class ExpressionError(WorkflowsError):
    """`offset` is the position in the source of the expression at which it went wrong."""

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
