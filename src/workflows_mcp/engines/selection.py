"""Selects the engine that the settings name, and imports only that one."""

from __future__ import annotations

from workflows_mcp.engines.base import Engine, FindBundle
from workflows_mcp.engines.clock import Clock
from workflows_mcp.engines.executor import Executor
from workflows_mcp.errors import RequestError
from workflows_mcp.settings import Settings
from workflows_mcp.temporal_dev import install_command


def engine_of(
    settings: Settings, executor: Executor, find_bundle: FindBundle, clock: Clock, *, recovers: bool
) -> Engine:
    """`recovers`: recover the runs of dead processes, which a Temporal server does in any case."""
    if settings.engine == "temporal":
        return _temporal(settings, executor, find_bundle)
    from workflows_mcp.engines.sqlite.engine import SqliteEngine

    return SqliteEngine(
        settings.store, executor, find_bundle, clock=clock, recovers=recovers, settings=settings.fingerprint
    )


def _temporal(settings: Settings, executor: Executor, find_bundle: FindBundle) -> Engine:
    try:
        from workflows_mcp.engines.temporal.engine import temporal_engine
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "temporalio":
            raise
        raise RequestError(
            "the engine temporal needs a package that is not installed: temporalio",
            hint=f"{install_command()}, or set WORKFLOWS_ENGINE=embedded",
            code="no_temporal",
        ) from None
    return temporal_engine(settings, executor, find_bundle)
