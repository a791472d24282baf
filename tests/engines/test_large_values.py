"""Large values: written once by their hash, passed on whole, read in slices, and missed when they are gone."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import apsw
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.engines import World, asks, ended
from support.plans import Call, Do, block, bundle, plan
from support.rendered import Service
from workflows_mcp.engines import values
from workflows_mcp.engines.sqlite.engine import SqliteEngine
from workflows_mcp.engines.values import LargeValues, encode, join_events
from workflows_mcp.errors import Damaged, StoreError
from workflows_mcp.limits import Limits
from workflows_mcp.machine.events import Answered, Event, Started, StepDone
from workflows_mcp.machine.machine import Machine
from workflows_mcp.plan import model
from workflows_mcp.plan.model import InputSpec
from workflows_mcp.settings.model import Settings
from workflows_mcp.steps.base import Step, StepContext, StepInputs, StepOutputs, StepResult
from workflows_mcp.values import Value

MB = 1_000_000
LARGE = 5 * MB
ASK = Do("Ask", {"prompt": "?"}, by="agent", defaults={"response": ""})


class Make(Step):
    """Gives a large text, and a large list."""

    name = "Make"

    class Inputs(StepInputs):
        size: int = LARGE

    class Outputs(StepOutputs):
        text: str = ""
        numbers: Value = None

    def run(self, inputs: Inputs, context: StepContext) -> StepResult:
        return StepResult({"text": "é" * (inputs.size // 2), "numbers": list(range(inputs.size // 100))})


def echo(value: Value) -> model.Do:
    return Do("Echo", {"value": value}, defaults={"value": None})


def world_of(home: Path) -> World:
    world = World(home)
    world.more = [Make()]
    return world


def bytes_used(store: Path) -> int:
    connection = apsw.Connection(str(store))
    connection.wal_checkpoint()
    pages = int(connection.pragma("page_count")) - int(connection.pragma("freelist_count"))
    used = pages * int(connection.pragma("page_size"))
    connection.close()
    return used


def query(store: Path, sql: str) -> list[Any]:
    connection = apsw.Connection(str(store))
    try:
        return list(connection.execute(sql))
    finally:
        connection.close()


INNER = plan(
    block("again", echo("${inputs.data}")),
    block("wrapped", echo({"deep": {"data": "${inputs.data}"}, "n": 1})),
    name="inner",
    inputs={"data": InputSpec("any")},
    outputs={"data": "${blocks.again.value}"},
)
MAIN = plan(
    block("make", Do("Make", defaults={"text": "", "numbers": None})),
    block("b0", echo("${blocks.make.text}"), ["make"]),
    *(block(f"b{i}", echo(f"${{blocks.b{i - 1}.value}}"), [f"b{i - 1}"]) for i in range(1, 10)),
    block("list", echo("${blocks.make.numbers}"), ["make"]),
    block("call", Call("inner", {"data": "${blocks.b9.value}"}), ["b9"]),
    block("ask", ASK, ["call", "list"]),
    block("last", echo("${blocks.call.outputs.data}"), ["ask"]),
    outputs={"text": "${blocks.last.value}", "numbers": "${blocks.list.value}"},
)


@pytest.mark.rows("X6")
def test_a_large_value_that_is_passed_on_again_and_again_is_on_disk_once_and_whole_after_a_crash(
    tmp_path: Path,
) -> None:
    async def go() -> None:
        one, other = world_of(tmp_path), world_of(tmp_path)
        async with one.engine("sqlite") as first:
            empty = bytes_used(one.store)
            run_id = await first.start(bundle(MAIN, INNER), {})
            before = (await first.wait(run_id, asks, 10)).state
            grown = bytes_used(one.store) - empty
            assert LARGE < grown < LARGE + 400_000, "the text once, and little more"
        async with other.engine("sqlite") as second:
            assert (await second.view(run_id)).state == before
            await second.send(run_id, lambda _, now: Answered(now, "ask", {"response": "go"}))
            state = (await second.wait(run_id, ended, 10)).state
            assert state.outputs == {"text": "é" * (LARGE // 2), "numbers": list(range(LARGE // 100))}
            assert bytes_used(other.store) - empty < LARGE + 500_000
            _, events = await second.journal(run_id)
            assert events[1].outputs == state.root.records["make"].outputs  # type: ignore[union-attr]

    asyncio.run(asyncio.wait_for(go(), 30))


@pytest.mark.rows("X6")
def test_the_snapshots_of_a_run_with_large_values_are_small(tmp_path: Path) -> None:
    async def go() -> None:
        one, other = world_of(tmp_path), world_of(tmp_path)
        blocks = [block("make", Do("Make"))]
        for i in range(300):
            wrapped = {"data": "${blocks.make.text}", "note": str(i) + "x" * 2000}
            blocks.append(block(f"b{i}", echo(wrapped), ["make"]))
        blocks.append(block("ask", ASK, [f"b{i}" for i in range(300)]))
        async with one.engine("sqlite") as first:
            run_id = await first.start(bundle(plan(*blocks)), {})
            before = (await first.wait(run_id, asks, 10)).state
        [(size,)] = query(one.store, "SELECT length(body) FROM snapshots")
        assert size < 2 * MB, "300 blocks with 2 kB each, as input and as output"
        assert query(one.store, "SELECT count(*) FROM blobs") == [(2,)]
        async with other.engine("sqlite") as second:
            state = (await second.view(run_id)).state
            assert state == before
            text = state.root.records["make"].outputs["text"]
            assert state.root.records["b7"].outputs["value"]["data"] is text, "in memory it is there once too"

    asyncio.run(asyncio.wait_for(go(), 30))


def test_large_inputs_and_answers_are_written_apart_too(tmp_path: Path) -> None:
    async def go() -> None:
        one, other = world_of(tmp_path), world_of(tmp_path)
        main = plan(
            block("ask", ASK),
            block("last", echo("${inputs.x} ${blocks.ask.response}"), ["ask"]),
            inputs={"x": InputSpec("string")},
        )
        async with one.engine("sqlite") as first:
            run_id = await first.start(bundle(main), {"x": "x" * MB})
            await first.wait(run_id, asks, 10)
            await first.send(run_id, lambda _, now: Answered(now, "ask", {"response": "y" * MB}))
            await first.wait(run_id, ended, 10)
        assert query(one.store, "SELECT max(length(events)) < 1000 FROM journal") == [(1,)]
        async with other.engine("sqlite") as second:
            state = (await second.view(run_id)).state
            assert state.root.records["last"].outputs == {"value": "x" * MB + " " + "y" * MB}

    asyncio.run(asyncio.wait_for(go(), 30))


def test_a_fork_shares_the_large_values_of_its_origin(tmp_path: Path) -> None:
    async def go() -> None:
        world = world_of(tmp_path)
        async with world.engine("sqlite") as engine:
            old = await engine.start(bundle(MAIN, INNER), {})
            position = (await engine.wait(old, asks, 10)).state.events
            used = bytes_used(world.store)
            new = await engine.fork(old, position)
            await engine.send(new, lambda _, now: Answered(now, "ask", {"response": "go"}))
            state = (await engine.wait(new, ended, 10)).state
            assert state.outputs["text"] == "é" * (LARGE // 2)
            assert bytes_used(world.store) - used < 100_000

    asyncio.run(asyncio.wait_for(go(), 30))


@pytest.mark.parametrize("damage", ["DELETE FROM blobs", "UPDATE blobs SET body = x'a178'"])
def test_a_value_that_is_gone_is_an_error_that_names_the_run_and_others_go_on(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def go() -> None:
        one, other = world_of(tmp_path), world_of(tmp_path)
        gate = Do("Gate", {"name": "g"}, defaults={"name": ""})
        async with one.engine("sqlite") as first:
            bad = await first.start(
                bundle(plan(block("make", Do("Make", {"size": MB})), block("g", gate, ["make"]))), {}
            )
            good = await first.start(bundle(plan(block("g", gate))), {})
            while len(one.gate.started) < 2:
                await asyncio.sleep(0)
            await first.view(bad)
        connection = apsw.Connection(str(one.store))
        connection.execute(damage)
        connection.close()
        other.gate.open("g")
        async with other.engine("sqlite") as second:
            assert (await second.wait(good, ended, 5)).state.status == "completed"
            for ask in (second.view, second.journal):
                with pytest.raises(StoreError, match=bad):
                    await ask(bad)
            assert isinstance(second, SqliteEngine)
            await second._recover()
        assert sum(bad in record.getMessage() for record in caplog.records) == 1, "it is said once"

    asyncio.run(asyncio.wait_for(go(), 30))


def test_a_run_without_large_values_is_written_as_ever(tmp_path: Path) -> None:
    async def go() -> None:
        world = world_of(tmp_path)
        async with world.engine("sqlite") as engine:
            assert isinstance(engine, SqliteEngine)
            run_id = await engine.start(bundle(plan(block("a", echo("x" * 5000)))), {})
            await engine.wait(run_id, ended, 5)
            _, events = await engine.journal(run_id)
            rows = engine.store.read("SELECT events FROM journal ORDER BY position")
            assert b"".join(row[0][1:] for row in rows) == b"".join(encode(event) for event in events)
            assert engine.store.read("SELECT count(*) FROM blobs") == [(0,)]

    asyncio.run(asyncio.wait_for(go(), 20))


# The written form, by itself

KEEP = st.sampled_from(["x" * 3000, "é" * 3000, ["y" * 200] * 30, {"k": "z" * 3000, "n": [1, 2]}])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=40) | KEEP,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.dictionaries(st.text(max_size=5), VALUES, max_size=4), max_size=4))
def test_what_is_read_is_what_was_written_however_large_values_nest(outputs: list[dict[str, Value]]) -> None:
    blobs: dict[bytes, bytes] = {}
    writing = LargeValues("wf_1", 1000, blobs.get)
    events: list[Event] = [Started(0.0, "wf_1", outputs[0] if outputs else {})]
    events += [StepDone(1.0, "a#1", it) for it in outputs]
    written = join_events([writing.encode(event) for event in events])
    new = writing.take_new()
    assert len({blob.hash for blob in new}) == len(new)
    blobs.update(new)
    assert LargeValues("wf_1", 1000, blobs.get).decode_events(written) == events
    again = LargeValues("wf_1", 1000, blobs.get)
    assert join_events([again.encode(event) for event in again.decode_events(written)]) == written
    assert again.take_new() == (), "what was read is known"


def test_a_value_that_is_passed_on_is_not_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    writing = LargeValues("wf_1", 1000)
    text = "x" * MB
    writing.encode(StepDone(1.0, "a#1", {"text": text}))
    encoded = []

    def counted(value: Any) -> bytes:
        encoded.append(encode(value))
        return encoded[-1]

    monkeypatch.setattr(values, "encode", counted)
    writing.encode(StepDone(1.0, "b#1", {"text": text, "inside": {"of": [1, 2], "text": text}}))
    assert 0 < sum(map(len, encoded)) < 1000


def test_values_are_known_by_identity_only_up_to_an_amount_and_nothing_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(values, "_KNOWN_BYTES", 10_000)
    blobs: dict[bytes, bytes] = {}
    writing = LargeValues("wf_1", 1000, blobs.get)
    events = [StepDone(1.0, "a#1", {"text": str(i % 20) * 3000}) for i in range(60)]
    written = join_events([writing.encode(event) for event in events])
    assert len(writing._known) <= 4
    blobs.update(writing.take_new())
    assert len(blobs) == 20
    assert LargeValues("wf_1", 1000, blobs.get).decode_events(written) == events


def test_a_snapshot_finds_large_values_that_no_event_has_brought() -> None:
    """Two texts that are not large, put together to one that is."""
    main = plan(
        block("a", echo("a")),
        block("b", echo("b")),
        block("ask", Do("Ask", {"prompt": "${blocks.a.value}${blocks.b.value}"}, by="agent"), ["a", "b"]),
    )
    machine = Machine(bundle(main))
    machine.apply(Started(0.0, "wf_1", {}))
    for name in "ab":
        machine.apply(StepDone(1.0, f"{name}#1", {"value": name * 900}))
    blobs: dict[bytes, bytes] = {}
    large = LargeValues("wf_1", 1000, blobs.get)
    snapshot = large.snapshot(machine)
    blobs.update(large.take_new())
    assert len(blobs) == 1
    assert len(snapshot) < len(machine.snapshot()) - 1700
    assert large.snapshot(machine) == snapshot
    assert large.take_new() == ()
    assert LargeValues("wf_1", 1000, blobs.get).restore(snapshot) == machine.state


def test_a_mark_of_another_kind_is_damage() -> None:
    import msgspec

    body = join_events([encode(StepDone(1.0, "a#1", {"x": msgspec.msgpack.Ext(9, b"?")}))])
    with pytest.raises(Damaged, match="wf_1"):
        LargeValues("wf_1", 1000).decode_events(body)


# Through the service

PRINTS = """
name: prints
blocks:
  - id: print
    type: Shell
    inputs: {command: "head -c 5000000 /dev/zero | tr '\\\\0' x; printf END"}
  - id: ask
    type: Prompt
    depends_on: [print]
    inputs: {prompt: "go on?"}
outputs:
  log: "${blocks.print.outputs.stdout}"
"""


@pytest.mark.rows("X6")
def test_a_large_output_is_previewed_and_read_in_slices_also_by_the_next_server(tmp_path: Path) -> None:
    limits = Limits(captured_bytes=6 * MB)
    settings_ = Settings(workspace=tmp_path, home=tmp_path / "home", limits=limits)

    async def end_of_log(service: Service, run_id: str, path: str) -> None:
        found = await service.state(run_id, paths=[path], offset=LARGE - 5, limit=100)
        assert found["values"][path] == "xxxxxEND"
        assert found["slices"][path] == {
            "offset": LARGE - 5,
            "length": 8,
            "total": LARGE + 3,
            "unit": "characters",
        }

    async def go() -> None:
        async with Service.open(settings_) as service:
            answer = await service.start(text=PRINTS)
            run_id = answer["workflow_id"]
            await end_of_log(service, run_id, "blocks.print.outputs.stdout")
        assert bytes_used(settings_.store) < LARGE + 4 * MB
        async with Service.open(settings_) as service:
            await end_of_log(service, run_id, "blocks.print.outputs.stdout")
            answer = await service.submit(run_id, {"response": "yes"})
            assert answer["status"] == "completed"
            assert len(str(answer)) < 100_000
            await end_of_log(service, run_id, "outputs.log")

    asyncio.run(asyncio.wait_for(go(), 30))
