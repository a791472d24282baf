"""A worker that goes away hands its steps back, whatever moment of a step it is told so in."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from temporalio.activity import ActivityCancellationDetails
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from support.engines import World
from workflows_mcp.engines.temporal.blobs import BlobStore
from workflows_mcp.engines.temporal.wire import NEVER_BEGUN, WORKER_GONE, StepTask, encode_command
from workflows_mcp.engines.temporal.worker import Activities
from workflows_mcp.engines.values import LargeValues, encode
from workflows_mcp.machine.commands import RunStep

pytestmark = pytest.mark.rows("S13")

COMMAND = RunStep("gate#1", "gate", "Gate", {"name": "g"})


class Halfway:
    """Where a step is held while its worker is told to go."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()

    async def __call__(self, *_: Any) -> None:
        self.reached.set()
        await asyncio.Event().wait()


def performed(home: Path, *, before: bool, told_to_go: str) -> BaseException | None:
    """What comes of a step that is cancelled: before it begins, or while it is carried out."""

    async def go() -> BaseException | None:
        world, halfway = World(home), Halfway()
        executor = world.executor()
        store = BlobStore(home / "blobs")
        large = LargeValues("wf_1", executor.limits.inline_bytes, store.get)
        task = StepTask("wf_1", str(home), encode_command(COMMAND, large), interrupted=before)
        if before:
            executor.end_leftovers = halfway  # type: ignore[assignment]
        activities = Activities(executor, store, world.find)
        environment = ActivityEnvironment()
        running = asyncio.ensure_future(environment.run(activities.perform, store.packed(encode(task))))
        while not (halfway.reached.is_set() or world.gate.waiting or running.done()):
            await asyncio.sleep(0)
        if told_to_go == "before":
            environment.worker_shutdown()
        environment.cancel(ActivityCancellationDetails(worker_shutdown=bool(told_to_go)))
        [outcome] = await asyncio.gather(running, return_exceptions=True)
        executor.close()
        return outcome if isinstance(outcome, BaseException) else None

    return asyncio.run(asyncio.wait_for(go(), 30))


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("told_to_go", ["before", "as it began"])
def test_a_step_whose_worker_goes_away_is_handed_back_at_every_moment(
    tmp_path: Path, before: bool, told_to_go: str
) -> None:
    error = performed(tmp_path, before=before, told_to_go=told_to_go)
    assert isinstance(error, ApplicationError)
    assert error.type == WORKER_GONE


def test_a_step_that_is_cancelled_is_not_handed_back(tmp_path: Path) -> None:
    assert isinstance(performed(tmp_path, before=True, told_to_go=""), asyncio.CancelledError)


def test_what_the_library_says_of_a_step_that_was_never_begun_is_known() -> None:
    from temporalio.api.failure.v1 import Failure
    from temporalio.converter import DefaultFailureConverter, DefaultPayloadConverter

    failure = Failure()
    DefaultFailureConverter().to_failure(asyncio.CancelledError(), DefaultPayloadConverter(), failure)
    assert failure.application_failure_info.type == NEVER_BEGUN
