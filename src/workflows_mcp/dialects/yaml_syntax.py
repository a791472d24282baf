"""Text that is not YAML: what the parser says of it, where, and what probably was meant."""

from __future__ import annotations

from yaml import MarkedYAMLError, YAMLError
from yaml.reader import ReaderError

from workflows_mcp.dialects.yaml_places import Source
from workflows_mcp.errors import Place, Problem

_HINTS = {
    "mapping values are not allowed in this context": "text that holds ': ' needs quotes around it; "
    "or the line is indented further than the lines that it belongs to",
    "did not find expected key": "the keys of one mapping start in the same column: check the indentation",
    "did not find expected '-' indicator": "the entries of one list start in the same column: "
    "check the indentation",
    "block sequence entries are not allowed in this context": "a list starts on a line of its own; "
    "text that starts with '- ' needs quotes",
    "could not find expected ':'": "a key is followed by ':' and a space",
    "found unexpected end of stream": "the quote that is opened here is never closed",
    "found undefined alias": "text that starts with '*' needs quotes; an alias needs an anchor before it",
    "found unknown escape character": "write '\\\\' for a backslash in double quotes, or use single quotes",
    "but found another document": "a file holds one workflow: remove the line '---'",
    "found character that cannot start any token": "text that starts with @, `, % or , needs quotes",
}


def syntax_problem(error: YAMLError, source: Source) -> Problem:
    if isinstance(error, ReaderError):
        before = source.text.encode("utf-8")[: error.position].decode("utf-8", "ignore")
        return Problem(
            "yaml",
            f"not YAML: {error.reason}",
            "remove the character, or write it as an escape in double quotes",
            place=source.place(len(before)),
        )
    assert isinstance(error, MarkedYAMLError)
    what = error.problem or str(error)
    mark = error.problem_mark
    if what == "found unexpected end of stream" and error.context_mark is not None:
        mark = error.context_mark  # the quote that was opened tells more than the end of the file
    place = source.place(mark.index if mark is not None else 0)
    context = f" {error.context}" if error.context else ""
    return Problem("yaml", f"not YAML: {what}{context}", _syntax_hint(what, place), place=place)


def _syntax_hint(what: str, place: Place) -> str:
    rest = place.text[place.column - 1 :]
    if rest.startswith("\t"):
        return "a tab cannot indent: use spaces"
    if "{{" in place.text:
        return 'text with {{ }} in it needs quotes: key: "{{ name }}"'
    if what.startswith("did not find expected ','") and "${" in place.text:
        return 'inside [ ] and { } text with ${…} needs quotes: ["${inputs.name}"]'
    return _HINTS.get(what, "check indentation, quotes and brackets on this line and the one before")
