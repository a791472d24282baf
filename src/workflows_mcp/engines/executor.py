"""Performs steps: the same for every engine.

`StepRunner` carry out the steps of one driver of one run: what they have begun they can end, and nothing that
another driver of the same run has begun. Whatever happens becomes an event; how a run is kept is not
known here.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from secrets import token_hex

import msgspec
from pydantic import ValidationError

from workflows_mcp.engines.clock import Clock
from workflows_mcp.engines.live_output import LiveOutput, StepOutput
from workflows_mcp.engines.memory_values import RedactingMemory
from workflows_mcp.engines.permissions import check_step
from workflows_mcp.errors import RequestError, WorkflowsError
from workflows_mcp.limits import Limits
from workflows_mcp.machine import Command, Event, Machine, RunStep, StepDone, StepFailed
from workflows_mcp.plan import Plan
from workflows_mcp.policy import (
    LARGE_BYTES,
    MayStart,
    Memory,
    Policy,
    Secrets,
    ToolServers,
    World,
    copy_directory,
    end_leftovers,
    remove_directory,
)
from workflows_mcp.steps import Given, StepContext, StepRegistry, StepResult, StepStopped, with_secrets

logger = logging.getLogger(__name__)
Report = Callable[[StepDone | StepFailed], None]
TIMEOUT = "timeout"
_THREADS = 16
_TURN_SECONDS = 0.001

_UNFINISHED = "."
"""What the name of a directory begins with that is being copied."""
_SCRATCH_SECONDS = 86_400.0
"""How long the files of a run are kept that has failed or was cancelled, or that is nowhere to be found:
somebody may want to try it again, or be making it."""


class Executor:
    """What all drivers of a process share: step types, policy, and room for so many steps at once."""

    def __init__(
        self,
        registry: StepRegistry,
        policy: Policy,
        scratch: Path,
        clock: Clock,
        secrets: Secrets | None = None,
        tools: ToolServers | None = None,
    ) -> None:
        self.registry = registry
        self.policy = policy
        self.secrets = secrets or Secrets()
        self.clock = clock
        self.scratch = scratch
        """Where the files of runs are, a directory each."""
        self.live = LiveOutput(self.secrets, scratch)
        self._tools = tools
        self._memory: Memory | None = None
        self._threads: ThreadPoolExecutor | None = None
        self._under_way = 0
        self._waiting: deque[Callable[[], None]] = deque()

    @property
    def limits(self) -> Limits:
        return self.policy.limits

    def runner_for(self, run_id: str, workspace: str, may_start: MayStart | None = None) -> StepRunner:
        """For a run that works in `workspace`; empty is the workspace of this process."""
        policy = replace(self.policy, workspace=Path(workspace)) if workspace else self.policy
        scratch, tools, memory = self.scratch / run_id, self._tools, self._memory
        world = World(policy, run_id, scratch, may_start, self.secrets, tools=tools, memory=memory)
        return StepRunner(self, run_id, world)

    def use_memory(self, memory: Memory) -> None:
        """Where steps find what is remembered beyond runs: with the engine that they belong to."""
        self._memory = RedactingMemory(memory, self.secrets)

    def learn_secrets(self, plans: Iterable[Plan]) -> None:
        """What steps give may hold the secrets of these plans, whichever process has put them there."""
        self.secrets.learn(name for plan in plans for name in plan.secrets)

    def apply_elsewhere(self, machine: Machine, event: Event) -> asyncio.Future[list[Command]]:
        """Apply an event in a thread of its own, so that an expression that takes long holds up nobody."""
        if self._threads is None:
            self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="expressions")
            sys.setswitchinterval(_TURN_SECONDS)  # whoever waits for its turn waits a fifth as long
        return asyncio.get_running_loop().run_in_executor(self._threads, machine.apply, event)

    def close(self) -> None:
        """Let go of the threads; what is still being applied in one ends there."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    def has_room(self) -> bool:
        return self._under_way < self.limits.parallel_steps

    def when_there_is_room(self, callback: Callable[[], None]) -> None:
        self._waiting.append(callback)

    def changes_world(self, command: RunStep) -> bool:
        try:
            return self.registry.get(command.step).changes_world(command.inputs)
        except Exception:
            return True  # performing it will find the same and report it

    def leave_scratch(self, run_id: str, *, keep: bool) -> None:
        """A run has ended: what was its own goes with it, or is kept for whoever tries it again soon."""
        directory = self.scratch / run_id
        if not keep or not any(files for _, _, files in os.walk(directory)):
            self.clear_scratch(run_id)
        else:
            os.utime(directory, follow_symlinks=False)  # from now on it gets old

    def clear_scratch(self, run_id: str) -> None:
        remove_directory(self.scratch / run_id)

    def copy_scratch(self, run_id: str, new_run_id: str) -> None:
        """A run is made of another one: it gets a copy of what that one's steps have handed each other."""
        source = self.scratch / run_id
        if not source.is_dir():
            return
        # Whole or not at all, and never over what is there: of two who make the same run, one may be done.
        unfinished = self.scratch / f"{_UNFINISHED}{new_run_id}-{token_hex(4)}"
        try:
            copy_directory(source, unfinished)
            os.rename(unfinished, self.scratch / new_run_id)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise RequestError(
                    f"the files of the run {run_id} cannot be copied for a new one: {error}",
                    hint=f"see whether {source} can be read and the disk has room",
                ) from None
        finally:
            remove_directory(unfinished)

    def scratch_is_old(self, run_id: str) -> bool:
        """Whether nobody has put anything into the scratch directory of a run for long."""
        try:
            return self.clock.now() - os.stat(self.scratch / run_id).st_ctime > _SCRATCH_SECONDS
        except OSError:
            return False

    def is_a_copy_cut_off(self, name: str) -> bool:
        """Whether a directory of this name was being copied for a run by a process that is gone."""
        return name.startswith(_UNFINISHED) and self.scratch_is_old(name)

    def scratch_of_runs(self) -> list[str]:
        """The runs that have a scratch directory."""
        return [path.name for path in self.scratch.iterdir()] if self.scratch.is_dir() else []

    async def end_leftovers(self, steps: list[tuple[str, str]]) -> None:
        """End what a process that is gone left running of these steps, before they are repeated."""
        if steps:
            await asyncio.to_thread(end_leftovers, {f"{run_id}/{key}" for run_id, key in steps})

    def begun(self) -> None:
        self._under_way += 1

    def ended(self) -> None:
        self._under_way -= 1
        if self._waiting:
            self._waiting.popleft()()


class StepRunner:
    def __init__(self, executor: Executor, run_id: str, world: World) -> None:
        self._executor = executor
        self._run_id = run_id
        self._world = world
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._stopped: dict[str, str] = {}
        """Steps that are being ended, and the reason to report, if any."""

    def perform(self, command: RunStep, report: Report) -> None:
        """Carry out a step and report once. What needs no waiting reports before this returns."""
        output: StepOutput | None = None
        try:
            step = self._executor.registry.get(command.step)
            check_step(step, self._world.policy)
            given = Given(command.inputs, command.config, command.code)
            real = with_secrets(given, self._executor.secrets)
            inputs = step.Inputs.model_validate(real.inputs)
            key = f"{self._run_id}/{command.key}"
            execution = command.execution
            output = self._executor.live.begin(self._run_id, execution)
            world = self._world.for_step("" if command.shares_scratch else execution.file_name, output.hear)
            outcome = step.run(inputs, StepContext(self._run_id, key, world, real.config, real.code))
            if isinstance(outcome, StepResult):
                self._executor.live.end(self._run_id, output)
                report(self._without_secrets(self._done(command, outcome)))
                return
        except (Exception, SystemExit) as error:
            if output is not None:
                self._executor.live.end(self._run_id, output)
            report(self._without_secrets(self._failed(command, error)))
            return
        task = asyncio.get_running_loop().create_task(self._await(command, outcome, output, report))
        self._tasks[command.key] = task
        self._executor.begun()
        task.add_done_callback(lambda _: self._ended(command.key, output))

    def stop(self, key: str, reason: str = "") -> bool:
        """End a step; with a reason, it is reported as failed for it. False if it is not under way.
        Ending takes a moment, in which it must not be disturbed."""
        task = self._tasks.get(key)
        if task is None:
            return False
        if key not in self._stopped:
            self._stopped[key] = reason
            task.cancel()
        return True

    def when_ended(self, address: str, callback: Callable[[], None]) -> bool:
        """Whether steps of the same block at the top of the run are being ended; calls back when one has."""
        block = address.partition("/")[0]
        for key in self._stopped:
            task = self._tasks.get(key)
            if task is not None and key.partition("#")[0].partition("/")[0] == block:
                task.add_done_callback(lambda _: callback())
                return True
        return False

    async def stop_all(self) -> None:
        for key in list(self._tasks):
            self.stop(key)
        await self.drained()

    async def drained(self, seconds: float = 5.0) -> None:
        """Wait until nothing is under way any more."""
        if self._tasks:
            await asyncio.wait(self._tasks.values(), timeout=seconds)

    def _ended(self, key: str, output: StepOutput) -> None:
        self._executor.live.end(self._run_id, output)
        self._tasks.pop(key, None)
        self._stopped.pop(key, None)
        self._executor.ended()

    async def _await(
        self, command: RunStep, running: Awaitable[StepResult], output: StepOutput, report: Report
    ) -> None:
        try:
            try:
                result = await running
            finally:
                self._executor.live.end(self._run_id, output)
            event = await self._redacted(self._done(command, result))
        except asyncio.CancelledError as error:
            reason = self._stopped.get(command.key)
            if reason is None:
                gave_up = RuntimeError(f"the step gave up by itself {error}".strip())
                event = self._without_secrets(self._failed(command, gave_up))
            elif reason:
                outputs = error.outputs if isinstance(error, StepStopped) else {}
                now = self._executor.clock.now()
                event = await self._redacted(StepFailed(now, command.key, TIMEOUT, reason, outputs))
            else:
                raise
        except (Exception, SystemExit) as error:
            event = self._without_secrets(self._failed(command, error))
        report(event)

    async def _redacted(self, event: StepDone | StepFailed) -> StepDone | StepFailed:
        """Without secrets; much output is searched for them in a thread, so that nobody else waits for it."""
        if sum(len(value) for value in event.outputs.values() if isinstance(value, str)) > LARGE_BYTES:
            return await asyncio.to_thread(self._without_secrets, event)
        return self._without_secrets(event)

    def _done(self, command: RunStep, result: StepResult) -> StepDone:
        return StepDone(self._executor.clock.now(), command.key, result.outputs, result.ok, result.message)

    def _without_secrets(self, event: StepDone | StepFailed) -> StepDone | StepFailed:
        """What a step gives may be kept and told only with marks in place of secrets."""
        secrets = self._executor.secrets
        try:
            if isinstance(event, StepFailed):
                message, hint = (secrets.redact(_writable(text)) for text in (event.message, event.hint))
                outputs = secrets.redact(event.outputs)
                return msgspec.structs.replace(event, outputs=outputs, message=message, hint=hint)
            outputs, said = secrets.redact(event.outputs), secrets.redact(event.message)
        except RequestError as error:
            return StepFailed(event.at, event.key, error.code, f"its outputs are refused: {error}")
        if outputs is event.outputs and said is event.message:
            return event
        return msgspec.structs.replace(event, outputs=outputs, message=said)

    def _failed(self, command: RunStep, error: BaseException) -> StepFailed:
        now = self._executor.clock.now()
        if isinstance(error, WorkflowsError):
            return StepFailed(now, command.key, error.code, error.message, hint=error.hint)
        if isinstance(error, ValidationError):
            return StepFailed(now, command.key, "invalid_inputs", _worded(command.step, error))
        logger.error("the step %s of type %s broke", command.key, command.step, exc_info=error)
        return StepFailed(now, command.key, "internal", f"{type(error).__name__}: {error}")


def _writable(text: str) -> str:
    """What went wrong must be told, whatever characters are in it."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _worded(step: str, error: ValidationError) -> str:
    """All that does not fit the inputs of a step type, in one line."""
    problems = [
        f"{'.'.join(str(part) for part in problem['loc'])}: {problem['msg']}" for problem in error.errors()
    ]
    return f"the inputs do not fit {step}: " + "; ".join(problems)
