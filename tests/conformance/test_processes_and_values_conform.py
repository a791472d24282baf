"""What every engine must do with real commands, and with values that are large."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

import psutil
import pytest

from support.engines import World, asks, ended
from support.plans import Call, Do, block, bundle, plan
from workflows_mcp.engines.base import Engine
from workflows_mcp.engines.clock import VirtualClock
from workflows_mcp.machine.events import Answered, CancelRequested
from workflows_mcp.plan import model
from workflows_mcp.plan.model import InputSpec
from workflows_mcp.steps.base import Step, StepContext, StepInputs, StepOutputs, StepResult
from workflows_mcp.steps.shell import Shell
from workflows_mcp.values import Value

OnEngine = Callable[..., None]
MB = 1024 * 1024
LARGE = 5 * MB


def shell(command: str, **parts: float) -> model.Do:
    return Do("Shell", {"command": command, "timeout": 600}, defaults={"stdout": ""}, **parts)  # type: ignore[arg-type]


def family(text: str) -> str:
    """A command with children that would not end by themselves: each writes its process id into a file."""
    child = "sh -c 'echo $$ >> %s; exec sleep 600'"
    return f"{child} & ({child} & {child}) ; wait" % (text, text, text)


async def members(world: World, names: Sequence[str]) -> list[psutil.Process]:
    """The processes of these families, as soon as all have written themselves down."""
    files = [world.home / name for name in names]
    async with asyncio.timeout(15):
        while not all(file.exists() and len(file.read_text().split()) == 3 for file in files):
            await asyncio.sleep(0.01)
    return [psutil.Process(int(pid)) for file in files for pid in file.read_text().split()]


async def gone(processes: list[psutil.Process]) -> float:
    """How long it took until none of them was left."""
    began = time.monotonic()
    async with asyncio.timeout(15):
        while any(it.is_running() and it.status() != psutil.STATUS_ZOMBIE for it in processes):
            await asyncio.sleep(0.01)
    return time.monotonic() - began


@pytest.mark.rows("X3")
def test_cancelling_ends_every_process_that_the_steps_have_started(on_engine: OnEngine) -> None:
    async def scenario(world: World, engine: Engine) -> None:
        inner = plan(block("deep", shell(family("deep"))), name="inner")
        main = plan(block("top", shell(family("top"))), block("call", Call("inner")))
        run_id = await engine.start(bundle(main, inner), {})
        processes = await members(world, ["top", "deep"])
        began = time.monotonic()
        await engine.send(run_id, lambda _, now: CancelRequested(now))
        await gone(processes)
        assert time.monotonic() - began < 4, "about a second, on a machine that has time for it"
        assert (await engine.wait(run_id, ended, 10)).state.status == "cancelled"

    on_engine(scenario, steps=[Shell()])


@pytest.mark.rows("G10")
def test_a_timeout_ends_every_process_and_keeps_what_was_printed(on_engine: OnEngine) -> None:
    async def scenario(world: World, engine: Engine) -> None:
        assert isinstance(world.clock, VirtualClock)
        main = plan(block("a", shell(f"echo so far; {family('a')}", timeout=5.0)))
        run_id = await engine.start(bundle(main), {})
        processes = await members(world, ["a"])
        world.gate.waiting += 1  # the command waits, as at a gate
        advancing = asyncio.create_task(world.clock.advance(6))
        await gone(processes)
        world.gate.waiting -= 1
        await advancing
        record = (await engine.wait(run_id, ended, 10)).state.root.records["a"]
        assert (record.status, record.outputs["stdout"]) == ("failed", "so far\n")
        assert "timed out after 5 s" in (record.message or "")

    on_engine(scenario, steps=[Shell()])


@pytest.mark.rows("X7")
def test_the_next_try_of_a_call_begins_when_the_last_one_is_gone(on_engine: OnEngine) -> None:
    step = Lingering()

    async def scenario(world: World, engine: Engine) -> None:
        assert isinstance(world.clock, VirtualClock)
        inner = plan(block("s", Do("Lingering")), name="inner")
        main = plan(block("b", Call("inner", timeout=5), retry={"attempts": 2, "delay": 0}))
        run_id = await engine.start(bundle(main, inner), {})
        async with asyncio.timeout(10):
            while not step.log:
                await asyncio.sleep(0.001)
        world.gate.waiting += 1
        advancing = asyncio.create_task(world.clock.advance(6))
        async with asyncio.timeout(10):
            while "gone 0" not in step.log:
                await asyncio.sleep(0.001)
        world.gate.waiting -= 1
        await advancing
        assert (await engine.wait(run_id, ended, 10)).state.status == "completed"
        assert step.log == ["start 0", "gone 0", "start 1"]

    on_engine(scenario, steps=[step])


class Lingering(Step):
    """Takes its time to end when it is stopped, the first time."""

    name = "Lingering"

    class Inputs(StepInputs):
        pass

    def __init__(self) -> None:
        self.log: list[str] = []

    async def run(self, inputs: Inputs, context: StepContext) -> StepResult:
        number = sum(line.startswith("start") for line in self.log)
        self.log.append(f"start {number}")
        try:
            if number == 0:
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0.2)
            self.log.append(f"gone {number}")
            raise
        return StepResult({})


class Make(Step):
    """Gives a large text, and many small ones."""

    name = "Make"

    class Inputs(StepInputs):
        pass

    class Outputs(StepOutputs):
        text: str = ""
        parts: Value = None

    def run(self, inputs: Inputs, context: StepContext) -> StepResult:
        small = {f"part{number}": "p" * 20_000 for number in range(250)}
        return StepResult({"text": "é" * (LARGE // 2), "parts": None, **small})


def echo(value: Value) -> model.Do:
    return Do("Echo", {"value": value}, defaults={"value": None})


@pytest.mark.rows("X6")
def test_large_values_pass_between_steps_as_they_are(on_engine: OnEngine) -> None:
    async def scenario(world: World, engine: Engine) -> None:
        inner = plan(
            block("deep", echo("${inputs.data}")),
            name="inner",
            inputs={"data": InputSpec("string")},
            outputs={"data": "${blocks.deep.value}"},
        )
        main = plan(
            block("make", Do("Make", defaults={"text": ""})),
            block("one", echo("${blocks.make.text}"), ["make"]),
            block("call", Call("inner", {"data": "${blocks.one.value}"}), ["one"]),
            block("small", echo("${blocks.make.part249}"), ["make"]),
            block(
                "ask", Do("Ask", {"prompt": "?"}, by="agent", defaults={"response": ""}), ["call", "small"]
            ),
            block("last", echo("${inputs.x}${blocks.ask.response}"), ["ask"]),
            inputs={"x": InputSpec("string")},
            outputs={"text": "${blocks.call.outputs.data}", "last": "${blocks.last.value}"},
        )
        run_id = await engine.start(bundle(main, inner), {"x": "x" * MB})
        await engine.wait(run_id, asks, 15)
        await engine.send(run_id, lambda _, now: Answered(now, "ask", {"response": "y" * 3 * MB}))
        state = (await engine.wait(run_id, ended, 15)).state
        assert state.status == "completed", state.fault
        assert state.outputs == {"text": "é" * (LARGE // 2), "last": "x" * MB + "y" * 3 * MB}
        assert state.root.records["small"].outputs == {"value": "p" * 20_000}
        _, events = await engine.journal(run_id)
        assert sum(getattr(event, "outputs", {}).get("text") == "é" * (LARGE // 2) for event in events) == 1

    on_engine(scenario, steps=[Make()])
