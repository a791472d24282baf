"""Performs steps of agents with command-line programs of the settings: Claude Code, Codex, or any other.

    agents = HeadlessAgents(settings.agents, {"WORKFLOWS_HOME": "…"})
    result = await agents.perform(assignment, step, inputs, context)    # a StepResult, with the tokens

The program gets one prompt and prints one result. A result that does not fit is returned to it once, with
what is wrong. The program runs as a command of the step does: bounded by the policy, and killed with all
processes that it has started. What it prints is read in `_READ`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from workflows_mcp.errors import Forbidden, StepError
from workflows_mcp.machine import Assignment, Identity
from workflows_mcp.policy import Finished, Killed, OnOutput
from workflows_mcp.settings import AgentCommand, find_agent
from workflows_mcp.steps import (
    Step,
    StepContext,
    StepResult,
    asked_of,
    failure_in,
    find_result,
    prompt_for,
    reported_failure,
)
from workflows_mcp.values import Value, from_json, unfit

TASK = "WORKFLOWS_TASK"
"""The variable with the task or run that a program works on: an MCP server inside serves only that."""
AGENT = "WORKFLOWS_AGENT"
"""The variable with the name of the agent: commands for people refuse to run where it is set."""
RESULTS = 2
"""How many results a program may give for one question."""
_LINES, _CHARS = 10, 1500
"""How much of the end of an output an error shows."""


class AgentFailed(StepError):
    """A program did not give a result that can be used."""

    code = "agent_failed"

    def __init__(self, message: str, *, hint: str = "", code: str | None = None, tokens: int = 0) -> None:
        super().__init__(message, hint=hint, code=code)
        self.tokens = tokens


class HeadlessAgents:
    """The programs that perform steps of agents, and what their environment has."""

    def __init__(
        self, agents: Mapping[str, AgentCommand] | None = None, environment: Mapping[str, str] | None = None
    ) -> None:
        self._agents = agents or {}
        self._environment = environment or {}
        self._room: asyncio.Semaphore | None = None

    def identity(self, assignment: Assignment | None) -> Identity | None:
        """Return who performs a step; None if the server itself does."""
        if assignment is None:
            return None
        agent = find_agent(assignment.agent, self._agents)
        return Identity(assignment.agent, via="command", client=agent.program if agent is not None else "")

    def shown(self, assignment: Assignment | None, write: OnOutput) -> OnOutput:
        """Return what shows the output of an agent: of one that prints data, only standard error."""
        agent = find_agent(assignment.agent, self._agents) if assignment is not None else None
        if agent is None or agent.output == "text":
            return write
        return lambda stream, data: write(stream, data) if stream == "stderr" else None

    async def perform(
        self, assignment: Assignment, step: Step, inputs: Any, context: StepContext
    ) -> StepResult:
        """Perform a step. Raises AgentFailed if the program gives no usable result."""
        agent = self._known(assignment.agent)
        asked = asked_of(step, inputs, step.ask_alone(inputs), assignment.result)
        question = asked.question
        feedback, tokens, reply = assignment.feedback, 0, ""
        for _ in range(RESULTS):
            prompt = prompt_for(question, feedback, role=assignment.role)
            async with self._has_room(context.world.limits.parallel_agents):
                finished = await self._run(agent, prompt, assignment, context, tokens)
            try:
                printed = _READ[agent.output](finished.stdout)
            except ValueError as error:
                printed = _Printed("", problem=str(error))
            tokens += printed.tokens
            if finished.exit_code or printed.failure:
                raise _failure(agent, finished, printed, tokens)
            reply = printed.text
            if (failed := failure_in(reply)) is not None and (why := reported_failure(failed)) is not None:
                outputs = step.output_defaults(dict(context.config))
                return StepResult(_without_exit_code(outputs), ok=False, message=why, tokens=tokens)
            result, wrong = find_result(asked, reply)
            if printed.problem:
                wrong = [printed.problem]
            elif (unusable := unfit(result, depth=context.world.limits.value_depth)) is not None:
                wrong = [f"the result{unusable.place} is not accepted: {unusable.why}"]
            if not wrong:
                parsed = asked.step.apply_config(asked.step.parse_result(inputs, result), context.config)
                return asked.step.credit(parsed, agent.name, tokens)
            feedback = [*assignment.feedback, *wrong]
        raise AgentFailed(
            f"the agent '{agent.name}' gave {RESULTS} results that do not fit: {'; '.join(wrong)}"
            + _quoted("the last one", reply or finished.stdout),
            hint=f"check agents.{agent.name}.output ({agent.output}), and that the step says what its result "
            "is",
            tokens=tokens,
        )

    def _has_room(self, most: int) -> asyncio.Semaphore:
        """Limit how many programs run at once; each is large, and a fan-out may have many items."""
        if self._room is None:
            self._room = asyncio.Semaphore(most)
        return self._room

    def _known(self, name: str) -> AgentCommand:
        agent = find_agent(name, self._agents)
        if agent is None:
            raise AgentFailed(
                f"the agent '{name}' is not known to this server",
                hint=f"set agents.{name}.command in workflows.toml, in a directory that you trust, or "
                "WORKFLOWS_AGENTS; claude and codex need only be on the PATH",
            )
        return agent

    async def _run(
        self, agent: AgentCommand, prompt: str, assignment: Assignment, context: StepContext, tokens: int
    ) -> Finished:
        world = context.world
        added = {**self._environment, **agent.env, TASK: assignment.task, AGENT: agent.name}
        environment = world.command_environment(added)
        for name in agent.without:
            environment.pop(name, None)
        killed: Finished | None = None
        try:
            async with asyncio.timeout(agent.timeout) as bound:
                try:
                    return await world.run_command(
                        agent.arguments(prompt),
                        directory=world.working_directory(""),
                        environment=environment,
                        key=context.key,
                        stdin=b"" if agent.in_argument else prompt.encode("utf-8", "replace"),
                    )
                except Killed as error:
                    killed = error.finished
                    raise asyncio.CancelledError from None
        except TimeoutError:
            if not bound.expired():
                raise
            raise AgentFailed(
                f"the agent '{agent.name}' was killed after {agent.timeout:g} s"
                + _quoted("it printed last", _printed_last(killed)),
                hint=f"raise agents.{agent.name}.timeout, or split the step",
                code="timeout",
                tokens=tokens,
            ) from None
        except Forbidden:
            raise
        except StepError as error:
            hint = f"check agents.{agent.name}.command, and that its program is installed"
            if agent.in_argument:
                hint += '; a long prompt needs input = "stdin"'
            if error.code == "output_too_large":
                hint = f"let it print less, or raise {world.limits.setting('captured_bytes')}"
            message = f"the agent '{agent.name}' cannot run: {error.message}"
            raise AgentFailed(message, hint=hint, code=error.code, tokens=tokens) from None


def _without_exit_code(outputs: dict[str, Value]) -> dict[str, Value]:
    """Return the outputs of a command that did not run."""
    return {**outputs, "exit_code": None} if "exit_code" in outputs else outputs


def _failure(agent: AgentCommand, finished: Finished, printed: _Printed, tokens: int) -> AgentFailed:
    how = f"ended with exit code {finished.exit_code}" if finished.exit_code else "reports a failure"
    why = f": {printed.failure}" if printed.failure else ""
    last = "" if printed.failure and not finished.stderr.strip() else _printed_last(finished)
    return AgentFailed(
        f"the agent '{agent.name}' ({agent.program}) {how}{why}{_quoted('it printed last', last)}",
        hint=f"try its command by hand: {' '.join(agent.command)}",
        tokens=tokens,
    )


def _printed_last(finished: Finished | None) -> str:
    """Return what a program wrote to standard error, or else to standard output."""
    return "" if finished is None else finished.stderr.strip() or finished.stdout.strip()


def _quoted(what: str, text: str) -> str:
    """Return the last lines of a text for the end of a message; empty if there are none."""
    last = "\n".join(text.strip().splitlines()[-_LINES:])[-_CHARS:]
    return f"\n{what}:\n{last}" if last else ""


# What programs print


class _Printed(NamedTuple):
    text: str
    """The reply of the agent."""
    tokens: int = 0
    failure: str = ""
    """Why the program failed, as it says."""
    problem: str = ""
    """Why the output cannot be read."""


def _read_text(stdout: str) -> _Printed:
    return _Printed(stdout, problem="" if stdout.strip() else "nothing was printed")


def _read_json(stdout: str) -> _Printed:
    """Read an output that is one JSON value."""
    try:
        value = from_json(stdout)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the output is not one JSON value: {error}") from None
    return _Printed(value if isinstance(value, str) else stdout)


def _read_claude(stdout: str) -> _Printed:
    """Read the output of `claude -p --output-format json`, or stream-json."""
    event = next((it for it in _events(stdout) if it.get("type") == "result"), None)
    if event is None:
        raise ValueError("the output has no result: run claude with --output-format json")
    text = event.get("result")
    text = text if isinstance(text, str) else ""
    tokens = _count(
        event.get("usage"),
        ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens"),
    )
    if event.get("is_error") is True or (not text and event.get("subtype") != "success"):
        return _Printed("", tokens, failure=text or str(event.get("subtype", "error")))
    return _Printed(text, tokens)


def _read_codex(stdout: str) -> _Printed:
    """Read the events of `codex exec --json`. An error before the end of the turn was overcome."""
    text, failure, tokens, completed = "", "", 0, False
    events = list(_events(stdout))
    for event in reversed(events):
        match event.get("type"):
            case "item.completed" if isinstance(item := event.get("item"), dict):
                if item.get("type") == "agent_message" and isinstance(item.get("text"), str):
                    text = item["text"]
            case "turn.completed":
                completed = True
                tokens += _count(event.get("usage"), ("input_tokens", "output_tokens"))
            case "turn.failed" | "error":
                error = event.get("error")
                given = error.get("message") if isinstance(error, dict) else event.get("message")
                failure = str(given or "the turn failed")
    if not events:
        raise ValueError("the output has no events: run codex exec with --json")
    if failure and not completed:
        return _Printed("", tokens, failure=failure)
    return _Printed(text, tokens, problem="" if text else "the agent said nothing")


def _events(stdout: str) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects of an output, the last first: one value, a list, or one object a line."""
    try:
        whole = from_json(stdout)
    except (ValueError, RecursionError):
        whole = [it for it in map(_object, stdout.splitlines()) if it is not None]
    listed: Sequence[Any] = whole if isinstance(whole, list) else [whole]
    yield from (it for it in reversed(listed) if isinstance(it, dict))


def _object(line: str) -> Value:
    try:
        return from_json(line)
    except (ValueError, RecursionError):
        return None


def _count(usage: Value, names: Sequence[str]) -> int:
    given = usage if isinstance(usage, dict) else {}
    counts = [given.get(name) for name in names]
    return sum(it for it in counts if isinstance(it, int) and not isinstance(it, bool) and it > 0)


_READ: Mapping[str, Callable[[str], _Printed]] = {
    "text": _read_text,
    "json": _read_json,
    "claude": _read_claude,
    "codex": _read_codex,
}
