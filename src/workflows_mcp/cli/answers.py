"""Answers to what a run will ask, from a file, so that it can go through without a person.

    approve: yes                    # every time that the step `approve` asks
    name: [Ada, Grace]              # the first time, the second time
    each/0/read: {stdout: "…"}      # the step `read` of the first item of `each`
    read: {stdout: "…"}             # the step `read` of any item

A list is one answer after the other; an answer that is itself a list stands in a list of its own.
"""

from __future__ import annotations

from workflows_mcp.cli.reading import Unreadable, text_of
from workflows_mcp.errors import DefinitionError, RequestError
from workflows_mcp.service import read_yaml
from workflows_mcp.values import Value, kind_of

MISSING = object()


class Answers:
    def __init__(self, values: dict[str, Value] | None = None) -> None:
        self._values = values or {}
        self._given: dict[str, int] = {}

    def next(self, step_id: str) -> Value:
        """The next answer for the step at an address, in whichever round; MISSING where there is none."""
        step_id = step_id.partition("@")[0]
        names = step_id.split("/")
        for key in dict.fromkeys((step_id, names[-1], "/".join(names[:-1]))):
            if key not in self._values:
                continue
            value, given = self._values[key], self._given.get(key, 0)
            if isinstance(value, list) and given >= len(value):
                continue
            self._given[key] = given + 1
            return value[given] if isinstance(value, list) else value
        return MISSING

    def unused(self) -> list[str]:
        """Steps that never asked: misspelt ones are among them."""
        return [key for key in self._values if key not in self._given]


def read_answers(file: str | None) -> Answers:
    if file is None:
        return Answers()
    try:
        text = text_of(file)
    except Unreadable as why:
        raise RequestError(
            f"the answers cannot be read from {file}: {why}",
            hint="give --answers a YAML or JSON file that is there, or - for stdin",
        ) from None
    try:
        values = read_yaml(text, file)
    except DefinitionError as error:
        wrong = "\n".join(str(problem) for problem in error.problems)
        raise RequestError(f"{file} is neither YAML nor JSON:\n{wrong}") from None
    if not isinstance(values, dict):
        raise RequestError(
            f"{file} must hold answers by the ids of the steps, not {kind_of(values)}",
            hint="e.g. approve: yes",
        )
    return Answers(values)
