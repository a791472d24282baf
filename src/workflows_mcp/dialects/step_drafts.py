"""A step as it was read, in any dialect that has steps: nested lists are still nested, nothing is laid out.

A step that has problems still gives a draft, so that everything else can be checked around it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Self, TypeVar

from workflows_mcp.plan.model import ForEach, OnFailure, OnInterrupt, OnLimit, OnTimeout, Operation, SetState
from workflows_mcp.plan.references import Use
from workflows_mcp.values import Value

Path = tuple[str | int, ...]


@dataclass(slots=True)
class Draft:
    id: str
    at: Path
    kind: str = ""
    """The type as it is meant, also where it is misspelt; empty where nobody can say."""
    do: Operation = field(default_factory=lambda: SetState({}))
    """What it does; what goes on elsewhere gets its targets when the steps are laid out."""
    condition: str | None = None
    on_failure: OnFailure | None = None
    on_interrupt: OnInterrupt = "repeat"
    on_timeout: OnTimeout = "fail"
    timeout_answer: dict[str, Value] | None = None
    retry: dict[str, Value] | None = None
    for_each: ForEach | None = None
    uses: list[Use] = field(default_factory=list)
    test: str | None = None
    then: list[Self] = field(default_factory=list)
    """The steps inside of it that come first: those if the test holds, or the body of a loop."""
    otherwise: list[Self] = field(default_factory=list)
    repeats: bool = False
    """It is a loop: its body goes back to it."""
    on_limit: OnLimit = "fail"
    """What happens when its max_iterations is reached."""


D = TypeVar("D", bound=Draft)


def every(steps: Iterable[D]) -> Iterator[D]:
    """The steps with those inside of them, in the order in which they are laid out."""
    for step in steps:
        yield step
        yield from every(step.then)
        yield from every(step.otherwise)
