"""A server that speaks TLS and wants to know who comes: the real one, behind a door that does.

The certificates beside this file hold for a hundred years, for `localhost`; nothing else knows them.
"""

from __future__ import annotations

import asyncio
import dataclasses
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("temporalio", reason="temporalio is not installed: pip install -e .[temporal]")

from support.engines import World, ended
from support.plans import Do, block, bundle, plan
from workflows_mcp.engines.temporal.connection import Address, connect
from workflows_mcp.errors import RequestError

pytestmark = pytest.mark.rows("S13")
CERTIFICATES = Path(__file__).with_name("certificates")
CA = CERTIFICATES / "ca.pem"
OURS: dict[str, Any] = {"tls_cert": CERTIFICATES / "client.pem", "tls_key": CERTIFICATES / "client.key"}


@asynccontextmanager
async def door(behind: str) -> AsyncIterator[str]:
    """Lets in whoever has a certificate of the authority, and passes on what is said."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATES / "server.pem", CERTIFICATES / "server.key")
    context.load_verify_locations(CA)
    context.verify_mode = ssl.CERT_REQUIRED
    context.set_alpn_protocols(["h2"])

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while said := await reader.read(65536):
                writer.write(said)
                await writer.drain()
        writer.close()

    async def let_in(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, _, port = behind.partition(":")
        there, back = await asyncio.open_connection(host, int(port))
        await asyncio.gather(pass_on(reader, back), pass_on(there, writer))

    server = await asyncio.start_server(let_in, "127.0.0.1", 0, ssl=context)
    try:
        yield f"localhost:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


def go(address: Address, work: Callable[[Address], Awaitable[None]]) -> None:
    async def within() -> None:
        async with door(address.host) as host:
            await asyncio.wait_for(work(dataclasses.replace(address, host=host)), 30)

    asyncio.run(within())


def test_runs_go_through_tls_with_the_certificates_of_the_settings(
    tmp_path: Path, temporal_address: Address
) -> None:
    async def work(address: Address) -> None:
        world = World(tmp_path, address=dataclasses.replace(address, tls_ca=CA, **OURS))
        async with world.engine("temporal") as engine:
            run_id = await engine.start(bundle(plan(block("a", Do("Note", {"text": "a"})))), {})
            assert (await engine.wait(run_id, ended, 20)).state.status == "completed"
        assert world.note.lines == ["a"]

    go(temporal_address, work)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"tls_ca": CA}, "WORKFLOWS_TEMPORAL_TLS_CERT"),
        ({"tls": True}, "WORKFLOWS_TEMPORAL_TLS_CA"),
        ({}, "WORKFLOWS_TEMPORAL_TLS=true"),
    ],
    ids=["no certificate of ours", "an authority that nobody knows", "no TLS"],
)
def test_what_is_missing_is_named(temporal_address: Address, given: dict[str, Any], words: str) -> None:
    async def work(address: Address) -> None:
        with pytest.raises(RequestError) as caught:
            await connect(dataclasses.replace(address, **given), seconds=5)
        assert caught.value.code == "no_temporal"
        assert words in caught.value.hint
        assert "Error(" not in caught.value.message

    go(temporal_address, work)
