"""The step type `Shell` runs a command, on the server or by the agent.

    shell: {command: "pytest -q {{ path }}", timeout: 60}

It is `shell` in the stateful dialect and `shell_command` in the reactive one. Values in the command are data,
never syntax: `expressions.shell` quotes them. The parts, from the top: the step type, the process that it
starts, its result, and outputs that a command leaves in files.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import signal
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, field_validator

from workflows_mcp.errors import ExpressionError, Forbidden, StepError
from workflows_mcp.expressions import Code, Refusal, problems, quoted_script, quoted_words, substitute
from workflows_mcp.policy import Finished, Killed, World
from workflows_mcp.steps.base import (
    Performer,
    Question,
    Step,
    StepContext,
    StepInputs,
    StepOutputs,
    StepResult,
    StepStopped,
)
from workflows_mcp.steps.output_formats import FORMATS, OUTPUT_FORMAT, formatted
from workflows_mcp.values import Value, did_you_mean, from_json, kind_of, shown, to_text

SHELL = "/bin/sh"
SHELLS: dict[str, tuple[str, ...]] = {
    "sh": (SHELL, "-c"),
    "bash": ("bash", "--noprofile", "--norc", "-eo", "pipefail", "-c"),
    "zsh": ("zsh", "-f", "-c"),
    "python": ("python3", "-c"),
    "node": ("node", "-e"),
}
"""The program and arguments for each shell; the command follows the last one."""
SCRIPT_BYTES = 100 * 1024
"""Longer scripts run from a file: the system allows 128 KiB for one argument."""
_TRUE_OR_FALSE = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
ANY_EXIT = "any_exit_is_a_result"
"""The key of `StepContext.config` with which a step succeeds whatever the exit code of its command."""
WATCH_CHANGES = "watch_changes"
"""The key of `StepContext.config` with which a command also reports the files that it has changed."""
CHANGES_LISTED = 100
RESULT_SCHEMA: dict[str, Value] = {
    "type": "object",
    "properties": {
        "stdout": {
            "type": ["string", "null"],
            "description": "Everything that it printed to standard output",
        },
        "stderr": {"type": ["string", "null"], "description": "Everything that it printed to standard error"},
        "exit_code": {"type": "integer", "description": "0 if it succeeded, 124 if it timed out"},
        "duration": {"type": ["number", "null"], "description": "How many seconds it took, if you know"},
    },
    "required": ["exit_code"],
}
_LAST_CHARS = 4096
"""How many characters at the end of an output are searched for its last line."""
ConfigProblem = tuple[tuple[str | int, ...], str, str]


def _variables_as_text(env: Any) -> Any:
    """Return the variables of a command with their values as text. Raises ValueError."""
    if not isinstance(env, dict):
        return env
    for name, value in env.items():
        if isinstance(value, list | dict):
            raise ValueError(
                f"the variable '{name}' must be text, a number or true/false, not {kind_of(value)}"
            )
    return {name: to_text(value) for name, value in env.items()}


Variables = Annotated[dict[str, str], BeforeValidator(_variables_as_text)]
"""Variables of a command; numbers, true and false are accepted as text."""


class ShellInputs(StepInputs):
    command: str = Field(description="The command. Values in it are data: they never become shell syntax.")
    working_dir: str = Field(
        "", description="The directory to run it in, relative to the workspace, which is the default."
    )
    timeout: float = Field(
        120, gt=0, description="Seconds after which it is killed, with all processes that it has started."
    )
    env: Variables = Field(default_factory=dict, description="Variables added to its environment.")
    capture_output: bool = Field(True, description="Whether stdout and stderr are kept; false discards them.")
    truncate: bool = Field(
        False,
        description="true: output beyond WORKFLOWS_LIMIT_CAPTURED_BYTES is discarded, and the output "
        "`truncated` is true; false: the command is ended and the step fails.",
    )
    shell: bool | Literal["sh", "bash", "zsh", "python", "node"] | list[str] = Field(
        True,
        description="What runs the command: sh (or true), bash (with -eo pipefail), zsh, python, node, or a "
        "program with arguments that gets it as a file, such as [perl, -w]. false: no shell; the text is "
        "split into words, and a value is never split.",
    )
    continue_on_error: bool = Field(
        False, alias="continue-on-error", description="Whether an exit code other than 0 counts as success."
    )
    unsafe: Literal["raw"] | None = Field(
        None,
        description="raw: values are inserted as text and can be syntax. Only for values that you trust.",
    )

    @field_validator("shell", mode="before")
    @classmethod
    def _known_shell(cls, shell: Any) -> Any:
        if isinstance(shell, bool) or (isinstance(shell, str) and shell in SHELLS):
            return shell
        if isinstance(shell, str) and shell.lower() in _TRUE_OR_FALSE:
            return _TRUE_OR_FALSE[shell.lower()]
        if isinstance(shell, list) and shell and all(isinstance(word, str) and word for word in shell):
            return shell
        hint = did_you_mean(shell, SHELLS, what="shells") if isinstance(shell, str) else ""
        raise ValueError(
            f"a command is run by one of {', '.join(SHELLS)}, by a program with its arguments as a list "
            f"([perl, -w]), or by no shell (false), not by {shown(shell)}" + (f"; {hint}" if hint else "")
        )


class ShellOutputs(StepOutputs):
    exit_code: int = 0
    stdout: str = ""
    stderr: str = ""
    success: bool = False
    command_executed: str = ""
    execution_time_ms: float = 0.0
    duration: float | None = None
    truncated: bool = False


class Shell(Step):
    """Runs a command and returns its exit code and output.

    A command with an exit code other than 0 has run and has failed: see `exit_code` or `.failed`. Files that
    it creates become outputs of the block if they are declared under `outputs`. `$SCRATCH` is a directory of
    this execution, `$RUN_SCRATCH` one that all steps of the run share; both are deleted with the run.
    """

    name = "Shell"
    dialect_names: ClassVar[Mapping[str, str]] = {
        "graph": "Shell",
        "stateful": "shell",
        "reactive": "shell_command",
    }
    Inputs = ShellInputs
    Outputs = ShellOutputs
    level = "privileged"
    capabilities = frozenset({"run_commands", "read_files", "write_files", "network"})
    code_inputs = frozenset({"command"})
    timeout_input = "timeout"
    may_fail = True
    takes_output_specs = True
    dialect_config: ClassVar[Mapping[str, dict[str, Value]]] = {
        "stateful": {ANY_EXIT: True},
        "reactive": {OUTPUT_FORMAT: "text"},
    }
    dialect_performers: ClassVar[Mapping[str, Performer]] = {"stateful": "agent"}

    def refusals(self, name: str, texts: tuple[str, ...], inputs: Mapping[str, Value]) -> Iterable[Refusal]:
        return command_refusals(texts, inputs)

    def result_output_in(self, dialect: str) -> str:
        """Return `result` in a dialect with output formats, and the default in others."""
        return "result" if OUTPUT_FORMAT in self.dialect_config.get(dialect, {}) else self.result_output

    async def run(self, inputs: ShellInputs, context: StepContext) -> StepResult:
        world = context.world
        world.check_command()
        directory = world.working_directory(inputs.working_dir)
        code = context.code.get("command") or Code((inputs.command,), ())
        environment = world.command_environment(inputs.env)
        with _ValueFiles(world, context.key).deleted_at_end() as files:
            arguments = _arguments(inputs, code, environment, files)
            running = world.run_command(
                arguments,
                directory=directory,
                environment=environment,
                key=context.key,
                capture=inputs.capture_output,
                truncate=inputs.truncate,
            )
            changed: list[str] = []
            try:
                if context.config.get(WATCH_CHANGES) is True:
                    finished, changed = await world.watching_files(directory, running)
                else:
                    finished = await running
            except Killed as killed:
                executed = _cut(substitute(code), world.limits.preview_chars)
                raise StepStopped(_outputs(killed.finished, executed, ok=False)) from None
        success = finished.exit_code == 0 or inputs.continue_on_error
        ok = success or context.config.get(ANY_EXIT) is True
        outputs = _outputs(finished, _cut(substitute(code), world.limits.preview_chars), ok=success)
        if changed:
            outputs["changed_files"] = list(changed[:CHANGES_LISTED])
        specs = context.config.get("outputs")
        if specs:
            outputs |= read_outputs(
                specs,
                world=world,
                directory=directory,
                environment=environment,
                succeeded=finished.exit_code == 0,
            )
        result = StepResult(outputs, ok=ok, message=None if finished.exit_code == 0 else _message(finished))
        output_format = context.config.get(OUTPUT_FORMAT)
        if output_format is None:
            return result
        return _with_data(result, to_text(output_format), finished, world)

    def ask(self, inputs: ShellInputs) -> Question:
        seconds = inputs.timeout
        whole = int(seconds) if seconds == int(seconds) else seconds
        parameters: dict[str, Value] = {"command": inputs.command, "timeout": whole}
        where = ""
        if inputs.working_dir:
            parameters["working_dir"] = inputs.working_dir
            where += " in parameters.working_dir"
        if inputs.env:
            parameters["env"] = dict(inputs.env)
            where += " with parameters.env added to its environment"
        how = "in a shell"
        if not isinstance(inputs.shell, bool):
            parameters["shell"] = inputs.shell
            how = _how_to_run(inputs.shell)
        return Question(
            type="shell",
            instructions=f"Run parameters.command {how}{where}, once and unchanged. End it "
            f"after {seconds:g} seconds, exit_code 124. "
            'Submit {"stdout": "…", "stderr": "…", "exit_code": 0} as they actually were, also if it failed.',
            parameters=parameters,
            result_schema=RESULT_SCHEMA,
            describes_result=True,
        )

    def parse_result(self, inputs: ShellInputs, result: Any) -> StepResult:
        """Return the outputs; the step is ok whatever the exit code, unless `apply_config` says otherwise."""
        return StepResult(
            {
                "stdout": result.get("stdout") or "",
                "stderr": result.get("stderr") or "",
                "exit_code": int(result["exit_code"]),
                "duration": result.get("duration"),
                "success": result["exit_code"] == 0,
            }
        )

    def apply_config(self, result: StepResult, config: Mapping[str, Value]) -> StepResult:
        """Make an exit code other than 0 a failure, for a step with `on_error: fail`."""
        outputs = result.outputs
        if config.get(ANY_EXIT, True) or not outputs.get("exit_code"):
            return result
        message = exit_message(outputs["exit_code"], outputs["stdout"], outputs["stderr"])
        return replace(result, ok=False, message=message)

    def output_defaults(self, config: dict[str, Value]) -> dict[str, Value]:
        more = ("result",) if OUTPUT_FORMAT in config else ()
        return {**self.Outputs().model_dump(), **dict.fromkeys((*(config.get("outputs") or ()), *more))}

    def check_config(self, config: dict[str, Value]) -> list[ConfigProblem]:
        specs, output_format = config.get("outputs"), config.get(OUTPUT_FORMAT, FORMATS[0])
        found = [] if specs is None else check_output_specs(specs, set(ShellOutputs.model_fields))
        if output_format not in FORMATS:
            hint = did_you_mean(to_text(output_format), FORMATS, what="formats")
            found.append(((OUTPUT_FORMAT,), f"there is no output format {shown(output_format)}", hint))
        return found


def _how_to_run(shell: str | list[str]) -> str:
    if isinstance(shell, list):
        return f"as a file that you pass to `{' '.join(shell)}`"
    return f"as `{' '.join((*SHELLS[shell], '<parameters.command>'))}`"


def command_refusals(texts: tuple[str, ...], inputs: Mapping[str, Value]) -> Iterable[Refusal]:
    """Return the values that cannot stand in a command, as far as this is known before it runs."""
    if inputs.get("unsafe") is not None:
        return ()
    shell = inputs.get("shell", True)
    if isinstance(shell, str):
        shell = _TRUE_OR_FALSE.get(shell.lower(), shell)
    if isinstance(shell, str) and shell not in SHELLS:
        return ()  # it is known only at run time, or reported elsewhere
    return problems(texts, _shell_name(shell))


# The process


def _arguments(inputs: ShellInputs, code: Code, environment: dict[str, str], files: _ValueFiles) -> list[str]:
    """Return the program and its arguments; add the variables that they use to the environment."""
    if inputs.unsafe == "raw":
        code = Code((substitute(code),), ())
    name = _shell_name(inputs.shell)
    try:
        if inputs.shell is False:
            return quoted_words(code)
        script = quoted_script(code, shell=name, names=inputs.env, keep_in_file=files.add)
    except ExpressionError as error:
        raise StepError(error.message, hint=error.hint) from None
    environment |= script.variables
    text = script.text
    if not text.strip():
        raise StepError("the command is empty")
    words = list(inputs.shell) if isinstance(inputs.shell, list) else [*SHELLS[name]]
    program = shutil.which(words[0], path=environment.get("PATH"))
    if program is None:
        raise StepError(
            f"there is no program `{words[0]}` to run the command",
            hint="install it, or choose another `shell`",
        )
    words[0] = program
    if isinstance(inputs.shell, list):
        return [*words, files.add("script", text)]
    if len(text) * 4 > SCRIPT_BYTES and len(text.encode()) > SCRIPT_BYTES:
        return [*words[:-1], files.add("script", text)]
    return [*words, text]


def _shell_name(shell: Value) -> str:
    """Return the name that `expressions.shell` has for the interpreter of the command."""
    if isinstance(shell, list):
        return f"`{to_text(shell[0]) if shell else ''}`"
    return "" if shell is False else to_text(shell) if isinstance(shell, str) else "sh"


class _ValueFiles:
    """Stores values too large for a variable in scratch files while the command runs."""

    def __init__(self, world: World, key: str) -> None:
        self._world = world
        self._name = hashlib.sha256(key.encode()).hexdigest()[:16]
        self._paths: list[Path] = []

    def add(self, part: int | str, text: str) -> str:
        path = self._world.scratch_directory() / f".value-{self._name}-{part}"
        self._paths.append(path)
        self._world.write(path, text.encode(), permissions=0o600)
        return str(path)

    @contextmanager
    def deleted_at_end(self) -> Iterator[_ValueFiles]:
        try:
            yield self
        finally:
            for path in self._paths:
                with suppress(OSError):
                    path.unlink()


# The result


def _outputs(finished: Finished, command: str, *, ok: bool) -> dict[str, Value]:
    return {
        "exit_code": finished.exit_code,
        "stdout": finished.stdout,
        "stderr": finished.stderr,
        "success": ok,
        "command_executed": command,
        "execution_time_ms": round(finished.seconds * 1000, 3),
        "duration": round(finished.seconds, 6),
        "truncated": finished.truncated,
    }


def _with_data(result: StepResult, output_format: str, finished: Finished, world: World) -> StepResult:
    """Add the parsed output to a result.

    A command that succeeded but printed another format has failed, because later steps would have no data.
    """
    try:
        data = _data(output_format, finished, world)
    except StepError as error:
        outputs = result.outputs | {"success": False, "result": None}
        message = f"{error.message}; {error.hint}" if error.hint else error.message
        return StepResult(outputs, ok=False, message=message if result.ok else result.message)
    return replace(result, outputs=result.outputs | {"result": data})


def _data(output_format: str, finished: Finished, world: World) -> Value:
    if finished.truncated and output_format != "text":
        most, setting = world.limits.captured_bytes, world.limits.setting("captured_bytes")
        raise StepError(
            f"the command printed more than the limit of {most} bytes, so its output cannot be read as "
            f"{output_format}",
            hint=f"raise {setting}, or print less",
        )
    return formatted(finished.stdout, output_format)


def _message(finished: Finished) -> str:
    if finished.signal is None:
        return exit_message(finished.exit_code, finished.stdout, finished.stderr)
    message = f"Command was ended by signal {finished.signal} ({_signal_name(finished.signal)})"
    return _with_last_line(message, finished.stdout, finished.stderr)


def exit_message(exit_code: int, stdout: str, stderr: str) -> str:
    """Return how a command failed, with the last line that it printed."""
    return _with_last_line(f"Command exited with code {exit_code}", stdout, stderr)


def _with_last_line(message: str, stdout: str, stderr: str) -> str:
    printed = (stderr[-_LAST_CHARS:].strip() or stdout[-_LAST_CHARS:].strip()).splitlines()
    return f"{message}: {_cut(printed[-1].strip(), 200)}" if printed else message


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


# Outputs in files, declared on the block: {coverage: {type: float, path: $SCRATCH/coverage.txt}}

TYPES = {
    "string": "string",
    "str": "string",
    "int": "integer",
    "integer": "integer",
    "float": "number",
    "number": "number",
    "bool": "boolean",
    "boolean": "boolean",
    "json": "json",
    "list": "list",
    "dict": "object",
    "object": "object",
}
KEYS = ("type", "path", "description", "required", "unsafe")
_YES = frozenset({"true", "1", "yes"})
_NO = frozenset({"false", "0", "no"})
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)\})")
_EXAMPLE = "for example {type: int, path: $SCRATCH/count.txt}"


def check_output_specs(specs: Value, taken: set[str]) -> list[ConfigProblem]:
    """Return the problems of declared outputs: (path, message, hint) each. `taken`: names in use."""
    if not isinstance(specs, dict):
        return [(("outputs",), f"outputs must be an object, not {kind_of(specs)}", _EXAMPLE)]
    problems: list[ConfigProblem] = []
    for name, spec in specs.items():
        at = ("outputs", name)
        if name in taken:
            problems.append((at, f"'{name}' is an output of every Shell block", "choose another name"))
        if not isinstance(spec, dict):
            problems.append((at, f"the output '{name}' must be an object, not {kind_of(spec)}", _EXAMPLE))
            continue
        for key in spec:
            if key not in KEYS:
                problems.append(
                    ((*at, key), f"the output '{name}' has an unknown key '{key}'", did_you_mean(key, KEYS))
                )
        if not isinstance(spec.get("path"), str) or not spec["path"].strip():
            problems.append((at, f"the output '{name}' needs a path", _EXAMPLE))
        kind = spec.get("type", "string")
        if not isinstance(kind, str) or kind not in TYPES:
            hint = did_you_mean(str(kind), TYPES, what="types are")
            problems.append(((*at, "type"), f"the output '{name}' has an unknown type '{kind}'", hint))
        for flag in ("required", "unsafe"):
            if not isinstance(spec.get(flag, True), bool):
                message = f"'{flag}' of the output '{name}' must be true or false"
                problems.append(((*at, flag), message, f"{flag}: true"))
    return problems


def read_outputs(
    specs: Mapping[str, Any],
    *,
    world: World,
    directory: Path,
    environment: Mapping[str, str],
    succeeded: bool,
) -> dict[str, Value]:
    """Return the declared outputs. If the command failed, missing and invalid ones are null."""
    values: dict[str, Value] = {}
    for name, spec in specs.items():
        try:
            values[name] = _read_output(name, spec, world, directory, environment)
        except StepError:
            if succeeded:
                raise
            values[name] = None
    return values


def _read_output(
    name: str, spec: Mapping[str, Any], world: World, directory: Path, environment: Mapping[str, str]
) -> Value:
    path = _checked_path(name, spec, world, directory, environment)
    hint = f"set {world.limits.setting('file_bytes')} to allow larger ones"
    content = world.read(path, most=world.limits.file_bytes, limit_hint=hint)
    if content is None:
        if not spec.get("required", True):
            return None
        raise StepError(
            f"the output '{name}' is missing: the command created no file {path}",
            hint="check the path, or set required: false if the file is optional",
        )
    try:
        return _typed(content.decode("utf-8").strip(), TYPES[spec.get("type", "string")])
    except ValueError:
        text = shown(content.decode("utf-8", "replace").strip())
        kind = spec.get("type", "string")
        raise StepError(f"the output '{name}' must be of type {kind}, but {path} contains {text}") from None


def _checked_path(
    name: str, spec: Mapping[str, Any], world: World, directory: Path, environment: Mapping[str, str]
) -> Path:
    text = _VARIABLE.sub(lambda found: environment.get(found[1] or found[2], found[0]), spec["path"])
    path = directory / text
    if path.is_symlink():
        raise Forbidden(f"the output '{name}' must not be a symbolic link: {path}")
    resolved = Path(os.path.realpath(path))
    if world.in_scratch(path):
        return resolved
    if spec.get("unsafe", False):
        return world.path_for_reading(str(path))
    hint = "put it into $SCRATCH, or set unsafe: true on the output"
    if os.path.isabs(text):
        raise Forbidden(f"the output '{name}' has an absolute path: {text}", hint=hint)
    if not resolved.is_relative_to(os.path.realpath(directory)):
        raise Forbidden(f"the output '{name}' is outside the working directory: {resolved}", hint=hint)
    return resolved


def _typed(text: str, kind: str) -> Value:
    """Parse the text of an output. Raises ValueError if it is not of that kind."""
    if kind == "string":
        return text
    if kind == "integer":
        return int(text)
    if kind == "number":
        number = float(text)
        if number - number != 0:  # infinity and NaN are not valid JSON
            raise ValueError(text)
        return number
    if kind == "boolean":
        if text.lower() in _YES:
            return True
        if text.lower() in _NO:
            return False
        raise ValueError(text)
    value = from_json(text)
    if kind != "json" and kind_of(value) != kind:
        raise ValueError(text)
    return value
