"""The terminal plays the agent: shows what a run asks, and reads the answer that a person types."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

from workflows_mcp.cli.printing import Paper, print_values
from workflows_mcp.values import Value


def can_ask() -> bool:
    return sys.stdin.isatty()


def show_question(paper: Paper, action: dict[str, Any]) -> None:
    paper.line()
    paper.line(f"{paper.mark('paused')} {paper.paint(action['step_id'], 'bold')}")
    parameters: dict[str, Value] = dict(action["parameters"])
    prompt = parameters.pop("prompt", None)
    paper.line(paper.clean(prompt.rstrip() if isinstance(prompt, str) else action["instructions"]))
    print_values(paper, parameters)
    options = _options(action["result_schema"])
    if options:
        paper.line(f"({' / '.join(options)})")


async def read_answer(paper: Paper) -> str | None:
    """The line that a person types; None when they would rather not say (Ctrl-D)."""
    paper.stream.write("> ")
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


def _options(schema: dict[str, Any]) -> list[str]:
    for field in schema.get("properties", {}).values():
        if field.get("enum"):
            return [str(option) for option in field["enum"]]
        if field.get("type") == "boolean":
            return ["true", "false"]
    return []
