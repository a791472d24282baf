"""Records anew the histories that `tests/engines/histories` keeps, from a real server:

    PYTHONPATH=tests python -m support.record_histories [name …]

Those without `rules` in their names were started by versions before there were any: keep them as they are.
They are what runs in flight look like. A change with which they cannot be repeated any more breaks runs that
are under way on somebody's cluster; record them anew only when that is meant, and say so to those who upgrade.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from temporalio.client import Client

from support.engines import World, asks, ended, status_of
from support.plans import Call, Do, ForEach, Return, SetState, Wait, block, bundle, plan
from support.reactive import documents
from support.stateful import ask, bundle_of, sequence, step
from support.temporal import running_server
from support.temporal_histories import runs_of
from workflows_mcp.engines.base import Engine
from workflows_mcp.engines.executor import Executor
from workflows_mcp.engines.temporal.connection import Address, connect
from workflows_mcp.engines.temporal.engine import TemporalEngine
from workflows_mcp.engines.temporal.wire import RULES
from workflows_mcp.machine.events import Answered, CancelRequested
from workflows_mcp.machine.machine import Machine
from workflows_mcp.machine.state import RunState
from workflows_mcp.plan import model
from workflows_mcp.plan.model import InputSpec
from workflows_mcp.policy.rules import Policy

HISTORIES = Path(__file__).parents[1] / "engines" / "histories"
Record = Callable[["Somewhere", TemporalEngine], Awaitable[str]]
"""Drives a run; its id."""


class Somewhere(World):
    """A world that nothing of this machine is told of."""

    def executor(self) -> Executor:
        own = super().executor()
        policy = Policy(Path("/workspace"), limits=self.limits)
        return Executor(own.registry, policy, self.home / "scratch", self.clock)


def note(text: str, **more: object) -> model.Do:
    return Do("Note", {"text": text, **more}, defaults={"text": ""})


def gate(name: str, timeout: float | None = None) -> model.Do:
    return Do("Gate", {"name": name}, timeout=timeout, defaults={"name": ""})


QUESTION = Do("Ask", {"prompt": "which?"}, by="agent", defaults={"response": ""})


async def answered(engine: Engine, run_id: str, address: str, text: str) -> None:
    def answer(_: Machine, now: float) -> Answered:
        return Answered(now, address, {"response": text})

    await until(engine, run_id, lambda state: address in state.frames)
    await engine.send(run_id, answer)


async def until(engine: Engine, run_id: str, ready: Callable[[RunState], bool]) -> RunState:
    state = (await engine.wait(run_id, ready, 30)).state
    assert ready(state), state
    return state


# What is recorded


async def graph(world: Somewhere, engine: TemporalEngine) -> str:
    """Blocks that depend on each other, a call, a question, items, and a workflow that is found on the way."""
    world.found["late"] = bundle(plan(block("deep", note("deep")), name="late"))
    inner = plan(
        block("a", note("${inputs.x}")),
        block("ask", QUESTION, ["a"]),
        name="inner",
        inputs={"x": InputSpec("string")},
        outputs={"said": "${blocks.ask.response}"},
    )
    main = plan(
        block("first", note("first ${inputs.x}")),
        block("skipped", note("never"), condition="false"),
        block("call", Call("inner", {"x": "${blocks.first.text}"}), ["first"]),
        block("each", note("${each.value}"), ["first"], for_each=ForEach([1, 2, 3], max_parallel=2)),
        block("found", Call("${inputs.which}"), ["each"]),
        block("last", note("${blocks.call.outputs.said}"), ["call", "found"]),
        inputs={"x": InputSpec("string"), "which": InputSpec("string")},
        outputs={"said": "${blocks.last.text}"},
    )
    run_id = await engine.start(bundle(main, inner), {"x": "X", "which": "late"})
    await answered(engine, run_id, "call/ask", "this")
    await until(engine, run_id, ended)
    return run_id


async def tries(world: Somewhere, engine: TemporalEngine) -> str:
    """A block that is tried again, one that times out, a call that times out with what is inside."""
    inner = plan(block("deep", gate("deep")), name="inner")
    main = plan(
        block("bad", note("bad", ok=False), retry={"attempts": 3, "delay": 0.05}, tolerated=True),
        block("slow", gate("slow", timeout=0.2), retry={"attempts": 2, "delay": 0.05, "on": ["timeout"]}),
        block("call", Call("inner", timeout=0.4)),
    )
    run_id = await engine.start(bundle(main, inner), {})
    await until(engine, run_id, ended)
    return run_id


async def tasks(world: Somewhere, engine: TemporalEngine) -> str:
    """Tasks of agents, with a state of their own, two at once; a wait; what the agents were last heard of."""
    look_up = sequence(
        "research#look_up",
        ask("read", "what of {{ inputs.topic }}?"),
        step("keep", SetState({"seen": "{{ state.read }}!"})),
        step("note", note("{{ state.seen }}")),
        step("back", Return({"topic": "{{ inputs.topic }}", "found": "{{ state.seen }}"})),
        inputs={"topic": InputSpec("string")},
        initial_state={"seen": ""},
    )
    each = ForEach(["ants", "bees", "cats"], max_parallel=2, agent="@task")
    main = sequence(
        "research",
        step("each", Call("research#look_up", of_item=True), for_each=each, output_to="each"),
        step("rest", Wait(0.05)),
        ask("review", "all right?"),
        step("end", Return("{{ state.each }}")),
        initial_state={"each": []},
        tasks=(look_up,),
    )
    run_id = await engine.start(bundle_of(main), {})
    for number in (1, 0, 2):
        await until(engine, run_id, lambda state, at=f"each/{number}/read": at in state.frames)  # type: ignore[misc]
        await engine.heartbeat(run_id, f"{run_id}.each.{number}", 5.0)
        await answered(engine, run_id, f"each/{number}/read", f"it {number}")
    await answered(engine, run_id, "review", "yes")
    await until(engine, run_id, ended)
    return run_id


LOOP = """
name: loop
default_state: {raw: {errors: [one, two, three], rounds: 0, seen: []}}
state_schema:
  computed:
    left: {from: raw.errors, transform: "input.length"}
    verdict: {from: [computed.left, raw.rounds], transform: "input[0] === 0 ? 'good in ' + input[1] : 'bad'"}
steps:
  - {id: loop, type: while, condition: "left > 0", max_iterations: 10, body: [
      {id: note, type: Note, text: "{{ verdict }} {{ left }}"},
      {id: fix, type: Ask, prompt: "{{ errors[0] }}"},
      {type: state_update, path: raw.errors, value: "{{ errors.slice(1) }}"},
      {type: state_update, path: raw.rounds, operation: increment}]}
  - {id: all, type: parallel_foreach, items: "{{ ['p', 'q'] }}", sub_agent_task: look, max_parallel: 2}
  - {type: user_message, message: "{{ verdict }} {{ seen.length }}"}
sub_agent_tasks:
  look:
    steps:
      - {id: read, type: Ask, prompt: "{{ item }}",
         state_update: {path: raw.seen, operation: append, value: "{{ response }}"}}
"""


async def loop(world: Somewhere, engine: TemporalEngine) -> str:
    """A loop over fields that are computed, then tasks side by side that share the state."""
    run_id = await engine.start(documents(LOOP), {})
    for number in range(3):
        await until(engine, run_id, lambda state, left=3 - number: _left(state) == left and asks(state))  # type: ignore[misc]
        await answered(engine, run_id, "fix", "done")
    for address in ("all/0/read", "all/1/read"):
        await answered(engine, run_id, address, address)
    await until(engine, run_id, ended)
    return run_id


def _left(state: RunState) -> int:
    return len(state.root.state["raw"]["errors"])


async def cancelled(world: Somewhere, engine: TemporalEngine) -> str:
    """What is under way is ended: steps, a call, a question, a pause."""
    inner = plan(block("deep", gate("deep", timeout=60)), name="inner")
    main = plan(
        block("call", Call("inner")),
        block("ask", QUESTION),
        block("bad", note("bad", ok=False), retry={"attempts": 2, "delay": 100}),
    )
    run_id = await engine.start(bundle(main, inner), {})
    await until(engine, run_id, lambda state: "retry" in [it.kind for it in state.frames.values()])
    while not world.gate.started:
        await asyncio.sleep(0.01)
    await engine.send(run_id, lambda _, now: CancelRequested(now, "enough"))
    await until(engine, run_id, ended)
    return run_id


async def fork(world: Somewhere, engine: TemporalEngine) -> str:
    """A run that is made of the events of another one, with a step that was under way there."""
    main = plan(
        block("first", note("first")),
        block("ask", QUESTION, ["first"]),
        block("gate", gate("gate"), ["first"]),
        block("last", note("${blocks.ask.response}"), ["ask", "gate"]),
    )
    old = await engine.start(bundle(main), {})
    position = (await until(engine, old, lambda state: len(state.frames) == 2)).events
    new = await engine.fork(old, position)
    world.gate.open("gate")
    await answered(engine, new, "ask", "that")
    await until(engine, new, ended)
    await answered(engine, old, "ask", "this")
    await until(engine, old, ended)
    return new


async def interrupted(world: Somewhere, engine: TemporalEngine) -> str:
    """Steps whose worker went away: one is repeated, one has failed, about one the agent is asked."""
    main = plan(
        block("again", gate("again")),
        block("fails", gate("fails"), on_interrupt="fail", tolerated=True),
        block("asks", gate("asks"), on_interrupt="ask"),
    )
    run_id = await engine.start(bundle(main), {})
    while len(world.gate.started) < 3:
        await asyncio.sleep(0.01)
    assert engine._supervisor is not None
    await engine._supervisor.close()
    await engine.open()
    await until(engine, run_id, status_of("asks", "paused"))
    world.gate.open("again")
    await engine.send(run_id, lambda _, now: Answered(now, "asks", {"decision": "done", "outputs": {}}))
    await until(engine, run_id, ended)
    return run_id


async def long(world: Somewhere, engine: TemporalEngine) -> str:
    """A history that goes on as a new one, twice, with questions and steps."""
    nodes = []
    for number in range(7):
        add = SetState({"total": f"{{{{ state.total + (state.q{number} | int) }}}}"})
        nodes += [
            ask(f"q{number}"),
            step(f"add{number}", add),
            step(f"note{number}", note("{{ state.total }}")),
        ]
    main = sequence("long", *nodes, step("end", Return("{{ state.total }}")), initial_state={"total": 0})
    engine._updates_a_history = 3
    run_id = await engine.start(bundle_of(main), {})
    for number in range(7):
        await answered(engine, run_id, f"q{number}", str(number))
    await until(engine, run_id, ended)
    return run_id


RECORDED: dict[str, Record] = {
    it.__name__: it for it in (graph, tries, tasks, loop, cancelled, fork, interrupted, long)
}


async def _recorded(name: str, client: Client, address: Address, home: Path) -> dict[str, str]:
    """The histories of one run, by the names of their files."""
    world = Somewhere(home, address=address)
    async with world.engine("temporal") as engine:
        assert isinstance(engine, TemporalEngine)
        workflow_id = await asyncio.wait_for(RECORDED[name](world, engine), 60)
        runs = await runs_of(client, workflow_id)
        assert not any((home / "blobs").rglob("*")), "a history that is kept needs nothing beside it"
    texts = {}
    for number, run_id in enumerate(runs):
        history = await client.get_workflow_handle(workflow_id, run_id=run_id).fetch_history()
        which = f"{name}-rules{RULES}"
        file = f"{which}.json" if len(runs) == 1 else f"{which}-{number + 1}.json"
        texts[file] = _written(json.loads(history.to_json()), workflow_id)
    return texts


def _written(history: dict[str, list[Any]], workflow_id: str) -> str:
    """One event on a line."""
    text = ",\n".join(json.dumps(_anonymous(it), separators=(",", ":")) for it in history["events"])
    return f'{{"workflow_id":"{workflow_id}","events":[\n{text}\n]}}\n'


def _anonymous(value: Any) -> Any:
    """With nothing of the machine that it was recorded on."""
    if isinstance(value, dict):
        kept = {key: _anonymous(inner) for key, inner in value.items() if key != "stackTrace"}
        return {**kept, "identity": "worker"} if "identity" in kept else kept
    if isinstance(value, list):
        return [_anonymous(inner) for inner in value]
    return value.replace(socket.gethostname(), "host") if isinstance(value, str) else value


def main(names: list[str]) -> None:
    async def record(host: str, home: Path) -> None:
        for name in names or RECORDED:
            address = Address(host, task_queue=f"recorded-{name}")
            client = await connect(address)
            for file, text in (await _recorded(name, client, address, home / name)).items():
                (HISTORIES / file).write_text(text)
                print(f"{file}: {len(text):,} bytes")

    HISTORIES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        home = Path(temporary)
        with running_server(home / "dev.db") as server:
            asyncio.run(record(server.host, home))


if __name__ == "__main__":
    main(sys.argv[1:])
