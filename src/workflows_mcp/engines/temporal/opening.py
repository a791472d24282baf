"""The engine as the settings describe it: over a server that they name, or, if they name none, over a
development server of our own, which all processes with the same home share."""

from __future__ import annotations

from dataclasses import replace

from workflows_mcp.engines.base import FindBundle
from workflows_mcp.engines.executor import Executor
from workflows_mcp.engines.temporal.blobs import BlobStore
from workflows_mcp.engines.temporal.connection import Address, connect
from workflows_mcp.engines.temporal.engine import TemporalEngine
from workflows_mcp.errors import RequestError
from workflows_mcp.settings import Settings
from workflows_mcp.temporal_dev.shared import SharedServer

_ANSWER_SECONDS = 2.0


def temporal_engine(settings: Settings, executor: Executor, find_bundle: FindBundle) -> TemporalEngine:
    given = settings.temporal
    address = Address(
        host=given.host or "",
        namespace=given.namespace,
        task_queue=given.task_queue,
        tls=given.tls,
        tls_ca=given.tls_ca,
        tls_cert=given.tls_cert,
        tls_key=given.tls_key,
        api_key=given.api_key,
    )
    parts = address, executor, find_bundle, BlobStore(settings.blobs)
    steps = given.steps and not settings.read_only
    if given.host is not None:
        return TemporalEngine(*parts, lend_worker=given.worker, carry_out=steps)
    server = SharedServer(settings.dev_server)
    return EngineWithItsServer(server, *parts, lend_worker=given.worker, carry_out=steps)


class EngineWithItsServer(TemporalEngine):
    """Where the server is, is known when it has been started."""

    def __init__(
        self,
        server: SharedServer,
        address: Address,
        executor: Executor,
        find_bundle: FindBundle,
        store: BlobStore,
        *,
        lend_worker: bool,
        carry_out: bool,
    ) -> None:
        super().__init__(address, executor, find_bundle, store, lend_worker=lend_worker, carry_out=carry_out)
        self._own_server = server

    async def open(self) -> None:
        self._address = replace(self._address, host=await self._own_server.open(self._is_ready))
        try:
            await super().open()
        except BaseException:
            await self._own_server.close()
            raise

    async def _is_ready(self, host: str) -> bool:
        """A server that has just been started listens before it can answer."""
        try:
            await connect(replace(self._address, host=host), seconds=_ANSWER_SECONDS)
        except RequestError:
            return False
        return True

    async def close(self) -> None:
        try:
            await super().close()
        finally:
            await self._own_server.close()
