"""The step type `MCPCall` (`mcp_call` in the stateful and the reactive dialect): a tool of an MCP server is
called.

The agent calls it, with the tools that it has; or the server itself does, on the servers that the settings or
`.mcp.json` describe. Both give the same result. The tools of the memory are our own: they need no server.
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
"""Tools that we carry out ourselves, with what is remembered beyond a run."""
_CHANGES_NOTHING = frozenset({LOAD, LIST})


class MCPCallInputs(StepInputs):
    tool: str = Field(
        min_length=1, description="Which tool: server.tool, or only its name where no two have the same."
    )
    parameters: dict[str, Any] = Field(
        default_factory=dict, alias="args", description="What the tool is given, by name."
    )
    timeout: float = Field(30, gt=0, description="Seconds after which the server gives the call up.")

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
    """Calls a tool of an MCP server, and gives what the tool returned.

    Its result is what the tool gave: structured data if it gives any, else the data that its text is JSON of,
    else its text.
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
        """The tools of the memory are here, and nowhere else."""
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
                f"'{inputs.tool}' gave {size} bytes, at most {limits.file_bytes} are taken",
                hint=f"ask it for less, or set {limits.setting('file_bytes')}",
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
            "submit all it gave.",
            parameters=parameters,
            result_schema={"description": "What the tool returned, as it is"},
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
        raise StepError(f"'{inputs.tool}' cannot be called so: {wrong}", hint=_TAKES[inputs.tool]) from None
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
    SAVE: "it takes key and value; the value null forgets the key",
    LOAD: "it takes key",
    LIST: "it takes prefix, or nothing for all keys",
}
