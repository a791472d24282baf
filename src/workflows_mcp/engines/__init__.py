"""Makes runs durable: starts, drives and recovers them. One interface, three engines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workflows_mcp.lazy import exports

if TYPE_CHECKING:
    from workflows_mcp.engines.base import ChangedDefinition, Engine, RunSummary
    from workflows_mcp.engines.clock import SystemClock
    from workflows_mcp.engines.executor import Executor
    from workflows_mcp.engines.headless import HeadlessAgents
    from workflows_mcp.engines.live_output import Line, LiveOutput
    from workflows_mcp.engines.permissions import PermittedSteps, check_bundle, forbidden_blocks
    from workflows_mcp.engines.selection import engine_of
    from workflows_mcp.engines.sqlite.store import check_store

__all__ = [
    "ChangedDefinition",
    "Engine",
    "Executor",
    "HeadlessAgents",
    "Line",
    "LiveOutput",
    "PermittedSteps",
    "RunSummary",
    "SystemClock",
    "check_bundle",
    "check_store",
    "engine_of",
    "forbidden_blocks",
]

__getattr__ = exports(
    __name__,
    {
        "base": "ChangedDefinition Engine RunSummary",
        "selection": "engine_of",
        "clock": "SystemClock",
        "executor": "Executor",
        "headless": "HeadlessAgents",
        "live_output": "Line LiveOutput",
        "permissions": "PermittedSteps check_bundle forbidden_blocks",
        "sqlite.store": "check_store",
    },
)
