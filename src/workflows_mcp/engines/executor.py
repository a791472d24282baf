"""Performs steps: the same for every engine.

A step that can be repeated unnoticed and does not wait is carried out at once, in place; any other is a
task. The executor turns whatever happens into an event; it knows nothing of how a run is kept.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from pathlib import Path

from pydantic import ValidationError

from workflows_mcp.engines.clock import Clock
from workflows_mcp.errors import WorkflowsError
from workflows_mcp.limits import Limits
from workflows_mcp.machine.commands import RunStep
from workflows_mcp.machine.events import StepDone, StepFailed
from workflows_mcp.policy.files import remove_directory
from workflows_mcp.policy.handles import World
from workflows_mcp.policy.leftovers import end_leftovers
from workflows_mcp.policy.rules import Policy
from workflows_mcp.steps.base import StepContext, StepResult
from workflows_mcp.steps.registry import StepRegistry

logger = logging.getLogger(__name__)
Report = Callable[[StepDone | StepFailed], None]


class Executor:
    def __init__(self, registry: StepRegistry, policy: Policy, scratch: Path, clock: Clock) -> None:
        self._registry = registry
        self._policy = policy
        self._scratch = scratch
        self._clock = clock
        self._worlds: dict[str, World] = {}
        self._tasks: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._queued: deque[tuple[str, RunStep, Report]] = deque()

    @property
    def limits(self) -> Limits:
        return self._policy.limits

    def changes_world(self, command: RunStep) -> bool:
        try:
            return self._registry.get(command.step).changes_world(command.inputs)
        except Exception:
            return True  # `perform` will find the same and report it

    def perform(self, run_id: str, command: RunStep, report: Report) -> None:
        """Carry out a step and report once. What needs no waiting reports before this returns."""
        if len(self._tasks) >= self._policy.limits.parallel_steps:
            self._queued.append((run_id, command, report))
            return
        try:
            step = self._registry.get(command.step)
            inputs = step.Inputs.model_validate(command.inputs)
            world = self._worlds.get(run_id) or self._world(run_id)
            context = StepContext(run_id, f"{run_id}/{command.key}", world, command.config, command.code)
            outcome = step.run(inputs, context)
            if isinstance(outcome, StepResult):
                report(self._done(command, outcome))
                return
        except Exception as error:
            report(self._failed(command, error))
            return
        task = asyncio.get_running_loop().create_task(self._await(command, outcome, report))
        self._tasks[run_id, command.key] = task
        task.add_done_callback(lambda _: self._ended(run_id, command.key))

    def stop(self, run_id: str, key: str) -> None:
        """End a step, without a report."""
        task = self._tasks.get((run_id, key))
        if task is not None:
            task.cancel()
        self._queued = deque(item for item in self._queued if (item[0], item[1].key) != (run_id, key))

    async def quiet(self, run_id: str, seconds: float = 5.0) -> None:
        """Wait until nothing of a run is under way any more."""
        tasks = [task for (owner, _), task in self._tasks.items() if owner == run_id]
        if tasks:
            await asyncio.wait(tasks, timeout=seconds)

    async def stop_run(self, run_id: str) -> None:
        """End everything that is under way for a run, without a report."""
        for owner, key in list(self._tasks):
            if owner == run_id:
                self.stop(owner, key)
        self._queued = deque(item for item in self._queued if item[0] != run_id)
        await self.quiet(run_id)

    def _world(self, run_id: str) -> World:
        world = self._worlds[run_id] = World(self._policy, run_id, self._scratch / run_id)
        return world

    def clear_scratch(self, run_id: str) -> None:
        """A run has ended: what was its own goes with it."""
        self._worlds.pop(run_id, None)
        remove_directory(self._scratch / run_id)

    async def end_leftovers(self, steps: list[tuple[str, str]]) -> None:
        """End what a process that is gone left running of these steps, before they are repeated."""
        if steps:
            await asyncio.to_thread(end_leftovers, {f"{run_id}/{key}" for run_id, key in steps})

    async def _await(self, command: RunStep, running: Awaitable[StepResult], report: Report) -> None:
        try:
            event: StepDone | StepFailed = self._done(command, await running)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            event = self._failed(command, error)
        report(event)

    def _ended(self, run_id: str, key: str) -> None:
        del self._tasks[run_id, key]
        while self._queued and len(self._tasks) < self._policy.limits.parallel_steps:
            self.perform(*self._queued.popleft())

    def _done(self, command: RunStep, result: StepResult) -> StepDone:
        return StepDone(self._clock.now(), command.key, result.outputs, result.ok, result.message)

    def _failed(self, command: RunStep, error: Exception) -> StepFailed:
        now = self._clock.now()
        if isinstance(error, WorkflowsError):
            return StepFailed(now, command.key, error.code, str(error))
        if isinstance(error, ValidationError):
            return StepFailed(now, command.key, "invalid_inputs", _worded(command.step, error))
        logger.exception("the step %s of type %s broke", command.key, command.step)
        return StepFailed(now, command.key, "internal", f"{type(error).__name__}: {error}")


def _worded(step: str, error: ValidationError) -> str:
    """All that does not fit the inputs of a step type, in one line."""
    problems = [
        f"{'.'.join(str(part) for part in problem['loc'])}: {problem['msg']}" for problem in error.errors()
    ]
    return f"the inputs do not fit {step}: " + "; ".join(problems)
