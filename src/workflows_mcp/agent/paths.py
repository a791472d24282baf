"""Paths into a run, as an agent writes them: `outputs.log`, `blocks.build.outputs.files[0]`,
`outputs["a.b"]`. Reading and writing them are each other's opposite."""

from __future__ import annotations

import re

from workflows_mcp.errors import RequestError
from workflows_mcp.values import to_json

Path = tuple[str | int, ...]

_PART = re.compile(r"""\.?([^.\[\]'"\s]+)|\[(\d+)\]|\['([^']*)'\]|\["((?:[^"\\]|\\.)*)"\]""")
_PLAIN = re.compile(r"[^.\[\]'\"\s]+")


def parse_path(text: str) -> Path:
    """Raises RequestError where `text` is not a path."""
    source = text.strip()
    if source.startswith("${") and source.endswith("}"):
        source = source[2:-1].strip()
    parts: list[str | int] = []
    position = 0
    while position < len(source):
        match = _PART.match(source, position)
        if match is None or (parts and match[1] is not None and source[position] != "."):
            raise RequestError(
                f"'{text}' is not a path: it cannot be read from '{source[position:]}' on",
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
