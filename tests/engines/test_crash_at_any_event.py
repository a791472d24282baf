"""A crash after every single event, simulated: all but the journal is lost, again and again."""

from __future__ import annotations

import asyncio
from pathlib import Path

from support.engines import World, ended
from support.plans import Call, Do, block, bundle, plan
from workflows_mcp.engines.clock import VirtualClock, settle
from workflows_mcp.engines.memory import MemoryEngine
from workflows_mcp.limits import Limits
from workflows_mcp.machine.events import Answered
from workflows_mcp.machine.state import RunState
from workflows_mcp.plan import model

ASK = Do("Ask", {"prompt": "?"}, by="agent", defaults={"response": ""})


def gate(name: str) -> model.Do:
    return Do("Gate", {"name": name}, defaults={"name": ""})


def drive(home: Path, *, crash: bool) -> tuple[RunState, list[str]]:
    """Open gates and answer questions one at a time; in between, crash if asked to."""
    inner = plan(block("ask", ASK), block("deep", gate("deep"), ["ask"]), name="inner")
    main = plan(
        block("a", gate("a")),
        block("call", Call("inner"), ["a"]),
        block("b", gate("b"), ["a"]),
        block("never", gate("never"), ["b"], condition="${blocks.b.failed}"),
        block("last", Do("Note", {"text": "${blocks.call.status}"}), ["call", "b"]),
        outputs={"deep": "${blocks.call.blocks.deep.name}"},
    )

    async def go() -> tuple[RunState, list[str]]:
        world = World(home, clock=VirtualClock(), limits=Limits(step_interruptions=100))
        async with world.engine("memory") as engine:
            assert isinstance(engine, MemoryEngine)
            run_id = await engine.start(bundle(main, inner), {})
            for what in ("a", "b", "call/ask", "deep"):
                await settle()
                if crash:
                    await engine.crash_and_resume(run_id)
                    await settle()
                if what == "call/ask":
                    await engine.send(run_id, lambda _, now: Answered(now, "call/ask", {"response": "go"}))
                else:
                    world.gate.open(what)
                if crash:
                    await settle()
                    await engine.crash_and_resume(run_id)
            machine = await engine.wait(run_id, ended, 5)
            return machine.state, world.note.lines

    return asyncio.run(asyncio.wait_for(go(), 20))


def test_a_run_that_crashed_after_every_event_ends_as_the_undisturbed_one(tmp_path: Path) -> None:
    straight, said = drive(tmp_path, crash=False)
    crashed, said_again = drive(tmp_path, crash=True)
    assert straight.status == crashed.status == "completed"
    assert straight.outputs == crashed.outputs == {"deep": "deep"}
    assert said == said_again == ["completed"]
    records = {name: (it.status, it.outcome, it.outputs) for name, it in straight.root.records.items()}
    assert records == {name: (it.status, it.outcome, it.outputs) for name, it in crashed.root.records.items()}
