"""Who calls a tool: the client and its token, or the person who has filled in a form of the client.

A tool call is made by an agent. Only a form that the client shows to its user is the answer of a person, and
over HTTP with tokens only if the token has the role `approver`: the token of an agent cannot decide at gates.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from mcp.server.auth.middleware.auth_context import get_access_token

from workflows_mcp.mcp_server.tooling import Ctx

if TYPE_CHECKING:
    from workflows_mcp.runs import Identity

APPROVER = "approver"
"""The role of a token whose user may decide at gates."""


def agent_of(context: Ctx) -> Identity:
    """Return who calls a tool."""
    from workflows_mcp.runs import Identity

    client, token = _client(context), get_access_token()
    if token is not None:
        return Identity(token.client_id, "token", client)
    return Identity(client or "an agent", "mcp", client)


def person_of(context: Ctx) -> Identity:
    """Return who has filled in a form of the client."""
    from workflows_mcp.runs import Identity, user_name

    client, token = _client(context), get_access_token()
    if token is not None:
        return Identity(token.client_id, "form", client, human=APPROVER in token.scopes)
    inside = os.environ.get("WORKFLOWS_AGENT") or os.environ.get("WORKFLOWS_TASK")
    return Identity(user_name(), "form", client, human=not inside)


def _client(context: Ctx) -> str:
    params = context.session.client_params
    return params.client_info.name if params is not None else ""
