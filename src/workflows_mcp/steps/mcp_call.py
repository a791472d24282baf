"""The step type `MCPCall` (`mcp_call` in the stateful and reactive dialects) calls a tool of an MCP server.

The agent calls the tool, if its client has it; or this server calls it, on a server from the settings or
`.mcp.json`. Both return the same result. The tools of the memory are our own and need no other server.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from workflows_mcp.errors import StepError
from workflows_mcp.policy import ToolResult, World, unpacked
from workflows_mcp.steps.base import (
    Performer,
    Question,
    Step,
    StepContext,
    StepInputs,
    StepOutputs,
    StepResult,
)
from workflows_mcp.values import Value, from_json, to_json

SAVE, LOAD, LIST = "save_to_memory", "load_from_memory", "list_memory_keys"
MEMORY_TOOLS = frozenset({SAVE, LOAD, LIST})
"""Our own tools, for the memory that outlives runs."""
_CHANGES_NOTHING = frozenset({LOAD, LIST})


class MCPCallInputs(StepInputs):
    tool: str = Field(
        min_length=1,
        description="The tool: server.tool, or only its name if no other server has one of that name.",
    )
    parameters: dict[str, Any] = Field(
        default_factory=dict, alias="args", description="The arguments of the tool, by name."
    )
    timeout: float = Field(
        30, gt=0, description="Seconds after which the server stops waiting for the result."
    )

    @field_validator("parameters", mode="before")
    @classmethod
    def _as_object(cls, given: Any) -> Any:
        if given is None:
            return {}
        if isinstance(given, str):
            try:
                return from_json(given)
            except ValueError:
                return given
        return given


class MCPCallOutputs(StepOutputs):
    result: Any = None


class MCPCall(Step):
    """Calls a tool of an MCP server, and returns its result.

    The result is the structured data of the tool, if there is any; else the data in its text, if that is
    JSON; else the text.
    """

    name = "MCPCall"
    dialect_names: ClassVar[Mapping[str, str]] = {"stateful": "mcp_call", "reactive": "mcp_call"}
    performer: ClassVar[Performer] = "agent"
    Inputs = MCPCallInputs
    Outputs = MCPCallOutputs
    level = "privileged"
    capabilities = frozenset({"network", "run_commands"})
    timeout_input = "timeout"
    may_fail = True
    result_output = "result"

    def performer_for(self, inputs: Mapping[str, Value], dialect: str) -> Performer:
        """Return "server" for the tools of the memory, which no agent has."""
        return "server" if inputs.get("tool") in MEMORY_TOOLS else self.performer

    def changes_world(self, inputs: dict[str, Value]) -> bool:
        return inputs.get("tool") not in _CHANGES_NOTHING

    async def run(self, inputs: MCPCallInputs, context: StepContext) -> StepResult:
        if inputs.tool in MEMORY_TOOLS:
            return StepResult({"result": await _memory_tool(context.world, inputs)})
        given = await context.world.call_tool(inputs.tool, inputs.parameters)
        size = len(to_json(given.value).encode())
        limits = context.world.limits
        if size > limits.file_bytes:
            raise StepError(
                f"'{inputs.tool}' returned {size} bytes; the limit is {limits.file_bytes}",
                hint=f"request less data, or raise {limits.setting('file_bytes')}",
            )
        return _given(inputs.tool, given)

    def ask(self, inputs: MCPCallInputs) -> Question:
        server, _, tool = inputs.tool.rpartition(".")
        known_as = f" (`mcp__{server}__{tool}`)" if server else ""
        parameters: dict[str, Value] = {"tool": inputs.tool, "args": inputs.parameters}
        if "timeout" in inputs.model_fields_set:
            parameters["timeout"] = inputs.timeout
        return Question(
            type="mcp_call",
            instructions=f"Call parameters.tool{known_as} once with exactly parameters.args; "
            "submit everything that it returned.",
            parameters=parameters,
            result_schema={"description": "What the tool returned, unchanged"},
            describes_result=True,
        )

    def parse_result(self, inputs: MCPCallInputs, result: Any) -> StepResult:
        return _given(inputs.tool, unpacked(result))


def _given(tool: str, given: ToolResult) -> StepResult:
    message = f"the tool '{tool}' failed: {given.message}" if given.failed else None
    return StepResult({"result": given.value}, ok=not given.failed, message=message)


# The tools of the memory


class _Arguments(BaseModel):
    model_config = ConfigDict(extra="forbid", coerce_numbers_to_str=True)


class _Save(_Arguments):
    key: str
    value: Any


class _Load(_Arguments):
    key: str


class _List(_Arguments):
    prefix: str = ""


_ARGUMENTS: dict[str, type[_Arguments]] = {SAVE: _Save, LOAD: _Load, LIST: _List}


async def _memory_tool(world: World, inputs: MCPCallInputs) -> Value:
    try:
        given = _ARGUMENTS[inputs.tool].model_validate(inputs.parameters)
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors())
        raise StepError(f"wrong arguments for '{inputs.tool}': {wrong}", hint=_TAKES[inputs.tool]) from None
    match given:
        case _Save():
            await world.remember(given.key, given.value)
            return {"saved": given.value is not None, "key": given.key}
        case _Load():
            value = await world.recall(given.key)
            return {"key": given.key, "found": value is not None, "value": value}
        case _List():
            keys = await world.remembered(given.prefix)
            return {"keys": keys, "count": len(keys)}
    raise TypeError(inputs.tool)


_TAKES = {
    SAVE: "its arguments are key and value; the value null deletes the key",
    LOAD: "its argument is key",
    LIST: "its argument is prefix; without it, all keys are listed",
}
