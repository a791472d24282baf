"""Defines the prompts: `/workflow`, the roles of an agent and of a sub-agent, single workflows.

    /workflow fix start --input path=src

A prompt is the text of what the user wants, for the model. It names the tools that are enabled. A workflow
with `prompt: true` is a prompt of its own, with its inputs as arguments.

The parts: the prompts, the texts, the words that a user types after `/workflow`.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from mcp.shared.exceptions import MCPError
from mcp.types import INVALID_PARAMS, Prompt, PromptArgument

from workflows_mcp.errors import RequestError, WorkflowsError
from workflows_mcp.mcp_server.tooling import Way, brief, render_error
from workflows_mcp.mcp_server.toolsets import tool_for, ways_of
from workflows_mcp.values import to_json

if TYPE_CHECKING:
    from workflows_mcp.runs import Service

_WORDS = [f"word{number}" for number in range(2, 9)]
"""The further arguments of `/workflow`."""
FORMS = """\
/workflow list
/workflow NAME info
/workflow NAME start [--input key=value ...]
/workflow resume WORKFLOW_ID
/workflow status WORKFLOW_ID"""
FORMS_TO_READ = "\n".join(form for form in FORMS.splitlines() if "start" not in form and "resume" not in form)


class Calls(NamedTuple):
    """The calls of one way to run workflows, as the prompts name them."""

    list: str
    info: str
    start: str
    resume: str
    status: str
    role: str

    @classmethod
    def of(cls, way: Way) -> Calls:
        return cls(
            list=tool_for("list", way),
            info=tool_for("describe", way),
            start=tool_for("start", way),
            resume=_RESUME[way],
            status="get_workflow_status(workflow_id='{id}', wait_seconds=0)",
            role=_ROLES[way],
        )


_ROLE = """\
You run a workflow{of}. The workflow server knows its steps, evaluates conditions and loops, runs \
what it can run itself and keeps the state. It gives you one action at a time, with every value filled in: \
do exactly what it says, and submit the result. You need not understand the workflow.

"""

_CORE = f"""\
{_ROLE}\
1. get_workflow_info{{named}} lists the inputs. Ask the user for missing required ones, all at once; \
never invent one.
2. start_workflow with workflow and inputs. Tell the user the workflow_id.
3. While status is "pending_action": do what action.instructions say with action.parameters, then call \
submit_result(workflow_id, step_id=<action.step_id>, result=<as action.result_schema says>). The reply \
has the next action.
4. While it is "running" or "waiting": get_workflow_status(workflow_id), which waits by itself.
5. "completed": sum up the result for the user. "failed": show error. Do not start it again unless asked.

By the type of an action:
- user_input, prompt: ask the user in those words, and submit the user's own answer. Never answer for the \
user.
- agent_shell_command, shell: run the command unchanged. A failure is a result, too.
- mcp_call: call that tool with those arguments, and submit what it returned, unchanged.
- apply_hints: change the file as the hints say, and nothing else.
- parallel_tasks, foreach: start ALL sub-agents that it lists, with its sub_agent_prompt, and wait for ALL \
of them. Submit nothing for it.

Show `messages` to the user, in order, each once. A rejected result changes nothing: fix it and submit \
again. If your context is nearly full (80% or more), stop after a submitted result: nothing is lost. Tell \
the user to begin a new conversation with /workflow resume and the workflow_id."""

_REACTIVE = f"""\
{_ROLE}\
1. workflow_get_info{{named}} lists the inputs. Ask the user for missing required ones, all at once; \
never invent one.
2. workflow_start with workflow and inputs. Tell the user the workflow_id.
3. While step is not null: do what step.instructions say with step.definition, then call \
workflow_step_complete(workflow_id, step_id=<step.id>, result=<its result>). The server stores the \
result as definition.state_update says. The reply has the next step. If you cannot do it: \
status="failed" and error.
4. While step is null and status is "running" or "waiting": workflow_get_next_step(workflow_id), which waits.
5. Step null and "completed", "failed" or "cancelled": workflow_complete(workflow_id, status) has the \
final state. Sum up the result for the user, or show the error. Do not start it again unless asked.

By the type of a step:
- user_input: ask the user in those words, and submit the user's own answer. Never answer for the user.
- agent_shell_command: run the command unchanged. A failure is a result, too.
- mcp_call: call that tool with definition.params, and submit what it returned, unchanged.
- apply_hints: change the file as the hints say, and nothing else.
- parallel_tasks: start ALL sub-agents that it lists, and wait for ALL of them. Submit nothing for it.
The server itself does shell_command, state_update, conditions and loops. \
variable_replacements and original_expression show where values come from: all of them are filled in.

Show `messages` to the user, in order, each once. A rejected call changes nothing: fix it and call again. \
If your context is nearly full (80% or more), call workflow_checkpoint(workflow_id, reason) and tell the \
user to begin a new conversation with /workflow resume and the workflow_id."""

_GRAPH = f"""\
{_ROLE}\
1. get_workflow_info{{named}} lists the inputs. Ask the user for missing required ones, all at once; \
never invent one.
2. execute_workflow with workflow and inputs. Tell the user the workflow_id.
3. While status is "paused": do what `prompt` says, or ask the user if only the user can decide, \
and call resume_workflow(checkpoint_id, response).
4. While it is "running": resume_workflow(checkpoint_id=<workflow_id>), which waits.
5. "success": sum up the outputs for the user. "failure": show error. Do not start it again unless asked.

If your context is nearly full (80% or more), stop after an answer: nothing is lost. Tell the user to \
begin a new conversation with /workflow resume and the workflow_id."""


_ROLES: dict[Way, str] = {"core": _CORE, "reactive": _REACTIVE, "graph": _GRAPH}
_RESUME: dict[Way, str] = {
    "core": "get_next_step(workflow_id='{id}')",
    "reactive": "workflow_resume(workflow_id='{id}')",
    "graph": "resume_workflow(checkpoint_id='{id}')",
}

_READ_ONLY = (
    "This server is read-only: it cannot start or resume anything. Call no tool for that, and tell the user; "
    "a server without --read-only can."
)


class ServedPrompt(NamedTuple):
    """A prompt: what clients see of it, and its text for the given arguments."""

    offered: Prompt
    render: Callable[[Service, Mapping[str, str]], Awaitable[str]]


def prompts_of(toolsets: Sequence[str], *, read_only: bool = False, task: str = "") -> list[ServedPrompt]:
    """Return the prompts that do not come from workflows. `task`: the only task that is served."""
    way = ways_of(toolsets)[0]
    calls = Calls.of(way)

    async def workflow(_: Service, given: Mapping[str, str]) -> str:
        more = [given.get(word, "") for word in _WORDS]
        return what_to_do(given.get("command", ""), calls, more=more, read_only=read_only)

    async def orchestrator(service: Service, given: Mapping[str, str]) -> str:
        name = given["workflow_name"]
        return role(calls, name) + _behavior(service, name)

    async def sub_agent(service: Service, given: Mapping[str, str]) -> str:
        task_id = given.get("task_id", "")
        try:
            return await _sub_agent_prompt(service, given["workflow_id"], task_id, way)
        except WorkflowsError as error:
            raise MCPError(INVALID_PARAMS, render_error(error)) from None

    words = [_optional(word, "The next word, for clients that send them one by one") for word in _WORDS]
    if read_only:
        command = _optional("command", "list · NAME info · status ID")
        about = "List, describe and watch workflows."
        return [_prompt(workflow, "workflow", "Workflows", about, command, *words)]
    for_task = _prompt(
        sub_agent,
        "workflow_sub_agent",
        "Run a task of a workflow",
        "The role of a sub-agent that runs one task of a workflow.",
        PromptArgument(name="workflow_id", description="Id of the run, or of the task itself", required=True),
        _optional("task_id", "The name of the task in the step of its run"),
    )
    if task:
        return [for_task]
    command = _optional("command", "list · NAME info · NAME start --input key=value · resume ID · status ID")
    return [
        _prompt(
            workflow,
            "workflow",
            "Workflows",
            "List, describe, start, resume and watch workflows.",
            command,
            *words,
        ),
        _prompt(
            orchestrator,
            "workflow_orchestrator",
            "Run a workflow",
            "The role of an agent that runs a workflow, step by step.",
            PromptArgument(name="workflow_name", description="The workflow to run", required=True),
        ),
        for_task,
    ]


def _prompt(
    render: Callable[[Service, Mapping[str, str]], Awaitable[str]],
    name: str,
    title: str,
    description: str,
    *arguments: PromptArgument,
) -> ServedPrompt:
    offered = Prompt(name=name, title=title, description=description, arguments=list(arguments))
    return ServedPrompt(offered, render)


def _optional(name: str, description: str) -> PromptArgument:
    return PromptArgument(name=name, description=description, required=False)


def prompts_of_workflows(service: Service) -> list[ServedPrompt]:
    """Return the prompts of single workflows, with their inputs as arguments."""
    described = {it.name: it.description for it in service.list_workflows()}
    return [
        ServedPrompt(
            Prompt(
                name=workflow,
                description=brief(described[workflow]) or f"Runs the workflow {workflow}.",
                arguments=[_argument(name, declared) for name, declared in inputs.items()],
            ),
            partial(_render_workflow, workflow),
        )
        for workflow, inputs in offered_inputs(service).items()
    ]


def offered_inputs(service: Service) -> dict[str, dict[str, dict[str, Any]]]:
    """The inputs of each workflow with a prompt, by name; none on a server that starts no runs."""
    with_prompt = [it for it in service.list_workflows() if it.prompt] if service.settings.starts_runs else []
    return {it.name: service.definitions.info(it.name)["inputs"] for it in with_prompt}


async def _render_workflow(workflow: str, service: Service, given: Mapping[str, str]) -> str:
    calls = Calls.of(ways_of(service.settings.toolsets)[0])
    start = _start(calls, workflow, given) + _behavior(service, workflow)
    return f"The user wants to run a workflow. {start}"


def _argument(name: str, declared: Mapping[str, Any]) -> PromptArgument:
    required = bool(declared["required"])
    return PromptArgument(name=name, description=describe_input(declared), required=required)


def describe_input(declared: Mapping[str, Any]) -> str:
    """Return what a user has to know of an input: its description, type, choices and default."""
    notes = [str(declared["description"])] if declared.get("description") else []
    notes.append(str(declared["type"]) if isinstance(declared["type"], str) else to_json(declared["type"]))
    if "enum" in declared:
        notes.append(f"one of {to_json(declared['enum'])}")
    if "default" in declared:
        notes.append(f"default {to_json(declared['default'])}")
    return "; ".join(notes)


def _start(calls: Calls, workflow: str, inputs: Mapping[str, str]) -> str:
    given = f" with inputs {to_json(dict(inputs))}" if inputs else ""
    return (
        f"Run this workflow{given}. Pass the values as the text that was typed: the server "
        f"converts them. {_UNKNOWN}\n\n{role(calls, workflow)}"
    )


def _behavior(service: Service, workflow: str) -> str:
    """The instructions of the author of a workflow to the agent that runs it."""
    try:
        plan = service.definitions.plan_of(workflow)
    except WorkflowsError:
        return ""
    lines = [f"- {line}" for line in plan.orchestrator]
    if plan.on_context_full:
        way = ways_of(service.settings.toolsets)[0]
        call = "workflow_checkpoint(workflow_id, reason='context nearly full')"
        if way == "core":
            call = "control_workflow(workflow_id, action='context_full')"
        if way != "graph":
            lines.append(
                f"- When your context is nearly full: {call}, show its messages to the user, and stop."
            )
    return "\n\nThe author of this workflow says:\n" + "\n".join(lines) if lines else ""


def role(calls: Calls, workflow: str = "") -> str:
    named, of = (f"(workflow='{workflow}')", f": {workflow}") if workflow else ("", "")
    return calls.role.format(named=named, of=of)


def what_to_do(line: str, calls: Calls, *, more: Sequence[str] = (), read_only: bool = False) -> str:
    """Return the text for `/workflow …`. `more`: words that the client sent one by one."""
    command = " ".join(part for part in (line, *more) if part)
    typed = f"The user typed: /workflow {command}".rstrip() + "\n\n"
    match words_typed(line, more):
        case [] | ["list"]:
            return f"{typed}Call {calls.list}. {_LIST}"
        case ["list", *query] if calls.list == "list_workflows":
            return f"{typed}Call {calls.list}(query={to_json(' '.join(query))}). {_LIST}"
        case ["list", *query]:
            return f"{typed}Call {calls.list}, and show only those about: {' '.join(query)}. {_LIST}"
        case ["resume", *_] | [_, "start", *_] if read_only:
            return f"{typed}{_READ_ONLY}"
        case ["resume", run_id]:
            call = calls.resume.format(id=run_id)
            return (
                f"{typed}Call {call}: it returns where the run is and the next action. Any client can resume "
                f"the run. No finished step runs again. Then continue with 3.\n\n{role(calls)}"
            )
        case ["resume"]:
            return (
                f"{typed}Call get_workflow_status without a workflow_id, show the recent runs that have not "
                "ended, and ask the user which one to continue: /workflow resume WORKFLOW_ID"
            )
        case ["status"]:
            return f"{typed}Call get_workflow_status without a workflow_id, and show the recent runs."
        case ["status", run_id]:
            call = calls.status.format(id=run_id)
            return (
                f"{typed}Call {call}. Say where the run is, what is done, and why it waits. Do not do "
                "what it asks for."
            )
        case [name] | [name, "info"]:
            start = "" if read_only else f", and how to start it: /workflow {name} start --input key=value"
            return (
                f"{typed}Call {calls.info}(workflow={to_json(name)}). Show its purpose, its inputs (type, "
                f"default, required or not){start}. {_UNKNOWN}"
            )
        case [name, "start", *options]:
            inputs, wrong = _inputs(options)
            if wrong:
                return f"{typed}Start nothing: '{wrong}' is not valid. Show the user the commands:\n{FORMS}"
            return f"{typed}{_start(calls, name, inputs)}"
    forms = FORMS_TO_READ if read_only else FORMS
    return f"{typed}That is not a valid command. Run nothing, and show the user the commands:\n{forms}"


_LIST = "Show the name and the description of each."

_UNKNOWN = "If there is no such workflow, show the ones that the error lists, and do not start another one."


def _inputs(options: Sequence[str]) -> tuple[dict[str, str], str]:
    """The inputs that were typed (`--input key=value` or `key=value`), and the first invalid word."""
    inputs: dict[str, str] = {}
    for option in options:
        text = option.removeprefix("--input").removeprefix("=") if option.startswith("--input=") else option
        if text in ("--input", "-i"):
            continue
        key, equals, value = text.partition("=")
        if not equals or not key or key.startswith("-"):
            return inputs, option
        inputs[key] = value
    return inputs, ""


# ---- the words that a user types after /workflow

_PIECE = re.compile(r"(\s*)(\S+)")

_KEY = re.compile(r"(?:--input=)?[^\s=]+=")

_QUOTES = "\"'"

_CLOSING = {"{": "}", "[": "]"}

_SEARCHED_CHARS = 200_000

"""How many characters are searched, in all, for the end of a quotation. A line of many opening marks must
not block other requests."""


def words_typed(line: str, more: Sequence[str] = ()) -> list[str]:
    """Split a line into words, and add those that the client sent one by one.

        words_typed('fix start note="two words" map={"a": 1}')
        # ["fix", "start", "note=two words", 'map={"a": 1}']

    It is not a command line. A quotation mark counts only at the beginning of a word or of the value after
    its `=`, where it joins words; elsewhere it is an ordinary character (it's). The same holds for the
    brackets of JSON, which are kept. A word that a client sends alone may contain spaces. Clients that split
    a line at every space send the pieces of a quotation, which are joined again.
    """
    pieces = [*_PIECE.findall(line), *((" ", word) for word in more if word)]
    return list(_Words(pieces))


class _Words:
    def __init__(self, pieces: Sequence[tuple[str, str]]) -> None:
        self._pieces = pieces
        self._left = _SEARCHED_CHARS

    def __iter__(self) -> Iterator[str]:
        at = 0
        while at < len(self._pieces):
            word, at = self._word(at)
            yield word

    def _word(self, at: int) -> tuple[str, int]:
        """The word that begins with a piece, and the index of the next piece."""
        text = self._pieces[at][1]
        for begin in _beginnings(text):
            ends_in = self._quoted if text[begin] in _QUOTES else self._closed
            end = ends_in(at, begin)
            if end is not None:
                whole = text + "".join(space + piece for space, piece in self._pieces[at + 1 : end])
                joined = whole[begin:]
                return whole[:begin] + (joined[1:-1] if joined[0] in _QUOTES else joined), end
        return text, at + 1

    def _quoted(self, at: int, begin: int) -> int | None:
        """The index after the piece with the closing quotation mark."""
        for index, chunk in self._chunks(at, begin):
            if chunk.endswith(self._pieces[at][1][begin]) and (index > at or len(chunk) > 1):
                return index + 1
        return None

    def _closed(self, at: int, begin: int) -> int | None:
        """The index after the piece whose last character closes all brackets of the JSON."""
        closing: list[str] = []
        in_text = escaped = False
        for index, chunk in self._chunks(at, begin):
            for position, character in enumerate(chunk):
                if in_text:
                    in_text = escaped or character != '"'
                    escaped = character == "\\" and not escaped
                elif character == '"':
                    in_text = True
                elif character in _CLOSING:
                    closing.append(_CLOSING[character])
                elif character in _CLOSING.values() and closing.pop() != character:
                    return None
                if not closing:
                    return index + 1 if position == len(chunk) - 1 else None
        return None

    def _chunks(self, at: int, begin: int) -> Iterator[tuple[int, str]]:
        """The text from there on, piece by piece, until the limit of the search."""
        for index in range(at, len(self._pieces)):
            space, piece = self._pieces[index]
            chunk = space + piece if index > at else piece[begin:]
            self._left -= len(chunk)
            if self._left < 0 and index > at:
                return
            yield index, chunk


def _beginnings(text: str) -> list[int]:
    """The positions of marks in a word that may join it with the next words."""
    key = _KEY.match(text)
    found = [0, key.end()] if key else [0]
    return [begin for begin in found if text[begin : begin + 1] in (*_QUOTES, *_CLOSING)]


async def _sub_agent_prompt(service: Service, workflow_id: str, task_id: str, way: Way) -> str:
    """Return the prompt for the sub-agent of a task, in the words of its toolset."""
    if way == "graph":
        hint = "enable the toolset core or reactive as well"
        raise RequestError("the toolset graph alone has no tools to perform a task", hint=hint)
    brief = await service.conversations.task_brief(workflow_id, task_id)
    if way == "core":
        return brief.prompt()
    from workflows_mcp.mcp_server.compat.reactive import SUB_AGENT_PROMPT

    return brief.prompt(SUB_AGENT_PROMPT)
