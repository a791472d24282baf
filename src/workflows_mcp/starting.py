"""The part of starting a server that cannot wait until it has answered.

A server opens its service just after its first answer, because that takes half a second (`mcp_server.late`).
What a user has to put right must not come that late: settings that cannot be meant, and a store that cannot
be used. Nor may the log show a secret meanwhile. This module must stay cheap to import; it knows no runs, no
workflows and no step types.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from workflows_mcp.policy.mcp_servers import servers_of
from workflows_mcp.policy.secrets import hidden_in_logs, secrets_of
from workflows_mcp.settings import Settings


@contextmanager
def started(settings: Settings) -> Iterator[None]:
    """Raises WorkflowsError. The store is made, or brought to today's form, if that is still to be done."""
    with hidden_in_logs(secrets_of(settings)):
        servers_of(settings.mcp_servers)
        if settings.engine == "embedded":
            from workflows_mcp.engines.sqlite.store import check_store

            check_store(settings.store)
        yield
