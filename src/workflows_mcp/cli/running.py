"""`run`, `answer` and `cancel`: a run is driven by this process until it ends or waits for an answer."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import signal
import sys
import time
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any

from workflows_mcp.cli.answers import Answers, read_answers
from workflows_mcp.cli.asking import can_ask
from workflows_mcp.cli.codes import INTERRUPTED, exit_code
from workflows_mcp.cli.following import LiveLines, ProgressLines, print_end
from workflows_mcp.cli.inputs import read_inputs
from workflows_mcp.cli.playing import Player
from workflows_mcp.cli.printing import err, print_json
from workflows_mcp.errors import NotExpected, RequestError
from workflows_mcp.service import Service, has_stopped
from workflows_mcp.settings import Settings, load_settings
from workflows_mcp.watching import Watch

_ENDED = ("completed", "failed", "cancelled")
_LOOK_AGAIN_SECONDS = 0.2
_ID_CHARS = len("wf_") + 12
_NAMED = 5
_UNCUT = 1_000_000_000


def terminal_settings(*, runs: bool = True, steps: bool = True) -> Settings:
    """Settings for a person or a script: nothing is cut, as it would be for an agent. Without `runs`, for a
    command that needs no server; without `steps`, for one that is soon over and must not begin any there."""
    settings = load_settings(engine=None if runs else "embedded")
    limits = dataclasses.replace(settings.limits, preview_chars=_UNCUT, answer_chars=_UNCUT)
    temporal = dataclasses.replace(settings.temporal, steps=steps)
    return dataclasses.replace(settings, limits=limits, temporal=temporal)


class Session:
    """One run, followed on the terminal. The id is known outside, so that an interruption can name it."""

    def __init__(
        self, *, as_json: bool, answers: Answers | None = None, yes: bool = False, quiet: bool = False
    ) -> None:
        self.as_json = as_json
        self.quiet = quiet
        """Whether only questions, failures and outputs are shown."""
        self.run_id = ""
        self.paper = err()
        self.player = Player(self.paper, answers or Answers(), yes=yes)
        self.progress = ProgressLines(self.paper, quiet=quiet)
        self.live = LiveLines(self.paper, self.progress)
        self.watch = Watch()
        """What of the run has been shown, or need not be."""
        self.parked = False
        self.started_here = True
        """Whether this command started the run, so that its interruption is that of the run."""
        self._started = time.monotonic()
        self._told: list[str] = []
        self._stdout = sys.stdout

    def finish(self, answer: dict[str, Any]) -> int:
        with contextlib.redirect_stdout(self._stdout):
            if self.as_json:
                print_json(answer)
            seconds = time.monotonic() - self._started
            print_end(answer, self.paper, outputs=not self.as_json, seconds=seconds, quiet=self.quiet)
            for step_id in self.player.answers.unused() if answer["status"] in _ENDED else ():
                self.paper.line(f"nobody asked for the answer to '{step_id}'")
        return exit_code(answer["status"])

    def _tell(self, messages: list[str]) -> None:
        """Show the messages that were not there when it was last looked."""
        before, self._told = self._told, messages
        known = max(n for n in range(len(messages) + 1) if before[len(before) - n :] == messages[:n])
        for message in messages[known:]:
            self.paper.line()
            self.paper.line(self.paper.clean(message.rstrip()))

    async def start(self, starting: Coroutine[Any, Any, dict[str, Any]]) -> dict[str, Any]:
        """Start a run, or make one of another; an interruption meanwhile comes when its id is known."""
        task = asyncio.ensure_future(starting)
        try:
            answer = await asyncio.shield(task)
        except asyncio.CancelledError:
            with contextlib.suppress(Exception):
                self.run_id = (await task)["workflow_id"]
            raise
        self.run_id = answer["workflow_id"]
        return answer

    @contextlib.asynccontextmanager
    async def service(self) -> AsyncIterator[Service]:
        """The service, in which an interruption of this command parks the run."""
        async with Service.open(terminal_settings(), adopt=False) as service:
            try:
                yield service
            except asyncio.CancelledError:
                if self.run_id:
                    self.parked = await service.park(self.run_id, if_driven_here=not self.started_here)
                raise

    async def follow(self, service: Service) -> dict[str, Any]:
        """Until the run has ended, or waits for an answer that nobody here can give."""
        if self.as_json or self.quiet:
            return await self._followed(service)
        with service.live.heard_by(
            self.run_id, lambda line: self.live.show(line, service.live.under_way(self.run_id))
        ):
            return await self._followed(service)

    async def _followed(self, service: Service) -> dict[str, Any]:
        while True:
            async for step in service.observing.watch(self.run_id, self.watch):
                self.progress.show(step)
            self.progress.flush()
            answer = await service.status(self.run_id, alone=True)
            self._tell(answer.get("messages", []))
            if answer["status"] in _ENDED or await service.is_parked(self.run_id):
                return answer
            if "action" not in answer:
                continue
            if await self._played(service, answer):
                continue
            if not can_ask() and await _is_working(service, self.run_id):
                await asyncio.sleep(_LOOK_AGAIN_SECONDS)
            else:
                return answer

    async def _played(self, service: Service, answer: dict[str, Any]) -> bool:
        """Whether what the run asks was answered. What happens meanwhile is shown, and the question again."""

        async def show() -> None:
            async for step in service.observing.watch(self.run_id, self.watch, until=has_stopped):
                self.progress.show(step)

        self.player.failed = self.progress.failed
        self.progress.on_failure = self.player.ask_again
        meanwhile = asyncio.create_task(show())
        try:
            return await self.player.play(service, answer)
        finally:
            self.progress.on_failure = None
            meanwhile.cancel()
            await asyncio.wait([meanwhile])
            self.progress.flush()


def session_of(options: argparse.Namespace) -> Session:
    answers = read_answers(options.answers)
    return Session(as_json=options.json, answers=answers, yes=options.yes, quiet=options.quiet)


def run_command(options: argparse.Namespace) -> int:
    inputs = read_inputs(options.input, options.inputs_file)
    session = session_of(options)

    async def run() -> int:
        async with session.service() as service:
            workflow = meant_workflow(options.workflow)
            await session.start(service.start(**workflow, inputs=inputs, wait_seconds=0))
            try:
                async with asyncio.timeout(options.timeout):
                    answer = await session.follow(service)
            except TimeoutError:
                reason = f"it had not ended after {options.timeout:g} s"
                answer = await service.cancel(session.run_id, reason=reason)
            return session.finish(answer)

    return interruptible(run(), session)


def answer_command(options: argparse.Namespace) -> int:
    session = session_of(options)

    async def answer() -> int:
        session.started_here = False
        async with session.service() as service:
            options.run = await meant_run(service, options.run)
            session.run_id = options.run.partition(".")[0]  # of a task, the run is followed
            if await service.is_parked(session.run_id):
                await service.resume_run(session.run_id, wait_seconds=0)
            current = await service.status(session.run_id, alone=True)
            session.watch = await service.observing.so_far(session.run_id)
            value = options.value
            if options.fail is not None:
                value = {"is_error": True, "error": options.fail}
            if value is None and not can_ask() and options.answers is None:
                value = sys.stdin.read().rstrip("\n") or None
            if value is not None:
                step_id = options.step
                if options.run == session.run_id and "action" in current and "more_actions" not in current:
                    step_id = step_id or current["action"]["step_id"]  # also where it is a task that asks
                try:
                    await service.submit(options.run, value, step_id=step_id, wait_seconds=0)
                except NotExpected as error:
                    if current["status"] in _ENDED:
                        how = f"workflows-mcp show {session.run_id} says how it went"
                        error.hint = f"{error.hint}; {how}" if error.hint else how
                    raise
            elif not (can_ask() or options.answers) or "action" not in current:
                return session.finish(current)
            return session.finish(await session.follow(service))

    return interruptible(answer(), session)


def cancel_command(options: argparse.Namespace) -> int:
    async def cancel() -> dict[str, Any]:
        async with Service.open(terminal_settings(steps=False), adopt=False) as service:
            options.run = await meant_run(service, options.run)
            return await service.cancel(options.run, reason=options.reason)

    answer = asyncio.run(cancel())
    if options.json:
        print_json(answer)
    else:
        err().line(f"the run {options.run} is cancelled")
    return 0


async def meant_run(service: Service, given: str) -> str:
    """A run, or a task of one, by its id or by the first characters of it."""
    run, dot, task = given.partition(".")
    if len(run) >= _ID_CHARS or run in ("", "wf_"):
        return given
    found = await service.run_ids(run)
    if len(found) > 1:
        named = ", ".join(found[:_NAMED]) + (" …" if len(found) > _NAMED else "")
        raise RequestError(
            f"the ids of {len(found)} runs begin with '{run}': {named}", hint="write more of it"
        )
    return f"{found[0]}{dot}{task}" if found else given


def meant_workflow(workflow: str) -> dict[str, Any]:
    """Whether a name, a file or the definition itself is meant."""
    if workflow == "-":
        return {"text": sys.stdin.read()}
    if workflow.endswith((".yaml", ".yml")) or Path(workflow).is_file():
        return {"file": workflow}
    return {"workflow": workflow}


def interruptible(running: Any, session: Session) -> int:
    try:
        # What a step type prints by accident is no part of the answer.
        with contextlib.redirect_stdout(sys.stderr):
            return int(asyncio.run(_until_asked_to_go(running)))
    except (KeyboardInterrupt, asyncio.CancelledError):
        if session.run_id:
            session.paper.line()
            if session.parked:
                session.paper.line(
                    f"interrupted: the run {session.run_id} is parked. Its steps are stopped, and nothing "
                    "continues it until you resume it; then they are repeated."
                )
                session.paper.line(f"to continue: workflows-mcp resume {session.run_id}")
            else:
                session.paper.line(f"interrupted: the run {session.run_id} goes on without this terminal")
                session.paper.line(f"to see it: workflows-mcp show {session.run_id}")
            session.paper.line(f"to end it: workflows-mcp cancel {session.run_id}")
        return INTERRUPTED


async def _until_asked_to_go(running: Coroutine[Any, Any, int]) -> int:
    """A process that is told to go, or whose terminal is closed, ends what it has started, as on Ctrl-C."""
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    return await running


async def _is_working(service: Service, run_id: str) -> bool:
    """Whether anything but the question is still under way."""
    waiting = [(await service.state(run_id))["blocks"]]
    while waiting:
        for block in waiting.pop().values():
            inside = block.get("blocks") or block.get("items")
            if inside is not None:
                waiting.append(inside)
            elif block["status"] == "running":
                return True
    return False
