"""From a function to a tool: compact schemas, arguments as they were sent, errors that reach the model.

What the protocol library makes of a function costs tokens (titles, unions with null) and guesses at
arguments (any text that looks like JSON is parsed, so that the answer "true" to a question would become
a boolean). Here schemas are stripped to what they say, and only arguments that are structures are read
from JSON text.
"""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NotRequired

from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.tools import Tool
from mcp.server.mcpserver.utilities.func_metadata import FuncMetadata
from mcp.shared.exceptions import MCPError
from mcp.types import CallToolResult, TextContent, ToolAnnotations
from pydantic import BeforeValidator, Field, ValidationError, WithJsonSchema
from typing_extensions import TypedDict

from workflows_mcp.errors import WorkflowsError
from workflows_mcp.limits import DEFAULT_LIMITS, Limits
from workflows_mcp.values import LEFT_OUT, did_you_mean, from_json, is_whole, made_whole, to_json, unfit

if TYPE_CHECKING:
    from workflows_mcp.runs import Service

    Ctx = Context[Service, Any]
else:
    Ctx = Context  # the library only looks whether a parameter is one; what it holds is loaded later


logger = logging.getLogger(__name__)


ToolFunction = Callable[..., Awaitable[CallToolResult]]

ERROR_CHARS = 8000

"""Clients cut longer errors, and not where we would."""

DESCRIPTION_CHARS = 200

_LONG_WORD = re.compile(r"\S{600,}")

"""Nobody reads it to its end: a name of a megabyte, a number of a thousand digits."""

_DEFINITIONS = ("yaml", "yaml_content", "workflow_yaml", "definition")


def _cut_word(found: re.Match[str]) -> str:
    return f"{found[0][:200]}… ({len(found[0])} characters)"


def service_of(ctx: Ctx) -> Service:
    return ctx.request_context.lifespan_context


def as_structure(value: Any) -> Any:
    """JSON text where a list or an object is wanted, because models send it so."""
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        try:
            return from_json(value)
        except ValueError as error:
            raise ValueError(f"it is text that is no JSON: {error}") from None
        except RecursionError:
            raise ValueError("it is JSON that is nested too deeply") from None
    return value


def _texts(value: Any) -> Any:
    value = as_structure(value)
    return [value] if isinstance(value, str) else value


_KINDS: list[dict[str, Any]] = [
    {"type": "object", "additionalProperties": True},
    {"type": "array", "items": {}},
    {"type": "string"},
    {"type": "number"},
    {"type": "boolean"},
]

AnyOrNull = Annotated[Any, WithJsonSchema({"anyOf": [*_KINDS, {"type": "null"}]})]

"""Anything. That is said in full, because Codex leaves out the description of an argument without a type."""

NOT_GIVEN: Any = Field(default_factory=lambda: LEFT_OUT)

"""The default of an argument that may be left out, and that may be null: its schema keeps the null."""

Structure = Annotated[dict[str, Any] | None, BeforeValidator(as_structure)]

"""An object, or JSON text of one."""

Texts = Annotated[list[str] | None, BeforeValidator(_texts)]

"""A list of texts, or JSON text of one, or a single text."""


def said_in_full(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of an argument, with what is left open in it said: that it may be anything, that a list may
    hold anything, and an object more than is named. Codex takes what is not said to be texts, or nothing."""
    full = dict(schema)
    if not {"type", "enum", "const", "anyOf"} & full.keys():
        full["anyOf"] = [*_KINDS, {"type": "null"}]
    if full.get("type") == "array":
        full["items"] = said_in_full(items) if (items := full.get("items")) else {}
    if full.get("type") == "object":
        full.setdefault("additionalProperties", True)
    if "properties" in full:
        full["properties"] = {name: said_in_full(it) for name, it in full["properties"].items()}
    return full


class AsSent(FuncMetadata):
    """Arguments reach the function as they were sent."""

    known_by_schema: ClassVar[bool] = True
    """Only what the schema names is an argument; otherwise the function itself says what is none."""

    def pre_parse_json(self, data: dict[str, Any]) -> dict[str, Any]:
        return data


def make_tool(function: ToolFunction, *, title: str, hints: ToolAnnotations) -> Tool:
    tool = Tool.from_function(_with_worded_errors(function), title=title, annotations=hints)
    made = tool.fn_metadata
    published = compact(made.output_schema)
    tool.fn_metadata = AsSent(
        arg_model=made.arg_model, output_model=made.output_model, output_schema=published
    )
    tool.parameters = compact(tool.parameters, arguments=True) or {}
    tool.description = " ".join(tool.description.split())
    return tool


def answer(value: Mapping[str, Any]) -> CallToolResult:
    """A result, structured for clients that know structure, and the same as text for those that do not."""
    said = made_whole(dict(value))
    return CallToolResult(content=[TextContent(type="text", text=to_json(said))], structured_content=said)


def rendered(error: WorkflowsError) -> str:
    return in_short(str(error))


def in_short(text: str) -> str:
    """What is told of a refusal, as long as clients can show it."""
    text = _LONG_WORD.sub(_cut_word, made_whole(text))
    if len(text) <= ERROR_CHARS:
        return text
    whole_lines = text[:ERROR_CHARS].rpartition("\n")[0]
    more = text.count("\n") - whole_lines.count("\n")
    if len(whole_lines) < ERROR_CHARS // 2:  # one of its lines is what makes it long
        return f"{text[:ERROR_CHARS]}… (cut: {len(text)} characters in all)"
    return f"{whole_lines}\n… (cut: {more} more lines; mend these first, and the rest is told then)"


def brief(description: str) -> str:
    """What a list says of something that is described at length elsewhere."""
    text = " ".join(description.split())
    return text if len(text) <= DESCRIPTION_CHARS else text[: DESCRIPTION_CHARS - 1] + "…"


def without_nulls(tool: Tool, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Models send null for what they do not want to say; it is a value where one is required, and where the
    schema of the argument allows it."""
    required, known = tool.parameters.get("required", ()), tool.parameters.get("properties", {})

    def may_be_null(name: str) -> bool:
        return name in required or {"type": "null"} in known.get(name, {}).get("anyOf", ())

    return {name: value for name, value in arguments.items() if value is not None or may_be_null(name)}


def refuse_bad_arguments(tool: Tool, arguments: Mapping[str, Any], limits: Limits = DEFAULT_LIMITS) -> None:
    """Raise ToolError that names every argument that is missing, unknown, too large or wrong."""
    known = tool.parameters.get("properties", {})
    problems = [
        f"unknown argument '{name}': {did_you_mean(name, known, what='it takes')}"
        for name in arguments
        if name not in known and getattr(tool.fn_metadata, "known_by_schema", True)
    ]
    problems += [
        f"argument '{name}' holds half of a character (a lone surrogate): send the text whole"
        for name, value in arguments.items()
        if not is_whole(value)
    ]
    problems += [said for name, value in arguments.items() if (said := _unfit(name, value, limits))]
    try:
        tool.fn_metadata.validate_arguments(dict(arguments))
    except ValidationError as error:
        for item in error.errors():
            name = ".".join(str(part) for part in item["loc"][:1])
            what = "is missing" if item["type"] == "missing" else f"is wrong: {_wrong(item)}"
            problems.append(f"argument '{name}' {what}")
    if problems:
        raise ToolError(in_short(f"{tool.name}: " + "; ".join(dict.fromkeys(problems))))


def _unfit(name: str, value: Any, limits: Limits) -> str:
    """Why an argument cannot be taken, whatever the tool would do with it; empty where it can."""
    try:
        sent = as_structure(value)
    except ValueError:
        sent = value  # which is refused, or is a text, by what the tool takes
    if (found := unfit(sent, depth=limits.value_depth)) is not None:
        hint = f" ({limits.setting('value_depth')})" if "nested" in found.why else ""
        return f"argument '{name}{found.place}' cannot be taken: {found.why}{hint}"
    limit = "document_bytes" if name in _DEFINITIONS else "argument_bytes"
    most = getattr(limits, limit)
    if _is_larger(value, most):
        return (
            f"argument '{name}' is larger than {most} bytes, the most that is taken ({limits.setting(limit)})"
        )
    return ""


def _is_larger(value: Any, most: int) -> bool:
    if isinstance(value, str):
        return len(value) > most or len(value.encode("utf-8", "replace")) > most
    if isinstance(value, list | dict):
        return len(to_json(made_whole(value))) > most
    return False


def _wrong(found: Mapping[str, Any]) -> str:
    if found["type"] == "dict_type":
        return "it must be an object, or JSON text of one"
    return str(found["msg"]).removeprefix("Value error, ")


def compact(schema: Any, *, arguments: bool = False) -> Any:
    """A JSON Schema without what says nothing: titles, types beside a choice of values, null as an
    alternative to being absent, an empty default, items that may be anything. A definition that is used once
    stands where it is used. That an object or a list may hold anything is said of arguments, because Codex
    takes the one to be empty and the other to be of texts."""
    if isinstance(schema, dict) and "$defs" in schema:
        schema = _inlined(schema)
    return _stripped(schema, arguments)


def _stripped(schema: Any, arguments: bool) -> Any:
    if isinstance(schema, list):
        return [_stripped(item, arguments) for item in schema]
    if not isinstance(schema, dict):
        return schema
    schema = {key: value for key, value in schema.items() if not (key == "title" and isinstance(value, str))}
    options = schema.get("anyOf")
    if options and {"type": "null"} in options and schema.get("default", 0) is None:
        rest = [option for option in options if option != {"type": "null"}]
        del schema["anyOf"], schema["default"]
        schema = {**(rest[0] if len(rest) == 1 else {"anyOf": rest}), **schema}
    if schema.get("default", 0) in (None, ""):
        del schema["default"]
    if not arguments:
        if isinstance(schema.get("description"), str):
            del schema["description"]  # the docstring of a type is for those who read the code
        if schema.get("additionalProperties") is True:
            del schema["additionalProperties"]
        if schema.get("items") == {}:
            del schema["items"]
    if "enum" in schema or "const" in schema:
        schema.pop("type", None)
    for key, value in schema.items():
        if key in ("properties", "$defs"):
            schema[key] = {name: _stripped(item, arguments) for name, item in value.items()}
        elif key in ("items", "anyOf", "additionalProperties"):
            schema[key] = _stripped(value, arguments)
    return schema


def _inlined(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema with each definition that is used once in the place of its use."""
    text = to_json(schema)
    once = {name: it for name, it in schema["$defs"].items() if text.count(f'"#/$defs/{name}"') == 1}

    def put(part: Any) -> Any:
        if isinstance(part, list):
            return [put(item) for item in part]
        if not isinstance(part, dict):
            return part
        name = str(part.get("$ref", "")).removeprefix("#/$defs/")
        return put(once[name]) if name in once else {key: put(value) for key, value in part.items()}

    rest = {name: put(it) for name, it in schema["$defs"].items() if name not in once}
    whole = {key: put(value) for key, value in schema.items() if key != "$defs"}
    return {"$defs": rest, **whole} if rest else whole


def _with_worded_errors(function: ToolFunction) -> ToolFunction:
    """Only the text of ToolError reaches the model, so every error of ours becomes one."""

    @functools.wraps(function)
    async def call(*positional: Any, **named: Any) -> CallToolResult:
        try:
            return await function(*positional, **named)
        except WorkflowsError as error:
            raise ToolError(rendered(error)) from error
        except (ToolError, MCPError):
            raise
        except RecursionError:
            raise ToolError("what was sent, or what it leads to, is nested too deeply (too_deep)") from None
        except Exception as error:
            logger.exception("the tool %s failed", function.__name__)
            said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            raise ToolError(
                in_short(
                    f"the server failed inside, which is its own fault (internal): {said}\n"
                    "whether the call changed anything is not known: look with get_workflow_status"
                )
            ) from error

    return call


# ----------------------------------------------------------------------------------------------------
# The shapes of what tools answer. Their JSON Schemas are published; absent fields are left out.


Status = Literal["pending_action", "running", "waiting", "completed", "failed", "cancelled"]


class Action(TypedDict, total=False):
    step_id: str
    type: str
    instructions: str
    parameters: dict[str, Any]
    result_schema: dict[str, Any]
    sub_agent_prompt: str
    workflow_id: str
    task: str


class RunAnswer(TypedDict):
    """The answer of every tool that touches a run or a task. `more_actions` are actions too: to say so again
    in the schema of every tool would cost more than it tells."""

    workflow_id: str
    status: Status
    messages: NotRequired[list[Any]]
    action: NotRequired[Action]
    more_actions: NotRequired[list[Any]]
    progress: NotRequired[dict[str, Any]]
    why: NotRequired[str]
    outputs: NotRequired[dict[str, Any]]
    result: NotRequired[Any]
    failed_blocks: NotRequired[list[Any]]
    error: NotRequired[dict[str, Any]]
    next: str


class NextAnswer(TypedDict):
    """As RunAnswer: what that says of `status`, `messages` and `action` holds here and below, too."""

    workflow_id: str
    status: str
    messages: NotRequired[list[Any]]
    action: NotRequired[dict[str, Any]]
    more_actions: NotRequired[list[Any]]
    progress: NotRequired[dict[str, Any]]
    why: NotRequired[str]
    outputs: NotRequired[dict[str, Any]]
    result: NotRequired[Any]
    failed_blocks: NotRequired[list[Any]]
    error: NotRequired[dict[str, Any]]
    next: str


class StatusAnswer(TypedDict, total=False):
    """The answer of a run or a task, or the recent runs."""

    workflow_id: str
    workflow: str
    status: str
    messages: list[Any]
    action: dict[str, Any]
    more_actions: list[Any]
    progress: dict[str, Any]
    why: str
    outputs: dict[str, Any]
    result: Any
    failed_blocks: list[Any]
    error: dict[str, Any]
    next: str
    runs: list[Any]
    more: bool


class ControlAnswer(NextAnswer):
    """What became of a run that was interfered with, or of the one that was made of it."""

    forked_from: NotRequired[str]


class StateAnswer(TypedDict):
    workflow_id: str
    workflow: NotRequired[str]
    status: str
    inputs: NotRequired[dict[str, Any]]
    state: NotRequired[dict[str, Any]]
    result: NotRequired[Any]
    outputs: NotRequired[dict[str, Any]]
    blocks: NotRequired[dict[str, Any]]
    values: NotRequired[dict[str, Any]]
    slices: NotRequired[dict[str, Any]]


class Listed(TypedDict):
    """What a list says of a workflow. Its own lists are of texts, as those of WorkflowInfo."""

    name: str
    description: NotRequired[str]
    dialect: NotRequired[str]
    source: str
    tags: NotRequired[list[Any]]
    problems: NotRequired[list[Any]]


class WorkflowList(TypedDict):
    workflows: list[Listed]
    more: NotRequired[int]


class WorkflowInfo(TypedDict, total=False):
    """What a workflow is, or its definition."""

    workflow: str
    description: str
    dialect: str
    version: str
    tags: list[Any]
    source: str
    inputs: dict[str, Any]
    outputs: dict[str, Any]
    steps: list[Any]
    asks: list[Any]
    agent_tools: list[Any]
    level: str
    needs: list[Any]
    secrets: list[Any]
    missing_secrets: list[Any]
    forbidden: list[Any]
    calls: list[Any]
    definition: str


class FoundProblem(TypedDict):
    message: str
    hint: NotRequired[str]
    place: NotRequired[str]
    line: NotRequired[str]
    code: str
    warning: NotRequired[bool]


class Validation(TypedDict):
    valid: bool
    problems: list[FoundProblem]
    more: NotRequired[int]
