"""The file of runs is removed or replaced under a server that uses it: nothing is acknowledged that is lost."""

from __future__ import annotations

import asyncio
import shutil
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from support.rendered import Service
from workflows_mcp.errors import StoreError
from workflows_mcp.settings.model import Settings

ASKS = "name: asks\nblocks:\n  - {id: ask, type: Prompt, inputs: {prompt: 'Release?'}}\n"


@pytest.mark.parametrize("replaced", [False, True])
def test_nothing_is_accepted_once_the_store_is_removed_or_replaced(tmp_path: Path, replaced: bool) -> None:
    settings = Settings(workspace=tmp_path, home=tmp_path / "home")

    async def go() -> None:
        service = Service.open(settings)
        await service.__aenter__()
        run_id = (await service.start(text=ASKS, wait_seconds=5))["workflow_id"]
        store = settings.store
        if replaced:
            shutil.copy(store, tmp_path / "copy.db")
        for file in store.parent.glob("runs.db*"):
            file.unlink()
        if replaced:
            (tmp_path / "copy.db").rename(store)
        with pytest.raises(StoreError, match="removed or replaced") as refused:
            await service.submit(run_id, {"response": "yes"}, step_id="ask")
        assert refused.value.code == "store"
        with pytest.raises(StoreError, match="removed or replaced"):
            await service.start(text=ASKS, request_id="again", wait_seconds=5)
        with pytest.raises(StoreError):
            await service.__aexit__(None, None, None)

    asyncio.run(asyncio.wait_for(go(), 30))


@pytest.mark.parametrize("what", ["cut off", "zeroes", "other tables"])
def test_a_store_that_is_damaged_is_an_error_of_the_store(tmp_path: Path, what: str) -> None:
    settings = Settings(workspace=tmp_path, home=tmp_path / "home")

    async def fill() -> None:
        async with Service.open(settings) as service:
            for _ in range(5):
                await service.start(text=ASKS, wait_seconds=5)

    async def use() -> None:
        async with Service.open(settings) as service:
            await service.start(text=ASKS, wait_seconds=5)
            await service.recent()

    if what != "other tables":
        asyncio.run(asyncio.wait_for(fill(), 30))
        data = settings.store.read_bytes()
        for file in settings.store.parent.glob("runs.db*"):
            file.unlink()
        kept = data[: len(data) // 2] if what == "cut off" else data[:4096].ljust(len(data), b"\0")
        settings.store.write_bytes(kept)
    else:
        settings.store.parent.mkdir(parents=True)
        with closing(apsw.Connection(str(settings.store))) as connection:
            connection.execute("CREATE TABLE runs (other)")
    with pytest.raises(StoreError, match=r"runs\.db cannot be used") as refused:
        asyncio.run(asyncio.wait_for(use(), 30))
    assert refused.value.code == "store"
    assert refused.value.hint
