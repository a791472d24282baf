"""The two engines side by side, and the Temporal engine beside a Temporal workflow that was written by hand
for the same work. All in one run, in turns, so that what else the machine does weighs on all alike."""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Protocol

from temporalio.client import Client, WithStartWorkflowOperation
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from bench.hand_written import Questions, Steps, tick
from bench.measure import median, row, title, verdict
from bench.workflows import Tick, chain, questions
from workflows_mcp.answers import Answer
from workflows_mcp.engines.temporal.connection import Address, connect
from workflows_mcp.errors import RequestError
from workflows_mcp.runs.service import Service
from workflows_mcp.settings.model import Settings, TemporalSettings
from workflows_mcp.steps.registry import default_registry
from workflows_mcp.temporal_dev.server import free_port, start_dev_server

QUESTIONS = 150
STEPS = 10
ROUNDS = 15
WITHIN = 1.3
_HAND = "hand-written"


class Asks(Protocol):
    """Somebody who asks one question after the other."""

    async def begin(self) -> None: ...

    async def answer(self) -> None:
        """Answer, and wait for the next question."""


Chain = Callable[[], Awaitable[None]]
"""So many steps of the server, one after the other."""


def run() -> None:
    title(f"Temporal (development server): {QUESTIONS} answers, {ROUNDS} chains of {STEPS} steps, in turns")
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as temporary:
        answers, steps = asyncio.run(_measured(Path(temporary)))
    for what, answer, step in zip(("embedded", "temporal", "written by hand"), answers, steps, strict=True):
        row(f"{what}: answer in, next action out, p50", f"{answer * 1e3:.1f} ms")
        row(f"{what}: chain of agent steps", f"{1 / answer:,.0f}/s")
        row(f"{what}: chain of server steps", f"{1 / step:,.0f}/s")
    for what, (_, ours, theirs) in (("answer in, next action out", answers), ("a server step", steps)):
        ratio = ours / theirs
        row(f"temporal / written by hand: {what}", f"{ratio:.2f}", verdict(ratio, WITHIN, at_least=False))


async def _measured(directory: Path) -> tuple[list[float], list[float]]:
    """Seconds that half of the answers, and half of the steps, take at most: embedded, temporal, by hand."""
    server = start_dev_server(free_port(), directory / "dev.db", log=directory / "dev.log")
    try:
        await _until_it_answers(server.host)
        client = await connect(Address(server.host))
        registry = default_registry()
        registry.add(Tick())
        temporal = TemporalSettings(host=server.host)
        settings = Settings(workspace=directory, home=directory / "embedded")
        clustered = Settings(
            workspace=directory, home=directory / "clustered", engine="temporal", temporal=temporal
        )
        async with (
            Worker(
                client,
                task_queue=_HAND,
                workflows=[Steps, Questions],
                activities=[tick],
                workflow_runner=UnsandboxedWorkflowRunner(),
            ),
            Service.open(settings, registry=registry) as embedded,
            Service.open(clustered, registry=registry) as ours,
        ):
            asking: list[Asks] = [_Ours(embedded), _Ours(ours), _ByHand(client)]
            for it in asking:
                await it.begin()
            answers = await _in_turns([it.answer for it in asking], QUESTIONS)
            chains = [_chain_of(embedded), _chain_of(ours), _chain_by_hand(client)]
            steps = await _in_turns(chains, ROUNDS)
            return answers, [seconds / STEPS for seconds in steps]
    finally:
        server.end()


async def _in_turns(actions: list[Chain], times: int) -> list[float]:
    """How long each takes, half of the times. Nobody is always first, and the first turn does not count."""
    took: list[list[float]] = [[] for _ in actions]
    for turn in range(times):
        for place in range(len(actions)):
            which = (turn + place) % len(actions)
            began = time.perf_counter()
            await actions[which]()
            took[which].append(time.perf_counter() - began)
    return [median(values[1:]) for values in took]


async def _until_it_answers(host: str) -> None:
    async with asyncio.timeout(30):
        while True:
            try:
                await connect(Address(host))
                return
            except RequestError:
                await asyncio.sleep(0.1)


class _Ours:
    def __init__(self, service: Service) -> None:
        self._service = service
        self._last = Answer(workflow_id="", status="")

    async def begin(self) -> None:
        self._last = await self._service.start(text=questions(QUESTIONS + 1), inputs={"word": "x"})

    async def answer(self) -> None:
        run_id, asked = self._last.workflow_id, self._last.actions[0].step_id
        self._last = await self._service.submit(run_id, "yes", step_id=asked)


class _ByHand:
    def __init__(self, client: Client) -> None:
        self._client = client
        self._last: dict[str, str] = {}

    async def begin(self) -> None:
        operation = WithStartWorkflowOperation(
            Questions.run,
            args=[QUESTIONS + 1, {}],
            id=uuid.uuid4().hex,
            task_queue=_HAND,
            id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
        )
        self._last = await self._client.execute_update_with_start_workflow(
            Questions.next_action, start_workflow_operation=operation
        )
        self._handle = await operation.workflow_handle()

    async def answer(self) -> None:
        self._last = await self._handle.execute_update(Questions.answer, args=[self._last["step_id"], "yes"])


def _chain_of(service: Service) -> Chain:
    bundle = service._bundle(None, chain("Tick", STEPS), None)  # reading the definition is measured elsewhere

    async def steps() -> None:
        run_id = await service._engine.start(bundle, {"word": "x"})
        machine = await service._engine.wait(run_id, lambda state: state.status != "running", 120)
        assert machine.state.status == "completed", machine.state.fault

    return steps


def _chain_by_hand(client: Client) -> Chain:
    async def steps() -> None:
        await client.execute_workflow(Steps.run, STEPS, id=uuid.uuid4().hex, task_queue=_HAND)

    return steps
