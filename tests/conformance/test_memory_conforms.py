"""What is remembered beyond runs, on every engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.engines import World
from support.old_stores import turn_back
from support.plans import block, bundle, plan
from workflows_mcp.engines.base import Engine
from workflows_mcp.engines.sqlite import store
from workflows_mcp.engines.sqlite.engine import SqliteEngine
from workflows_mcp.errors import RequestError
from workflows_mcp.limits import Limits
from workflows_mcp.values import Value

pytestmark = pytest.mark.rows("S18")

OnEngine = Callable[..., None]


def test_a_value_is_kept_under_its_key_until_it_is_replaced_or_forgotten(on_engine: OnEngine) -> None:
    async def scenario(_: World, engine: Engine) -> None:
        values: list[Value] = [{"a": [1, None, "ü", 1.5, True]}, "text", 0, False, [], "", {}]
        for value in values:
            await engine.remember("key", value)
            assert await engine.recall("key") == value
        await engine.remember("key", None)
        await engine.remember("key", None)
        assert await engine.recall("key") is None
        assert await engine.recall("another") is None

    on_engine(scenario)


def test_keys_are_listed_in_order_by_how_they_begin(on_engine: OnEngine) -> None:
    async def scenario(_: World, engine: Engine) -> None:
        for key in ("research_2", "plan", "research_1", "Research_3", "%_x", "über"):
            await engine.remember(key, 1)
        assert await engine.remembered() == ["%_x", "Research_3", "plan", "research_1", "research_2", "über"]
        assert await engine.remembered("research_") == ["research_1", "research_2"]
        assert await engine.remembered("%") == ["%_x"]
        assert await engine.remembered("nothing") == []

    on_engine(scenario)


def test_what_was_kept_is_not_changed_by_changing_what_was_given(on_engine: OnEngine) -> None:
    async def scenario(_: World, engine: Engine) -> None:
        value: dict[str, Any] = {"list": [1]}
        await engine.remember("key", value)
        value["list"].append(2)
        (await engine.recall("key"))["list"].append(3)
        assert await engine.recall("key") == {"list": [1]}

    on_engine(scenario)


def test_there_are_limits_to_what_is_remembered(on_engine: OnEngine) -> None:
    async def scenario(_: World, engine: Engine) -> None:
        for key in ("", "  ", "a\nb", "x" * 501):
            with pytest.raises(RequestError, match="key"):
                await engine.remember(key, 1)
            with pytest.raises(RequestError, match="key"):
                await engine.recall(key)
        with pytest.raises(RequestError, match="at most 100 are stored") as caught:
            await engine.remember("large", "x" * 200)
        assert "WORKFLOWS_LIMIT_MEMORY_VALUE_BYTES" in caught.value.hint
        with pytest.raises(RequestError, match="cannot be kept"):
            await engine.remember("odd", 2**70)
        await engine.remember("one", 1)
        await engine.remember("two", 2)
        with pytest.raises(RequestError, match="the memory is full: it has 2 keys") as caught:
            await engine.remember("three", 3)
        assert "WORKFLOWS_LIMIT_MEMORY_KEYS" in caught.value.hint
        await engine.remember("two", "again")
        await engine.remember("one", None)
        await engine.remember("three", 3)
        assert await engine.remembered() == ["three", "two"]

    on_engine(scenario, limits=Limits(memory_value_bytes=100, memory_keys=2))


def test_processes_that_share_a_store_share_what_is_remembered(tmp_path: Path) -> None:
    async def go() -> None:
        world = World(tmp_path)
        async with world.engine("sqlite") as one, world.engine("sqlite") as other:
            await one.remember("key", "from one")
            assert await other.recall("key") == "from one"
            await asyncio.gather(*(it.remember(f"k{n}", n) for n in range(20) for it in (one, other)))
            assert len(await one.remembered("k")) == 21
        async with world.engine("sqlite") as third:
            assert await third.recall("key") == "from one"

    asyncio.run(asyncio.wait_for(go(), 20))


def test_a_store_from_before_there_was_a_memory_gets_one_and_keeps_its_runs(tmp_path: Path) -> None:
    async def go() -> None:
        world = World(tmp_path)
        async with world.engine("sqlite") as before:
            run_id = await before.start(bundle(plan(block("a"))), {})
            await before.wait(run_id, lambda state: state.status == "completed", 5)
        turn_back(world.store, 3)
        async with world.engine("sqlite") as after:
            assert isinstance(after, SqliteEngine)
            assert after.store.read("PRAGMA user_version") == [(store.VERSION,)]
            await after.remember("key", 1)
            assert await after.recall("key") == 1
            assert (await after.view(run_id)).state.status == "completed"

    asyncio.run(asyncio.wait_for(go(), 20))
