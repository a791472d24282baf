"""What an operator sees of runs with Temporal's own tools, and what becomes of runs that those tools end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest

pytest.importorskip("temporalio", reason="temporalio is not installed: pip install -e .[temporal]")

from msgspec import msgpack
from msgspec.msgpack import Ext
from temporalio.api.common.v1 import Payload
from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import ListSearchAttributesResponse
from temporalio.api.sdk.v1 import WorkflowMetadata
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.common import SearchAttributeKey
from temporalio.service import OperatorService, RPCError, RPCStatusCode

from support.plans import Do, block, bundle, plan
from support.rendered import Service
from support.temporal_histories import runs_of
from workflows_mcp.engines.temporal import cache, workflow
from workflows_mcp.engines.temporal.connection import Address, connect
from workflows_mcp.engines.temporal.wire import READABLE
from workflows_mcp.engines.values import encode
from workflows_mcp.errors import NotExpected
from workflows_mcp.settings.model import Settings, TemporalSettings

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
    monkeypatch.setattr(cache, "_NEW_ENOUGH_SECONDS", 0.0)  # the server may be quicker than that

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


# What is written


def payloads_in(message: Any) -> Iterator[Payload]:
    """All payloads of a message of the server."""
    if isinstance(message, Payload):
        yield message
        return
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        inside = value if field.is_repeated else [value]
        for it in inside.values() if hasattr(inside, "values") else inside:
            if hasattr(it, "ListFields"):
                yield from payloads_in(it)


async def written(client: Client, run_id: str) -> list[Payload]:
    history = await client.get_workflow_handle(run_id).fetch_history()
    return [it for event in history.events for it in payloads_in(event)]


def test_all_that_is_written_of_a_run_can_be_read_on_the_server(
    tmp_path: Path, temporal_address: Address
) -> None:
    async def work() -> None:
        client = await connect(temporal_address)
        async with Service.open(settings_of(tmp_path, temporal_address)) as service:
            run_id = (await service.start(text=ASKS))["workflow_id"]
            assert (await service.submit(run_id, "grün"))["outputs"] == {"said": "grün"}
            assert await closed(client, run_id) == "COMPLETED"
            found = await written(client, run_id)
            assert {it.metadata["encoding"] for it in found} == {b"json/plain"}
            last = json.loads(found[-1].data)
            assert last == {"$here": {"status": "completed", "outputs": {"said": "grün"}}}
            texts = [it.data.decode() for it in found]
            for part in ("Yes?", "echo fine", '"stdout":"fine', '"response":"grün"'):
                assert any(part in text for text in texts), part

    go(work())


BODIES: dict[str, Any] = {
    "a record": {"run_id": "wf_1", "n": 1, "x": 1.0, "none": None, "list": [1, -2, 3.5e300, "ü"]},
    "a plan": bundle(plan(block("a", Do("Ask", {"prompt": "?"}, by="agent")))),
    "bytes inside": {"bundle": b"h" + encode({"a": [b"t" + b"x" * 20, b"\xff\x00"]})},
    "a mark": {"outputs": {"value": Ext(1, b"y" * 20)}},
    "a key like ours": {"$blob": "not a hash", "$bytes": {"$large": "00"}},
    "one key like ours": {"value": {"$large": "00" * 20}},
    "not a number": {"x": float("nan"), "y": float("inf")},
    "a key that is no text": {1: 2},
    "another mark": {"x": Ext(7, b"z")},
    "control characters": {"x": "\x00" * 1000},
}


@pytest.mark.parametrize("name", BODIES)
def test_a_payload_comes_back_as_it_was_whatever_is_in_it(name: str) -> None:
    body = encode(BODIES[name])
    converter = READABLE.payload_converter
    readable = 0
    for given in (body, b"h" + body, b"t" + b"x" * 20, b"", b"h", b"\x93\x01", b"plain"):
        (payload,) = converter.to_payloads([given])
        (back,) = converter.from_payloads([payload], [bytes])
        assert back == given or msgpack.decode(back.removeprefix(b"h")) == msgpack.decode(body)
        assert len(payload.data) <= 1.5 * len(given) + 256
        readable += payload.metadata["encoding"] == b"json/plain"
        old = Payload(metadata={"encoding": b"binary/plain"}, data=given)
        assert converter.from_payloads([old], [bytes]) == [given], "as earlier versions wrote it"
    assert readable == (3 if name in ("a record", "a plan", "bytes inside", "a mark") else 1)
    (several,) = converter.to_payloads([[body, b"plain"]])
    ((first, second),) = converter.from_payloads([several], [list[bytes]])
    assert msgpack.decode(first) == msgpack.decode(body) or first == body
    assert second == b"plain"


@pytest.mark.parametrize("times", [100, 500])
def test_what_an_answer_led_to_is_written_without_the_answer_itself(
    tmp_path: Path, temporal_address: Address, times: int
) -> None:
    questions = [f"{{id: q{n}, type: Prompt, inputs: {{prompt: '{n}?'}}}}" for n in range(5)]
    text = f"name: talk\nblocks: [{', '.join(questions)}]\n"
    long = "a long answer " * times

    async def work() -> None:
        client = await connect(temporal_address)
        settings = settings_of(tmp_path, temporal_address)
        async with Service.open(settings) as service, Service.open(settings) as other:
            run_id = (await service.start(text=text))["workflow_id"]
            for n in range(5):
                answer = await service.submit(run_id, long, step_id=f"q{n}")
            assert answer == await other.status(run_id)
            history = await client.get_workflow_handle(run_id).fetch_history()
        events = [it.workflow_execution_update_completed_event_attributes for it in history.events]
        sizes = [it.ByteSize() for it in events if it.meta.update_id]
        assert len(sizes) == 5
        assert max(sizes) < 1000
        assert sum(it.ByteSize() for it in history.events) < 5 * len(long) + 12_000, (
            "each answer is there once"
        )

    go(work())


# What runs are found by


async def found_by(client: Client, address: Address, query: str, *expected: str) -> None:
    """Until the server finds these runs and no others: its list lags behind."""
    query = f"TaskQueue = '{address.task_queue}' AND {query}"
    async with asyncio.timeout(20):
        while {it.id async for it in client.list_workflows(query)} != set(expected):
            await asyncio.sleep(0.02)


def test_an_operator_finds_runs_by_their_workflow_and_by_how_they_stand(
    tmp_path: Path, temporal_address: Address
) -> None:
    async def work() -> None:
        client = await connect(temporal_address)
        async with Service.open(settings_of(tmp_path, temporal_address)) as service:
            failed = await fail(service)
            waits = str((await service.start(text=ASKS))["workflow_id"])
            find = partial(found_by, client, temporal_address)
            await find("WorkflowsName = 'fails'", failed)
            await find("WorkflowsName = 'asks'", waits)
            await find("WorkflowsStatus = 'failed'", failed)
            await find("WorkflowsStatus = 'waiting'", waits)
            await service.submit(waits, "yes")
            await find("WorkflowsStatus = 'waiting'")
            await find("WorkflowsStatus = 'completed'", waits)

    go(work())


def test_the_next_history_of_a_long_run_is_found_and_shown_as_the_first_was(
    tmp_path: Path, temporal_address: Address
) -> None:
    questions = [f"{{id: q{n}, type: Prompt, inputs: {{prompt: '{n}?'}}}}" for n in range(3)]
    text = f"name: long\nblocks: [{', '.join(questions)}]\n"

    async def work() -> None:
        client = await connect(temporal_address)
        async with Service.open(settings_of(tmp_path, temporal_address)) as service:
            service._engine._updates_a_history = 2  # type: ignore[attr-defined]
            run_id = (await service.start(text=text))["workflow_id"]
            for n in range(2):
                await service.submit(run_id, "yes", step_id=f"q{n}")
            async with asyncio.timeout(20):
                while len(await runs_of(client, run_id)) < 2:
                    await asyncio.sleep(0.02)
            await found_by(
                client,
                temporal_address,
                "WorkflowsName = 'long' AND WorkflowsStatus = 'waiting' AND ExecutionStatus = 'Running'",
                run_id,
            )
            handle = client.get_workflow_handle(run_id)
            described = await handle.describe()
            assert (await described.memo())["workflow"] == "long"
            metadata = await handle.query("__temporal_workflow_metadata", result_type=WorkflowMetadata)
            assert metadata.current_details == "long: waiting"

    go(work())


@pytest.mark.parametrize("refuses", ["list_search_attributes", "add_search_attributes", "start", "type"])
def test_a_server_that_lets_nobody_add_search_attributes_runs_workflows_all_the_same(
    tmp_path: Path,
    temporal_address: Address,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    refuses: str,
) -> None:
    async def refused(*_: Any, **__: Any) -> Any:
        raise RPCError("Request unauthorized.", RPCStatusCode.PERMISSION_DENIED, b"")

    async def none(*_: Any, **__: Any) -> ListSearchAttributesResponse:
        return ListSearchAttributesResponse()

    async def as_text(*_: Any, **__: Any) -> ListSearchAttributesResponse:
        text = IndexedValueType.INDEXED_VALUE_TYPE_TEXT
        known = {workflow.NAME.name: text, workflow.STATUS.name: text}
        return ListSearchAttributesResponse(custom_attributes=known)

    async def done(*_: Any, **__: Any) -> None:
        return None

    if refuses == "start":
        monkeypatch.setattr(workflow, "NAME", SearchAttributeKey.for_keyword("WorkflowsUnknown"))
        monkeypatch.setattr(OperatorService, "list_search_attributes", none, raising=False)
        monkeypatch.setattr(OperatorService, "add_search_attributes", done, raising=False)
    elif refuses == "type":
        monkeypatch.setattr(OperatorService, "list_search_attributes", as_text, raising=False)
    else:
        monkeypatch.setattr(OperatorService, "list_search_attributes", none, raising=False)
        monkeypatch.setattr(OperatorService, refuses, refused, raising=False)

    async def work() -> None:
        client = await connect(temporal_address)
        async with Service.open(settings_of(tmp_path, temporal_address)) as service:
            for _ in range(2):
                run_id = await complete(service)
                assert (await service.status(run_id))["status"] == "completed"
            described = await client.get_workflow_handle(run_id).describe()
            assert described.typed_search_attributes.get(workflow.STATUS) is None
            assert (await described.memo())["workflow"] == "asks"

    go(work())
    said = [it.getMessage() for it in caplog.records if it.name == workflow.__name__]
    assert len(said) == 1, "once for a process"
    assert "\n" not in said[0]
    assert "temporal operator search-attribute create" in said[0]


def test_search_attributes_that_another_process_has_just_added_are_used(
    tmp_path: Path,
    temporal_address: Address,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def none(*_: Any, **__: Any) -> ListSearchAttributesResponse:
        return ListSearchAttributesResponse()

    async def exists(*_: Any, **__: Any) -> Any:
        raise RPCError("It is there already.", RPCStatusCode.ALREADY_EXISTS, b"")

    async def work() -> None:
        client = await connect(temporal_address)
        assert await workflow.register_attributes(client)
        monkeypatch.setattr(OperatorService, "list_search_attributes", none, raising=False)
        monkeypatch.setattr(OperatorService, "add_search_attributes", exists, raising=False)
        async with Service.open(settings_of(tmp_path, temporal_address)) as service:
            run_id = await complete(service)
            await found_by(client, temporal_address, "WorkflowsStatus = 'completed'", run_id)

    go(work())
    assert [it for it in caplog.records if it.name == workflow.__name__] == []
