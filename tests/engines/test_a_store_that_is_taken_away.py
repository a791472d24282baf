"""The file of runs is removed or replaced under a server that uses it: nothing is acknowledged that is lost."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from workflows_mcp.errors import StoreError
from workflows_mcp.service import Service
from workflows_mcp.settings import Settings

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
