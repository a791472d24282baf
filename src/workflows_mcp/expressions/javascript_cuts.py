"""Which paths of an expression are looked up before it is run, and taken out of what JavaScript is given.

`results[item].errors > most` becomes `__p0 > most`, and what `results[item].errors` leads to is its argument.
Where one path leads on from another (`items` and `items.length`), only the shorter one is taken out: what
changes one of them changes the other.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from workflows_mcp.expressions.javascript_names import Free, literal_text
from workflows_mcp.expressions.javascript_rewriting import Edit
from workflows_mcp.expressions.javascript_source import Source

Keys = tuple[object, ...]


class Parameter(NamedTuple):
    """What a path leads to after so many steps; it keeps its own name where that is none."""

    name: str
    free: Free
    steps: int
    goes_on: bool
    """More is read of it in JavaScript."""


def cut(found: Sequence[tuple[Source, Sequence[Free]]]) -> tuple[list[Parameter], list[list[Edit]]]:
    """The parameters, and for each source the edits that put them in the place of its paths."""
    shortest = _shortest([free for _, names in found for free in names])
    parameters: dict[tuple[str, Keys], Parameter] = {}
    edits: list[list[Edit]] = []
    for source, names in found:
        edits.append([])
        behind = 0
        for free in names:
            if free.token < behind:
                continue  # it is part of a path that was taken out
            keys = _keys(free)
            steps = next(length for length in range(len(keys) + 1) if keys[:length] in shortest[free.name])
            goes_on = free.goes_on or steps < len(keys)
            place = free.name, keys[:steps]
            known = parameters.get(place)
            if known is None:
                name = f"__p{len(parameters)}" if steps else free.name
                known = Parameter(name, free, steps, goes_on)
            parameters[place] = known._replace(goes_on=known.goes_on or goes_on)
            if steps:
                behind = free.ends(steps)
                end = source.tokens[behind - 1].end
                edits[-1].append(Edit(source.tokens[free.token].start, end, known.name))
    return list(parameters.values()), edits


def looks_up(source: Source, cut_out: Sequence[Edit] = ()) -> bool:
    """Whether `object[key]` is read in JavaScript, with a key that may have another spelling."""
    starts = [edit.start for edit in cut_out]
    for index, held in source.holds.items():
        if held != "index":
            continue
        before = bisect_right(starts, source.tokens[index].start) - 1
        if before >= 0 and source.tokens[index].start < cut_out[before].end:
            continue
        key = source.tokens[index + 1]
        fixed = source.partners[index] == index + 2 and key.kind in ("number", "string")
        if not fixed or (key.kind == "string" and not (literal_text(key) or "-").isidentifier()):
            return True
    return False


def _keys(free: Free) -> Keys:
    return tuple(("", key.name, *_keys(key)) if isinstance(key, Free) else key for key, _, _ in free.steps)


def _shortest(names: Sequence[Free]) -> dict[str, set[Keys]]:
    """By name, the paths that do not lead on from another one."""
    paths: dict[str, set[Keys]] = {}
    for free in names:
        paths.setdefault(free.name, set()).add(_keys(free))
    return {
        name: {keys for keys in every if not any(keys[:length] in every for length in range(len(keys)))}
        for name, every in paths.items()
    }
