"""The part of starting a server that cannot wait until it has answered.

A server opens its service just after its first answer, because that takes half a second (`mcp_server.late`).
What a user has to put right must not come that late: settings that cannot be meant, and a store that cannot
be used. Nor may the log show a secret meanwhile. This module must stay cheap to import; it knows no runs, no
workflows and no step types.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from workflows_mcp.policy import hidden_in_logs, secrets_of, servers_of
from workflows_mcp.settings import Settings


@contextmanager
def startup_checks(settings: Settings) -> Iterator[None]:
    """Raises WorkflowsError. The store is made, or brought to today's form, if that is still to be done."""
    with hidden_in_logs(secrets_of(settings)):
        servers_of(settings.mcp_servers)
        if settings.engine == "embedded":
            from workflows_mcp.engines import check_store

            check_store(settings.store)
        yield


# ----------------------------------------------------------------------------------------------------
# How many files and connections this process may have open at once.


ENOUGH = 65_536

"""More is not asked for: commands inherit the limit, and some programs close every number below it."""


def raise_descriptor_limit() -> None:
    """Raises the soft limit to the hard one: the usual 1,024 is for programs that use select()."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = ENOUGH if hard == resource.RLIM_INFINITY else min(hard, ENOUGH)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def descriptor_limit() -> int:
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return ENOUGH if soft == resource.RLIM_INFINITY else soft
