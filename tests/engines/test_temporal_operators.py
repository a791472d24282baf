"""What an operator sees of runs with Temporal's own tools, and what becomes of runs that those tools end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

pytest.importorskip("temporalio", reason="temporalio is not installed: pip install -e .[temporal]")

from temporalio.client import Client, WorkflowExecutionStatus

from workflows_mcp.engines.temporal import looks
from workflows_mcp.engines.temporal.connection import Address, connect
from workflows_mcp.errors import NotExpected
from workflows_mcp.service import Service
from workflows_mcp.settings import Settings, TemporalSettings

pytestmark = pytest.mark.rows("O12")
T = TypeVar("T")

FAILS = """
name: fails
blocks:
  - {id: good, type: Shell, inputs: {command: 'echo x >> made; echo fine'}}
  - {id: bad, type: Shell, depends_on: [good], inputs: {command: 'test -e allowed'}}
outputs: {said: "${blocks.good.stdout}"}
"""
ASKS = """
name: asks
blocks:
  - {id: good, type: Shell, inputs: {command: 'echo fine'}}
  - {id: q, type: Prompt, depends_on: [good], inputs: {prompt: 'Yes?'}}
outputs: {said: "${blocks.q.response}"}
"""


def go(work: Awaitable[T]) -> T:
    async def within() -> T:
        return await asyncio.wait_for(work, 60)

    return asyncio.run(within())


def settings_of(home: Path, address: Address, **more: Any) -> Settings:
    given = TemporalSettings(host=address.host, task_queue=address.task_queue, **more)
    return Settings(workspace=home, home=home / "home", engine="temporal", temporal=given)


async def status_on_the_server(client: Client, run_id: str) -> str:
    described = await client.get_workflow_handle(run_id).describe()
    return (described.status or WorkflowExecutionStatus.RUNNING).name


async def closed(client: Client, run_id: str) -> str:
    """How the run has ended, as the server shows it."""
    async with asyncio.timeout(20):
        while (status := await status_on_the_server(client, run_id)) == "RUNNING":
            await asyncio.sleep(0.02)
    return status


async def listed(service: Service, run_id: str, status: str) -> None:
    """Until the run is in the list as it is: the list of the server lags behind."""
    async with asyncio.timeout(20):
        while [(it["workflow_id"], it["status"]) for it in await service.recent()] != [(run_id, status)]:
            await asyncio.sleep(0.02)


async def fail(service: Service) -> str:
    return str((await service.start(text=FAILS))["workflow_id"])


async def cancel(service: Service) -> str:
    run_id = str((await service.start(text=ASKS))["workflow_id"])
    await service.cancel(run_id, reason="enough")
    return run_id


async def complete(service: Service) -> str:
    run_id = str((await service.start(text=ASKS))["workflow_id"])
    await service.submit(run_id, "yes")
    return run_id


@pytest.mark.parametrize(
    ("end", "shown", "status"),
    [(complete, "COMPLETED", "completed"), (fail, "FAILED", "failed"), (cancel, "CANCELED", "cancelled")],
)
def test_temporal_shows_a_run_as_it_has_ended_and_all_of_it_can_still_be_read(
    tmp_path: Path,
    temporal_address: Address,
    end: Callable[[Service], Awaitable[str]],
    shown: str,
    status: str,
) -> None:
    async def work() -> None:
        client = await connect(temporal_address)
        async with Service.open(settings_of(tmp_path, temporal_address)) as service:
            run_id = await end(service)
            assert await closed(client, run_id) == shown
            before = await service.status(run_id)
        async with Service.open(settings_of(tmp_path, temporal_address)) as service:
            after = await service.status(run_id)  # by somebody who has seen nothing of it
            assert after == before
            assert after["status"] == status
            await listed(service, run_id, status)
            assert (await service.state(run_id))["status"] == status

    go(work())


def test_a_run_that_temporal_shows_as_failed_says_why_there_and_can_be_tried_again_and_forked(
    tmp_path: Path, temporal_address: Address
) -> None:
    async def work() -> None:
        client = await connect(temporal_address)
        async with Service.open(settings_of(tmp_path, temporal_address)) as service:
            run_id = await fail(service)
            assert await closed(client, run_id) == "FAILED"
            history = await client.get_workflow_handle(run_id).fetch_history()
            failure = history.events[-1].workflow_execution_failed_event_attributes.failure
            error = (await service.status(run_id))["error"]
            assert failure.message == error["message"]
            assert failure.application_failure_info.type == error["code"]
            assert failure.application_failure_info.non_retryable
            (tmp_path / "allowed").touch()
            for again in (await service.retry(run_id), await service.fork(run_id, "bad")):
                assert (again["status"], again["outputs"]) == ("completed", {"said": "fine\n"})
                assert again["forked_from"].startswith(run_id)
            assert (tmp_path / "made").read_text() == "x\n", "what was done is kept"

    go(work())


def test_a_run_that_temporal_shows_as_cancelled_can_be_continued_in_a_new_one(
    tmp_path: Path, temporal_address: Address
) -> None:
    async def work() -> None:
        client = await connect(temporal_address)
        async with Service.open(settings_of(tmp_path, temporal_address)) as service:
            run_id = await cancel(service)
            assert await closed(client, run_id) == "CANCELED"
            again = await service.retry(run_id)
            assert again["action"]["step_id"] == "q"
            assert (await service.submit(again["workflow_id"], "yes"))["outputs"] == {"said": "yes"}

    go(work())


@pytest.mark.parametrize("seen", [True, False], ids=["seen before", "never seen"])
def test_a_run_that_was_terminated_on_the_server_is_shown_as_cancelled_by_its_id_and_in_the_list(
    tmp_path: Path, temporal_address: Address, monkeypatch: pytest.MonkeyPatch, seen: bool
) -> None:
    monkeypatch.setattr(looks, "_NEW_ENOUGH_SECONDS", 0.0)  # the server may be quicker than that

    async def work() -> None:
        client = await connect(temporal_address)
        settings = settings_of(tmp_path, temporal_address)
        async with Service.open(settings) as first, Service.open(settings) as second:
            run_id = (await first.start(text=ASKS))["workflow_id"]
            service = first if seen else second
            await client.get_workflow_handle(run_id).terminate(reason="by hand")
            answer = await service.status(run_id, wait_seconds=20)
            assert answer["status"] == "cancelled"
            assert answer["error"]["message"] == "it was terminated on the Temporal server: by hand"
            await listed(service, run_id, "cancelled")
            with pytest.raises(NotExpected):
                await service.submit(run_id, "yes")
            again = await service.retry(run_id)
            assert again["action"]["step_id"] == "q"

    go(work())
