"""What a command has printed, as the data that a workflow goes on with: text, lines, JSON or keys and values.

    formatted("a\\nb\\n", "lines")                    # ["a", "b"]
    formatted("NAME=x\\nsize: 3\\n", "key_value")     # {"NAME": "x", "size": "3"}

Text may hold marks of secrets, so nothing here makes a mark that was not in the text. Must not know who has
run the command, nor how it ended.
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
"""The key of `Do.config` that tells a step of the server which format its output is read in."""

_SEPARATOR = re.compile(r"=|:(?=\s|$)")
"""What ends a key. A colon inside of a word, as in a time or an address, does not."""
_QUOTES = ('"', "'")


def formatted(text: str, output_format: str) -> Value:
    """The text in this format. Raises StepError where it is not of that format."""
    read = _READERS.get(output_format)
    if read is None:
        hint = did_you_mean(output_format, FORMATS, what="formats")
        raise StepError(f"there is no output format '{output_format}'", hint=hint)
    return read(text)


def formatted_or_nothing(text: str, output_format: str) -> Value:
    """The same for a command that has failed anyway: null where its output is not of that format."""
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
    """Only where a line ends: names of files may hold other signs that separate lines for Python."""
    return text.replace("\r\n", "\n").split("\n")


def _json(text: str) -> Value:
    if not text.strip():
        raise StepError("the command printed nothing, and JSON was expected")
    try:
        return from_json_in_run(text)
    except ValueError as error:
        reason = str(error)
    except RecursionError:
        reason = "it is nested too deep"
    raise StepError(f"the command printed no JSON ({reason}); its output begins: {_beginning(text)}")


def _key_value(text: str) -> Value:
    """Lines that are no pairs, such as headings, are passed over, unless there is nothing else."""
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
    if not found and (said := [line for line in _split(text) if not _says_nothing(line)]):
        raise StepError(
            "the command printed no line of the form KEY=value or key: value; "
            f"its output begins: {_beginning(said[0])}"
        )
    return _without_new_marks(found, text)


def _says_nothing(line: str) -> bool:
    return not line.strip() or line.lstrip().startswith("#")


def _unquoted(text: str) -> str:
    whole = len(text) > 1 and text[0] in _QUOTES and text[-1] == text[0]
    return text[1:-1] if whole else text


def _without_new_marks(value: Value, text: str) -> Value:
    """A text that was cut into pieces leaves no piece that another one could complete to a mark."""
    return with_texts(value, lambda part: disarmed(part, text)) if SECRET_OPEN[0] in text else value


def _beginning(text: str) -> str:
    return shown(text.strip(), 120)


_READERS: dict[str, Callable[[str], Value]] = {
    "text": _text,
    "lines": _lines,
    "json": _json,
    "key_value": _key_value,
}
