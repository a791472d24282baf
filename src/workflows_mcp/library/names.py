"""The name of a workflow, read off the beginning of its file: finding one must not read all files as YAML."""

from __future__ import annotations

import re

from workflows_mcp.errors import Place

_NAME = re.compile(r"""^name[ \t]*:[ \t]+(?:"([^"\n]*)"|'([^'\n]*)'|([^#\n]*?))[ \t]*(?:#.*)?\r?$""", re.M)
_WRAPPER = re.compile(r"^workflow[ \t]*:[ \t]*(?:#.*)?\r?$", re.M)
_INNER_NAME = re.compile(_NAME.pattern.replace("^name", "^ +name"), re.M)


def name_in(head: str) -> str:
    """The `name:` in the beginning of a file; empty if there is none."""
    match = _found(head.removeprefix("\ufeff"))
    name = next((part for part in match.groups() if part), "") if match else ""
    return name.strip()


def place_of_name(text: str, file: str) -> Place:
    """Where the name stands; the beginning of the file if it is nowhere."""
    text = text.removeprefix("\ufeff")
    match = _found(text)
    at = match.start() if match else 0
    line = text[at:].partition("\n")[0].rstrip("\r")
    return Place(file, text.count("\n", 0, at) + 1, len(line) - len(line.lstrip()) + 1, line)


def _found(text: str) -> re.Match[str] | None:
    return _NAME.search(text) or _wrapped_name(text)


def _wrapped_name(head: str) -> re.Match[str] | None:
    """The name in a file in which all stands below `workflow:`; it is what is indented least."""
    wrapper = _WRAPPER.search(head)
    names = _INNER_NAME.finditer(head, wrapper.end()) if wrapper else ()
    return min(names, key=lambda found: len(found[0]) - len(found[0].lstrip()), default=None)
