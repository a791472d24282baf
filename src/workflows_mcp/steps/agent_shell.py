"""The step type `AgentShell` (`agent_shell_command` in the reactive dialect): the agent runs a command.

It is for commands that the server cannot run, because they need a terminal, a permission or a person. The
agent submits what the command printed and its exit code, or the output as data; both give the same `result`.
Values in the command are quoted as in `Shell`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Literal, NamedTuple

from pydantic import Field

from workflows_mcp.errors import StepError
from workflows_mcp.expressions import Refusal
from workflows_mcp.policy import unpacked
from workflows_mcp.steps.base import Performer, Question, Step, StepInputs, StepOutputs, StepResult
from workflows_mcp.steps.output_formats import OutputFormat, formatted, formatted_or_nothing
from workflows_mcp.steps.shell import Variables, command_refusals, exit_message
from workflows_mcp.values import Value

_READ_AS = {
    "text": "stdout is read as text",
    "lines": "stdout is read as a list of lines",
    "json": "stdout is read as JSON",
    "key_value": "stdout is read as lines KEY=value",
}
_AS_DATA = {
    "text": "only the text",
    "lines": "only the list of lines",
    "json": "only the data",
    "key_value": "only the object of keys and values",
}
_PRINTED: dict[str, Value] = {
    "stdout": {"description": "Everything that it printed to standard output"},
    "stderr": {"description": "Everything that it printed to standard error"},
    "exit_code": {"description": "0 if it succeeded, 124 if it timed out"},
    "duration": {"description": "How many seconds it took, if you know"},
}
"""The fields of a result that says how a command ended. Output that is data may use the same names."""


class AgentShellInputs(StepInputs):
    command: str = Field(description="The command. Values in it are data: they never become shell syntax.")
    reason: str = Field("", description="Why the agent must run it instead of the server.")
    output_format: OutputFormat = Field(
        "text", description="The format of its output: text, lines, json or key_value."
    )
    timeout: float | None = Field(None, gt=0, description="Seconds after which the agent ends it.")
    working_dir: str = Field("", description="The directory to run it in.")
    env: Variables = Field(default_factory=dict, description="Variables added to its environment.")
    unsafe: Literal["raw"] | None = Field(
        None,
        description="raw: values are inserted as text and can be syntax. Only for values that you trust.",
    )


class AgentShellOutputs(StepOutputs):
    result: Any = None
    exit_code: int | None = None


class AgentShell(Step):
    """Asks the agent to run a command; returns its output as text, lines, JSON or keys and values.

    It is for commands that need a terminal or permissions that the server does not have. An exit code other
    than 0 is a failure.
    """

    name = "AgentShell"
    dialect_names: ClassVar[Mapping[str, str]] = {"reactive": "agent_shell_command"}
    performer: ClassVar[Performer] = "agent"
    Inputs = AgentShellInputs
    Outputs = AgentShellOutputs
    level = "privileged"
    capabilities = frozenset({"run_commands", "read_files", "write_files", "network"})
    code_inputs = frozenset({"command"})
    timeout_input = "timeout"
    may_fail = True
    result_output = "result"

    def refusals(self, name: str, texts: tuple[str, ...], inputs: Mapping[str, Value]) -> Iterable[Refusal]:
        return command_refusals(texts, inputs)

    def ask(self, inputs: AgentShellInputs) -> Question:
        parameters: dict[str, Value] = {"command": inputs.command}
        where = within = ""
        if inputs.reason:
            parameters["reason"] = inputs.reason
        if "output_format" in inputs.model_fields_set:
            parameters["output_format"] = inputs.output_format
        if inputs.timeout is not None:
            parameters["timeout"] = round(inputs.timeout * 1000)
            within = (
                f" End it after {inputs.timeout:g} seconds (timeout is in milliseconds), with exit_code 124."
            )
        if inputs.working_dir:
            parameters["working_dir"] = inputs.working_dir
            where += " in parameters.working_dir"
        if inputs.env:
            parameters["env"] = dict(inputs.env)
            where += " with parameters.env added to its environment"
        return Question(
            type="agent_shell_command",
            instructions=f"Run parameters.command in a shell{where}, once and unchanged.{within} "
            'Submit the actual {"stdout": "…", "stderr": "…", "exit_code": 0} '
            f"({_READ_AS[inputs.output_format]}), or, if it succeeded, {_AS_DATA[inputs.output_format]}.",
            parameters=parameters,
            result_schema={
                "description": "What it printed and its exit code, {stdout, stderr, exit_code}; or its "
                f"output as data, {_AS_DATA[inputs.output_format]}",
                "properties": _PRINTED,
            },
            describes_result=True,
        )

    def parse_result(self, inputs: AgentShellInputs, result: Any) -> StepResult:
        given = unpacked(result)
        if given.failed:
            return StepResult(
                {"result": None, "exit_code": _exit_code(result)},
                ok=False,
                message=f"the command failed: {given.message}",
            )
        ended = _ended(result)
        if ended is None:
            return StepResult({"result": _as_data(result, inputs.output_format), "exit_code": None})
        exit_code, stdout, stderr = ended
        if exit_code:
            value = formatted_or_nothing(stdout, inputs.output_format)
            message = exit_message(exit_code, stdout, stderr)
            return StepResult({"result": value, "exit_code": exit_code}, ok=False, message=message)
        try:
            value = formatted(stdout, inputs.output_format)
        except StepError as error:
            return StepResult({"result": None, "exit_code": exit_code}, ok=False, message=error.message)
        return StepResult({"result": value, "exit_code": exit_code})


class _Ended(NamedTuple):
    exit_code: int | None
    """None if the result does not say; then the command succeeded."""
    stdout: str
    stderr: str


def _ended(result: Value) -> _Ended | None:
    """Return how a command ended, if the result says only that; None if the result is data."""
    if (
        not isinstance(result, dict)
        or not result.keys() <= _PRINTED.keys()
        or result.keys() <= {"stderr", "duration"}
    ):
        return None
    stdout, stderr = result.get("stdout"), result.get("stderr")
    exit_code = _exit_code(result)
    if not isinstance(stdout, str | None) or not isinstance(stderr, str | None):
        return None
    if exit_code is None and result.get("exit_code") is not None:
        return None
    return _Ended(exit_code, stdout or "", stderr or "")


def _exit_code(result: dict[str, Value]) -> int | None:
    given = result.get("exit_code")
    if isinstance(given, str) and given.strip().isascii() and given.strip().isdigit():
        return int(given)
    return given if isinstance(given, int) and not isinstance(given, bool) else None


def _as_data(result: Value, output_format: str) -> Value:
    """Return a result that is data unchanged; parse text, and return it unchanged if it cannot be parsed."""
    if not isinstance(result, str):
        return result
    try:
        return formatted(result, output_format)
    except StepError:
        return result
