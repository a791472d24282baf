"""A real MCP server for tests, made with the official package: `python tool_server.py [port]`.

Over its standard input and output, or, with a port, over HTTP on loopback. Every start and every call that
changes something is a line in the file that TOOL_SERVER_LOG names.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import CallToolResult, ImageContent, TextContent, ToolAnnotations

server = MCPServer("tools")


def note(line: str) -> None:
    if path := os.environ.get("TOOL_SERVER_LOG"):
        with Path(path).open("a") as log:
            log.write(f"{line}\n")


@server.tool()
def add(a: int, b: int) -> int:
    return a + b


@server.tool()
def issue(title: str, labels: list[str] | None = None) -> dict[str, Any]:
    note(f"issue {title}")
    return {"number": 7, "title": title, "labels": labels or []}


@server.tool(structured_output=False)
def say(text: str) -> str:
    return text


@server.tool(structured_output=False)
def picture() -> CallToolResult:
    return CallToolResult(
        content=[
            TextContent(type="text", text="a dot"),
            ImageContent(type="image", data="AAAA", mime_type="image/png"),
        ]
    )


@server.tool()
def refuse(reason: str) -> str:
    raise ToolError(reason)


@server.tool()
def where() -> dict[str, Any]:
    return {"pid": os.getpid(), "directory": os.getcwd(), "environment": dict(os.environ)}


@server.tool()
def header(ctx: Context[Any, Any], name: str) -> str:
    headers = ctx.headers or {}
    return str(headers.get(name, ""))


@server.tool()
def die(because: str) -> str:
    note("die")
    print(because, file=sys.stderr, flush=True)
    os._exit(3)


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def die_once(mark: str) -> str:
    """Dies the first time that it is called with this file, and not any more then."""
    note("die_once")
    if not Path(mark).exists():
        Path(mark).touch()
        os._exit(3)
    return "alive"


@server.tool()
async def sleep(seconds: float) -> str:
    note("asleep")
    await asyncio.sleep(seconds)
    return "awake"


if __name__ == "__main__":
    note("start")
    print("the tool server begins", file=sys.stderr, flush=True)
    if len(sys.argv) > 1:
        server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[1]), json_response=True)
    else:
        server.run("stdio")
