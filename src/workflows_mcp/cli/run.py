"""`run`, `answer` and `cancel`: this process drives a run until it ends or waits for an answer.

The parts, from the top: the commands; the session that follows a run; the agent that the terminal plays;
questions to a person; progress and end of a run; inputs and answers from the command line and from files.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import os
import re
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any
from workflows_mcp.cli.terminal import (
    INTERRUPTED,
    Terminal,
    Unreadable,
    err,
    exit_code,
    out,
    print_json,
    print_values,
    text_of,
    took,
)
from workflows_mcp.errors import DefinitionError, InvalidInputs, InvalidResult, NotExpected, RequestError
from workflows_mcp.runs import Line, Progress, Service, Watch, has_stopped, read_yaml
from workflows_mcp.settings import Settings, load_settings
from workflows_mcp.values import Value, from_json, kind_of

_ENDED = ("completed", "failed", "cancelled")
_LOOK_AGAIN_SECONDS = 0.2
_ID_CHARS = len("wf_") + 12
_NAMED = 5
_UNCUT = 1_000_000_000
MISSING = object()


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


def terminal_settings(*, runs: bool = True, steps: bool = True) -> Settings:
    """Settings for a person or a script: nothing is cut, as it would be for an agent. Without `runs`, for a
    command that needs no server; without `steps`, for one that is soon over and must not begin any there."""
    settings = load_settings(engine=None if runs else "embedded")
    limits = dataclasses.replace(settings.limits, preview_chars=_UNCUT, answer_chars=_UNCUT)
    temporal = dataclasses.replace(settings.temporal, steps=steps)
    return dataclasses.replace(settings, limits=limits, temporal=temporal)


def meant_workflow(workflow: str) -> dict[str, Any]:
    """Whether a name, a file or the definition itself is meant."""
    if workflow == "-":
        return {"text": sys.stdin.read()}
    if workflow.endswith((".yaml", ".yml")) or Path(workflow).is_file():
        return {"file": workflow}
    return {"workflow": workflow}


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


# Following a run


class Session:
    """One run, followed on the terminal. The id is known outside, so that an interruption can name it."""

    def __init__(
        self, *, as_json: bool, answers: Answers | None = None, yes: bool = False, quiet: bool = False
    ) -> None:
        self.as_json = as_json
        self.quiet = quiet
        """Whether only questions, failures and outputs are shown."""
        self.run_id = ""
        self.terminal = err()
        self.player = Player(self.terminal, answers or Answers(), yes=yes)
        self.progress = ProgressLines(self.terminal, quiet=quiet)
        self.live = LiveLines(self.terminal, self.progress)
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
            print_end(answer, self.terminal, outputs=not self.as_json, seconds=seconds, quiet=self.quiet)
            for step_id in self.player.answers.unused() if answer["status"] in _ENDED else ():
                self.terminal.line(f"nobody asked for the answer to '{step_id}'")
        return exit_code(answer["status"])

    def _tell(self, messages: list[str]) -> None:
        """Show the messages that were not there when it was last looked."""
        before, self._told = self._told, messages
        known = max(n for n in range(len(messages) + 1) if before[len(before) - n :] == messages[:n])
        for message in messages[known:]:
            self.terminal.line()
            self.terminal.line(self.terminal.clean(message.rstrip()))

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


def interruptible(running: Any, session: Session) -> int:
    try:
        # What a step type prints by accident is no part of the answer.
        with contextlib.redirect_stdout(sys.stderr):
            return int(asyncio.run(_until_asked_to_go(running)))
    except (KeyboardInterrupt, asyncio.CancelledError):
        if session.run_id:
            session.terminal.line()
            if session.parked:
                session.terminal.line(
                    f"interrupted: the run {session.run_id} is parked. Its steps are stopped, and nothing "
                    "continues it until you resume it; then they are repeated."
                )
                session.terminal.line(f"to continue: workflows-mcp resume {session.run_id}")
            else:
                session.terminal.line(f"interrupted: the run {session.run_id} goes on without this terminal")
                session.terminal.line(f"to see it: workflows-mcp show {session.run_id}")
            session.terminal.line(f"to end it: workflows-mcp cancel {session.run_id}")
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


# Playing the agent: answers come from a file, from a command that is run here, or from a person

_COMMANDS = {"shell": 1.0, "agent_shell_command": 0.001}
"""The actions that are commands, and how many seconds their timeouts are counted in."""
_NOT_YES = "commands are not run here (allow_commands is off): give the result instead"


class Player:
    def __init__(self, terminal: Terminal, answers: Answers, *, yes: bool) -> None:
        self.answers = answers
        self._paper = terminal
        self._yes = yes
        self.failed: list[str] = []
        """The blocks of the run that have failed so far: whoever is asked should know."""
        self._asked: dict[str, Any] | None = None
        self._what = ""

    async def play(self, service: Service, answer: dict[str, Any]) -> bool:
        """Answer one thing that the run asks; false when nobody here can, or will."""
        run_id = answer["workflow_id"]
        actions = [answer["action"], *answer.get("more_actions", ())]
        for action in actions:
            value = self._known(action)
            if value is not MISSING:
                try:
                    await _submit(service, run_id, action, value)
                except InvalidResult as error:
                    self._paper.line(self._paper.paint(f"the answer in the file: {error.message}", "red"))
                    return False
                return True
        if self._yes and service.settings.allow_commands:
            for action in actions:
                if action["type"] in _COMMANDS:
                    show_question(self._paper, action)
                    await _submit(service, run_id, action, await self._run(service, action))
                    return True
        return can_ask() and await self._ask(service, run_id, actions[0])

    def _known(self, action: dict[str, Any]) -> Value:
        """The answer that nobody needs to be asked for."""
        value = self.answers.next(action["step_id"])
        if needs_no_answer(action):
            show_message(self._paper, action)
            return True if value is MISSING else value
        return value

    async def _ask(self, service: Service, run_id: str, action: dict[str, Any]) -> bool:
        """Ask a person until the answer fits; false when they give none."""
        self._asked, self._what = action, ""
        try:
            return await self._asked_until_it_fits(service, run_id, action)
        finally:
            self._asked = None

    def ask_again(self) -> None:
        """A block has failed while a person is asked: the question is shown again, with its name."""
        if self._asked is not None:
            self._show_question(self._asked)
            self._paper.stream.write(f"{self._what}> ")
            self._paper.stream.flush()

    def _show_question(self, action: dict[str, Any]) -> None:
        show_question(self._paper, action)
        if self.failed:
            self._paper.line(self._paper.paint(f"failed so far: {', '.join(self.failed)}", "red"))

    async def _asked_until_it_fits(self, service: Service, run_id: str, action: dict[str, Any]) -> bool:
        self._show_question(action)
        if action["type"] in _COMMANDS:
            if not service.settings.allow_commands:
                self._paper.line(_NOT_YES)
            elif await agrees(self._paper, "run this command?"):
                self._asked = None
                await _submit(service, run_id, action, await self._run(service, action))
                return True
        self._what = _what(action)
        while True:
            typed = await read_answer(self._paper, self._what)
            if typed is None:
                return False
            try:
                await _submit(service, run_id, action, as_typed(action, typed))
            except InvalidResult as error:
                self._paper.line(self._paper.paint(error.message, "red"))
                continue
            return True

    async def _run(self, service: Service, action: dict[str, Any]) -> Value:
        parameters = action["parameters"]
        seconds = parameters.get("timeout")
        if seconds is not None:
            seconds *= _COMMANDS[action["type"]]
        result = await service.acting.run_command(
            parameters["command"],
            seconds=seconds,
            directory=parameters.get("working_dir", ""),
            variables=parameters.get("env", {}),
        )
        how = f"exit code {result['exit_code']} in {took(result['duration'])}"
        self._paper.line(self._paper.paint(how, "dim"))
        known = action["result_schema"].get("properties", {})
        return {name: value for name, value in result.items() if name in known}


async def _submit(service: Service, run_id: str, action: dict[str, Any], value: Value) -> None:
    await service.submit(run_id, value, step_id=action["step_id"], wait_seconds=0)


def _what(action: dict[str, Any]) -> str:
    """What is to be typed, where that is not a plain answer."""
    return "" if action["type"] in ("prompt", "user_input") else "its result, as JSON or text "


# Asking a person

_YES = ("y", "yes", "true")
_NO = ("n", "no", "false")
_WORDS = {
    "prompt": ("prompt", "message"),
    "shell": ("command",),
    "agent_shell_command": ("command",),
    "delegate": ("instructions",),
}
"""Which parameter of an action is what a person has to read."""
_SAID_OTHERWISE = {"prompt": ("type", "choices")}
"""Parameters that are shown in another way, or are meant for an agent."""


def can_ask() -> bool:
    return sys.stdin.isatty()


def show_question(terminal: Terminal, action: dict[str, Any]) -> None:
    terminal.line()
    terminal.line(f"{terminal.mark('paused')} {terminal.paint(action['step_id'], 'bold')}")
    parameters: dict[str, Value] = dict(action["parameters"])
    shown = next((key for key in _WORDS.get(action["type"], ("prompt",)) if key in parameters), None)
    words = parameters.pop(shown) if shown is not None else None
    terminal.line(terminal.clean(words.rstrip() if isinstance(words, str) else action["instructions"]))
    for key in _SAID_OTHERWISE.get(action["type"], ()):
        parameters.pop(key, None)
    print_values(terminal, parameters)
    options = _options(action)
    if options and action["parameters"].get("choices"):
        for number, option in enumerate(options, start=1):
            terminal.line(f"  {number}  {terminal.clean(option)}")
    elif options:
        terminal.line(f"({' / '.join(options)})")


def show_message(terminal: Terminal, action: dict[str, Any]) -> None:
    """A message that needs no answer."""
    terminal.line()
    terminal.line(terminal.clean(str(action["parameters"].get("message", "")).rstrip()))


def needs_no_answer(action: dict[str, Any]) -> bool:
    return bool(action["type"] == "prompt" and action["parameters"].get("type") == "info")


async def read_answer(terminal: Terminal, question: str = "") -> str | None:
    """The line that a person types; None when they would rather not say (Ctrl-D)."""
    terminal.stream.write(f"{question}> ")
    terminal.stream.flush()
    # A thread that reads could not be stopped by Ctrl-C; the terminal hands out whole lines anyway.
    loop = asyncio.get_running_loop()
    line: asyncio.Future[bytes] = loop.create_future()
    descriptor = sys.stdin.fileno()

    def typed_something() -> None:
        if not line.done():
            line.set_result(os.read(descriptor, 65536))

    loop.add_reader(descriptor, typed_something)
    try:
        typed = await line
    finally:
        loop.remove_reader(descriptor)
    if not typed:
        terminal.line()
        return None
    return typed.decode(sys.stdin.encoding or "utf-8", "replace").rstrip("\r\n")


async def agrees(terminal: Terminal, question: str) -> bool:
    """Whether a person says yes; anything else is no."""
    typed = await read_answer(terminal, f"{question} (y / n) ")
    return typed is not None and typed.strip().lower() in _YES


def as_typed(action: dict[str, Any], typed: str) -> Value:
    """What a line stands for: yes and no, the number of an option, or what it says."""
    word = typed.strip().lower()
    field = _main_field(action)
    if field.get("type") == "boolean" and word in (*_YES, *_NO):
        return word in _YES
    options = [str(option) for option in field.get("enum", ())]
    if word.isdecimal() and word not in options and 0 < int(word) <= len(options):
        return options[int(word) - 1]
    return typed


def _options(action: dict[str, Any]) -> list[str]:
    field = _main_field(action)
    if field.get("enum"):
        return [str(option) for option in field["enum"]]
    return ["y", "n"] if field.get("type") == "boolean" else []


def _main_field(action: dict[str, Any]) -> dict[str, Any]:
    """The one field that a question is about; nothing where a result has several."""
    schema = action.get("result_schema", {})
    fields = schema.get("properties", {})
    asked_for = schema.get("required") or list(fields)  # what has a default can be left open
    field: dict[str, Any] = fields.get(asked_for[0], {}) if len(asked_for) == 1 else {}
    return field


# Progress, line by line, and how a run ended

_ENDED_STEP = ("completed", "failed", "skipped", "ended")
_TOGETHER_SECONDS = 0.02
_RETRIES = re.compile(r"action='(retry|fork)'[^)]*\) ([^;]*)")
"""What `next` says of doing some of a run again."""


class ProgressLines:
    """A line for every block that starts, ends, is skipped, or asks something, in each of its rounds.

    News that come together are put in order: a block that calls a workflow ends after those inside of it.
    """

    def __init__(self, terminal: Terminal, *, quiet: bool = False) -> None:
        self._paper = terminal
        self._quiet = quiet
        self._news: list[Progress] = []
        self.failed: list[str] = []
        """The blocks that have failed so far."""
        self.on_failure: Callable[[], None] | None = None
        """Called when the failure of a block has been shown."""

    def show(self, step: Progress) -> None:
        if step.status == "pending":
            return
        if not self._news:
            asyncio.get_running_loop().call_later(_TOGETHER_SECONDS, self.flush)
        self._news.append(step)

    def flush(self) -> None:
        news, self._news = self._news, []
        known = len(self.failed)
        for step in sorted(news, key=_in_order):
            self._print(step)
            if (step.status == "failed" or step.outcome == "failure") and step.address not in self.failed:
                self.failed.append(step.address)
        if len(self.failed) > known and self.on_failure is not None:
            self.on_failure()

    def _print(self, step: Progress) -> None:
        if self._quiet and step.status != "failed" and step.outcome != "failure":
            return
        terminal = self._paper
        at = datetime.fromtimestamp(step.at).strftime("%H:%M:%S")
        depth = "  " * step.address.count("/")
        parts = [
            terminal.paint(at, "dim"),
            f"{depth}{terminal.mark(step.status, step.outcome)} {step.address}",
            terminal.paint(terminal.clean(_how(step)), "dim"),
        ]
        terminal.line("  ".join(part for part in parts if part))


class LiveLines:
    """What running steps print, as it comes; with the name of the step where several are under way."""

    def __init__(self, terminal: Terminal, progress: ProgressLines) -> None:
        self._paper = terminal
        self._progress = progress
        self._several = False

    def show(self, line: Line, under_way: int) -> None:
        self._progress.flush()
        self._several = self._several or under_way > 1
        name = f"{self._paper.paint(line.step, 'dim')} | " if self._several else "| "
        self._paper.line(f"          {name}{self._paper.clean(line.text)}")


def _in_order(step: Progress) -> tuple[float, bool, int, tuple[int, ...]]:
    """At the same time, ends come before starts; inner ends before outer ones, outer starts before inner."""
    depth, starts = step.address.count("/"), step.status not in _ENDED_STEP
    return step.at, starts, depth if starts else -depth, step.order


def _how(step: Progress) -> str:
    match step.status:
        case "running":
            return ""
        case "paused":
            return "asks for an answer"
        case "skipped":
            return f"skipped: {step.message}" if step.message else "skipped"
    said = took(step.seconds)
    if step.message:
        said += f"  {step.message.splitlines()[0]}"
    return said


def print_end(
    answer: dict[str, Any],
    terminal: Terminal,
    *,
    outputs: bool,
    seconds: float | None = None,
    quiet: bool = False,
) -> None:
    """How a run ended, or what it waits for: outputs on stdout, the rest on stderr. `quiet`: success goes
    without saying."""
    status = answer["status"]
    mark = terminal.mark(status)
    name = f"{answer['workflow']} {terminal.paint(answer['workflow_id'], 'dim')}"
    if status in ("completed", "failed", "cancelled"):
        within = f" in {took(seconds)}" if seconds is not None else ""
        tolerated = answer.get("failed_blocks", [])
        if not quiet or status != "completed" or tolerated:
            terminal.line(f"{mark} {name} {status}{within}{_tolerated(tolerated)}")
        if "error" in answer:
            _print_fault(answer, terminal)
        for values in given(answer).values() if outputs else ():
            print_values(out(), values)
        return
    for action in [answer["action"], *answer.get("more_actions", ())] if "action" in answer else []:
        show_question(terminal, action)
    terminal.line()
    terminal.line(f"{mark} {name} is {answer.get('why', status)}")
    if "action" in answer:
        terminal.line(f"  to go on: {how_to_answer(answer)}")


def _tolerated(blocks: list[dict[str, Any]]) -> str:
    """What is said of blocks that failed although the run completed."""
    if not blocks:
        return ""
    named = [
        f"{it['block']} (tolerated by {it['tolerated_by']})" if "tolerated_by" in it else it["block"]
        for it in blocks
        if isinstance(it, dict) and "block" in it
    ]
    return f", {len(blocks)} block{'s' if len(blocks) > 1 else ''} failed: {', '.join(named)}"


def given(answer: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """What came of a run: its outputs; or what it returned; or, where it returned nothing, its state."""
    result = answer.get("result")
    if result is not None:
        return {"result": result if isinstance(result, dict) else {"result": result}}
    return {part: answer[part] for part in ("outputs", "state") if answer.get(part)}


def how_to_answer(answer: dict[str, Any]) -> str:
    step = f" --step {answer['action']['step_id']}" if answer.get("more_actions") else ""
    return f"workflows-mcp answer {answer['workflow_id']} VALUE{step}"


def _print_fault(answer: dict[str, Any], terminal: Terminal) -> None:
    error, run_id = answer["error"], answer["workflow_id"]
    terminal.line(f"  {terminal.paint(terminal.clean(error['message']), 'red')}")
    if "place" in error:
        terminal.line(f"  at {error['place']}" + (f": {error['line']}" if "line" in error else ""))
    if "printed" in error:
        terminal.line("  it printed last:")
        for line in error["printed"].splitlines():
            terminal.line(f"    {terminal.clean(line)}")
    if "hint" in error:
        terminal.line(f"  {error['hint']}")
    terminal.line(terminal.paint(f"  more: workflows-mcp show {run_id}", "dim"))
    for command, what in _RETRIES.findall(answer.get("next", "")):
        step = " STEP" if command == "fork" else ""
        terminal.line(terminal.paint(f"  workflows-mcp {command} {run_id}{step} {what}", "dim"))


# Inputs: `name=text` and `name:=json` on the command line, and JSON files


def read_inputs(pairs: Sequence[str], file: str | None) -> dict[str, Value]:
    """Those of the file, and over them those given one by one."""
    inputs = _from_file(file) if file is not None else {}
    for pair in pairs:
        name, value = _pair(pair)
        inputs[name] = value
    return inputs


def _pair(pair: str) -> tuple[str, Value]:
    name, separator, text = pair.partition("=")
    if not separator or not name.strip(":"):
        raise InvalidInputs(f"--input {pair!r} is no input", hint="write name=text, or name:=JSON")
    if not name.endswith(":"):
        return name, text
    try:
        return name[:-1], from_json(text)
    except ValueError as error:
        raise InvalidInputs(
            f"--input {pair!r}: the value is not JSON: {error}", hint=f"for text, write {name[:-1]}={text}"
        ) from None


def _from_file(name: str) -> dict[str, Value]:
    try:
        text = text_of(name)
    except Unreadable as why:
        raise InvalidInputs(
            f"the inputs cannot be read from {name}: {why}",
            hint="give --inputs-file a JSON file that is there, or - for stdin",
        ) from None
    try:
        value = from_json(text)
    except ValueError as error:
        raise InvalidInputs(f"{name} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise InvalidInputs(f"{name} must hold an object of inputs, not {kind_of(value)}")
    return value


# Answers from a file


class Answers:
    def __init__(self, values: dict[str, Value] | None = None) -> None:
        self._values = values or {}
        self._given: dict[str, int] = {}

    def next(self, step_id: str) -> Value:
        """The next answer for the step at an address, in whichever round; MISSING where there is none."""
        step_id = step_id.partition("@")[0]
        names = step_id.split("/")
        for key in dict.fromkeys((step_id, names[-1], "/".join(names[:-1]))):
            if key not in self._values:
                continue
            value, given = self._values[key], self._given.get(key, 0)
            if isinstance(value, list) and given >= len(value):
                continue
            self._given[key] = given + 1
            return value[given] if isinstance(value, list) else value
        return MISSING

    def unused(self) -> list[str]:
        """Steps that never asked: misspelt ones are among them."""
        return [key for key in self._values if key not in self._given]


def read_answers(file: str | None) -> Answers:
    if file is None:
        return Answers()
    try:
        text = text_of(file)
    except Unreadable as why:
        raise RequestError(
            f"the answers cannot be read from {file}: {why}",
            hint="give --answers a YAML or JSON file that is there, or - for stdin",
        ) from None
    try:
        values = read_yaml(text, file)
    except DefinitionError as error:
        wrong = "\n".join(str(problem) for problem in error.problems)
        raise RequestError(f"{file} is neither YAML nor JSON:\n{wrong}") from None
    if not isinstance(values, dict):
        raise RequestError(
            f"{file} must hold answers by the ids of the steps, not {kind_of(values)}",
            hint="e.g. approve: yes",
        )
    return Answers(values)
