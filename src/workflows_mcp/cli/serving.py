"""`workflows-mcp` and `workflows-mcp serve`: MCP over stdin and stdout."""

from __future__ import annotations

import argparse
import dataclasses
import sys

from workflows_mcp.errors import WorkflowsError
from workflows_mcp.settings import load_settings, read_toolsets


def serve_command(options: argparse.Namespace) -> int:
    settings = load_settings()
    if options.toolsets is not None:
        settings = dataclasses.replace(settings, toolsets=read_toolsets("toolsets", options.toolsets))
    if sys.stdin.isatty():
        print(
            "workflows-mcp serves MCP on stdin and stdout now, for an MCP client. "
            "Ctrl-C ends it; `workflows-mcp --help` lists what else it can do.",
            file=sys.stderr,
        )
    from workflows_mcp.mcp_server.server import serve_stdio

    try:
        serve_stdio(settings)
    except BaseExceptionGroup as group:
        ours, others = group.split(WorkflowsError)
        if ours is None or others is not None:
            raise
        raise _first(ours) from None
    return 0


def _first(group: BaseExceptionGroup[WorkflowsError]) -> WorkflowsError:
    for error in group.exceptions:
        return _first(error) if isinstance(error, BaseExceptionGroup) else error
    raise AssertionError("a group of errors is never empty")
