"""Starts and shares a Temporal development server."""

from __future__ import annotations

from workflows_mcp.temporal_dev.server import (
    DATABASE,
    DevServer,
    SharedServer,
    answers,
    claim,
    install_command,
    is_free,
    known_port,
    start_dev_server,
)

__all__ = [
    "DATABASE",
    "DevServer",
    "SharedServer",
    "answers",
    "claim",
    "install_command",
    "is_free",
    "known_port",
    "start_dev_server",
]
