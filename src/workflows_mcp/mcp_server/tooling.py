"""Defines tools: each is one record with a function, title, hints, toolset and run shape.

    example = Toolset("example")

    @example.tool("Count to a number", READS)
    async def count(
        ctx: Ctx, to: Annotated[int, Field(description="The last number")]
    ) -> Annotated[Content, Counted]:
        'Count from 1.'

    example.make()      # {"count": the tool as it is served}

The name of the tool, its description and its schemas come from the function. The protocol library would
add titles and unions with null to the schemas, which cost tokens, and would parse any text that looks like
JSON, so that the answer "true" to a question became a boolean. Here schemas are compact, and only arguments
that are structures are read from JSON text.

The parts: the record and its toolset, arguments, answers and errors, schemas.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypeVar, get_type_hints

from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.tools import Tool
from mcp.server.mcpserver.utilities.func_metadata import FuncMetadata
from mcp.shared.exceptions import MCPError
from mcp.types import CallToolResult, TextContent, ToolAnnotations
from mcp.types import Tool as OfferedTool
from pydantic import BeforeValidator, Field, ValidationError, WithJsonSchema

from workflows_mcp.errors import WorkflowsError
from workflows_mcp.limits import DEFAULT_LIMITS, Limits
from workflows_mcp.values import LEFT_OUT, did_you_mean, from_json, is_whole, made_whole, to_json, unfit

if TYPE_CHECKING:
    from workflows_mcp.runs import Service

    Ctx = Context[Service, Any]
    ReadRun = Callable[[Service, str, float, str], Awaitable[dict[str, Any]]]
else:
    Ctx = Context  # the library only checks whether a parameter is a Context
    ReadRun = Callable  # the library reads the types of fields, and the service is loaded late

logger = logging.getLogger(__name__)

Status = Literal["pending_action", "running", "waiting", "completed", "failed", "cancelled"]
Way = Literal["core", "reactive", "graph"]
"""The toolsets that can run a workflow from its start to its end."""
Role = Literal["list", "describe", "start", "answer", "watch"]
Content = dict[str, Any]
"""What a tool returns: it is sent as structured content, and as text for older clients."""
ToolFunction = Callable[..., Awaitable[Content]]
F = TypeVar("F", bound=ToolFunction)

READS = ToolAnnotations(read_only_hint=True, open_world_hint=False)
RUNS_STEPS = ToolAnnotations(destructive_hint=True)
"""Steps may do anything; a tool without hints is assumed to do so."""
ASSIGNS_STEP = ToolAnnotations(destructive_hint=False, idempotent_hint=True, open_world_hint=False)
"""It notes which agent works on a step."""
ADDS = ToolAnnotations(destructive_hint=False, open_world_hint=False)
OVERWRITES = ToolAnnotations(destructive_hint=True, idempotent_hint=True, open_world_hint=False)
"""It replaces or removes something that the server itself stores."""

_ALWAYS_LOAD = {"anthropic/alwaysLoad": True}
"""Claude Code shows its model only the names of other tools, until the model searches for them."""


class RunShape(NamedTuple):
    """How the answers of a tool show a run.

    Between a call and its answer the server may ask the user, or the call may become a task. Then `read`
    reads the run again, in the shape of the tool that was called.
    """

    read: ReadRun
    """Takes the service, the id of the run, seconds to wait, and the style."""
    style: str = ""
    """The argument of the tool that sets the style of its answers."""
    becomes_task: bool = True
    """A call that waits long can become a task."""


class ServedTool(Tool):
    """A tool of the protocol library that knows the shape of its run."""

    shape: RunShape | None = None
    takes_inputs: bool = False
    """Its arguments are the inputs of a workflow, whatever their names; the workflow checks them."""

    @property
    def offered(self) -> OfferedTool:
        """The tool as clients see it."""
        return OfferedTool(
            name=self.name,
            title=self.title,
            description=self.description,
            input_schema=self.parameters,
            output_schema=self.output_schema,
            annotations=self.annotations,
            _meta=self.meta,
        )

    async def call(self, given: dict[str, Any], context: Ctx, most_seconds: float) -> Content:
        """Call the function. `most_seconds`: the longest that it may wait for a run."""
        arguments = self.fn_metadata.validate_arguments(given)
        if "wait_seconds" in arguments:
            arguments["wait_seconds"] = min(arguments["wait_seconds"], most_seconds)
        content: Content = await self.fn(context, **arguments)
        return content

    def result(self, content: Content) -> CallToolResult:
        """Check the content against the schema of the tool, and return it as its result."""
        result = self.fn_metadata.convert_result(answer(content))
        assert isinstance(result, CallToolResult)
        return result

    def style_in(self, given: Mapping[str, Any]) -> str:
        style = self.shape.style if self.shape is not None else ""
        return str(given.get(style) or "")

    def run_of(self, given: Mapping[str, Any], content: Mapping[str, Any]) -> str | None:
        """The run of a call; None for a task, which has an agent of its own."""
        own = {} if self.takes_inputs else given
        if own.get("task_id") or own.get("sub_agent_context"):
            return None
        found = content.get("workflow_id") or own.get("workflow_id")
        return found if isinstance(found, str) else None

    def is_peek(self, given: Mapping[str, Any]) -> bool:
        """Whether a call only reads the current state of a run, so that nobody is asked anything."""
        reads = self.annotations is not None and self.annotations.read_only_hint
        return bool(reads) and given.get("wait_seconds") == 0


@dataclass(frozen=True, kw_only=True)
class ToolRecord:
    """Everything about one tool: its function, and how it is served."""

    function: ToolFunction
    title: str
    hints: ToolAnnotations
    shape: RunShape | None = None
    """How its answers show a run, if they do."""
    role: Role | None = None
    """What the tool does in the loop of a run."""
    always_load: tuple[Way, ...] = ()
    """The ways in whose loop it has that role; the model sees it there from the first turn."""
    replaced_in: tuple[Way, ...] = ()
    """The ways that have a tool of their own for this; it is left out if only they are served."""
    answers_workflow_tools: bool = False
    """It is served whenever workflows are served as tools."""
    serves_task: bool = False
    """A server for one task has it, too."""

    @property
    def name(self) -> str:
        return self.function.__name__

    @property
    def only_reads(self) -> bool:
        return bool(self.hints.read_only_hint)

    def make(self, way: Way | None = None) -> ServedTool:
        """Return the tool as it is served. `way`: the way that the server recommends."""
        made = ServedTool.from_function(
            self.function,
            title=self.title,
            annotations=self.hints,
            meta=dict(_ALWAYS_LOAD) if way in self.always_load else None,
            structured_output=False,
        )
        assert isinstance(made, ServedTool)
        returned = get_type_hints(self.function, include_extras=True)["return"]
        metadata = UnparsedArguments(
            arg_model=made.fn_metadata.arg_model, output_model=returned.__metadata__[0]
        )
        metadata.output_schema = compact(metadata.output_schema)
        made.fn_metadata = metadata
        made.parameters = compact(made.parameters, arguments=True) or {}
        made.description = " ".join(made.description.split())
        made.shape = self.shape
        return made


class Toolset:
    """The records of the tools that one module defines, in the order of their definition."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.records: dict[str, ToolRecord] = {}

    def tool(self, title: str, hints: ToolAnnotations, **more: Any) -> Callable[[F], F]:
        """Make a function a tool of this set. `more`: further fields of `ToolRecord`."""

        def add(function: F) -> F:
            record = ToolRecord(function=function, title=title, hints=hints, **more)
            self.records[record.name] = record
            return function

        return add

    def make(self) -> dict[str, ServedTool]:
        return {name: record.make() for name, record in self.records.items()}


# ---- arguments

_DEFINITIONS = ("yaml", "yaml_content", "workflow_yaml", "definition")
_JSON_TYPES: list[dict[str, Any]] = [
    {"type": "object", "additionalProperties": True},
    {"type": "array", "items": {}},
    {"type": "string"},
    {"type": "number"},
    {"type": "boolean"},
]


def as_structure(value: Any) -> Any:
    """Parse JSON text of a list or an object, because some models send structures as text."""
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        try:
            return from_json(value)
        except ValueError as error:
            raise ValueError(f"the text is not valid JSON: {error}") from None
        except RecursionError:
            raise ValueError("the JSON is nested too deeply") from None
    return value


def _texts(value: Any) -> Any:
    value = as_structure(value)
    return [value] if isinstance(value, str) else value


AnyOrNull = Annotated[Any, WithJsonSchema({"anyOf": [*_JSON_TYPES, {"type": "null"}]})]
"""Any JSON value. The types are listed because Codex drops the description of an argument without a type."""
NOT_GIVEN: Any = Field(default_factory=lambda: LEFT_OUT)
"""The default of an argument that is optional and nullable: its schema keeps the null."""
Structure = Annotated[dict[str, Any] | None, BeforeValidator(as_structure)]
"""An object, or JSON text of one."""
Texts = Annotated[list[str] | None, BeforeValidator(_texts)]
"""A list of texts, or JSON text of one, or a single text."""


class UnparsedArguments(FuncMetadata):
    """Passes arguments to the function as they were sent."""

    def pre_parse_json(self, data: dict[str, Any]) -> dict[str, Any]:
        return data


def without_nulls(tool: Tool, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Drop nulls, which models send for arguments that they leave out.

    A null stays where the argument is required, or its schema allows null.
    """
    required, known = tool.parameters.get("required", ()), tool.parameters.get("properties", {})

    def may_be_null(name: str) -> bool:
        return name in required or {"type": "null"} in known.get(name, {}).get("anyOf", ())

    return {name: value for name, value in arguments.items() if value is not None or may_be_null(name)}


def refuse_bad_arguments(
    tool: ServedTool, arguments: Mapping[str, Any], limits: Limits = DEFAULT_LIMITS
) -> None:
    """Raise ToolError if arguments are missing, unknown, too large or wrong; it names all of them."""
    known = tool.parameters.get("properties", {})
    problems = [
        f"unknown argument '{name}': {did_you_mean(name, known, what='it takes')}"
        for name in arguments
        if name not in known and not tool.takes_inputs
    ]
    problems += [
        f"argument '{name}' holds half of a character (a lone surrogate): send the text whole"
        for name, value in arguments.items()
        if not is_whole(value)
    ]
    problems += [why for name, value in arguments.items() if (why := _unacceptable(name, value, limits))]
    try:
        tool.fn_metadata.validate_arguments(dict(arguments))
    except ValidationError as error:
        for item in error.errors():
            name = ".".join(str(part) for part in item["loc"][:1])
            what = "is missing" if item["type"] == "missing" else f"is wrong: {_reason(item)}"
            problems.append(f"argument '{name}' {what}")
    if problems:
        raise ToolError(shortened(f"{tool.name}: " + "; ".join(dict.fromkeys(problems))))


def _unacceptable(name: str, value: Any, limits: Limits) -> str:
    """Why no tool accepts this value; empty if it is acceptable."""
    try:
        sent = as_structure(value)
    except ValueError:
        sent = value  # the tool rejects it, or takes it as text
    if (found := unfit(sent, depth=limits.value_depth)) is not None:
        hint = f" ({limits.setting('value_depth')})" if "nested" in found.why else ""
        return f"argument '{name}{found.place}' cannot be taken: {found.why}{hint}"
    name_of_limit = "document_bytes" if name in _DEFINITIONS else "argument_bytes"
    limit = getattr(limits, name_of_limit)
    if _is_larger(value, limit):
        setting = limits.setting(name_of_limit)
        return f"argument '{name}' is larger than the limit of {limit} bytes ({setting})"
    return ""


def _is_larger(value: Any, limit: int) -> bool:
    if isinstance(value, str):
        return len(value) > limit or len(value.encode("utf-8", "replace")) > limit
    if isinstance(value, list | dict):
        return len(to_json(made_whole(value))) > limit
    return False


def _reason(found: Mapping[str, Any]) -> str:
    if found["type"] == "dict_type":
        return "it must be an object, or JSON text of one"
    return str(found["msg"]).removeprefix("Value error, ")


# ---- answers and errors

ERROR_CHARS = 8000
"""Clients cut longer errors, and not where we would."""
DESCRIPTION_CHARS = 200
_LONG_WORD = re.compile(r"\S{600,}")
"""For example a name of a megabyte, or a number of a thousand digits."""


def service_of(ctx: Ctx) -> Service:
    return ctx.request_context.lifespan_context


def answer(value: Mapping[str, Any]) -> CallToolResult:
    """Return a result as structured content, and the same as text for older clients."""
    whole = made_whole(dict(value))
    return CallToolResult(content=[TextContent(type="text", text=to_json(whole))], structured_content=whole)


def brief(description: str) -> str:
    """Shorten a description for a list."""
    text = " ".join(description.split())
    return text if len(text) <= DESCRIPTION_CHARS else text[: DESCRIPTION_CHARS - 1] + "…"


def render_error(error: WorkflowsError) -> str:
    return shortened(str(error))


def shortened(text: str) -> str:
    """Cut the text of an error to a length that clients show whole."""
    text = _LONG_WORD.sub(_cut_word, made_whole(text))
    if len(text) <= ERROR_CHARS:
        return text
    whole_lines = text[:ERROR_CHARS].rpartition("\n")[0]
    more = text.count("\n") - whole_lines.count("\n")
    if len(whole_lines) < ERROR_CHARS // 2:  # a single line is too long
        return f"{text[:ERROR_CHARS]}… (cut: {len(text)} characters in all)"
    return f"{whole_lines}\n… (cut: {more} more lines; fix these first to see the rest)"


def _cut_word(found: re.Match[str]) -> str:
    return f"{found[0][:200]}… ({len(found[0])} characters)"


@contextmanager
def tool_errors(tool: str) -> Iterator[None]:
    """Turn every error into a ToolError, because the model sees the text of no other error."""
    try:
        yield
    except MCPError:
        raise
    except WorkflowsError as error:
        raise _tool_error(tool, render_error(error)) from error
    except RecursionError:
        why = "the arguments, or what they lead to, are nested too deeply (too_deep)"
        raise _tool_error(tool, why) from None
    except Exception as error:
        logger.exception("the tool %s failed", tool)
        what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        why = (
            f"an internal error of the server (internal): {what}\n"
            "the call may or may not have changed something: check with get_workflow_status"
        )
        raise _tool_error(tool, shortened(why)) from error


def _tool_error(tool: str, why: str) -> ToolError:
    return ToolError(f"Error executing tool {tool}: {why}")


# ---- schemas


def explicit_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Spell out what the schema of an argument leaves open.

    A value of any type, a list of any items, an object with any further fields: Codex takes what is left
    open to be text, or empty.
    """
    full = dict(schema)
    if not {"type", "enum", "const", "anyOf"} & full.keys():
        full["anyOf"] = [*_JSON_TYPES, {"type": "null"}]
    if full.get("type") == "array":
        full["items"] = explicit_schema(items) if (items := full.get("items")) else {}
    if full.get("type") == "object":
        full.setdefault("additionalProperties", True)
    if "properties" in full:
        full["properties"] = {name: explicit_schema(it) for name, it in full["properties"].items()}
    return full


def compact(schema: Any, *, arguments: bool = False) -> Any:
    """Remove from a JSON Schema what adds no information.

    That is: titles, types beside a choice of values, null as an alternative to leaving out, empty defaults,
    and items of any type. A definition that is used once is inlined. The schemas of arguments still say that
    an object or a list may hold anything: Codex takes the one to be empty and the other to hold texts.
    """
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
            del schema["description"]  # the docstring of a type is for developers
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
    """Put each definition that is used once where it is used."""
    text = to_json(schema)
    once = {name: it for name, it in schema["$defs"].items() if text.count(f'"#/$defs/{name}"') == 1}

    def replace(part: Any) -> Any:
        if isinstance(part, list):
            return [replace(item) for item in part]
        if not isinstance(part, dict):
            return part
        name = str(part.get("$ref", "")).removeprefix("#/$defs/")
        return replace(once[name]) if name in once else {key: replace(value) for key, value in part.items()}

    rest = {name: replace(it) for name, it in schema["$defs"].items() if name not in once}
    whole = {key: replace(value) for key, value in schema.items() if key != "$defs"}
    return {"$defs": rest, **whole} if rest else whole
