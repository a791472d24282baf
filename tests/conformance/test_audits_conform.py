"""Every engine checks the hashes of a journal, and gives the last one when a run has ended."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from support.engines import World, asks, ended
from support.plans import Do, block, bundle, plan
from workflows_mcp.engines.base import Engine
from workflows_mcp.machine import HASH_BYTES, Machine
from workflows_mcp.machine.events import Answered, CancelRequested
from workflows_mcp.plan import model

pytestmark = pytest.mark.rows("P7")
OnEngine = Callable[..., None]
ASK = Do("Ask", {"prompt": "which?"}, by="agent", defaults={"response": ""})


def note(text: str) -> model.Do:
    return Do("Note", {"text": text}, defaults={"text": ""})


def answer(text: str) -> Callable[[Machine, float], Answered]:
    return lambda _, now: Answered(now, "ask", {"response": text})


QUESTION = plan(
    block("before", note("before")), block("ask", ASK, ["before"]), block("after", note("x"), ["ask"])
)


def test_the_journal_of_a_run_holds_and_its_last_hash_is_known_when_it_has_ended(on_engine: OnEngine) -> None:
    async def scenario(world: World, engine: Engine) -> None:
        run_id = await engine.start(bundle(QUESTION), {})
        await engine.wait(run_id, asks, 10)
        assert await engine.proof(run_id) == ""
        waiting = await engine.audit(run_id)
        assert waiting.mismatches == []
        await engine.send(run_id, answer("this"))
        await engine.wait(run_id, ended, 10)
        audit = await engine.audit(run_id)
        bundle_, events = await engine.journal(run_id)
        assert (audit.bundle, audit.events) == (bundle_, events)
        assert audit.mismatches == []
        assert (audit.first, len(audit.hashes)) == (1, HASH_BYTES * len(events))
        assert audit.head == await engine.proof(run_id) == audit.hashes[-HASH_BYTES:].hex()
        assert audit.hashes.startswith(waiting.hashes), "what was stored keeps its hash"

    on_engine(scenario)


def test_a_cancelled_run_has_a_last_hash_too(on_engine: OnEngine) -> None:
    async def scenario(world: World, engine: Engine) -> None:
        run_id = await engine.start(bundle(QUESTION), {})
        await engine.wait(run_id, asks, 10)
        await engine.send(run_id, lambda _, now: CancelRequested(now))
        await engine.wait(run_id, ended, 10)
        audit = await engine.audit(run_id)
        assert (audit.head, audit.mismatches) == (await engine.proof(run_id), [])

    on_engine(scenario)


def test_a_fork_has_hashes_of_its_own_from_its_first_event_on(on_engine: OnEngine) -> None:
    async def scenario(world: World, engine: Engine) -> None:
        old = await engine.start(bundle(QUESTION), {})
        position = (await engine.wait(old, asks, 10)).state.events
        await engine.send(old, answer("this"))
        await engine.wait(old, ended, 10)
        new = await engine.fork(old, position)
        await engine.send(new, answer("that"))
        await engine.wait(new, ended, 10)
        audits = [await engine.audit(run_id) for run_id in (old, new)]
        assert [it.mismatches for it in audits] == [[], []]
        assert [it.first for it in audits] == [1, 1]
        assert audits[0].hashes[:HASH_BYTES] != audits[1].hashes[:HASH_BYTES]

    on_engine(scenario)
