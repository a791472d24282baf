"""Stores of runs that earlier versions left on the disk open, and their runs continue to their ends."""

from __future__ import annotations

import asyncio
import gzip
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.record_stores import STORES, WORKSPACE
from support.rendered import Service
from workflows_mcp.settings import Settings

RECORDED = sorted(path.name.removesuffix(".db.gz") for path in STORES.glob("*.db.gz"))


def copy_of(name: str, home: Path, workspace: Path) -> None:
    """Put a recorded store into `home`, as if its runs had been started in `workspace`."""
    recorded, own = str(WORKSPACE).encode(), str(workspace).encode()
    assert len(recorded) == len(own), "the pages of the file keep their layout"
    store = gzip.decompress((STORES / f"{name}.db.gz").read_bytes())
    (home / "runs.db").write_bytes(store.replace(recorded, own))


@pytest.fixture
def workspace() -> Iterator[Path]:
    """A directory whose path is as long as that of the recorded ones."""
    prefix = "workflows-mcp-"
    path = WORKSPACE.with_name(prefix + secrets.token_hex(32)[: len(WORKSPACE.name) - len(prefix)])
    path.mkdir()
    yield path
    shutil.rmtree(path)


@pytest.mark.parametrize("name", RECORDED)
def test_the_runs_of_a_recorded_store_continue(name: str, tmp_path: Path, workspace: Path) -> None:
    copy_of(name, tmp_path, workspace)

    async def go() -> None:
        async with Service.open(Settings(home=tmp_path, workspace=workspace)) as service:
            listed = (await service.runs(limit=10))["runs"]
            ids = {run["workflow"]: run["workflow_id"] for run in listed}
            assert {run["workflow"]: run["status"] for run in listed} == {
                "graph": "pending_action",
                "failed": "failed",
                "stateful": "pending_action",
                "reactive": "pending_action",
            }

            graph = await service.submit(ids["graph"], "yes", wait_seconds=20)
            assert (graph["status"], graph["outputs"]) == (
                "completed",
                {"said": "hello Ada", "answer": "yes", "items": 3},
            )

            (workspace / "now-it-works").touch()
            retried = await service.retry(ids["failed"], wait_seconds=20)
            assert (retried["status"], retried["outputs"]) == ("completed", {"after": "after"})

            assert (await service.submit(f"{ids['stateful']}.each.1", "long", wait_seconds=20))[
                "status"
            ] == "completed"
            stateful = await service.submit(ids["stateful"], True, wait_seconds=20)
            assert stateful["result"] == {"found": ["a.py: quite short", "b.py: long"], "sure": True}

            answer: dict[str, Any] = await service.status(ids["reactive"])
            assert answer["action"]["parameters"]["prompt"] == "Number 1 (2)?"
            for text in ("three", "four"):
                answer = await service.submit(ids["reactive"], text, wait_seconds=20)
            assert answer["status"] == "completed"
            found = await service.state(ids["reactive"], paths=["state.names"])
            assert found["values"]["state.names"] == ["one\n", "two", "three", "four"]

    asyncio.run(asyncio.wait_for(go(), 60))
    assert not (workspace / "ran.log").exists(), "no completed step runs again"
