"""Decides which tools of its client an agent may use while a step is pending.

    use = ToolUse("Bash", {"command": "pytest -q && rm -rf build"}, directory="/src")
    not_allowed(("Edit", "Bash(pytest:*)"), use)          # "`rm -rf build` is not allowed"
    not_allowed(("Edit", "Bash(pytest:*)"), ToolUse("Read", {"file_path": "a.py"}))     # ""
    forbidden(ToolUse("Bash", {"command": "workflows-mcp answer wf_1 yes"}), store)     # why it never is

The patterns of `allow_tools` are those of Claude Code's permissions. A shell command is allowed if every
command in it is: those in pipelines, lists, substitutions and functions too. The scanner of `expressions/`
finds them. What it cannot read is not allowed.

This holds back an agent that works with the tools of its client. A program that an allowed command starts can
do what the user can do: docs/process.md says so.
"""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from workflows_mcp.errors import ExpressionError
from workflows_mcp.expressions import scan

ALWAYS_ALLOWED = frozenset(
    (
        "AskUserQuestion",
        "BashOutput",
        "EnterPlanMode",
        "ExitPlanMode",
        "KillBash",
        "KillShell",
        "ListAgents",
        "ReportFindings",
        "TaskCreate",
        "TaskGet",
        "TaskList",
        "TaskOutput",
        "TaskStop",
        "TaskUpdate",
        "TodoRead",
        "TodoWrite",
        "ToolSearch",
        "close_agent",
        "get_goal",
        "request_user_input",
        "update_goal",
        "update_plan",
        "wait_agent",
    )
)
"""Tools that ask the user, keep a list of what is to do, find other tools, or wait for what was started."""
GROUPS: Mapping[str, frozenset[str]] = {
    "Bash": frozenset({"Bash", "exec_command", "local_shell", "shell", "shell_command"}),
    "Edit": frozenset({"Edit", "MultiEdit", "NotebookEdit", "Write", "apply_patch"}),
    "Read": frozenset(
        {
            "Glob",
            "Grep",
            "LS",
            "ListMcpResourcesTool",
            "NotebookRead",
            "Read",
            "ReadMcpResourceTool",
            "list_mcp_resource_templates",
            "list_mcp_resources",
            "read_mcp_resource",
            "view_image",
        }
    ),
    "Agent": frozenset({"Agent", "Task", "send_input", "spawn_agent"}),
}
"""A name in `allow_tools` that stands for several tools, in the clients that have them."""
_ALIASES = {"Task": "Agent", "Write": "Edit", "apply_patch": "Edit"}
_PATTERN = re.compile(r"\s*([^()\s]+)\s*(?:\((.*)\)\s*)?", re.S)
_PREFIX = re.compile(r"\Amulti_agent_v\d+(?:__)?")
"""What Codex puts before the names of its tools for sub-agents."""
_HARMLESS_COMMANDS = frozenset("cd pwd echo printf true false : test [ [[ for select".split())  # noqa: SIM905
"""Commands that change nothing but the shell that they run in. What they write is checked by its file."""
_HARMLESS_FILES = re.compile(r"/dev/(?:null|stdout|stderr|tty|fd/[0-9]+)")
_PATCHED = re.compile(r"^\*\*\* (?:(?:Add|Update|Delete) File|Move to): (.+?)\s*$", re.M)
_PATH_KEYS = ("file_path", "notebook_path", "path")


@dataclass(frozen=True)
class ToolUse:
    """A call of a tool that an agent wants to make."""

    tool: str
    input: Mapping[str, Any]
    directory: str = ""
    """The working directory of the agent, where its relative paths start."""
    root: str = ""
    """Where the paths of patterns start, if that is another directory: the workspace."""

    @property
    def name(self) -> str:
        return _PREFIX.sub("", self.tool)

    @property
    def group(self) -> str:
        return next((group for group, names in GROUPS.items() if self.name in names), "")

    @cached_property
    def command(self) -> str:
        """The command of a shell."""
        given = next((self.input[key] for key in ("command", "cmd") if key in self.input), "")
        if isinstance(given, list):
            return " ".join(map(str, given))
        return given if isinstance(given, str) else ""

    @property
    def paths(self) -> Iterator[str]:
        """The files that it reads or writes, as far as its arguments name them."""
        for key in _PATH_KEYS:
            if isinstance(given := self.input.get(key), str):
                yield given
        for text in _texts(self.input):
            yield from _PATCHED.findall(text)

    @property
    def title(self) -> str:
        """The call in a few words, for a message."""
        if self.group == "Bash":
            return f"{self.name}({_short(self.command)})"
        path = next(self.paths, "")
        return f"{self.name}({_short(path)})" if path else self.name


# What a step allows


def not_allowed(patterns: Sequence[str], use: ToolUse) -> str:
    """Return why these patterns do not allow a call; empty if they do."""
    if use.name in ALWAYS_ALLOWED:
        return ""
    rules = [_Rule.of(it) for it in patterns]
    if use.group == "Bash":
        return _command_not_allowed(rules, use)
    if use.group == "Read" and not any(rule.group == "Read" for rule in rules):
        return ""  # a list that does not say what may be read does not limit it
    return "" if any(rule.allows(use) for rule in rules) else f"{use.title} is not allowed"


@dataclass(frozen=True)
class _Rule:
    tool: str
    detail: str | None

    @classmethod
    def of(cls, pattern: str) -> _Rule:
        found = _PATTERN.fullmatch(pattern)
        if found is None:
            return cls(pattern.strip(), None)
        detail = found[2].strip() if found[2] is not None else None
        return cls(found[1], None if detail in (None, "", "*", ":*") else detail)

    @property
    def group(self) -> str:
        name = _ALIASES.get(self.tool, self.tool)
        return name if name in GROUPS else ""

    def names(self, use: ToolUse) -> bool:
        """Whether it is about this tool, whatever the details."""
        if self.group:
            return use.group == self.group
        if self.tool.startswith("mcp__") and "*" not in self.tool and self.tool.count("__") == 1:
            return use.tool.startswith(f"{self.tool}__")
        return any(fnmatch.fnmatchcase(name, self.tool) for name in (use.tool, use.name))

    def allows(self, use: ToolUse) -> bool:
        if not self.names(use):
            return False
        if self.detail is None:
            return True
        if use.group in ("Edit", "Read"):
            paths = list(use.paths) or [use.directory]
            root = use.root or use.directory
            return all(path_matches(self.detail, _resolved(path, use.directory), root) for path in paths)
        if self.detail.startswith("domain:"):
            host = re.sub(r"\A[a-z]+://([^/?#]*@)?|[:/?#].*\Z", "", str(use.input.get("url", "")))
            return _host_matches(self.detail.removeprefix("domain:"), host)
        return any(fnmatch.fnmatchcase(text, self.detail) for text in _texts(use.input))

    def allows_command(self, text: str) -> bool:
        if self.group != "Bash":
            return self.tool == "*"
        if self.detail is None:
            return True
        if self.detail.endswith(":*"):
            prefix = self.detail.removesuffix(":*")
            return text == prefix or text.startswith(f"{prefix} ")
        if self.detail.endswith(" *") and text == self.detail.removesuffix(" *"):
            return True
        pattern = ".*".join(re.escape(part) for part in self.detail.split("*"))
        return re.fullmatch(pattern, text, re.S) is not None


def _command_not_allowed(rules: Sequence[_Rule], use: ToolUse) -> str:
    if any(rule.allows_command("") and rule.detail is None for rule in rules):
        return ""
    try:
        script = scan(use.command)
    except ExpressionError:
        return f"{use.title} cannot be read"
    for word in script.written:
        if _HARMLESS_FILES.fullmatch(word.text):
            continue
        writing = ToolUse("Write", {"file_path": word.text}, use.directory, use.root)
        if not any(rule.allows(writing) for rule in rules):
            return f"writing to {_short(word.text)} is not allowed"
    for command in script.commands:
        text = " ".join(word.text for word in command.words)
        if command.assignments:
            names = ", ".join(word.text.partition("=")[0] for word in command.assignments)
            return f"setting {names} for a command is not allowed"
        if not command.words or command.words[0].text in _HARMLESS_COMMANDS:
            continue
        if command.words[0].text == "apply_patch":
            patch = ToolUse("apply_patch", {"input": use.command}, use.directory, use.root)
            if any(rule.allows(patch) for rule in rules):
                continue
        if not any(rule.allows_command(text) for rule in rules):
            return f"`{_short(text)}` is not allowed"
    return ""


def path_matches(pattern: str, path: str, root: str) -> bool:
    """Whether a path fits a pattern such as `src/**`, `/abs/*.py` or `~/notes/**`.

    A pattern without a slash fits the name of a file at any depth, as in .gitignore.
    """
    whole = _resolved(path, root)
    if "/" not in pattern.rstrip("/"):
        return any(fnmatch.fnmatchcase(part, pattern.rstrip("/")) for part in whole.split("/"))
    pattern = re.sub(r"\A//", "/", pattern)
    pattern = os.path.join(os.path.realpath(root or "."), os.path.expanduser(pattern.removeprefix("./")))
    parts = re.split(r"(/\*\*\Z|\*\*/?|\*|\?)", pattern)
    wild = {"/**": "(?:/.*)?", "**": ".*", "**/": "(?:.*/)?", "*": "[^/]*", "?": "[^/]"}
    return re.fullmatch("".join(wild.get(part) or re.escape(part) for part in parts), whole, re.S) is not None


def _host_matches(pattern: str, host: str) -> bool:
    return fnmatch.fnmatchcase(host.lower(), pattern.lower())


# What no agent may do while a run of its conversation has not ended

_OWN_COMMANDS = ("answer", "budget", "trust", "hook")
"""Our commands by which an agent could pass its own gates, limits or checks."""
_PROGRAM = re.compile(r"workflows[-_]mcp|WORKFLOWS_MCP_COMMAND")
_OWN_COMMAND = re.compile(rf"(?:{_PROGRAM.pattern}).*\b(?P<name>{'|'.join(_OWN_COMMANDS)})\b", re.S)
_OWN_CODE = re.compile(
    r"python[\d.]*\b.*\bworkflows_mcp\.(?:runs|engines|machine|settings)|\bimport\s+workflows_mcp\b", re.S
)
_SWITCH = re.compile(r"\b(?:WORKFLOWS_HOOKS|disableAllHooks)\b")
_STORE_FILE = re.compile(r"\bruns\.db\b")
_KILL = re.compile(r"\b(?:kill|pkill|killall)\b")
_QUOTES = re.compile(r"['\"\\]")
_CLIENT_SETTINGS = re.compile(r"/\.(?:claude|codex)(?:/|\Z)")


@dataclass(frozen=True)
class Store:
    """Where runs are stored, which agents must not touch."""

    directories: tuple[str, ...]
    """The data directory, and other places of this server, as absolute paths without links."""
    free: tuple[str, ...] = ()
    """Directories below them that agents may use: scratch files of steps, the workspace."""
    processes: tuple[int, ...] = ()
    """The servers."""

    def holds(self, path: str, directory: str = "") -> bool:
        whole = _resolved(path, directory)
        return _is_below(whole, self.directories) and not _is_below(whole, self.free)

    def is_named_in(self, text: str) -> str:
        """Return the directory that a command names, in the spellings that can be seen."""
        home = os.path.expanduser("~")
        for place in self.directories:
            spellings = [place]
            if place.startswith(f"{home}/"):
                rest = place.removeprefix(home)
                spellings += [f"~{rest}", f"$HOME{rest}", f"${{HOME}}{rest}"]
            for spelling in spellings:
                for found in re.finditer(rf"{re.escape(spelling)}(?![\w.-])(?P<rest>[^\s;&|]*)", text):
                    if not _is_below(os.path.normpath(place + found["rest"]), self.free):
                        return place
        return ""


def forbidden(use: ToolUse, store: Store) -> str:
    """Return why an agent may not make this call while it has a run; empty if it may."""
    if use.group == "Bash":
        return _forbidden_command(use, store)
    if use.group == "Read":
        return ""
    for path in (*use.paths, *(text for text in _texts(use.input) if "/" in text and "\n" not in text)):
        if store.holds(path, use.directory):
            return "it would change the store of runs"
        settings = _CLIENT_SETTINGS.search(_resolved(path, use.directory))
        if settings and any(_SWITCH.search(text) for text in _texts(use.input)):
            return "it would switch off the hooks"
    return ""


def _forbidden_command(use: ToolUse, store: Store) -> str:
    text = _QUOTES.sub("", use.command)
    if found := _OWN_COMMAND.search(text):
        return f"`workflows-mcp {found['name']}` is for the user"
    if _OWN_CODE.search(text):
        return "the code of the workflow server is not for agents to call"
    if _SWITCH.search(text):
        return "it would switch off the hooks"
    if place := store.is_named_in(text):
        return f"{place} belongs to the workflow server"
    if _STORE_FILE.search(text):
        return "runs.db is the store of runs"
    if _KILL.search(text) and (
        _PROGRAM.search(text) or any(re.search(rf"\b{it}\b", text) for it in store.processes)
    ):
        return "it would end the workflow server"
    try:
        words = [word.text for it in scan(use.command).commands for word in (*it.words, *it.assignments)]
    except ExpressionError:
        words = text.split()
    # A relative path is seen where it starts at the working directory, as in `cd ..`
    named = (part for word in words for part in (word, word.partition("=")[2]) if "/" in part or part == "..")
    if any(store.holds(path, use.directory) for path in named):
        return "it names the store of runs"
    return ""


def _texts(value: Any) -> Iterator[str]:
    """Every text in the arguments of a tool."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)


def _resolved(path: str, directory: str) -> str:
    try:
        return os.path.realpath(os.path.join(directory or ".", os.path.expanduser(path)))
    except (OSError, ValueError):
        return path


def _is_below(path: str, places: Sequence[str]) -> bool:
    return any(path == place or path.startswith(f"{place}/") for place in places)


def _short(text: str, most: int = 80) -> str:
    text = " ".join(text.split())
    return text if len(text) <= most else f"{text[: most - 1]}…"
