"""Whoever has subscribed to a run hears that it has changed, in both eras of the protocol."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest
from mcp import Client
from mcp.server.subscriptions import InMemorySubscriptionBus, ResourceUpdated, ServerEvent
from mcp.shared.exceptions import MCPError
from mcp.types import INVALID_PARAMS

from support.in_memory import ERAS, Desk, called
from support.rendered import Service
from support.subscriptions import LastSeen, subscribed
from workflows_mcp.mcp_server.notices import Notices
from workflows_mcp.runs import inspection

pytestmark = [
    pytest.mark.rows("X8"),
    # What old clients do is what is tested.
    pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning"),
]

ASKS = """\
name: asks
blocks:
  - {id: one, type: Prompt, inputs: {prompt: "first?"}}
  - {id: two, type: Prompt, depends_on: [one], inputs: {prompt: "second?"}}
"""


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    desk = Desk(tmp_path)
    desk.define("asks", ASKS)
    return desk


@pytest.mark.parametrize("mode", ERAS)
def test_a_subscriber_hears_of_every_part_that_it_has_subscribed_to(desk: Desk, mode: str) -> None:
    last_seen = LastSeen()

    async def work(client: Client) -> None:
        run_id = (await called(client, "start_workflow", workflow="asks"))["workflow_id"]
        other = (await called(client, "start_workflow", workflow="asks"))["workflow_id"]
        uris = (f"run://{run_id}", f"run://{run_id}/graph")
        async with subscribed(client, mode, *uris):
            await called(client, "submit_result", workflow_id=other, result="no")
            await called(client, "submit_result", workflow_id=run_id, result="yes")
            assert {await last_seen.uris.get(), await last_seen.uris.get()} == set(uris)

    desk.serve(work, mode=mode, message_handler=last_seen)


@pytest.mark.parametrize("mode", ERAS)
def test_a_subscriber_hears_of_a_run_that_another_process_drives(desk: Desk, mode: str) -> None:
    """Another engine over the same store is another process to this one."""
    last_seen = LastSeen()

    async def work(client: Client) -> None:
        async with Service.open(desk.settings(), recovers=False) as other:
            run_id = (await other.start(workflow="asks"))["workflow_id"]
            async with subscribed(client, mode, f"run://{run_id}"):
                await other.submit(run_id, "yes")
                assert await last_seen.uris.get() == f"run://{run_id}"

    desk.serve(work, mode=mode, message_handler=last_seen)


@pytest.mark.parametrize("mode", ERAS)
def test_a_subscriber_hears_that_a_definition_was_rewritten_or_is_gone(
    desk: Desk, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inspection, "_SCAN_SECONDS", 0.01)
    last_seen = LastSeen()

    async def work(client: Client) -> None:
        uris = ("workflow://asks", "workflow://asks/graph")
        async with subscribed(client, mode, *uris):
            desk.define("other", ASKS.replace("asks", "other"))
            path = desk.define("asks", ASKS.replace("first?", "first of all?"))
            assert {await last_seen.uris.get(), await last_seen.uris.get()} == set(uris)
            read = await client.read_resource("workflow://asks")
            assert "first of all?" in str(read.contents[0])
            path.unlink()
            assert {await last_seen.uris.get(), await last_seen.uris.get()} == set(uris)
            assert last_seen.uris.empty()

    desk.serve(work, mode=mode, message_handler=last_seen)


@pytest.mark.parametrize("mode", ERAS)
def test_the_server_claims_only_what_it_tells(desk: Desk, mode: str) -> None:
    async def work(client: Client) -> None:
        said = client.server_capabilities
        assert said is not None
        for lists in (said.tools, said.prompts, said.resources):
            assert lists is not None
            assert lists.list_changed is False
        assert said.resources is not None
        assert said.resources.subscribe is True
        assert (said.logging is not None) == (mode == "legacy")

    desk.serve(work, mode=mode)


@pytest.mark.parametrize("uri", ["run://wf_nothing", "workflow://nothing", "file:///etc/passwd", "runs://x"])
def test_subscribing_to_what_is_not_there_is_refused(desk: Desk, uri: str) -> None:
    async def work(client: Client) -> None:
        with pytest.raises(MCPError) as refused:
            await client.subscribe_resource(uri)
        assert refused.value.error.code == INVALID_PARAMS
        assert uri.partition("://")[2] in refused.value.error.message

    desk.serve(work, mode="legacy")


def test_listening_to_what_is_not_there_is_not_acknowledged(desk: Desk) -> None:
    async def work(client: Client) -> None:
        run_id = (await called(client, "start_workflow", workflow="asks"))["workflow_id"]
        uris = [f"run://{run_id}", f"run://{run_id}/nonsense", "run://wf_nothing", "file:///etc/passwd"]
        async with client.listen(tools_list_changed=True, resource_subscriptions=uris) as events:
            assert events.honored.resource_subscriptions == [f"run://{run_id}"]
            assert not events.honored.tools_list_changed

    desk.serve(work)


class Collected(InMemorySubscriptionBus):
    def __init__(self) -> None:
        super().__init__()
        self.events: asyncio.Queue[ServerEvent] = asyncio.Queue()

    async def publish(self, event: ServerEvent) -> None:
        self.events.put_nowait(event)


def test_a_run_is_followed_once_and_only_while_somebody_wants_to_hear_of_it(desk: Desk) -> None:
    def followers() -> list[str]:
        return [task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("notices of")]

    async def work() -> None:
        notices = Notices(Collected())
        async with Service.open(desk.settings()) as service:
            run_id = (await service.start(workflow="asks"))["workflow_id"]
            ends = [
                await notices.follow(service, uri)
                for uri in (f"run://{run_id}", f"run://{run_id}", f"run://{run_id}/journal")
            ]
            assert followers() == [f"notices of run://{run_id}"]
            for end in ends:
                end()
                end()
            await asyncio.sleep(0)
            assert followers() == []

    asyncio.run(work())


def test_many_changes_at_once_are_one_notice(desk: Desk) -> None:
    blocks = "".join(f"  - {{id: b{n}, type: Prompt, inputs: {{prompt: x}}}}\n" for n in range(4))
    desk.define("many", f"name: many\nblocks:\n{blocks}")

    async def work() -> None:
        seldom, often = Collected(), Collected()
        async with Service.open(desk.settings()) as service:
            run_id = (await service.start(workflow="many"))["workflow_id"]
            uri = f"run://{run_id}"
            ends = [
                await Notices(seldom, pause_seconds=3600).follow(service, uri),
                await Notices(often, pause_seconds=0).follow(service, uri),
            ]
            for n in range(4):
                await service.submit(run_id, "yes", step_id=f"b{n}")
                await often.events.get()
            assert seldom.events.qsize() == 1
            for end in ends:
                end()

    asyncio.run(asyncio.wait_for(work(), 60))


def test_the_last_change_is_told_however_fast_it_came(desk: Desk) -> None:
    async def work() -> None:
        bus = Collected()
        notices = Notices(bus, pause_seconds=0.01)
        async with Service.open(desk.settings()) as service:
            run_id = (await service.start(workflow="asks"))["workflow_id"]
            end = await notices.follow(service, f"run://{run_id}")
            await service.submit(run_id, "yes")
            ended = await service.submit(run_id, "yes")
            assert ended["status"] == "completed"
            # Whoever looks after each notice comes to see the end.
            told = await bus.events.get()
            last = await service.inspector.position(run_id)
            while (await service.inspector.moved(run_id, last)) is not None:
                told = await bus.events.get()
                last = await service.inspector.position(run_id)
            assert told == ResourceUpdated(f"run://{run_id}")
            end()

    asyncio.run(asyncio.wait_for(work(), 60))


def test_subscriptions_end_with_the_session(desk: Desk) -> None:
    async def work(client: Client) -> None:
        run_id = (await called(client, "start_workflow", workflow="asks"))["workflow_id"]
        await client.subscribe_resource(f"run://{run_id}")

    async def session() -> list[str]:
        from workflows_mcp.mcp_server.server import build_server

        async with Client(build_server(desk.settings()), mode="legacy") as client:
            await work(client)
        return [task.get_name() for task in asyncio.all_tasks()]

    left = asyncio.run(session())
    assert not [name for name in left if name.startswith(("notices of", "what a client"))]


def test_an_old_client_that_asks_for_a_level_is_sent_the_log_from_there_on(desk: Desk) -> None:
    last_seen = LastSeen()

    async def work(client: Client) -> None:
        await client.set_logging_level("warning")
        logger = logging.getLogger("workflows_mcp.anything")
        logger.setLevel(logging.INFO)
        logger.info("too little")
        await asyncio.to_thread(logger.error, "the %s is full", "disk")
        while not last_seen.logged:
            await asyncio.sleep(0)
        [said] = last_seen.logged
        assert (said.level, said.data, said.logger) == ("error", "the disk is full", "workflows_mcp.anything")

    desk.serve(work, mode="legacy", message_handler=last_seen)


def test_the_log_that_a_client_is_sent_has_no_secrets(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKFLOWS_SECRET_TOKEN", "hunter2hunter2")
    desk.define(
        "uses", "name: uses\nblocks: [{id: a, type: Shell, inputs: {command: 'echo ${secrets.TOKEN}'}}]\n"
    )
    last_seen = LastSeen()

    async def work(client: Client) -> None:
        await client.set_logging_level("error")
        await called(client, "start_workflow", workflow="uses")
        logging.getLogger("workflows_mcp.anything").error("it said hunter2hunter2")
        while not last_seen.logged:
            await asyncio.sleep(0)
        assert last_seen.logged[0].data.startswith("it said ")
        assert "hunter2" not in last_seen.logged[0].data

    desk.serve(work, mode="legacy", message_handler=last_seen)
