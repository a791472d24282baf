"""The name of a workflow, read off the beginning of its file: finding one must not read all files as YAML."""

from __future__ import annotations

import re

_NAME = re.compile(r"""^name[ \t]*:[ \t]+(?:"([^"\n]*)"|'([^'\n]*)'|([^#\n]*?))[ \t]*(?:#.*)?\r?$""", re.M)
_WRAPPER = re.compile(r"^workflow[ \t]*:[ \t]*(?:#.*)?\r?$", re.M)
_INNER_NAME = re.compile(_NAME.pattern.replace("^name", "^ +name"), re.M)


def name_in(head: str) -> str:
    """The `name:` in the beginning of a file; empty if there is none."""
    head = head.removeprefix("\ufeff")
    match = _NAME.search(head) or _wrapped_name(head)
    name = next((part for part in match.groups() if part), "") if match else ""
    return name.strip()


def _wrapped_name(head: str) -> re.Match[str] | None:
    """The name in a file in which all stands below `workflow:`; it is what is indented least."""
    wrapper = _WRAPPER.search(head)
    names = _INNER_NAME.finditer(head, wrapper.end()) if wrapper else ()
    return min(names, key=lambda found: len(found[0]) - len(found[0].lstrip()), default=None)
