"""The settings of agents: command-line programs that perform steps of agents.

    [agents.reviewer]                         # performs the steps of @reviewer
    preset = "claude"
    args = ["--model", "opus"]

    [agents.helper]
    command = ["my-agent", "--ask", "{prompt}"]
    output = "text"                           # or json, claude, codex
    timeout = 600

`claude` and `codex` are presets. They are also agents without settings, if their program is on the PATH.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import Any, Literal

from workflows_mcp.errors import RequestError
from workflows_mcp.values import did_you_mean, kind_and_value

NAME = re.compile(r"[a-z0-9-]+")
KEYS = ("preset", "command", "args", "input", "output", "timeout", "env")
PROMPT = "{prompt}"
"""The place of the prompt in a command that takes it as an argument."""
SECONDS = 1800.0
INPUTS = ("stdin", "argument")
OUTPUTS = ("text", "json", "claude", "codex")
Output = Literal["text", "json", "claude", "codex"]


@dataclass(frozen=True, slots=True)
class AgentCommand:
    """A program that performs one step each time it is started."""

    name: str
    command: tuple[str, ...]
    in_argument: bool = False
    """Whether the prompt is an argument; otherwise it is the standard input."""
    output: Output = "text"
    """How its output is read: as words, as JSON, or as that of `claude` or `codex`."""
    timeout: float = SECONDS
    """Seconds after which it is killed."""
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    without: tuple[str, ...] = ()
    """Variables of this process that it must not inherit."""

    @property
    def program(self) -> str:
        """The name of its program: `claude` for /usr/bin/claude."""
        return PurePath(self.command[0]).name

    def arguments(self, prompt: str) -> list[str]:
        """Return the command line for a prompt."""
        if not self.in_argument:
            return list(self.command)
        if not any(PROMPT in part for part in self.command):
            return [*self.command, prompt]
        return [part.replace(PROMPT, prompt) for part in self.command]


PRESETS: Mapping[str, AgentCommand] = {
    "claude": AgentCommand(
        "claude",
        ("claude", "-p", "--output-format", "json"),
        output="claude",
        without=("CLAUDECODE", "CLAUDE_CODE_ENTRYPOINT"),  # it is no part of the session that started us
    ),
    "codex": AgentCommand("codex", ("codex", "exec", "--json", "--skip-git-repo-check"), output="codex"),
}


def read_agents(key: str, given: Mapping[str, Any]) -> dict[str, AgentCommand]:
    """Read the tables of agents. Raises RequestError."""
    return {name: _read(f"{key}.{name}", name, spec) for name, spec in given.items()}


def find_agent(
    name: str, agents: Mapping[str, AgentCommand], which: Callable[[str], str | None] = shutil.which
) -> AgentCommand | None:
    """Return the agent of the settings, or the preset whose program is on the PATH."""
    found = agents.get(name)
    if found is None and (preset := PRESETS.get(name)) is not None and which(preset.command[0]):
        return preset
    return found


def _read(where: str, name: str, spec: Any) -> AgentCommand:
    if NAME.fullmatch(name) is None:
        raise RequestError(
            f"the setting '{where}' has a name with other characters than a-z, 0-9 and '-'",
            hint="an agent @code-reviewer of a definition is agents.code-reviewer",
        )
    if not isinstance(spec, dict):
        raise RequestError(f"the setting '{where}' must be a table, not {kind_and_value(spec)}")
    for key in spec:
        if key not in KEYS:
            raise RequestError(f"unknown setting '{where}.{key}'", hint=did_you_mean(str(key), KEYS))
    preset = spec.get("preset", name if name in PRESETS and "command" not in spec else None)
    if preset is not None and preset not in PRESETS:
        hint = did_you_mean(str(preset), PRESETS)
        raise RequestError(f"the setting '{where}.preset' cannot be {preset!r}", hint=hint)
    if preset is None and "command" not in spec:
        hint = f'set a command, such as ["my-agent"], or a preset: {" or ".join(PRESETS)}'
        raise RequestError(f"the setting '{where}' has no command", hint=hint)
    base = PRESETS[preset] if preset is not None else AgentCommand(name, ())
    command = _words(f"{where}.command", spec["command"]) if "command" in spec else base.command
    if not command or not command[0]:
        raise RequestError(f"the setting '{where}.command' must name a program")
    command += _words(f"{where}.args", spec.get("args", []))
    return replace(
        base,
        name=name,
        command=command,
        in_argument=_in_argument(where, command, spec.get("input")),
        output=_one_of(f"{where}.output", OUTPUTS, spec.get("output", base.output)),
        timeout=_seconds(f"{where}.timeout", spec.get("timeout", base.timeout)),
        env=_variables(f"{where}.env", spec.get("env", {})),
    )


def _in_argument(where: str, command: tuple[str, ...], given: Any) -> bool:
    has_place = any(PROMPT in part for part in command)
    if given is None:
        return has_place
    in_argument: bool = _one_of(f"{where}.input", INPUTS, given) == "argument"
    if has_place and not in_argument:
        hint = f'remove {PROMPT}, or set input = "argument"'
        raise RequestError(f"the setting '{where}.command' has {PROMPT}, but input is stdin", hint=hint)
    return in_argument


def _one_of(where: str, words: tuple[str, ...], given: Any) -> Any:
    if given not in words:
        hint = did_you_mean(str(given), words, what="it is one of")
        raise RequestError(f"the setting '{where}' cannot be {given!r}", hint=hint)
    return given


def _words(where: str, given: Any) -> tuple[str, ...]:
    if not isinstance(given, list) or not all(isinstance(it, str) and "\0" not in it for it in given):
        raise RequestError(
            f"the setting '{where}' must be a list of texts: the program and its arguments",
            hint='for example ["my-agent", "--quiet"]; it is not a command of a shell',
        )
    return tuple(given)


def _seconds(where: str, given: Any) -> float:
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 < given < float("inf"):
        raise RequestError(f"the setting '{where}' must be seconds, more than 0, not {given!r}")
    return float(given)


def _variables(where: str, given: Any) -> dict[str, str]:
    if not isinstance(given, dict) or not all(isinstance(it, str) for it in given.values()):
        raise RequestError(f"the setting '{where}' must be a table of texts")  # its values may be secret
    return dict(given)
