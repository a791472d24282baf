"""Random programs of loops, as reactive documents, and what they say by the rules of any other language."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml
from hypothesis import strategies as st

_LEAVES = ("break", "continue")
_MOST_SAID = 25
_DEEPEST = -3


@dataclass(frozen=True, slots=True)
class Statement:
    kind: str
    """say, break, continue, if, while, foreach"""
    number: int = 0
    """How often a loop goes round, or the round in which a condition holds."""
    most: int | None = None
    """Of a while: its max_iterations."""
    body: tuple[Statement, ...] = ()
    otherwise: tuple[Statement, ...] = ()


@st.composite
def bodies(draw: st.DrawFn, depth: int, in_loop: bool) -> tuple[Statement, ...]:
    """Loops down to depth 0, conditions below them, too, but not without end: a document may not be too deep."""
    kinds = (
        ["say", "say"] + (["if"] if depth > _DEEPEST else []) + (["while", "foreach"] if depth > 0 else [])
    )
    kinds += _LEAVES if in_loop else ()
    found: list[Statement] = []
    for kind in draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=3)):
        number = draw(st.integers(0, 3))
        if kind == "if":
            then = draw(bodies(depth - 1, in_loop))
            otherwise = draw(bodies(min(depth - 1, 0), in_loop)) if draw(st.booleans()) else ()
            found.append(Statement("if", number, None, then, otherwise))
        elif kind in ("while", "foreach"):
            most = draw(st.sampled_from([None, 1, 2])) if kind == "while" else None
            found.append(Statement(kind, number, most, draw(bodies(depth - 1, True))))
        else:
            found.append(Statement(kind))
            if kind in _LEAVES:
                break  # nothing behind it is ever come to
    return tuple(found)


def programs() -> st.SearchStrategy[list[Statement]]:
    """Programs that do not say too much to crash after every word."""
    return bodies(2, False).map(list).filter(lambda program: len(said_by(program)) <= _MOST_SAID)


class _Left(Exception):
    def __init__(self, how: str) -> None:
        self.how = how


def said_by(program: list[Statement]) -> list[str]:
    """What the program says: where it was, as the rounds of the loops around it."""
    said: list[str] = []

    def carry_out(body: tuple[Statement, ...], rounds: tuple[int, ...]) -> None:
        for statement in body:
            match statement.kind:
                case "say":
                    said.append(".".join(["at", *map(str, rounds)]))
                case "break" | "continue":
                    raise _Left(statement.kind)
                case "if":
                    holds = bool(rounds) and rounds[-1] == statement.number
                    carry_out(statement.body if holds else statement.otherwise, rounds)
                case _:
                    for number in range(statement.number)[: statement.most]:
                        try:
                            carry_out(statement.body, (*rounds, number + 1))
                        except _Left as left:
                            if left.how == "break":
                                break

    carry_out(tuple(program), ())
    return said


@dataclass(slots=True)
class _Writer:
    counters: list[str] = field(default_factory=list)

    def steps(self, body: tuple[Statement, ...], rounds: tuple[str, ...]) -> Iterator[dict[str, Any]]:
        for statement in body:
            match statement.kind:
                case "say":
                    places = "".join(f".{{{{ {name} + 1 }}}}" for name in rounds)
                    yield {"type": "Note", "text": f"at{places}"}
                case "break" | "continue":
                    yield {"type": statement.kind}
                case "if":
                    yield self._if(statement, rounds)
                case "while":
                    yield from self._while(statement, rounds)
                case "foreach":
                    index = f"at{len(rounds)}"
                    items = list(range(100, 100 + statement.number))
                    steps = list(self.steps(statement.body, (*rounds, index)))
                    yield {"type": "foreach", "items": items, "index_name": index, "steps": steps}

    def _if(self, statement: Statement, rounds: tuple[str, ...]) -> dict[str, Any]:
        test = f"loop.iteration === {statement.number}" if rounds else "false"
        step: dict[str, Any] = {"type": "conditional", "condition": f"{{{{ {test} }}}}"}
        step["then"] = list(self.steps(statement.body, rounds))
        if statement.otherwise:
            step["else"] = list(self.steps(statement.otherwise, rounds))
        return step

    def _while(self, statement: Statement, rounds: tuple[str, ...]) -> Iterator[dict[str, Any]]:
        """The counter is one further than the loop: a `continue` must not keep it from counting."""
        counter = f"c{len(self.counters)}"
        self.counters.append(counter)
        yield {"type": "state_update", "path": f"raw.{counter}", "value": 0}
        body = [{"type": "state_update", "path": f"raw.{counter}", "operation": "increment"}]
        body += self.steps(statement.body, (*rounds, f"({counter} - 1)"))
        step = {"type": "while", "condition": f"{counter} < {statement.number}", "body": body}
        limit = {"max_iterations": statement.most, "on_limit": "continue"}
        yield step if statement.most is None else {**step, **limit}


def as_document(program: list[Statement]) -> str:
    writer = _Writer()
    steps = list(writer.steps(tuple(program), ()))
    state = {"raw": dict.fromkeys(writer.counters, 0)}
    return yaml.safe_dump({"name": "random", "default_state": state, "steps": steps}, sort_keys=False)
