"""Reactive workflows on real engines: loops, tasks and changes from outside, with crashes in between."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from support.engines import ENGINES, World, address_of, ended
from support.reactive import documents
from support.rendered import Service
from workflows_mcp.engines.memory import MemoryEngine
from workflows_mcp.limits import Limits
from workflows_mcp.machine.events import Answered, Event, StateUpdated
from workflows_mcp.machine.machine import replayed
from workflows_mcp.machine.state import RunState
from workflows_mcp.settings.model import Settings

pytestmark = pytest.mark.rows("R13", "R14", "X1")

DOCUMENT = """
name: loops
default_state: {raw: {n: 0, log: [], items: [{id: x}, {id: y}]}}
state_schema:
  computed:
    size: {from: raw.log, transform: input.length}
    sorted: {from: raw.log, transform: input.slice().sort()}
steps:
  - id: loop
    type: while
    condition: n < 2
    body:
      - {type: state_update, path: raw.n, operation: increment}
      - {id: gate, type: Gate, name: "g{{ n }}", state_update: {path: raw.log, operation: append, value: "{{ name }}"}}
      - {id: ask, type: Ask, prompt: "{{ size }}", state_update: {path: raw.log, operation: append, value: "{{ response }}"}}
  - {type: user_message, message: "{{ log.join() }}"}
  - {id: each, type: parallel_foreach, items: "{{ items }}", sub_agent_task: t}
  - {id: end, type: Note, text: "{{ sorted.join() }} {{ size }}"}
sub_agent_tasks:
  t:
    inputs: {token: "{{ uuid() }}"}
    steps:
      - {id: in, type: Gate, name: "t{{ id }}", state_update: {path: raw.log, operation: append, value: "{{ name }}"}}
      - id: lines
        type: foreach
        items: [1, 2]
        variable_name: line
        steps:
          - {type: conditional, condition: "line == 2 && id == 'y'", then: [{type: break}]}
          - {id: note, type: Note, text: "{{ id }}{{ line }}", state_update: {path: raw.log, operation: append, value: "{{ text }}"}}
"""
BUNDLE = documents(DOCUMENT)
MANY = Limits(step_interruptions=100)
SCRIPT = (
    ("open", "gate", "g1"),
    ("answer", "ask", "one"),
    ("update", "", "from outside"),
    ("open", "gate", "g2"),
    ("answer", "ask", "two"),
    ("open", "each/y/in", "ty"),
    ("open", "each/x/in", "tx"),
)


class Seen(NamedTuple):
    """All of a run that does not depend on when it was carried out, and under which id."""

    status: str
    state: dict[str, Any]
    records: dict[str, Any]
    messages: list[str]
    notes: list[str]

    @classmethod
    def of(cls, state: RunState, world: World) -> Seen:
        records = {
            name: (record.status, record.outcome, record.outputs, record.message)
            for name, record in state.root.records.items()
        }
        messages = [message.text for message in state.messages]
        return cls(state.status, state.root.state, records, messages, sorted(world.note.lines))


class Ground:
    """An engine that can be gone at any moment, with all that it has not written down."""

    def __init__(self, world: World, kind: str) -> None:
        self._world = world
        self._kind = kind
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Ground:
        self.engine = await self._stack.enter_async_context(self._world.engine(self._kind))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def crash(self, run_id: str) -> None:
        if isinstance(self.engine, MemoryEngine):
            await self.engine.crash_and_resume(run_id)
        else:
            await self._stack.aclose()
            self._stack = AsyncExitStack()
            await self.__aenter__()

    async def do(self, run_id: str, what: str, address: str, value: Any) -> None:
        engine = self.engine
        if what == "update":
            change = (["raw", "log"], "append", value)
            await engine.send(run_id, lambda _, now: StateUpdated(now, [change]))  # type: ignore[list-item]
            return
        await engine.wait(run_id, lambda state: address in state.frames, 5)
        if what == "answer":
            await engine.send(run_id, lambda _, now: Answered(now, address, {"response": value}))
        else:
            self._world.gate.open(value)
            lane, _, _ = address.rpartition(
                "/"
            )  # its later steps are done, too, so that the order is the same
            await engine.wait(run_id, lambda state: not _under_way(state, lane or address), 5)


def _under_way(state: RunState, lane: str) -> bool:
    return any(f"{address}/".startswith(f"{lane}/") for address in state.frames)


def drive(world: World, kind: str, *, crash: bool) -> tuple[Seen, list[Event]]:
    """Do what the script says, one thing at a time; in between, crash if asked to."""
    world.home.mkdir()

    async def go() -> tuple[Seen, list[Event]]:
        async with Ground(world, kind) as ground:
            run_id = await ground.engine.start(BUNDLE, {})
            for what, address, value in SCRIPT:
                if crash:
                    await ground.engine.view(run_id)
                    await ground.crash(run_id)
                await ground.do(run_id, what, address, value)
            machine = await ground.engine.wait(run_id, ended, 5)
            _, events = await ground.engine.journal(run_id)
            return Seen.of(machine.state, world), events

    return asyncio.run(asyncio.wait_for(go(), 30))


@pytest.mark.parametrize("kind", ENGINES)
def test_a_run_that_crashed_between_all_that_happened_ends_as_the_undisturbed_one(
    tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    address = address_of(kind, request)
    straight, _ = drive(World(tmp_path / "straight", address=address), kind, crash=False)
    crashed, events = drive(World(tmp_path / "crashed", limits=MANY, address=address), kind, crash=True)
    assert straight.status == "completed"
    assert straight == crashed
    assert straight.notes == ["from outside,g1,g2,one,two,tx,ty,x1,x2,y1 10", "x1", "x2", "y1"]
    assert straight.messages == ["g1,one,from outside,g2,two"]
    assert replayed(BUNDLE, events).state.root.state == crashed.state


@pytest.mark.parametrize("kind", ENGINES)
def test_a_fork_has_been_what_the_run_was_and_goes_on_with_a_chance_of_its_own(
    tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    world = World(tmp_path, address=address_of(kind, request))
    text = """
name: chance
default_state: {raw: {first: "{{ uuid() }}", seen: []}}
steps:
  - id: loop
    type: while
    condition: "{{ seen.length < 3 && Math.random() < 2 }}"
    body: [{id: ask, type: Ask, prompt: "{{ uuid() }}", state_update: {path: raw.seen, operation: append, value: "{{ uuid() }}"}}]
"""

    async def go() -> None:
        async with world.engine(kind) as engine:
            run_id = await engine.start(documents(text), {})

            async def answered(run: str, times: int) -> RunState:
                for _ in range(times):
                    await engine.wait(run, lambda state: "ask" in state.frames, 5)
                    await engine.send(run, lambda _, now: Answered(now, "ask", {"response": "go"}))
                return (await engine.wait(run, ended, 0.5)).state

            original = (await answered(run_id, 3)).root.state["raw"]
            for position in (1, 2, 3):
                fork = await engine.fork(run_id, position)
                began = (await engine.view(fork)).state.root.state["raw"]
                assert began["first"] == original["first"]
                assert began["seen"] == original["seen"][: position - 1]
                ended_as = (await answered(fork, 4 - position)).root.state["raw"]
                assert ended_as["seen"][: position - 1] == original["seen"][: position - 1]
                assert not set(ended_as["seen"][position - 1 :]) & set(original["seen"])

    asyncio.run(asyncio.wait_for(go(), 30))


@pytest.mark.parametrize(("kind", "third"), [("memory", 100), ("sqlite", 100), ("temporal", 20)])
def test_rounds_with_restarts_in_between_are_as_many_steps(
    tmp_path: Path, kind: str, third: int, request: pytest.FixtureRequest
) -> None:
    world = World(tmp_path, address=address_of(kind, request))
    text = f"""
name: rounds
default_state: {{raw: {{n: 0}}}}
steps:
  - id: loop
    type: while
    condition: n < {3 * third}
    body:
      - {{type: state_update, path: raw.n, operation: increment}}
      - {{id: note, type: Note, text: "{{{{ n }}}}"}}
      - {{type: conditional, condition: n % {third} == 0, then: [{{id: hold, type: Gate, name: "{{{{ n }}}}"}}]}}
"""

    def beyond(rounds: int) -> Callable[[RunState], bool]:
        return lambda state: ended(state) or state.root.state["raw"]["n"] > rounds

    async def go() -> list[str]:
        async with Ground(world, kind) as ground:
            run_id = await ground.engine.start(documents(text), {})
            for rounds in (third, 2 * third, 3 * third):
                await ground.engine.wait(run_id, lambda state: "hold" in state.frames, 20)
                await ground.crash(run_id)
                world.gate.open(str(rounds))
                await ground.engine.wait(run_id, beyond(rounds), 5)
            state = (await ground.engine.wait(run_id, ended, 20)).state
            assert (state.status, state.root.state["raw"]["n"]) == ("completed", 3 * third)
            return world.note.lines

    lines = asyncio.run(asyncio.wait_for(go(), 60))
    assert lines == [str(number) for number in range(1, 3 * third + 1)]


@pytest.mark.slow
def test_a_thousand_rounds_with_a_command_that_the_server_carries_out(tmp_path: Path) -> None:
    text = """
name: thousand
default_state: {raw: {n: 0, sum: 0}}
state_schema: {computed: {next: {from: raw.n, transform: input + 1}}}
steps:
  - id: loop
    type: while
    condition: "{{ n < 1000 }}"
    max_iterations: 1000
    body:
      - {id: add, type: shell_command, command: "echo $(( {{ n }} + 1 ))", output_format: json, state_update: {path: raw.n}}
      - {type: state_update, path: raw.sum, operation: increment, value: "{{ next - 1 }}"}
  - {type: user_message, message: "counted to {{ n }}"}
"""

    async def go() -> tuple[dict[str, Any], dict[str, Any]]:
        async with Service.open(Settings(workspace=tmp_path, home=tmp_path / "home")) as service:
            answer = await service.start(text=text)
            while answer["status"] == "running":
                answer = await service.status(answer["workflow_id"], wait_seconds=45)
            return answer, await service.state(answer["workflow_id"])

    answer, state = asyncio.run(asyncio.wait_for(go(), 120))
    assert (answer["status"], answer["messages"]) == ("completed", ["counted to 1000"])
    assert answer["state"] == {"n": 1000, "sum": 500_500, "next": 1001}
    assert "message" not in state["blocks"]["loop"], "the condition has ended it"


def test_that_a_loop_ended_at_its_limit_is_seen_in_the_state(tmp_path: Path) -> None:
    text = """
name: limited
steps:
  - {id: loop, type: while, condition: true, max_iterations: 3, on_limit: continue, body: [{type: user_message, message: "round {{ loop.iteration }}"}]}
"""

    async def go() -> tuple[dict[str, Any], dict[str, Any]]:
        async with Service.open(Settings(workspace=tmp_path, home=tmp_path / "home")) as service:
            answer = await service.start(text=text)
            return answer, await service.state(answer["workflow_id"])

    answer, state = asyncio.run(go())
    assert (answer["status"], answer["messages"]) == ("completed", ["round 1", "round 2", "round 3"])
    assert "after 3 rounds, which is its max_iterations" in state["blocks"]["loop"]["message"]
