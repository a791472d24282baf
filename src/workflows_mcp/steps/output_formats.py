"""Parses the output of a command: text, lines, JSON, or keys and values.

    formatted("a\\nb\\n", "lines")                    # ["a", "b"]
    formatted("NAME=x\\nsize: 3\\n", "key_value")     # {"NAME": "x", "size": "3"}

The output may contain marks of secrets, so nothing here creates a mark that was not in the output.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Literal, get_args

from workflows_mcp.errors import StepError
from workflows_mcp.values import (
    SECRET_OPEN,
    Value,
    did_you_mean,
    disarmed,
    from_json_in_run,
    shown,
    with_texts,
)

OutputFormat = Literal["text", "lines", "json", "key_value"]
FORMATS: tuple[str, ...] = get_args(OutputFormat)
OUTPUT_FORMAT = "output_format"
"""The key of `Do.config` with the format of the output, for a step that the server performs."""

_SEPARATOR = re.compile(r"=|:(?=\s|$)")
"""The end of a key. A colon inside a word, as in a time or an address, does not end it."""
_QUOTES = ('"', "'")


def formatted(text: str, output_format: str) -> Value:
    """Parse output in this format. Raises StepError if it has another format."""
    read = _READERS.get(output_format)
    if read is None:
        hint = did_you_mean(output_format, FORMATS, what="formats")
        raise StepError(f"there is no output format '{output_format}'", hint=hint)
    return read(text)


def formatted_or_nothing(text: str, output_format: str) -> Value:
    """Parse the output of a command that has failed; None if it has another format."""
    try:
        return formatted(text, output_format)
    except StepError:
        return None


def _text(text: str) -> Value:
    return text


def _lines(text: str) -> Value:
    lines = _split(text)
    while lines and not lines[-1]:
        lines.pop()
    return _without_new_marks(lines, text)


def _split(text: str) -> list[str]:
    """Split at line ends only: file names may contain other characters that end a line for Python."""
    return text.replace("\r\n", "\n").split("\n")


def _json(text: str) -> Value:
    if not text.strip():
        raise StepError("the command printed nothing; JSON was expected")
    try:
        return from_json_in_run(text)
    except ValueError as error:
        reason = str(error)
    except RecursionError:
        reason = "it is nested too deeply"
    raise StepError(f"the output of the command is not JSON ({reason}); it begins: {_beginning(text)}")


def _key_value(text: str) -> Value:
    """Skip lines without a key, such as headings. Raises StepError if no line has one."""
    found: dict[str, str] = {}
    for line in _split(text):
        words = line.strip()
        if words.startswith("#"):
            continue
        separator = _SEPARATOR.search(words)
        if separator is None:
            continue
        key = words[: separator.start()].strip()
        if separator[0] == "=":
            key = key.removeprefix("export ").lstrip()
        if key:
            found[_unquoted(key)] = _unquoted(words[separator.end() :].strip())
    if not found and (lines := [line for line in _split(text) if not _is_blank(line)]):
        raise StepError(
            "the command printed no line of the form KEY=value or key: value; "
            f"its output begins: {_beginning(lines[0])}"
        )
    return _without_new_marks(found, text)


def _is_blank(line: str) -> bool:
    """Whether a line is empty or a comment."""
    return not line.strip() or line.lstrip().startswith("#")


def _unquoted(text: str) -> str:
    whole = len(text) > 1 and text[0] in _QUOTES and text[-1] == text[0]
    return text[1:-1] if whole else text


def _without_new_marks(value: Value, text: str) -> Value:
    """Disarm pieces of a text that could become a mark when they are joined."""
    return with_texts(value, lambda part: disarmed(part, text)) if SECRET_OPEN[0] in text else value


def _beginning(text: str) -> str:
    return shown(text.strip(), 120)


_READERS: dict[str, Callable[[str], Value]] = {
    "text": _text,
    "lines": _lines,
    "json": _json,
    "key_value": _key_value,
}
