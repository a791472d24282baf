"""Performs steps, in the same way for every engine.

    runner = executor.runner_for(run_id, workspace)
    runner.perform(command, driver.feed)        # reports StepDone or StepFailed once
    runner.stop(command.key, "it took longer than 10 s")

An `Executor` is shared by a process; a `StepRunner` belongs to one driver of one run, and stops only steps
that it has started itself. Nothing here knows how runs are stored.
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
from workflows_mcp.engines.headless import AgentFailed, HeadlessAgents
from workflows_mcp.engines.live_output import LiveOutput, StepOutput
from workflows_mcp.engines.permissions import check_step
from workflows_mcp.errors import RequestError, WorkflowsError
from workflows_mcp.expressions import Code
from workflows_mcp.machine import Command, Event, Identity, Machine, RunStep, StepDone, StepFailed
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
from workflows_mcp.steps import StepContext, StepRegistry, StepResult, StepStopped
from workflows_mcp.values import Value, may_hold_mark

logger = logging.getLogger(__name__)
Given = tuple[dict[str, Value], dict[str, Value], dict[str, Code]]
Report = Callable[[StepDone | StepFailed], None]
TIMEOUT = "timeout"
_THREADS = 16
_TURN_SECONDS = 0.001

_UNFINISHED = "."
"""The prefix of a directory that is still being copied."""
_SCRATCH_SECONDS = 86_400.0
"""How long the files of a failed, cancelled or unknown run are kept: it may be retried, or being created."""


class Executor:
    """What the drivers of a process share: step types, policy, and the number of parallel steps."""

    def __init__(
        self,
        registry: StepRegistry,
        policy: Policy,
        scratch: Path,
        clock: Clock,
        secrets: Secrets | None = None,
        tools: ToolServers | None = None,
        agents: HeadlessAgents | None = None,
    ) -> None:
        self.registry = registry
        self.policy = policy
        self.limits = policy.limits
        self.secrets = secrets or Secrets()
        self.clock = clock
        self.scratch = scratch
        """The parent of the scratch directories of runs."""
        self.live = LiveOutput(self.secrets, scratch)
        self._tools = tools
        self.agents = agents or HeadlessAgents()
        self.memory: Memory | None = None
        """The memory that steps use: that of their engine."""
        self._threads: ThreadPoolExecutor | None = None
        self._under_way = 0
        self._waiting: deque[Callable[[], None]] = deque()

    def runner_for(self, run_id: str, workspace: str, may_start: MayStart | None = None) -> StepRunner:
        """A runner for a run in `workspace`; empty means the workspace of this process."""
        policy = replace(self.policy, workspace=Path(workspace)) if workspace else self.policy
        scratch, tools, memory = self.scratch / run_id, self._tools, self.memory
        world = World(policy, run_id, scratch, may_start, self.secrets, tools=tools, memory=memory)
        return StepRunner(self, run_id, world)

    def learn_secrets(self, plans: Iterable[Plan]) -> None:
        """Redact the secrets of these plans in outputs, whichever process has used them."""
        self.secrets.learn(name for plan in plans for name in plan.secrets)

    def apply_in_thread(self, machine: Machine, event: Event) -> asyncio.Future[list[Command]]:
        """Apply an event in a thread, so that a slow expression does not block the event loop."""
        if self._threads is None:
            self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="expressions")
            sys.setswitchinterval(_TURN_SECONDS)  # a fifth of the default
        return asyncio.get_running_loop().run_in_executor(self._threads, machine.apply, event)

    def close(self) -> None:
        """Shut down the threads without waiting for them."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    def has_room(self, callback: Callable[[], None]) -> bool:
        """Whether one more step may run; if not, call back when there may be room."""
        if self._under_way < self.limits.parallel_steps:
            return True
        self._waiting.append(callback)
        return False

    def changes_world(self, command: RunStep) -> bool:
        if command.assignment is not None:
            return True
        try:
            return self.registry.get(command.step).changes_world(command.inputs)
        except Exception:
            return True  # performing it will report the error

    def release_scratch(self, run_id: str, *, keep: bool) -> None:
        """Remove the scratch directory of an ended run, or keep it for a retry."""
        directory = self.scratch / run_id
        if not keep or not any(files for _, _, files in os.walk(directory)):
            self.clear_scratch(run_id)
        else:
            os.utime(directory, follow_symlinks=False)  # start the retention period now

    def clear_scratch(self, run_id: str) -> None:
        remove_directory(self.scratch / run_id)

    def copy_scratch(self, run_id: str, new_run_id: str) -> None:
        """Copy the scratch directory of a run for its fork."""
        source = self.scratch / run_id
        if not source.is_dir():
            return
        # Copy and rename: complete or not at all, and never over the files of a fork that exists already.
        unfinished = self.scratch / f"{_UNFINISHED}{new_run_id}-{token_hex(4)}"
        try:
            copy_directory(source, unfinished)
            os.rename(unfinished, self.scratch / new_run_id)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise RequestError(
                    f"cannot copy the files of the run {run_id} for its fork: {error}",
                    hint=f"check that {source} is readable and that the disk has space",
                ) from None
        finally:
            remove_directory(unfinished)

    def scratch_is_old(self, run_id: str) -> bool:
        """Whether the scratch directory of a run has not changed for a day."""
        try:
            return self.clock.now() - os.stat(self.scratch / run_id).st_ctime > _SCRATCH_SECONDS
        except OSError:
            return False

    def is_unfinished_copy(self, name: str) -> bool:
        """Whether a process died while it copied this directory for a fork."""
        return name.startswith(_UNFINISHED) and self.scratch_is_old(name)

    def scratch_of_runs(self) -> list[str]:
        """The ids of runs that have a scratch directory."""
        return [path.name for path in self.scratch.iterdir()] if self.scratch.is_dir() else []

    async def end_leftovers(self, run_id: str, keys: list[str]) -> None:
        """Kill the processes that a dead process left running for these steps of a run."""
        if keys:
            await asyncio.to_thread(end_leftovers, {f"{run_id}/{key}" for key in keys})

    def begun(self) -> None:
        self._under_way += 1

    def ended(self) -> None:
        self._under_way -= 1
        if self._waiting:
            self._waiting.popleft()()


class StepRunner:
    """Performs and stops the steps of one driver of one run."""

    def __init__(self, executor: Executor, run_id: str, world: World) -> None:
        self._executor = executor
        self._run_id = run_id
        self._world = world
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._stopped: dict[str, str] = {}
        """Steps that are being stopped, with the reason to report, if any."""

    def perform(self, command: RunStep, report: Report) -> None:
        """Run a step and report once; a step that waits for nothing reports before this returns."""
        output: StepOutput | None = None
        try:
            step = self._executor.registry.get(command.step)
            check_step(step, self._world.policy)
            given, config, code = self._given(command)
            inputs = step.Inputs.model_validate(given)
            key = f"{self._run_id}/{command.key}"
            execution = command.execution
            output = self._executor.live.begin(self._run_id, execution)
            show = self._executor.agents.shown(command.assignment, output.write)
            world = self._world.for_step("" if command.shares_scratch else execution.file_name, show)
            context = StepContext(self._run_id, key, world, config, code)
            outcome: StepResult | Awaitable[StepResult]
            if command.assignment is not None:
                outcome = self._executor.agents.perform(command.assignment, step, inputs, context)
            else:
                outcome = step.run(inputs, context)
            if isinstance(outcome, StepResult):
                self._executor.live.end(self._run_id, output)
                report(self._without_secrets(self._done(command, outcome)))
                return
        except (Exception, SystemExit) as error:
            if output is not None:
                self._executor.live.end(self._run_id, output)
            report(self._without_secrets(self._failed(command, error)))
            return
        task = asyncio.get_running_loop().create_task(self._run(command, outcome, output, report))
        self._tasks[command.key] = task
        self._executor.begun()
        task.add_done_callback(lambda _: self._ended(command.key, output))

    def _given(self, command: RunStep) -> Given:
        """The inputs, config and code of a step. An agent gets the marks of secrets, not their values."""
        if command.assignment is not None:
            return command.inputs, command.config, command.code
        return _with_secrets(command, self._executor.secrets)

    def stop(self, key: str, reason: str = "") -> bool:
        """Stop a step; with a reason, it is reported as failed. Returns False if it is not under way.

        A second call does not disturb a step that is being stopped."""
        task = self._tasks.get(key)
        if task is None:
            return False
        if key not in self._stopped:
            self._stopped[key] = reason
            task.cancel()
        return True

    def may_start(self, step: RunStep, callback: Callable[[], None]) -> bool:
        """Whether a step may start now; if not, call back when it may.

        It waits for room, and until steps of the same top-level block that are being stopped have ended."""
        if not self._executor.has_room(callback):
            return False
        block = step.address.partition("/")[0]
        for key in self._stopped:
            task = self._tasks.get(key)
            if task is not None and key.partition("#")[0].partition("/")[0] == block:
                task.add_done_callback(lambda _: callback())
                return False
        return True

    async def stop_all(self) -> None:
        for key in list(self._tasks):
            self.stop(key)
        await self.wait_drained()

    async def wait_drained(self, seconds: float = 5.0) -> None:
        """Wait until no step is under way."""
        if self._tasks:
            await asyncio.wait(self._tasks.values(), timeout=seconds)

    def _ended(self, key: str, output: StepOutput) -> None:
        self._executor.live.end(self._run_id, output)
        self._tasks.pop(key, None)
        self._stopped.pop(key, None)
        self._executor.ended()

    async def _run(
        self, command: RunStep, running: Awaitable[StepResult], output: StepOutput, report: Report
    ) -> None:
        """Await a step and report it, in the same turn of the event loop."""
        event = await self._event_of(command, running)
        self._executor.live.end(self._run_id, output)
        report(event)

    async def _event_of(self, command: RunStep, running: Awaitable[StepResult]) -> StepDone | StepFailed:
        """Await a step, and return how it ended; cancelled if it is stopped without a reason to report."""
        try:
            return await self._redacted(self._done(command, await running))
        except asyncio.CancelledError as error:
            reason = self._stopped.get(command.key)
            if reason is None:
                cancelled = RuntimeError(f"the step cancelled itself {error}".strip())
                return self._without_secrets(self._failed(command, cancelled))
            if not reason:
                raise
            outputs = error.outputs if isinstance(error, StepStopped) else {}
            now = self._executor.clock.now()
            by = self._performer(command)
            return await self._redacted(StepFailed(now, command.key, TIMEOUT, reason, outputs, by=by))
        except (Exception, SystemExit) as error:
            return self._without_secrets(self._failed(command, error))

    async def _redacted(self, event: StepDone | StepFailed) -> StepDone | StepFailed:
        """Redact an event; in a thread if it has much output."""
        if sum(len(value) for value in event.outputs.values() if isinstance(value, str)) > LARGE_BYTES:
            return await asyncio.to_thread(self._without_secrets, event)
        return self._without_secrets(event)

    def _done(self, command: RunStep, result: StepResult) -> StepDone:
        now, by = self._executor.clock.now(), self._performer(command)
        return StepDone(now, command.key, result.outputs, result.ok, result.message, result.tokens, by)

    def _performer(self, command: RunStep) -> Identity | None:
        """Who performs a step, if it is not the server itself."""
        return self._executor.agents.identity(command.assignment)

    def _without_secrets(self, event: StepDone | StepFailed) -> StepDone | StepFailed:
        """The event with secrets redacted."""
        secrets = self._executor.secrets
        try:
            if isinstance(event, StepFailed):
                message, hint = (secrets.redact(_writable(text)) for text in (event.message, event.hint))
                outputs = secrets.redact(event.outputs)
                return msgspec.structs.replace(event, outputs=outputs, message=message, hint=hint)
            outputs, message = secrets.redact(event.outputs), secrets.redact(event.message)
        except RequestError as error:
            return StepFailed(event.at, event.key, error.code, f"its outputs are refused: {error}")
        if outputs is event.outputs and message is event.message:
            return event
        return msgspec.structs.replace(event, outputs=outputs, message=message)

    def _failed(self, command: RunStep, error: BaseException) -> StepFailed:
        now = self._executor.clock.now()
        if isinstance(error, WorkflowsError):
            tokens = error.tokens if isinstance(error, AgentFailed) else 0
            by = self._performer(command)
            return StepFailed(
                now, command.key, error.code, error.message, hint=error.hint, tokens=tokens, by=by
            )
        if isinstance(error, ValidationError):
            return StepFailed(now, command.key, "invalid_inputs", _input_problems(command.step, error))
        logger.error("the step %s of type %s failed with a bug", command.key, command.step, exc_info=error)
        return StepFailed(now, command.key, "internal", f"{type(error).__name__}: {error}")


def _writable(text: str) -> str:
    """The text without characters that UTF-8 cannot encode."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _input_problems(step: str, error: ValidationError) -> str:
    """The validation problems of the inputs, in one line."""
    problems = [
        f"{'.'.join(str(part) for part in problem['loc'])}: {problem['msg']}" for problem in error.errors()
    ]
    return f"the inputs do not fit {step}: " + "; ".join(problems)


# ----------------------------------------------------------------------------------------------------
# Secrets: a step gets their values
#
# Marks are replaced in inputs, in config and in the values inside code, never in the text of code. If a
# command is a single reference, the value of that reference is the code; a secret in it stays a separate
# value, so that it becomes neither syntax nor an argument that other users of the machine can see.


def _with_secrets(command: RunStep, secrets: Secrets) -> Given:
    """The inputs, config and code of a step; shared if they have no marks. Raises MissingSecret."""
    given = command.inputs, command.config, command.code
    if not may_hold_mark(given):
        return given
    code = {name: _code_with_secrets(it, secrets) for name, it in command.code.items()}
    return secrets.put_in(command.inputs), secrets.put_in(command.config), code


def _code_with_secrets(code: Code, secrets: Secrets) -> Code:
    texts, values = code
    if len(values) == 1 and isinstance(values[0], str) and not "".join(texts).strip():
        inner, found = secrets.split(values[0])
        if "".join(inner).strip():
            return Code((texts[0] + inner[0], *inner[1:-1], inner[-1] + texts[1]), found) if found else code
    return Code(texts, tuple(secrets.put_in(value) for value in values))
