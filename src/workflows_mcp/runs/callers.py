"""Who calls the service: the identity that answers, decisions and refusals are recorded with.

    with calling_as(Identity("ada", "terminal", human=True)):
        await service.submit(run_id, {"response": "yes"})       # Answered.by is ada

A caller is an agent unless the code that calls the service knows better: a form that a person filled in, or a
terminal with a person at it. The identity lives in the context of one call.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

from workflows_mcp.machine import Identity

AGENT_VARIABLES = (
    "WORKFLOWS_AGENT",
    "WORKFLOWS_TASK",
    "CLAUDECODE",
    "CLAUDE_CODE_ENTRYPOINT",
    "CODEX_SANDBOX",
    "CODEX_SANDBOX_NETWORK_DISABLED",
    "CODEX_THREAD_ID",
    "CURSOR_AGENT",
    "GEMINI_CLI",
    "OPENCODE",
    "GOOSE_TERMINAL",
)
"""Variables that command-line agents set in the environment of what they start."""

_CALLER: ContextVar[Identity | None] = ContextVar("workflows_mcp.caller", default=None)


@contextmanager
def calling_as(identity: Identity) -> Iterator[None]:
    """Call the service as this identity inside this context."""
    before = _CALLER.set(identity)
    try:
        yield
    finally:
        _CALLER.reset(before)


def caller() -> Identity | None:
    """Return who calls; None if nobody has said."""
    return _CALLER.get()


def user_name() -> str:
    """Return the name of the user of this process. The environment cannot change it."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"user {os.getuid()}"


def agent_around(environ: Mapping[str, str]) -> str:
    """Return the variable that says that an agent has started this process; empty if there is none."""
    return next((name for name in AGENT_VARIABLES if environ.get(name)), "")
