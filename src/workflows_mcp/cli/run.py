"""The commands that move a run: this process drives the run until it ends or waits for an answer.

The parts, from the top: `run`, `retry`, `fork`, `resume`, `answer` and `cancel`; the session that follows a
run; the agent that the terminal plays; questions to a person; progress and end of a run; inputs and answers
from the command line and from files.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import re
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from workflows_mcp.answers import Answer
from workflows_mcp.cli.decide import decide, is_person, person
from workflows_mcp.cli.terminal import (
    INTERRUPTED,
    Terminal,
    UnreadableFile,
    duration_text,
    err,
    exit_code,
    out,
    print_json,
    print_values,
    read_answer,
    read_text_file,
)
from workflows_mcp.errors import DefinitionError, InvalidInputs, InvalidResult, NotExpected, RequestError
from workflows_mcp.runs import (
    Line,
    Progress,
    ProgressTracker,
    Service,
    calling_as,
    has_stopped,
    read_yaml,
)
from workflows_mcp.settings import Settings, load_settings
from workflows_mcp.values import LEFT_OUT, Value, from_json, kind_of

T = TypeVar("T")

_ENDED = ("completed", "failed", "cancelled")
_POLL_SECONDS = 0.2
_WHOLE_ID_CHARS = len("wf_") + 12
_IDS_SHOWN = 5
_UNLIMITED = 1_000_000_000
MISSING = object()


def run_command(options: argparse.Namespace) -> int:
    inputs = read_inputs(options.input, options.inputs_file)

    async def begin(session: Session, service: Service) -> None:
        workflow = workflow_arguments(options.workflow)
        await session.start(service.begin(**workflow, inputs=inputs, agent=options.agent))

    return follow_run(options, begin, seconds=options.timeout)


def retry_command(options: argparse.Namespace) -> int:
    async def retry(service: Service) -> dict[str, Any]:
        options.run = await resolve_run(service, options.run)
        changed = _changed(options)
        return await shown(service.retry(options.run, **changed, agent=options.agent, wait_seconds=0))

    if "." not in options.run:
        return follow_run(options, lambda session, service: session.start(retry(service)))
    # A task starts again in the same run; the agent of the run starts a sub-agent for it.
    answer = with_store(retry)
    if options.json:
        print_json(answer)
    else:
        err().line(f"the task {options.run} will start again: get its action from {answer['workflow_id']}")
    return 0


def _changed(options: argparse.Namespace) -> dict[str, Any]:
    """Return the changed definition as `Service.retry` and `Service.fork` take it."""
    return workflow_arguments(options.definition) if options.definition is not None else {}


def fork_command(options: argparse.Namespace) -> int:
    async def fork(service: Service) -> dict[str, Any]:
        run_id = await resolve_run(service, options.run)
        changed = _changed(options)
        return await shown(service.fork(run_id, options.step, keep=options.keep, **changed, wait_seconds=0))

    async def begin(session: Session, service: Service) -> None:
        await session.start(fork(service))
        await _assign(session, service, options.agent)

    return follow_run(options, begin)


def resume_command(options: argparse.Namespace) -> int:
    async def begin(session: Session, service: Service) -> None:
        value, checkpoint = options.value, options.checkpoint
        if not is_checkpoint(checkpoint):
            checkpoint = await resolve_run(service, checkpoint)
        else:
            info = await service.checkpoint_info(checkpoint)
            session.tracker = await _tracker_at_end(service, info["workflow_id"])
            if value is None and info["type"] == "pause":
                value = await _read_response(session.terminal, info["prompt"])
        response = LEFT_OUT if value is None else value
        await session.start(_resumed(service, checkpoint, response), origin=checkpoint)
        await _assign(session, service, options.agent)

    return follow_run(options, begin)


async def _assign(session: Session, service: Service, agent: str | None) -> None:
    """Let an agent of the settings perform the steps of agents from now on."""
    if agent is not None:
        await service.assign_agent(session.run_id, agent)


async def _tracker_at_end(service: Service, run_id: str) -> ProgressTracker:
    """Return a tracker that reports only what happens from now on."""
    tracker = service.progress(run_id)
    await tracker.skip()
    return tracker


async def _resumed(service: Service, checkpoint: str, response: Value) -> dict[str, Any]:
    run_id, fork_of = await service.resume(checkpoint, response)
    return {"workflow_id": run_id, **({"forked_from": fork_of.run_id} if fork_of is not None else {})}


def is_checkpoint(text: str) -> bool:
    return text.startswith(("chk_", "pause_"))


async def _read_response(terminal: Terminal, prompt: str) -> str | None:
    """Read the response from a person, or from a pipe."""
    if not can_ask():
        return read_piped()
    terminal.line(terminal.clean(prompt.rstrip()))
    return await read_answer(terminal)


def answer_command(options: argparse.Namespace) -> int:
    async def begin(session: Session, service: Service) -> dict[str, Any] | None:
        run_or_task = await resolve_run(service, options.run)
        session.started_here = False
        session.run_id = run_or_task.partition(".")[0]
        if await service.is_parked(session.run_id):
            await service.resume_run(session.run_id, wait_seconds=0)
        await _assign(session, service, options.agent)
        current = await shown(service.status(session.run_id, alone=True))
        session.tracker = await _tracker_at_end(service, session.run_id)
        if await _decides(session, service, options, current):
            return None
        value = options.value
        if options.fail is not None:
            value = {"is_error": True, "error": options.fail}
        if value is None and not can_ask() and options.answers is None:
            value = read_piped()
        if value is None:
            can_answer = (can_ask() or options.answers) and "action" in current
            return None if can_answer else current
        step_id = options.step
        if run_or_task == session.run_id and "action" in current and "more_actions" not in current:
            step_id = step_id or current["action"]["step_id"]  # a task may be asking
        try:
            await service.submit(run_or_task, value, step_id=step_id, wait_seconds=0)
        except NotExpected as error:
            if current["status"] in _ENDED:
                show = f"workflows-mcp show {session.run_id} shows the run"
                error.hint = f"{error.hint}; {show}" if error.hint else show
            raise
        return None

    return follow_run(options, begin)


async def _decides(
    session: Session, service: Service, options: argparse.Namespace, current: dict[str, Any]
) -> bool:
    """Take the decision of a person if the run waits for one; false if an agent is asked instead."""
    found = await service.decisions.open(session.run_id)
    step = options.step.partition("@")[0] if options.step is not None else None
    named = [it for it in found if step in (it.step_id, it.step_id.partition("@")[0])]
    if not named and ("action" in current or step is not None or len(found) != 1):
        return False
    decision = (named or found)[0]
    choice = options.value if isinstance(options.value, str) else None
    if not await decide(service, session.terminal, session.run_id, decision, choice, options.comment):
        raise RequestError(f"'{decision.step_id}' still waits for a decision", hint=decision.how)
    return True


def cancel_command(options: argparse.Namespace) -> int:
    async def cancel(service: Service) -> dict[str, Any]:
        options.run = await resolve_run(service, options.run)
        return await shown(service.cancel(options.run, reason=options.reason))

    answer = with_store(cancel)
    if options.json:
        print_json(answer)
    else:
        err().line(f"the run {options.run} is cancelled")
    return 0


def with_store(work: Callable[[Service], Awaitable[T]]) -> T:
    """Do something with the runs in the store, and drive none of them."""

    async def session() -> T:
        async with Service.open(terminal_settings(steps=False), recovers=False) as service:
            return await work(service)

    return asyncio.run(session())


def terminal_settings(*, runs: bool = True, steps: bool = True) -> Settings:
    """Load settings in which no answer is shortened, as it would be for an agent.

    `runs=False`: the command needs no Temporal server. `steps=False`: the command ends soon, so it must not
    start steps of other runs on the server.
    """
    settings = load_settings(engine=None if runs else "embedded")
    limits = dataclasses.replace(settings.limits, preview_chars=_UNLIMITED, answer_chars=_UNLIMITED)
    temporal = dataclasses.replace(settings.temporal, steps=steps)
    return dataclasses.replace(settings, limits=limits, temporal=temporal)


def workflow_arguments(workflow: str) -> dict[str, Any]:
    """Return the arguments of `Service.start` for NAME, FILE or `-` (the definition on stdin)."""
    if workflow == "-":
        return {"text": sys.stdin.read()}
    if workflow.endswith((".yaml", ".yml")) or Path(workflow).is_file():
        return {"file": workflow}
    return {"workflow": workflow}


async def resolve_run(service: Service, text: str) -> str:
    """Return the id of a run or task, from the id or its first characters: wf_1f2, wf_1f2.review.0."""
    run, dot, task = text.partition(".")
    if len(run) >= _WHOLE_ID_CHARS or run in ("", "wf_"):
        return text
    found = await service.run_ids(run)
    if len(found) > 1:
        named = ", ".join(found[:_IDS_SHOWN]) + (" …" if len(found) > _IDS_SHOWN else "")
        raise RequestError(
            f"the ids of {len(found)} runs begin with '{run}': {named}",
            hint="use more of its characters",
        )
    return f"{found[0]}{dot}{task}" if found else text


# Following a run


def follow_run(
    options: argparse.Namespace,
    begin: Callable[[Session, Service], Awaitable[dict[str, Any] | None]],
    *,
    seconds: float | None = None,
) -> int:
    """Follow the run that `begin` starts or continues, and print how it ended or what it waits for.

    `begin` returns an answer only if there is nothing to follow. After `seconds` the run is cancelled.
    """
    session = Session(options)
    try:
        # A step type may print by accident: that must not reach stdout.
        with contextlib.redirect_stdout(sys.stderr), calling_as(person()):
            return asyncio.run(_cancel_on_signals(session.run(begin, seconds)))
    except (KeyboardInterrupt, asyncio.CancelledError):
        session.print_interruption()
        return INTERRUPTED


class Session:
    """One run, followed on the terminal until it ends or waits.

    `run_id` is set as soon as the run exists, so that the message of an interruption can name it.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self.run_id = ""
        self.terminal = err()
        self.tracker: ProgressTracker | None = None
        """The progress that was shown before, or need not be shown."""
        self.started_here = True
        """Whether this command started the run: then Ctrl-C parks it."""
        self._as_json = options.json
        self._quiet = options.quiet
        """Show only questions, failures and outputs."""
        self._answers = read_answers(options.answers)
        self._yes = options.yes
        self._progress = ProgressLines(self.terminal, quiet=options.quiet)
        self._forked: dict[str, Any] = {}
        self._parked = False
        self._started = time.monotonic()
        self._messages: list[str] = []
        self._stdout = sys.stdout

    async def run(
        self, begin: Callable[[Session, Service], Awaitable[dict[str, Any] | None]], seconds: float | None
    ) -> int:
        """Begin, follow, and finish; an interruption parks the run."""
        async with Service.open(terminal_settings(), recovers=False) as service:
            self._service = service
            try:
                answer = await begin(self, service)
                if answer is None:
                    answer = await self._follow(seconds)
            except asyncio.CancelledError:
                if self.run_id:
                    self._parked = await service.park(self.run_id, if_driven_here=not self.started_here)
                raise
            return self._finish({**answer, **self._forked})

    async def start(self, starting: Coroutine[Any, Any, Any], *, origin: str = "") -> None:
        """Wait until the run is started, and set `run_id`, also if this command is interrupted meanwhile.

        `starting` returns the id of the run, or an answer about it. `origin`: what the run is forked from.
        """
        task = asyncio.ensure_future(starting)
        try:
            started = await asyncio.shield(task)
        except asyncio.CancelledError:
            with contextlib.suppress(Exception):
                self.run_id = _run_in(await task)
            raise
        self.run_id = _run_in(started)
        if "forked_from" in started:
            self._forked = {"forked_from": started["forked_from"]}
            self.tracker = await _tracker_at_end(self._service, self.run_id)
            if not self._quiet:
                forked_from = origin or started["forked_from"]
                self.terminal.line(f"{self.run_id} is a new run, forked from {forked_from}")

    async def _follow(self, seconds: float | None) -> dict[str, Any]:
        """Follow the run until it ends, or waits for an answer that is not available here."""
        live, run_id = self._service.live, self.run_id
        try:
            async with asyncio.timeout(seconds):
                if self._as_json or self._quiet:
                    return await self._follow_until_waiting()
                with live.listening(
                    run_id, lambda line: self._progress.show_output(line, live.under_way(run_id))
                ):
                    return await self._follow_until_waiting()
        except TimeoutError:
            reason = f"it did not end within {seconds:g} s"
            return await shown(self._service.cancel(run_id, reason=reason))

    async def _follow_until_waiting(self) -> dict[str, Any]:
        service, run_id = self._service, self.run_id
        player = Player(service, self.terminal, self._progress, self._answers, yes=self._yes)
        while True:
            await asyncio.create_task(self._show_progress())
            answer = await shown(service.status(run_id, alone=True))
            self._show_messages(answer.get("messages", []))
            if answer["status"] in _ENDED or await service.is_parked(run_id):
                return answer
            if "action" not in answer:
                if not await self._decide_here():
                    return answer
                continue
            meanwhile = asyncio.create_task(self._show_progress(until=has_stopped))
            try:
                if await player.play(answer):
                    continue
            finally:
                meanwhile.cancel()
                await asyncio.wait([meanwhile])
            if can_ask() or not await _has_running_steps(service, run_id):
                return answer
            await asyncio.sleep(_POLL_SECONDS)

    async def _decide_here(self) -> bool:
        """Let the person at the terminal decide; false if the run waits for somebody else."""
        found = await self._service.decisions.open(self.run_id)
        if not found:
            return True  # it has moved on meanwhile
        return is_person() and await decide(self._service, self.terminal, self.run_id, found[0])

    async def _show_progress(self, until: Callable[[Any], bool] | None = None) -> None:
        self.tracker = self.tracker or self._service.progress(self.run_id)
        try:
            async for step in self.tracker.steps(until):
                self._progress.show(step)
        finally:
            self._progress.flush()

    def _show_messages(self, messages: list[str]) -> None:
        """Show the messages that are new since the last call."""
        before, self._messages = self._messages, messages
        known = max(n for n in range(len(messages) + 1) if before[len(before) - n :] == messages[:n])
        for message in messages[known:]:
            self.terminal.line()
            self.terminal.line(self.terminal.clean(message.rstrip()))

    def _finish(self, answer: dict[str, Any]) -> int:
        with contextlib.redirect_stdout(self._stdout):
            if self._as_json:
                print_json(answer)
            seconds = time.monotonic() - self._started
            print_end(answer, self.terminal, outputs=not self._as_json, seconds=seconds, quiet=self._quiet)
            for step_id in self._answers.unused() if answer["status"] in _ENDED else ():
                self.terminal.line(f"unused answer: no step '{step_id}' asked a question")
        return exit_code(answer["status"])

    def print_interruption(self) -> None:
        if not self.run_id:
            return
        lines = [
            f"interrupted: the run {self.run_id} continues in the background",
            f"to show it: workflows-mcp show {self.run_id}",
        ]
        if self._parked:
            lines = [
                f"interrupted: the run {self.run_id} is parked. Its steps are stopped, and run again "
                "when you resume it.",
                f"to continue: workflows-mcp resume {self.run_id}",
            ]
        for line in ("", *lines, f"to cancel it: workflows-mcp cancel {self.run_id}"):
            self.terminal.line(line)


def _run_in(started: Any) -> str:
    return started if isinstance(started, str) else str(started["workflow_id"])


async def shown(answering: Awaitable[Answer]) -> dict[str, Any]:
    """Return an answer with everything in it; its computed fields are evaluated outside the event loop."""
    return await asyncio.to_thread((await answering).rendered)


async def _cancel_on_signals(running: Coroutine[Any, Any, int]) -> int:
    """Treat SIGTERM and SIGHUP (the terminal was closed) like Ctrl-C."""
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    return await running


async def _has_running_steps(service: Service, run_id: str) -> bool:
    """Return whether a step is running beside the question."""
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
"""The actions that are commands, with the unit of their timeout in seconds."""
_COMMANDS_OFF = "this server may not run commands (allow_commands is false): type the result instead"


class Player:
    """The agent of a run on the terminal: answers its questions, one at a time.

    An answer comes from the answers file, from a command that is run here, or from a person. There are no
    sub-agents: questions of tasks are answered in the same way.
    """

    def __init__(
        self, service: Service, terminal: Terminal, progress: ProgressLines, answers: Answers, *, yes: bool
    ) -> None:
        self._service = service
        self._terminal = terminal
        self._progress = progress
        self._answers = answers
        self._yes = yes
        self._prompt_text = ""

    async def play(self, answer: dict[str, Any]) -> bool:
        """Answer one question of the run; return false if nobody here can answer it."""
        run_id = answer["workflow_id"]
        actions = [answer["action"], *answer.get("more_actions", ())]
        for action in actions:
            value = self._known(action)
            if value is not MISSING:
                try:
                    await self._submit(run_id, action, value)
                except InvalidResult as error:
                    self._terminal.line(self._terminal.paint(f"the answers file: {error.message}", "red"))
                    return False
                return True
        if self._yes and self._service.settings.allow_commands:
            for action in actions:
                if action["type"] in _COMMANDS:
                    show_question(self._terminal, action)
                    await self._submit(run_id, action, await self._run(action))
                    return True
        return can_ask() and await self._ask(run_id, actions[0])

    def _known(self, action: dict[str, Any]) -> Value:
        """Return the answer from the file, or the answer of a message that needs none, or MISSING."""
        value = self._answers.next(action["step_id"])
        if needs_no_answer(action):
            show_message(self._terminal, action)
            return True if value is MISSING else value
        return value

    async def _ask(self, run_id: str, action: dict[str, Any]) -> bool:
        """Ask a person until the answer is valid; return false if they give none.

        The question is shown again after a block has failed.
        """
        self._prompt_text = ""
        self._progress.on_failure = lambda: self._ask_again(action)
        try:
            return await self._ask_until_valid(run_id, action)
        finally:
            self._progress.on_failure = None

    def _ask_again(self, action: dict[str, Any]) -> None:
        self._show_question(action)
        self._terminal.stream.write(f"{self._prompt_text}> ")
        self._terminal.stream.flush()

    def _show_question(self, action: dict[str, Any]) -> None:
        show_question(self._terminal, action)
        if failed := self._progress.failed:
            self._terminal.line(self._terminal.paint(f"failed so far: {', '.join(failed)}", "red"))

    async def _ask_until_valid(self, run_id: str, action: dict[str, Any]) -> bool:
        self._show_question(action)
        if action["type"] in _COMMANDS:
            if not self._service.settings.allow_commands:
                self._terminal.line(_COMMANDS_OFF)
            elif await agrees(self._terminal, "run this command?"):
                self._progress.on_failure = None
                await self._submit(run_id, action, await self._run(action))
                return True
        self._prompt_text = _prompt_text(action)
        while True:
            typed = await read_answer(self._terminal, self._prompt_text)
            if typed is None:
                return False
            try:
                await self._submit(run_id, action, parse_typed(action, typed))
            except InvalidResult as error:
                self._terminal.line(self._terminal.paint(error.message, "red"))
                continue
            return True

    async def _run(self, action: dict[str, Any]) -> Value:
        parameters = action["parameters"]
        seconds = parameters.get("timeout")
        if seconds is not None:
            seconds *= _COMMANDS[action["type"]]
        result = await self._service.commands.run_command(
            parameters["command"],
            seconds=seconds,
            directory=parameters.get("working_dir", ""),
            variables=parameters.get("env", {}),
        )
        how = f"exit code {result['exit_code']} in {duration_text(result['duration'])}"
        self._terminal.line(self._terminal.paint(how, "dim"))
        known = action["result_schema"].get("properties", {})
        return {name: value for name, value in result.items() if name in known}

    async def _submit(self, run_id: str, action: dict[str, Any], value: Value) -> None:
        await self._service.submit(run_id, value, step_id=action["step_id"], wait_seconds=0)


def _prompt_text(action: dict[str, Any]) -> str:
    """Return the text before `>`; empty if a plain answer is expected."""
    return "" if action["type"] in ("prompt", "user_input") else "its result, as JSON or text "


# Asking a person

_YES = ("y", "yes", "true")
_NO = ("n", "no", "false")
_MAIN_PARAMETERS = {  # what a person has to read
    "prompt": ("prompt", "message"),
    "shell": ("command",),
    "agent_shell_command": ("command",),
    "delegate": ("instructions",),
}

_HIDDEN_PARAMETERS = {"prompt": ("type", "choices")}
"""Parameters that are shown in another way, or are for agents only."""


def can_ask() -> bool:
    return sys.stdin.isatty()


def read_piped() -> str | None:
    return sys.stdin.read().rstrip("\n") or None


def show_question(terminal: Terminal, action: dict[str, Any]) -> None:
    terminal.line()
    terminal.line(f"{terminal.mark('paused')} {terminal.paint(action['step_id'], 'bold')}")
    parameters: dict[str, Value] = dict(action["parameters"])
    shown = next(
        (key for key in _MAIN_PARAMETERS.get(action["type"], ("prompt",)) if key in parameters), None
    )
    words = parameters.pop(shown) if shown is not None else None
    terminal.line(terminal.clean(words.rstrip() if isinstance(words, str) else action["instructions"]))
    for key in _HIDDEN_PARAMETERS.get(action["type"], ()):
        parameters.pop(key, None)
    print_values(terminal, parameters)
    options = _options(action)
    if options and action["parameters"].get("choices"):
        for number, option in enumerate(options, start=1):
            terminal.line(f"  {number}  {terminal.clean(option)}")
    elif options:
        terminal.line(f"({' / '.join(options)})")


def show_message(terminal: Terminal, action: dict[str, Any]) -> None:
    """Show a message that needs no answer."""
    terminal.line()
    terminal.line(terminal.clean(str(action["parameters"].get("message", "")).rstrip()))


def needs_no_answer(action: dict[str, Any]) -> bool:
    return bool(action["type"] == "prompt" and action["parameters"].get("type") == "info")


async def agrees(terminal: Terminal, question: str) -> bool:
    """Return whether a person types yes; any other answer is no."""
    typed = await read_answer(terminal, f"{question} (y / n) ")
    return typed is not None and typed.strip().lower() in _YES


def parse_typed(action: dict[str, Any], typed: str) -> Value:
    """Return the value of a typed line: true or false, the option with that number, or the text."""
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
    """Return the schema of the only field that the result needs; {} if it needs several."""
    schema = action.get("result_schema", {})
    fields = schema.get("properties", {})
    required = schema.get("required") or list(fields)  # a field with a default is optional
    field: dict[str, Any] = fields.get(required[0], {}) if len(required) == 1 else {}
    return field


# Progress, line by line, and how a run ended

_ENDED_STATUSES = ("completed", "failed", "skipped", "ended")
_BATCH_SECONDS = 0.02
_RETRIES = re.compile(r"action='(retry|fork)'([^)]*)\) ([^;]*)")
_CONTINUED = re.compile(r"continued as (\w+)")
"""What the `next` text of an answer suggests: commands, or the run that a retry has made."""


class ProgressLines:
    """Prints a line for every block that starts, ends, is skipped or asks, and for every line of output.

    Blocks that change within 20 ms are sorted: one that calls a workflow ends after the blocks inside it.
    """

    def __init__(self, terminal: Terminal, *, quiet: bool = False) -> None:
        self._terminal = terminal
        self._quiet = quiet
        self._several = False
        self._news: list[Progress] = []
        self.failed: list[str] = []
        """The addresses of the blocks that have failed so far."""
        self.on_failure: Callable[[], None] | None = None
        """Called after the failure of a block was printed."""

    def show(self, step: Progress) -> None:
        if step.status == "pending":
            return
        if not self._news:
            asyncio.get_running_loop().call_later(_BATCH_SECONDS, self.flush)
        self._news.append(step)

    def show_output(self, line: Line, under_way: int) -> None:
        """Print a line of output, with the name of the step if several have been under way."""
        self.flush()
        self._several = self._several or under_way > 1
        name = f"{self._terminal.paint(line.step, 'dim')} | " if self._several else "| "
        self._terminal.line(f"          {name}{self._terminal.clean(line.text)}")

    def flush(self) -> None:
        news, self._news = self._news, []
        known = len(self.failed)
        for step in sorted(news, key=_print_order):
            self._print(step)
            if (step.status == "failed" or step.outcome == "failure") and step.address not in self.failed:
                self.failed.append(step.address)
        if len(self.failed) > known and self.on_failure is not None:
            self.on_failure()

    def _print(self, step: Progress) -> None:
        if self._quiet and step.status != "failed" and step.outcome != "failure":
            return
        terminal = self._terminal
        at = datetime.fromtimestamp(step.at).strftime("%H:%M:%S")
        depth = "  " * step.address.count("/")
        parts = [
            terminal.paint(at, "dim"),
            f"{depth}{terminal.mark(step.status, step.outcome)} {step.address}",
            terminal.paint(terminal.clean(_details(step)), "dim"),
        ]
        terminal.line("  ".join(part for part in parts if part))


def _print_order(step: Progress) -> tuple[float, bool, int, tuple[int, ...]]:
    """Sort by time, then ends before starts, inner before outer ends, outer before inner starts."""
    depth, starts = step.address.count("/"), step.status not in _ENDED_STATUSES
    return step.at, starts, depth if starts else -depth, step.order


def _details(step: Progress) -> str:
    match step.status:
        case "running":
            return ""
        case "paused":
            return "waits for an answer"
        case "skipped":
            return f"skipped: {step.message}" if step.message else "skipped"
    text = duration_text(step.seconds)
    if step.message:
        text += f"  {step.message.splitlines()[0]}"
    return text


def print_end(
    answer: dict[str, Any],
    terminal: Terminal,
    *,
    outputs: bool,
    seconds: float | None = None,
    quiet: bool = False,
) -> None:
    """Print how a run ended, or what it waits for: outputs on stdout, the rest on stderr.

    With `quiet`, a run that completed prints its outputs only.
    """
    status = answer["status"]
    mark = terminal.mark(status)
    name = f"{answer['workflow']} {terminal.paint(answer['workflow_id'], 'dim')}"
    if status in ("completed", "failed", "cancelled"):
        within = f" in {duration_text(seconds)}" if seconds is not None else ""
        tolerated = answer.get("failed_blocks", [])
        if not quiet or status != "completed" or tolerated:
            terminal.line(f"{mark} {name} {status}{within}{_tolerated(tolerated)}")
        if "error" in answer:
            _print_error(answer, terminal)
        for values in outputs_of(answer).values() if outputs else ():
            print_values(out(), values)
        return
    for action in [answer["action"], *answer.get("more_actions", ())] if "action" in answer else []:
        show_question(terminal, action)
    for decision in answer.get("decisions", ()):
        terminal.line()
        terminal.line(f"{terminal.mark('paused')} {terminal.paint(decision['step_id'], 'bold')}")
        terminal.line(terminal.clean(decision["message"].rstrip()))
        terminal.line(terminal.paint(f"  only a person can decide: {decision['how']}", "dim"))
    terminal.line()
    terminal.line(f"{mark} {name} is {answer.get('why', status)}")
    if "action" in answer:
        terminal.line(f"  to continue: {answer_hint(answer)}")


def _tolerated(blocks: list[dict[str, Any]]) -> str:
    """Return ", 1 block failed: NAME" for blocks that failed in a completed run; empty if there are none."""
    if not blocks:
        return ""
    named = [
        f"{it['block']} (tolerated by {it['tolerated_by']})" if "tolerated_by" in it else it["block"]
        for it in blocks
        if isinstance(it, dict) and "block" in it
    ]
    return f", {len(blocks)} block{'s' if len(blocks) > 1 else ''} failed: {', '.join(named)}"


def outputs_of(answer: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the result of a run, or else its outputs and its state, by what they are."""
    result = answer.get("result")
    if result is not None:
        return {"result": result if isinstance(result, dict) else {"result": result}}
    return {part: answer[part] for part in ("outputs", "state") if answer.get(part)}


def answer_hint(answer: dict[str, Any]) -> str:
    step = f" --step {answer['action']['step_id']}" if answer.get("more_actions") else ""
    return f"workflows-mcp answer {answer['workflow_id']} VALUE{step}"


def _print_error(answer: dict[str, Any], terminal: Terminal) -> None:
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
    for made in _CONTINUED.findall(answer.get("next", "")):
        terminal.line(terminal.paint(f"  continued as {made}: workflows-mcp show {made}", "dim"))
    for command, given, what in _RETRIES.findall(answer.get("next", "")):
        more = " STEP" if command == "fork" else " --definition FILE" if "definition" in given else ""
        terminal.line(terminal.paint(f"  workflows-mcp {command} {run_id}{more} {what}", "dim"))


# Inputs: `name=text` and `name:=json` on the command line, and JSON files


def read_inputs(pairs: Sequence[str], file: str | None) -> dict[str, Value]:
    """Read inputs from a file, and from NAME=TEXT or NAME:=JSON pairs, which take precedence.

    Text stays text: the types that the workflow declares convert it to numbers and lists.
    """
    inputs = _from_file(file) if file is not None else {}
    for pair in pairs:
        name, value = _pair(pair)
        inputs[name] = value
    return inputs


def _pair(pair: str) -> tuple[str, Value]:
    name, separator, text = pair.partition("=")
    if not separator or not name.strip(":"):
        raise InvalidInputs(f"--input {pair!r} is not an input", hint="write name=text or name:=JSON")
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
        text = read_text_file(name)
    except UnreadableFile as why:
        raise InvalidInputs(
            f"cannot read inputs from {name}: {why}",
            hint="check the path of --inputs-file, or use - for stdin",
        ) from None
    try:
        value = from_json(text)
    except ValueError as error:
        raise InvalidInputs(f"{name} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise InvalidInputs(f"{name} must contain an object of inputs, not {kind_of(value)}")
    return value


# Answers from a file


class Answers:
    """Answers by step id, in the order in which the steps ask.

        approve: yes                    # every time that the step `approve` asks
        name: [Ada, Grace]              # the first time, the second time
        each/0/read: {stdout: "…"}      # the step `read` of the first item of `each`
        read: {stdout: "…"}             # the step `read` of any item

    A list has one answer for each time that the step asks; an answer that is a list is nested in it.
    """

    def __init__(self, values: dict[str, Value] | None = None) -> None:
        self._values = values or {}
        self._given: dict[str, int] = {}

    def next(self, step_id: str) -> Value:
        """Return the next answer for a step, in any round; MISSING if there is none."""
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
        """Return the steps that never asked, such as misspelt ones."""
        return [key for key in self._values if key not in self._given]


def read_answers(file: str | None) -> Answers:
    if file is None:
        return Answers()
    try:
        text = read_text_file(file)
    except UnreadableFile as why:
        raise RequestError(
            f"cannot read answers from {file}: {why}",
            hint="check the path of --answers, or use - for stdin",
        ) from None
    try:
        values = read_yaml(text, file)
    except DefinitionError as error:
        wrong = "\n".join(str(problem) for problem in error.problems)
        raise RequestError(f"{file} is neither YAML nor JSON:\n{wrong}") from None
    if not isinstance(values, dict):
        raise RequestError(
            f"{file} must contain answers by step id, not {kind_of(values)}",
            hint="e.g. approve: yes",
        )
    return Answers(values)
