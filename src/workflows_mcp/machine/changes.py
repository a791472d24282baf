"""Changes a state by copying only the path to the changed value; the rest is shared.

So a state that a caller holds never changes, and a value that is still the same object is unchanged. That
is how computed fields know what they need not compute again.

    changed({"raw": {"n": 1}}, ("raw", "n"), "increment", 2)      # ({"raw": {"n": 3}}, 0)
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from workflows_mcp.expressions import MISSING
from workflows_mcp.limits import Limits
from workflows_mcp.plan import ChangeOperation
from workflows_mcp.values import Value, kind_and_value, kind_of, shown

Key = str | int
Path = tuple[Key, ...]

WRITABLE = ("raw", "state")
_WHOLE = 2**63
_DEEPEST = 200
"""The maximum nesting depth of a value. The run that contains it is deeper, and must be encodable too."""
_WORD = re.compile(r"[^\W\d][\w-]*")
_encode = msgspec.msgpack.Encoder().encode
_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "number": (int, float),
    "integer": (int,),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
}


class WrongChange(Exception):
    """A change that cannot be made. The state is as it was."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class TooLarge(WrongChange):
    """The state would exceed a limit."""


def size_of(value: Value) -> int:
    return len(_encode(value))


def changed(
    state: dict[str, Value], path: Path, operation: ChangeOperation, value: Value
) -> tuple[dict[str, Value], int]:
    """The changed state, and how many bytes it has grown. Raises WrongChange."""
    if not path or path[0] not in WRITABLE:
        raise WrongChange(
            f"'{path_text(path)}' cannot be written"
            + (": it is a computed field" if _computed(path) else ""),
            "start the path with raw. or state., e.g. raw.count",
        )
    if len(path) == 1 and not isinstance(value, dict):
        raise WrongChange(
            f"'{path[0]}' as a whole must be an object, not {kind_of(value)}",
            "write one of its fields: raw.name",
        )
    _check_storable(value, path)
    return _put(state, path, 0, lambda old: _OPERATIONS[operation](old, value, path))


def _check_storable(value: Value, path: Path) -> None:
    """Raises WrongChange for a value that cannot be stored with the run."""
    try:
        deep = size_of(value) > _DEEPEST and is_deeper(value, _DEEPEST)
        why = f"it is nested more than {_DEEPEST} deep" if deep else ""
    except (OverflowError, RecursionError, TypeError, ValueError) as error:
        why = str(error)
    if why:
        raise WrongChange(
            f"the value for '{path_text(path)}' cannot be kept: {why}",
            "values are JSON: numbers of at most 64 bits, valid text, no endless nesting",
        )


def too_deep(value: Value, limits: Limits, below: int = 0) -> str | None:
    """The message about a value that is nested too deeply; None if it fits. `below`: the length of its
    path."""
    most = min(limits.state_depth, _DEEPEST)
    if not is_deeper(value, most - below):
        return None
    return f"the state would be nested more than {most} deep ({limits.setting('state_depth')})"


def is_deeper(value: Value, most: int) -> bool:
    """Whether lists and objects are nested more than `most` deep."""
    level = [value]
    for _ in range(max(most, -1) + 1):
        level = [it for part in level for it in _members(part)]
        if not level:
            return False
    return True


def _members(value: Value) -> Iterable[Value]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def check_type(types: Mapping[str, str], state: dict[str, Value], path: Path) -> None:
    """Raises WrongChange if a field of `raw` does not have its declared type."""
    if path[0] == "raw":
        for name in types if len(path) == 1 else {str(path[1])} & types.keys():
            _check_field(types[name], state["raw"].get(name), ("raw", name))


def _check_field(declared: str, value: Value, path: Path) -> None:
    wanted = _TYPES.get(declared)
    if wanted is None or value is None:
        return
    fits = isinstance(value, wanted) and not (isinstance(value, bool) and bool not in wanted)
    if declared == "integer" and isinstance(value, float):
        fits = value.is_integer()
    if not fits:
        raise WrongChange(
            f"'{path_text(path)}' is declared as {declared}, and cannot be {kind_and_value(value)}",
            "give it a value of that type, or change state_schema",
        )


def value_at(state: Value, path: Path) -> Any:
    """The value at a path, or MISSING."""
    for key in path:
        if isinstance(state, dict):
            state = state.get(str(key), MISSING)
        elif isinstance(state, list):
            index = _index(key)
            state = state[index] if index is not None and index < len(state) else MISSING
        else:
            return MISSING
    return state


def path_text(path: Path) -> str:
    """A path as a user writes it: raw.results["a.ts"][0].errors"""
    pieces: list[str] = []
    for key in path:
        if isinstance(key, int):
            pieces.append(f"[{key}]")
        elif _WORD.fullmatch(key) or (pieces and key.isdecimal()):
            pieces.append(f".{key}" if pieces else key)
        else:
            pieces.append(f'["{key}"]')
    return "".join(pieces)


def _computed(path: Path) -> bool:
    return bool(path) and path[0] == "computed"


def _put(at: Any, path: Path, depth: int, new: Callable[[Any], tuple[Value, int]]) -> tuple[Any, int]:
    """Write at a path. The growth is exact: after a restart the state is measured, and must have the same
    size."""
    if depth == len(path):
        return new(at)
    key = path[depth]
    if at is MISSING or at is None:
        made, grown = _put({}, path, depth, new)
        return made, grown + size_of({}) - _size(at)
    if isinstance(at, dict):
        copy = dict(at)
        copy[str(key)], grown = _put(at.get(str(key), MISSING), path, depth + 1, new)
        if str(key) not in at:
            grown += size_of(str(key)) + _head(len(copy)) - _head(len(at))
        return copy, grown
    if isinstance(at, list):
        index = _index(key)
        if index is None or index > len(at):
            raise WrongChange(
                f"'{path_text(path[:depth])}' is a list of {len(at)} items: it has none at {shown(key)}",
                "the first item is at 0; the operation append adds one",
            )
        items = list(at)
        if index == len(items):
            items.append(MISSING)
        items[index], grown = _put(items[index], path, depth + 1, new)
        return items, grown + _head(len(items)) - _head(len(at))
    raise WrongChange(
        f"'{path_text(path[:depth])}' is {kind_and_value(at)}: nothing can be written at '{path_text(path)}'",
        "write the whole value, or start with an object: {}",
    )


def _index(key: Key) -> int | None:
    if isinstance(key, int) and not isinstance(key, bool):
        return key if key >= 0 else None
    return int(key) if isinstance(key, str) and key.isdecimal() else None


def _size(value: Any) -> int:
    return 0 if value is MISSING else size_of(value)


def _head(count: int) -> int:
    """The size of the header of a list or an object with so many members."""
    return 1 if count < 16 else 3 if count < 65536 else 5


def _set(old: Any, value: Value, path: Path) -> tuple[Value, int]:
    return value, size_of(value) - _size(old)


def _append(old: Any, value: Value, path: Path) -> tuple[Value, int]:
    if old is MISSING or old is None:
        return [value], size_of([value]) - _size(old)
    if not isinstance(old, list):
        raise WrongChange(
            f"'{path_text(path)}' is {kind_and_value(old)}, and nothing can be appended to it",
            "append needs a list; start with []",
        )
    return [*old, value], size_of(value) + _head(len(old) + 1) - _head(len(old))


def _increment(old: Any, value: Value, path: Path) -> tuple[Value, int]:
    for what, number in (("it is", 0 if old is MISSING or old is None else old), ("the value is", value)):
        if isinstance(number, bool) or not isinstance(number, int | float):
            raise WrongChange(
                f"'{path_text(path)}' cannot be incremented: {what} {kind_and_value(number)}",
                "increment adds a number to a number; without a value it adds 1",
            )
    sum_of_both = (0 if old is MISSING or old is None else old) + value
    fits = math.isfinite(sum_of_both) if isinstance(sum_of_both, float) else abs(sum_of_both) < _WHOLE
    if not fits:
        raise WrongChange(
            f"'{path_text(path)}' cannot be incremented: the sum is too large for a number",
            "whole numbers have at most 63 bits",
        )
    return sum_of_both, size_of(sum_of_both) - _size(old)


def _merge(old: Any, value: Value, path: Path) -> tuple[Value, int]:
    for what, part in (("it is", {} if old is MISSING or old is None else old), ("the value is", value)):
        if not isinstance(part, dict):
            raise WrongChange(
                f"'{path_text(path)}' cannot be merged: {what} {kind_and_value(part)}",
                "merge sets the fields of one object in another",
            )
    before = {} if old is MISSING or old is None else old
    made = {**before, **value}
    grown = sum(
        size_of(it) - (size_of(before[key]) if key in before else -size_of(key)) for key, it in value.items()
    )
    return made, grown + _head(len(made)) - (_head(len(before)) if before else _size(old))


_OPERATIONS: dict[str, Callable[[Any, Value, Path], tuple[Value, int]]] = {
    "set": _set,
    "append": _append,
    "increment": _increment,
    "merge": _merge,
}
