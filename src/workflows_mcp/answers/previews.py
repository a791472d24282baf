"""Cuts long values in answers, with a note that has the call to read the rest.

cut(outputs, ("outputs",), Cut(4000), reader("wf_1"))
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from workflows_mcp.errors import RequestError
from workflows_mcp.limits import Limits
from workflows_mcp.values import Value, to_json

# Paths into a run: `outputs.log`, `blocks.build.outputs.files[0]`, `outputs["a.b"]`

Path = tuple[str | int, ...]


_PART = re.compile(r"""\.?([^.\[\]'"\s]+)|\[(\d+)\]|\['([^']*)'\]|\["((?:[^"\\]|\\.)*)"\]""")

_PLAIN = re.compile(r"[^.\[\]'\"\s]+")


def parse_path(text: str) -> Path:
    """Parse a path. Raises RequestError if `text` is not one."""
    source = text.strip()
    if source.startswith("${") and source.endswith("}"):
        source = source[2:-1].strip()
    parts: list[str | int] = []
    position = 0
    while position < len(source):
        match = _PART.match(source, position)
        if match is None or (parts and match[1] is not None and source[position] != "."):
            raise RequestError(
                f"'{text}' is not a path: it is invalid from '{source[position:]}' on",
                hint='a path looks like outputs.log, blocks.build.outputs.files[0] or outputs["a.b"]',
                code="invalid_path",
            )
        if match[2] is not None:
            parts.append(int(match[2]))
        elif match[4] is not None:
            parts.append(re.sub(r"\\(.)", r"\1", match[4]))
        else:
            parts.append(match[1] if match[1] is not None else match[3])
        position = match.end()
    if not parts or not isinstance(parts[0], str):
        raise RequestError("a path is missing", hint="e.g. outputs.log", code="invalid_path")
    return tuple(parts)


def format_path(path: Path) -> str:
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        elif _PLAIN.fullmatch(part):
            text += f".{part}" if text else part
        else:
            text += f"[{to_json(part)}]"
    return text


Reader = Callable[[Path, int], str]

"""Returns the call that reads the value at a path, from an offset on."""


_SLACK = 100

"""A text longer than the limit by this much is shown whole: the note would be as long as the rest."""

_EVERYTHING = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Cut:
    """How much is shown: characters of a text, and items of a list or an object."""

    characters: int
    items: int = _EVERYTHING


WHOLE = Cut(_EVERYTHING)


def reader(run_id: str) -> Reader:
    def read(path: Path, offset: int) -> str:
        where = f"workflow_id='{run_id}', paths={to_json([format_path(path)])}, offset={offset}"
        return f"get_workflow_state({where})"

    return read


def cut(value: Value, path: Path, how: Cut, read: Reader) -> Value:
    """Shorten every long text, list and object in a value."""
    if isinstance(value, str):
        if len(value) <= how.characters + _SLACK:
            return value
        return value[: how.characters] + note(len(value), "characters", read(path, how.characters))
    if isinstance(value, list):
        shown: list[Value] = [
            cut(item, (*path, index), how, read) for index, item in enumerate(value[: how.items])
        ]
        if len(value) > how.items:
            shown.append(note(len(value), "items", read(path, how.items)))
        return shown
    if isinstance(value, dict):
        kept = list(value.items())[: how.items]
        result: dict[str, Value] = {key: cut(item, (*path, key), how, read) for key, item in kept}
        if len(value) > how.items:
            result["…"] = note(len(value), "entries", read(path, how.items))
        return result
    return value


def shortened(text: str, limit: int) -> str:
    """Return the beginning of a text, without a note on how to read the rest."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def note(total: int, unit: str, how_to_read_on: str) -> str:
    return f"… [cut: {total} {unit} in all; read on with {how_to_read_on}]"


def within(limits: Limits, build: Callable[[Cut], dict[str, Any]]) -> dict[str, Any]:
    """Build an answer that fits the limits, by cutting values shorter until it does."""
    preview = limits.preview_chars
    answer: dict[str, Any] = {}
    for how in (
        Cut(preview),
        Cut(preview // 4, 200),
        Cut(preview // 16, 50),
        Cut(100, 20),
        Cut(60, 8),
        Cut(40, 3),
    ):
        answer = build(how)
        if len(to_json(answer)) <= limits.answer_chars:
            return answer
    return answer
