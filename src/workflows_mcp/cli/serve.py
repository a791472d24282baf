"""`workflows-mcp` and `workflows-mcp serve`: MCP over stdin and stdout, or over HTTP."""

from __future__ import annotations

import argparse
import dataclasses
import sys

from workflows_mcp.errors import RequestError, WorkflowsError
from workflows_mcp.hook import main as relay
from workflows_mcp.settings import load_settings, read_address, read_names, read_toolsets


def serve_command(options: argparse.Namespace) -> int:
    settings = load_settings(engine=options.engine)
    if options.toolsets is not None:
        settings = dataclasses.replace(settings, toolsets=read_toolsets("toolsets", options.toolsets))
    if options.workflow_tools is not None:
        chosen = read_names("workflow_tools", options.workflow_tools)
        settings = dataclasses.replace(settings, workflow_tools=chosen)
    if options.read_only:
        settings = dataclasses.replace(settings, read_only=True)
    if options.task is not None:
        settings = dataclasses.replace(settings, task=_narrowed(settings.task, options.task))
    address = settings.http.address if options.http is None else read_address("--http", options.http)
    if address is not None:
        from workflows_mcp.mcp_server import serve_http

        return serve_http(settings, address)
    if sys.stdin.isatty():
        print(
            "workflows-mcp serves MCP on stdin and stdout now, for an MCP client. "
            "Ctrl-C ends it; `workflows-mcp --help` lists what else it can do.",
            file=sys.stderr,
        )
    from workflows_mcp.mcp_server import serve_stdio

    try:
        serve_stdio(settings)
    except BaseExceptionGroup as group:
        ours, others = group.split(WorkflowsError)
        _, others = others.split(BrokenPipeError) if others is not None else (None, None)
        if others is not None:
            raise
        if ours is not None:
            raise _first(ours) from None
        # Nobody reads the answers any more: the client has gone, which is how a session ends.
    return 0


def hook_command(_: argparse.Namespace) -> int:
    """Relay an event of a client. The entry point does this without loading the command line."""
    return relay()


def _narrowed(served: str, task: str) -> str:
    """Return the task that an option names, inside of the one that the environment names."""
    if served and task != served and not task.startswith(f"{served}."):
        raise RequestError(
            f"WORKFLOWS_TASK allows only '{served}', not '{task}'",
            hint=f"leave out --task, or name '{served}' or a task inside of it",
        )
    return task


def _first(group: BaseExceptionGroup[WorkflowsError]) -> WorkflowsError:
    for error in group.exceptions:
        return _first(error) if isinstance(error, BaseExceptionGroup) else error
    raise AssertionError("a group of errors is never empty")
