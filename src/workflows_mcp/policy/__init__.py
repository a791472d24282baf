"""Decides what a step may touch: paths, commands, network, secrets, sizes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workflows_mcp.lazy import exports

if TYPE_CHECKING:
    from workflows_mcp.policy.files import copy_directory, remove_directory
    from workflows_mcp.policy.handles import MayStart, Memory, World
    from workflows_mcp.policy.mcp_client import ToolResult, ToolServers, unpacked
    from workflows_mcp.policy.mcp_servers import servers_of
    from workflows_mcp.policy.processes import (
        LARGE_BYTES,
        STREAMS,
        Finished,
        Killed,
        OnOutput,
        end_leftovers,
        run_process,
    )
    from workflows_mcp.policy.rules import Denial, Policy, policy_of
    from workflows_mcp.policy.secrets import Secrets, hidden_in_logs, secrets_of

__all__ = [
    "LARGE_BYTES",
    "STREAMS",
    "Denial",
    "Finished",
    "Killed",
    "MayStart",
    "Memory",
    "OnOutput",
    "Policy",
    "Secrets",
    "ToolResult",
    "ToolServers",
    "World",
    "copy_directory",
    "end_leftovers",
    "hidden_in_logs",
    "policy_of",
    "remove_directory",
    "run_process",
    "secrets_of",
    "servers_of",
    "unpacked",
]

__getattr__ = exports(
    __name__,
    {
        "files": "copy_directory remove_directory",
        "handles": "MayStart Memory World",
        "mcp_client": "ToolResult ToolServers unpacked",
        "mcp_servers": "servers_of",
        "processes": "LARGE_BYTES STREAMS Finished Killed OnOutput end_leftovers run_process",
        "rules": "Denial Policy policy_of",
        "secrets": "Secrets hidden_in_logs secrets_of",
    },
)
