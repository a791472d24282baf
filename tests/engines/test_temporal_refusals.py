"""What a Temporal server, or the lack of a worker, keeps from being done is told; whoever waits can go."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from support.rendered import Service
from support.temporal import running_server
from workflows_mcp.errors import RequestError, WorkflowsError
from workflows_mcp.settings.model import Settings, TemporalSettings
from workflows_mcp.temporal_dev.server import DevServer, free_port

pytestmark = pytest.mark.rows("S13")

ASKS = "name: asks\nblocks: [{id: q, type: Prompt, inputs: {prompt: 'Yes?'}}]\n"

SLOW = "name: slow\nblocks: [{id: a, type: Shell, inputs: {command: 'touch begun; sleep 300'}}]\n"


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not is_so():
            await asyncio.sleep(0.02)


def settings_for(address: Any, directory: Path, **more: Any) -> Settings:
    temporal = TemporalSettings(host=address.host, task_queue=address.task_queue, **more)
    return Settings(workspace=directory, home=directory / "home", engine="temporal", temporal=temporal)


@asynccontextmanager
async def without_worker(address: Any, directory: Path) -> AsyncIterator[Service]:
    async with Service.open(settings_for(address, directory, worker=False)) as service:
        yield service


@pytest.mark.rows("O12")
def test_a_run_is_started_without_any_worker_and_says_that_it_waits_for_one(
    temporal_address: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from workflows_mcp.engines.temporal import cache, connection

    monkeypatch.setattr(cache, "FIRST_TURN_SECONDS", 0.5)

    async def go() -> None:
        async with without_worker(temporal_address, tmp_path) as service:
            answer = await service.start(text=ASKS, request_id="the one", wait_seconds=0.1)
            run_id = answer["workflow_id"]
            assert (answer["workflow"], answer["status"]) == ("asks", "running")
            assert f"none serves the task queue '{temporal_address.task_queue}'" in answer["why"]
            assert "workflows-mcp worker" in answer["why"]
            assert await service.start(text=ASKS, request_id="the one", wait_seconds=0) == answer
            with pytest.raises(RequestError, match="something else"):
                await service.start(text=SLOW, request_id="the one", wait_seconds=0)
            monkeypatch.setattr(connection, "WORKER_SECONDS", 1.0)
            with pytest.raises(RequestError, match=temporal_address.task_queue) as caught:
                await service.submit(run_id, "yes")
            assert caught.value.code == "no_worker"
            with pytest.raises(RequestError) as caught:
                await service.status("wf_0")
            assert caught.value.code == "unknown_run"
        async with without_worker(temporal_address, tmp_path) as service:
            assert await service.status(run_id) == answer, "also in a process that has not started it"
            assert [(it["workflow_id"], it["why"]) for it in await service.recent()] == [
                (run_id, answer["why"])
            ]
        monkeypatch.setattr(connection, "WORKER_SECONDS", 40.0)
        async with Service.open(settings_for(temporal_address, tmp_path)) as service:
            answer = await service.start(text=ASKS, request_id="the one")
            assert (answer["workflow_id"], answer["action"]["step_id"]) == (run_id, "q")
            assert len(await service.recent()) == 1

    asyncio.run(go())


def test_a_run_that_was_terminated_before_any_worker_began_it_is_cancelled(
    temporal_address: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from workflows_mcp.engines.temporal import cache
    from workflows_mcp.engines.temporal.connection import connect

    monkeypatch.setattr(cache, "FIRST_TURN_SECONDS", 0.1)

    async def go() -> None:
        async with without_worker(temporal_address, tmp_path) as service:
            run_id = (await service.start(text=ASKS, wait_seconds=0))["workflow_id"]
            await (await connect(temporal_address)).get_workflow_handle(run_id).terminate()
            answer = await service.status(run_id)
            assert (answer["workflow_id"], answer["status"]) == (run_id, "cancelled")

    asyncio.run(go())


def test_whoever_waits_for_a_worker_can_be_told_to_stop(temporal_address: Any, tmp_path: Path) -> None:
    async def go() -> None:
        async with without_worker(temporal_address, tmp_path) as service:
            starting = asyncio.create_task(service.start(text=ASKS))
            done, _ = await asyncio.wait([starting], timeout=0.3)
            assert not done
            starting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await starting

    asyncio.run(go())


def test_what_could_not_be_done_just_now_is_asked_again_as_the_same_request_and_not_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from temporalio.client import (
        OutboundInterceptor,
        StartWorkflowUpdateInput,
        WorkflowUpdateRPCTimeoutOrCancelledError,
    )
    from temporalio.service import RPCError, RPCStatusCode

    from workflows_mcp.engines.temporal import connection

    failing = RPCError("unexpected workflow task failure", RPCStatusCode.FAILED_PRECONDITION, b"")
    busy = RPCError("too many", RPCStatusCode.RESOURCE_EXHAUSTED, b"")
    no_worker = RPCError("no poller seen", RPCStatusCode.FAILED_PRECONDITION, b"")
    cut_off = WorkflowUpdateRPCTimeoutOrCancelledError()
    cut_off.__cause__ = RPCError("context canceled", RPCStatusCode.CANCELLED, b"")
    monkeypatch.setattr(connection, "_BUSY_SECONDS", 0.001)

    class Server(OutboundInterceptor):
        def __init__(self, *says: Exception | None) -> None:
            self.says = list(says)
            self.ids: list[str | None] = []

        async def start_workflow_update(self, input: StartWorkflowUpdateInput) -> Any:
            self.ids.append(input.update_id)
            said = self.says[0] if len(self.says) == 1 else self.says.pop(0)
            if said is not None:
                raise said
            return "done"

    def asked(server: Server) -> Any:
        nothing: dict[str, Any] = {it.name: None for it in dataclasses.fields(StartWorkflowUpdateInput)}
        client = connection.Refusals("there", "default", "queue").intercept_client(server)
        return asyncio.run(client.start_workflow_update(StartWorkflowUpdateInput(**nothing)))

    monkeypatch.setattr(connection, "_AT_ONCE_SECONDS", -1.0)  # as if each had failed after a long wait
    with monkeypatch.context() as patched:
        patched.setattr(connection, "_FAILING_SECONDS", 0.0005)
        assert asked(Server(cut_off, cut_off, cut_off, None)) == "done"
    monkeypatch.setattr(connection, "_AT_ONCE_SECONDS", 1.0)
    server = Server(failing, busy, cut_off, failing, None)
    assert asked(server) == "done"
    assert len(server.ids) == 5
    assert len(set(server.ids)) == 1, "so that the server knows it again"
    monkeypatch.setattr(connection, "_FAILING_SECONDS", 0.02)
    monkeypatch.setattr(connection, "WORKER_SECONDS", 0.05)
    for always, code, words in (
        (failing, "damaged", "because workers fail"),
        (busy, "no_temporal", "has too much to do"),
        (cut_off, "no_temporal", "context canceled"),
        (no_worker, "no_worker", "queue"),
    ):
        with pytest.raises(WorkflowsError, match=words) as caught:
            asked(Server(always))
        assert caught.value.code == code


def test_a_server_that_is_away_is_told_and_found_again_and_what_is_logged_meanwhile_is_not_on_stdout(
    tmp_path: Path,
    temporal_address: Any,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from temporalio.client import Client, RetryConfig

    impatient = functools.partial(Client.connect, retry_config=RetryConfig(max_elapsed_time_millis=1000))
    monkeypatch.setattr(Client, "connect", impatient)
    port = free_port()
    address = dataclasses.replace(temporal_address, host=f"127.0.0.1:{port}")

    async def go(first: DevServer, running: ExitStack) -> None:
        async with Service.open(settings_for(address, tmp_path)) as service:
            await service.start(text=SLOW, wait_seconds=0)
            run_id = (await service.start(text=ASKS))["workflow_id"]
            await until((tmp_path / "begun").exists)
            await asyncio.to_thread(first.end)
            with pytest.raises(RequestError) as caught:
                await service.status(run_id)
            assert caught.value.code == "no_temporal"
            await until(lambda: "heartbeat" in caplog.text)
            again = running_server(tmp_path / "dev.db", port=port)
            await asyncio.to_thread(running.enter_context, again)
            assert (await service.submit(run_id, "yes"))["status"] == "completed"

    with ExitStack() as running:
        first = running.enter_context(running_server(tmp_path / "dev.db", port=port))
        asyncio.run(go(first, running))
    assert capfd.readouterr().out == ""
