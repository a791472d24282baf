"""Prompts that the server offers: `/workflow` in its forms, the role of whoever carries out a workflow, and
that of a sub-agent; and one for each workflow that asks for it. They name the tools that are really switched
on."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from mcp.server.mcpserver.prompts import Prompt
from mcp.shared.exceptions import MCPError
from mcp.types import INVALID_PARAMS, PromptArgument
from mcp.types import Prompt as OfferedPrompt
from pydantic import Field

from workflows_mcp.errors import WorkflowsError
from workflows_mcp.mcp_server.tooling import Ctx, brief, rendered, service_of
from workflows_mcp.mcp_server.toolsets import Way, ways_of
from workflows_mcp.values import to_json

if TYPE_CHECKING:
    from workflows_mcp.runs import Service


# ----------------------------------------------------------------------------------------------------
# The words of what a user has typed behind `/workflow`, with nothing in them altered.
#
#     words_typed('fix start note="two words" map={"a": 1}')    # [fix, start, note=two words, map={"a": 1}]
#
# It is no command line: a quotation mark counts at the beginning of a word or of the value behind its `=`,
# where it holds words together, and is a character as any other elsewhere (it's). So do the brackets of
# JSON, which stay. Some clients give words one by one: spaces inside of one do not part it, but clients
# that part a line at every space give pieces of what quotation marks hold together, and these are put
# together again.


_PIECE = re.compile(r"(\s*)(\S+)")

_KEY = re.compile(r"(?:--input=)?[^\s=]+=")

_QUOTES = "\"'"

_CLOSING = {"{": "}", "[": "]"}

_PATIENCE = 200_000

"""How many characters are looked at, in all, for where something ends: a line of many beginnings and no end
must not hold up everybody else."""


def words_typed(line: str, more: Sequence[str] = ()) -> list[str]:
    """The words of a line, and those that came one by one behind it."""
    pieces = [*_PIECE.findall(line), *((" ", word) for word in more if word)]
    return list(_Words(pieces))


class _Words:
    def __init__(self, pieces: Sequence[tuple[str, str]]) -> None:
        self._pieces = pieces
        self._patience = _PATIENCE

    def __iter__(self) -> Iterator[str]:
        at = 0
        while at < len(self._pieces):
            word, at = self._word(at)
            yield word

    def _word(self, at: int) -> tuple[str, int]:
        """The word that begins with a piece, and the piece behind it."""
        text = self._pieces[at][1]
        for begin in _beginnings(text):
            ends_in = self._quoted if text[begin] in _QUOTES else self._closed
            end = ends_in(at, begin)
            if end is not None:
                whole = text + "".join(space + piece for space, piece in self._pieces[at + 1 : end])
                held = whole[begin:]
                return whole[:begin] + (held[1:-1] if held[0] in _QUOTES else held), end
        return text, at + 1

    def _quoted(self, at: int, begin: int) -> int | None:
        """The piece behind the one that ends with the quotation mark of the beginning."""
        for index, chunk in self._chunks(at, begin):
            if chunk.endswith(self._pieces[at][1][begin]) and (index > at or len(chunk) > 1):
                return index + 1
        return None

    def _closed(self, at: int, begin: int) -> int | None:
        """The piece behind the one with whose last character all is closed that is opened in JSON."""
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
        """What stands from there on, piece by piece, as long as there is patience for looking ahead."""
        for index in range(at, len(self._pieces)):
            space, piece = self._pieces[index]
            chunk = space + piece if index > at else piece[begin:]
            self._patience -= len(chunk)
            if self._patience < 0 and index > at:
                return
            yield index, chunk


def _beginnings(text: str) -> list[int]:
    """Where something begins in a word that may hold it together with the next ones."""
    key = _KEY.match(text)
    found = [0, key.end()] if key else [0]
    return [begin for begin in found if text[begin : begin + 1] in (*_QUOTES, *_CLOSING)]


Word = Annotated[str, Field(description="The next word, for clients that give them one by one")]


FORMS = """\
/workflow list
/workflow NAME info
/workflow NAME start [--input key=value ...]
/workflow resume WORKFLOW_ID
/workflow status WORKFLOW_ID"""


FORMS_OF_LOOKING = "\n".join(
    form for form in FORMS.splitlines() if "start" not in form and "resume" not in form
)


class Words(NamedTuple):
    """What the tools of one way of carrying out workflows are called, and what their answers have."""

    list: str
    info: str
    start: str
    resume: str
    status: str
    role: str


_ROLE = """\
You carry out a workflow{of}. The workflow server knows its steps, evaluates conditions and loops, runs \
what it can run itself and keeps the state. You are handed one thing to do at a time, with every value in \
place: do it exactly as it says, and hand in what came of it. You need not understand the workflow.

"""

_CORE = f"""\
{_ROLE}\
1. get_workflow_info{{named}} says which inputs it takes. Ask the user for required ones that are missing, \
all at once; never make one up.
2. start_workflow with workflow and inputs. Tell the user the workflow_id.
3. While status is "pending_action": do what action.instructions say with action.parameters, then call \
submit_result(workflow_id, step_id=<action.step_id>, result=<as action.result_schema says>). The reply \
carries the next action.
4. While it is "running" or "waiting": get_workflow_status(workflow_id), which waits by itself.
5. "completed": sum up for the user what came of it. "failed": show error. Start nothing again unasked.

By the type of an action:
- user_input, prompt: ask the user in those words, and hand in the user's own answer. Never answer for the \
user.
- agent_shell_command, shell: run the command as it stands. That it failed is a result too.
- mcp_call: call that tool with those arguments, and hand in what it returned, as it is.
- apply_hints: change the file as the hints say, and nothing else.
- parallel_tasks, foreach: start ALL sub-agents that it lists, with its sub_agent_prompt, and wait for ALL \
of them. Submit nothing for it.

Show `messages` to the user, in order, each once. A refused result changes nothing: mend it and submit \
again. If your context is nearly full (80% or more), stop after a submitted result: nothing is lost. Tell \
the user to begin a new conversation with /workflow resume and the workflow_id."""

_REACTIVE = f"""\
{_ROLE}\
1. workflow_get_info{{named}} says which inputs it takes. Ask the user for required ones that are missing, \
all at once; never make one up.
2. workflow_start with workflow and inputs. Tell the user the workflow_id.
3. While step is not null: do what step.instructions say with step.definition, then call \
workflow_step_complete(workflow_id, step_id=<step.id>, result=<what came of it>). The server stores the \
result as definition.state_update says. The reply carries the next step. What could not be done: \
status="failed" and error.
4. While step is null and status is "running" or "waiting": workflow_get_next_step(workflow_id), which waits.
5. Step null and "completed", "failed" or "cancelled": workflow_complete(workflow_id, status) has the \
final state. Sum up for the user what came of it, or show the error. Start nothing again unasked.

By the type of a step:
- user_input: ask the user in those words, and hand in the user's own answer. Never answer for the user.
- agent_shell_command: run the command as it stands. That it failed is a result too.
- mcp_call: call that tool with definition.params, and hand in what it returned, as it is.
- apply_hints: change the file as the hints say, and nothing else.
- parallel_tasks: start ALL sub-agents that it lists, and wait for ALL of them. Hand in nothing for it.
shell_command, state_update, conditions and loops are done by the server, and not handed out. \
variable_replacements and original_expression tell where values come from: nothing is left to be replaced.

Show `messages` to the user, in order, each once. What is refused changes nothing: mend it and call again. \
If your context is nearly full (80% or more), call workflow_checkpoint(workflow_id, reason) and tell the \
user to begin a new conversation with /workflow resume and the workflow_id."""

_GRAPH = f"""\
{_ROLE}\
1. get_workflow_info{{named}} says which inputs it takes. Ask the user for required ones that are missing, \
all at once; never make one up.
2. execute_workflow with workflow and inputs. Tell the user the workflow_id.
3. While status is "paused": do what `prompt` says, or ask it of the user where only the user can decide, \
and call resume_workflow(checkpoint_id, response).
4. While it is "running": resume_workflow(checkpoint_id=<workflow_id>), which waits.
5. "success": sum up the outputs for the user. "failure": show error. Start nothing again unasked.

If your context is nearly full (80% or more), stop after an answer: nothing is lost. Tell the user to \
begin a new conversation with /workflow resume and the workflow_id."""


_WORDS: dict[Way, Words] = {
    "core": Words(
        "list_workflows",
        "get_workflow_info",
        "start_workflow",
        "get_next_step(workflow_id='{id}')",
        "get_workflow_status(workflow_id='{id}', wait_seconds=0)",
        _CORE,
    ),
    "reactive": Words(
        "workflow_list",
        "workflow_get_info",
        "workflow_start",
        "workflow_resume(workflow_id='{id}')",
        "get_workflow_status(workflow_id='{id}', wait_seconds=0)",
        _REACTIVE,
    ),
    "graph": Words(
        "list_workflows",
        "get_workflow_info",
        "execute_workflow",
        "resume_workflow(checkpoint_id='{id}')",
        "get_workflow_status(workflow_id='{id}', wait_seconds=0)",
        _GRAPH,
    ),
}


_ONLY_LOOKING = (
    "This server only looks: nothing is started or resumed here. Call no tool for it, and tell the user so; "
    "a server without --read-only can."
)


def prompts_of(toolsets: Sequence[str], *, read_only: bool = False) -> list[Prompt]:
    way = ways_of(toolsets)[0]
    words = _WORDS[way]

    async def workflow(
        command: Annotated[
            str, Field(description="list · NAME info · NAME start --input key=value · resume ID · status ID")
        ] = "",
        word2: Word = "",
        word3: Word = "",
        word4: Word = "",
        word5: Word = "",
        word6: Word = "",
        word7: Word = "",
        word8: Word = "",
    ) -> str:
        more = (word2, word3, word4, word5, word6, word7, word8)
        return what_to_do(command, words, more=more, read_only=read_only)

    async def workflow_orchestrator(
        ctx: Ctx,
        workflow_name: Annotated[str, Field(description="The workflow to carry out")],
    ) -> str:
        return role(words, workflow_name) + _behavior(service_of(ctx), workflow_name)

    async def workflow_sub_agent(
        ctx: Ctx,
        workflow_id: Annotated[str, Field(description="Id of the run, or of the task itself")],
        task_id: Annotated[str, Field(description="The task, as the step of its run calls it")] = "",
    ) -> str:
        stepping = service_of(ctx).step_protocol
        try:
            return await stepping.sub_agent_prompt(workflow_id, task_id or None, way)
        except WorkflowsError as error:
            raise MCPError(INVALID_PARAMS, rendered(error)) from None

    if read_only:
        looking = Prompt.from_function(
            workflow, title="Workflows", description="List, describe and watch workflows."
        )
        for argument in (looking.arguments or ())[:1]:
            argument.description = "list · NAME info · status ID"
        return [looking]
    return [
        Prompt.from_function(
            workflow,
            title="Workflows",
            description="List, describe, start, resume and watch workflows.",
        ),
        Prompt.from_function(
            workflow_orchestrator,
            title="Carry out a workflow",
            description="The role of an agent that carries out a workflow, step by step.",
        ),
        Prompt.from_function(
            workflow_sub_agent,
            title="Carry out a task of a workflow",
            description="The role of a sub-agent that carries out one task of a run.",
        ),
    ]


def offered(service: Service) -> list[OfferedPrompt]:
    """A prompt for each workflow that asks for it, with its inputs as arguments."""
    described = {it.name: it.description for it in service.list_workflows()}
    return [
        OfferedPrompt(
            name=workflow,
            description=brief(described[workflow]) or f"Carries out the workflow {workflow}.",
            arguments=[_argument(name, said) for name, said in inputs.items()],
        )
        for workflow, inputs in offered_inputs(service).items()
    ]


def offered_inputs(service: Service) -> dict[str, dict[str, dict[str, Any]]]:
    """What each workflow takes that asks for a prompt of its own, by name; none where none can start."""
    asking = [] if service.settings.read_only else [it for it in service.list_workflows() if it.prompt]
    return {it.name: service.definitions.info(it.name)["inputs"] for it in asking}


def carrying_out(service: Service, workflow: str, given: Mapping[str, str]) -> str:
    """What the user wants who has chosen the prompt of a workflow."""
    words = _WORDS[ways_of(service.settings.toolsets)[0]]
    start = _start(words, workflow, given) + _behavior(service, workflow)
    return f"The user wants a workflow to be carried out. {start}"


def _argument(name: str, said: Mapping[str, Any]) -> PromptArgument:
    notes = [str(said["description"])] if said.get("description") else []
    notes.append(str(said["type"]) if isinstance(said["type"], str) else to_json(said["type"]))
    if "enum" in said:
        notes.append(f"one of {to_json(said['enum'])}")
    if "default" in said:
        notes.append(f"default {to_json(said['default'])}")
    return PromptArgument(name=name, description="; ".join(notes), required=bool(said["required"]))


def _start(words: Words, workflow: str, inputs: Mapping[str, str]) -> str:
    given = f" with inputs {to_json(dict(inputs))}" if inputs else ""
    return (
        f"Carry out this workflow{given}. Values are texts as they were typed: the server "
        f"converts them. {_UNKNOWN}\n\n{role(words, workflow)}"
    )


def _behavior(service: Service, workflow: str) -> str:
    """What the author of a workflow tells whoever carries it out."""
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


def role(words: Words, workflow: str = "") -> str:
    named, of = (f"(workflow='{workflow}')", f": {workflow}") if workflow else ("", "")
    return words.role.format(named=named, of=of)


def what_to_do(line: str, words: Words, *, more: Sequence[str] = (), read_only: bool = False) -> str:
    """What the user wants who has typed `/workflow …`. `more`: words that came one by one behind the line."""
    typed = " ".join(part for part in (line, *more) if part)
    said = f"The user typed: /workflow {typed}".rstrip() + "\n\n"
    match words_typed(line, more):
        case [] | ["list"]:
            return f"{said}Call {words.list}. {_LIST}"
        case ["list", *query] if words.list == "list_workflows":
            return f"{said}Call {words.list}(query={to_json(' '.join(query))}). {_LIST}"
        case ["list", *query]:
            return f"{said}Call {words.list}, and keep to what has to do with: {' '.join(query)}. {_LIST}"
        case ["resume", *_] | [_, "start", *_] if read_only:
            return f"{said}{_ONLY_LOOKING}"
        case ["resume", run_id]:
            call = words.resume.format(id=run_id)
            return (
                f"{said}Call {call}: it tells where the run is, whoever began it, and what is to be done. "
                f"Nothing that is done is done again. Then go on from 3 on.\n\n{role(words)}"
            )
        case ["resume"]:
            return (
                f"{said}Call get_workflow_status without a workflow_id, show the recent runs that have not "
                "ended, and ask the user which of them to go on with: /workflow resume WORKFLOW_ID"
            )
        case ["status"]:
            return f"{said}Call get_workflow_status without a workflow_id, and show the recent runs."
        case ["status", run_id]:
            call = words.status.format(id=run_id)
            return (
                f"{said}Call {call}. Say where the run is, what is done, and why it waits. Do nothing of "
                "what it asks for."
            )
        case [name] | [name, "info"]:
            start = "" if read_only else f", and how to start it: /workflow {name} start --input key=value"
            return (
                f"{said}Call {words.info}(workflow={to_json(name)}). Show what it is for, its inputs (type, "
                f"default, which are required){start}. {_UNKNOWN}"
            )
        case [name, "start", *options]:
            inputs, wrong = _inputs(options)
            if wrong:
                return f"{said}Start nothing: '{wrong}' is not understood. Show the user the forms:\n{FORMS}"
            return f"{said}{_start(words, name, inputs)}"
    forms = FORMS_OF_LOOKING if read_only else FORMS
    return f"{said}That is none of the forms. Run nothing, and show them to the user:\n{forms}"


_LIST = "Show the name and the description of each."

_UNKNOWN = "If there is no such workflow, show what the error says there is, and start no other one."


def _inputs(options: Sequence[str]) -> tuple[dict[str, str], str]:
    """The inputs that were typed, and what is none: `--input key=value`, also without the `--input`."""
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
