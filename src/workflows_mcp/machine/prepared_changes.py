"""Changes of the state with their templates compiled: where they go, and which value."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Any

from workflows_mcp.errors import ExpressionError
from workflows_mcp.machine.changes import Key, Path
from workflows_mcp.machine.program import Evaluate, MisplacedError, compile_value
from workflows_mcp.plan.model import Change, ChangeOperation
from workflows_mcp.values import Value, kind_and_value


class PreparedChange:
    __slots__ = ("_keys", "_language", "_value", "change")

    def __init__(self, change: Change, language: Any) -> None:
        self.change = change
        self._language = language
        where = (*change.at, "path")
        self._keys: list[Evaluate] = [compile_value(key, language, where) for key in change.path]
        self._value = compile_value(change.value, language, (*change.at, "value"))

    @property
    def operation(self) -> ChangeOperation:
        return self.change.operation

    def place(self, names: Any) -> Path:
        """Where the value goes."""
        return tuple(self._key(evaluate(names)) for evaluate in self._keys)

    def _key(self, value: Value) -> Key:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, str | int) and not isinstance(value, bool) and value != "":
            return value
        problem = ExpressionError(
            f"a key of the state must be a text or a number, not {kind_and_value(value)}",
            hint=f"look at what the path is made of: {_written(self.change.path)}",
        )
        raise MisplacedError(problem, (*self.change.at, "path"))

    def value(self, names: Any, result: Value, has_result: bool) -> Value:
        """The value; `names` have what a step has just given."""
        change = self.change
        if change.has_value:
            value = self._value(names)
        elif change.operation == "increment":
            value = 1
        else:
            value = result if has_result else None
        if not change.transform:
            return value
        more = names.with_variables({"input": value, "result": result if has_result else value})
        try:
            if self._language.is_dynamic(change.transform):
                return self._language.template(change.transform).evaluate(more)
            return self._language.transform(change.transform).evaluate(more)
        except ExpressionError as error:
            raise MisplacedError(error, (*change.at, "transform")) from None


def prepared_changes(changes: Iterable[Change], language: Any) -> list[PreparedChange]:
    return [PreparedChange(change, language) for change in changes]


def given_by(result: Value, documented: Container[str] | None) -> tuple[dict[str, Value], dict[str, Value]]:
    """The names that the result of a step brings with it: those before the state, and those after it.

    `documented` are the outputs that the step type has; None: every field goes before the state.
    """
    fields = result if isinstance(result, dict) else {}
    first = {name: it for name, it in fields.items() if documented is None or name in documented}
    return {**first, "result": result}, {name: it for name, it in fields.items() if name not in first}


def _written(path: tuple[Value, ...]) -> str:
    return ".".join(map(str, path))
