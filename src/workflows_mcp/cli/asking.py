"""What a run asks, on a terminal: shown to a person, who types the answer."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

from workflows_mcp.cli.printing import Paper, print_values
from workflows_mcp.values import Value

_YES = ("y", "yes", "true")
_NO = ("n", "no", "false")


def can_ask() -> bool:
    return sys.stdin.isatty()


def show_question(paper: Paper, action: dict[str, Any]) -> None:
    paper.line()
    paper.line(f"{paper.mark('paused')} {paper.paint(action['step_id'], 'bold')}")
    parameters: dict[str, Value] = dict(action["parameters"])
    shown = next((key for key in _WORDS.get(action["type"], ("prompt",)) if key in parameters), None)
    words = parameters.pop(shown) if shown is not None else None
    paper.line(paper.clean(words.rstrip() if isinstance(words, str) else action["instructions"]))
    for key in _SAID_OTHERWISE.get(action["type"], ()):
        parameters.pop(key, None)
    print_values(paper, parameters)
    options = _options(action)
    if options and action["parameters"].get("choices"):
        for number, option in enumerate(options, start=1):
            paper.line(f"  {number}  {paper.clean(option)}")
    elif options:
        paper.line(f"({' / '.join(options)})")


_WORDS = {
    "prompt": ("prompt", "message"),
    "shell": ("command",),
    "agent_shell_command": ("command",),
    "delegate": ("instructions",),
}
"""Which parameter of an action is what a person has to read."""
_SAID_OTHERWISE = {"prompt": ("type", "choices")}
"""Parameters that are shown in another way, or are meant for an agent."""


def show_message(paper: Paper, action: dict[str, Any]) -> None:
    """A message that needs no answer."""
    paper.line()
    paper.line(paper.clean(str(action["parameters"].get("message", "")).rstrip()))


def needs_no_answer(action: dict[str, Any]) -> bool:
    return bool(action["type"] == "prompt" and action["parameters"].get("type") == "info")


async def read_answer(paper: Paper, question: str = "") -> str | None:
    """The line that a person types; None when they would rather not say (Ctrl-D)."""
    paper.stream.write(f"{question}> ")
    paper.stream.flush()
    # A thread that reads could not be stopped by Ctrl-C; the terminal hands out whole lines anyway.
    loop = asyncio.get_running_loop()
    line: asyncio.Future[bytes] = loop.create_future()
    descriptor = sys.stdin.fileno()

    def typed_something() -> None:
        if not line.done():
            line.set_result(os.read(descriptor, 65536))

    loop.add_reader(descriptor, typed_something)
    try:
        typed = await line
    finally:
        loop.remove_reader(descriptor)
    if not typed:
        paper.line()
        return None
    return typed.decode(sys.stdin.encoding or "utf-8", "replace").rstrip("\r\n")


async def agrees(paper: Paper, question: str) -> bool:
    """Whether a person says yes; anything else is no."""
    typed = await read_answer(paper, f"{question} (y / n) ")
    return typed is not None and typed.strip().lower() in _YES


def as_typed(action: dict[str, Any], typed: str) -> Value:
    """What a line stands for: yes and no, the number of an option, or what it says."""
    word = typed.strip().lower()
    field = _main_field(action)
    if field.get("type") == "boolean" and word in (*_YES, *_NO):
        return word in _YES
    options = [str(option) for option in field.get("enum", ())]
    if word.isdecimal() and word not in options and 0 < int(word) <= len(options):
        return options[int(word) - 1]
    return typed


def _options(action: dict[str, Any]) -> list[str]:
    field = _main_field(action)
    if field.get("enum"):
        return [str(option) for option in field["enum"]]
    return ["y", "n"] if field.get("type") == "boolean" else []


def _main_field(action: dict[str, Any]) -> dict[str, Any]:
    """The one field that a question is about; nothing where a result has several."""
    schema = action.get("result_schema", {})
    fields = schema.get("properties", {})
    asked_for = schema.get("required") or list(fields)  # what has a default can be left open
    field: dict[str, Any] = fields.get(asked_for[0], {}) if len(asked_for) == 1 else {}
    return field
