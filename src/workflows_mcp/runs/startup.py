"""Checks that a server makes before its first answer.

    with startup_checks(settings):
        serve()

Opening the service takes half a second, so a server does it after its first answer. Errors that the user must
fix cannot wait that long: invalid settings, an unusable store. Secrets are hidden in the log from the start.
This module must stay cheap to import (`tests/clients/test_cold_start.py`).
"""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from workflows_mcp.policy import hidden_in_logs, secrets_of, servers_of
from workflows_mcp.settings import Settings


@contextmanager
def startup_checks(settings: Settings) -> Iterator[None]:
    """Check the settings and create or migrate the store. Raises WorkflowsError."""
    with hidden_in_logs(secrets_of(settings)):
        servers_of(settings.mcp_servers)
        if settings.engine == "embedded":
            from workflows_mcp.engines import check_store

            check_store(settings.store)
        yield


# How many files and connections this process may have open at once

ENOUGH = 65_536
"""The limit is raised no further: commands inherit it, and some programs close every number below it."""


def raise_descriptor_limit() -> None:
    """Raise the soft limit to the hard one: the usual 1,024 is for programs that use select()."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = ENOUGH if hard == resource.RLIM_INFINITY else min(hard, ENOUGH)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def descriptor_limit() -> int:
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return ENOUGH if soft == resource.RLIM_INFINITY else soft
