"""Reads which MCP servers there are: from the settings, and from `.mcp.json` in the workspace.

    [mcp_servers.github]                            # workflows.toml
    command = "github-mcp-server"
    env = {GITHUB_TOKEN = "${GITHUB_TOKEN}"}

    {"mcpServers": {"search": {"url": "https://…/mcp"}}}     # .mcp.json, shared with other MCP clients

`${NAME}` and `${NAME:-default}` stand for environment variables, and are resolved when the server is used.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from workflows_mcp.errors import RequestError, StepError
from workflows_mcp.settings import is_loopback
from workflows_mcp.values import did_you_mean, from_json, kind_and_value, shown

FILE_NAME = ".mcp.json"
KEYS = ("command", "args", "env", "cwd", "url", "headers", "type")
NAME = re.compile(r"[\w.-]+")
_TRANSPORTS = ("stdio", "http", "streamable-http", "streamable_http")
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")


@dataclass(frozen=True, slots=True)
class McpServer:
    """A program to start, or an address to call."""

    name: str
    command: str = ""
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str = ""
    url: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def needs(self) -> str:
        """The capability that a step needs to use it."""
        return "network" if self.url else "run_commands"

    def filled(self, environ: Mapping[str, str]) -> McpServer:
        """The server with its environment variables resolved. Raises StepError if one is missing."""

        def value(found: re.Match[str]) -> str:
            name, default = found[1], found[2]
            if environ.get(name):
                return environ[name]
            if default is None:
                raise StepError(
                    f"the MCP server '{self.name}' needs the environment variable {name}, which is not set",
                    hint=f"set {name} for workflows-mcp, or write a default: ${{{name}:-…}}",
                )
            return default

        def fill(text: str) -> str:
            return _VARIABLE.sub(value, text)

        server = replace(
            self,
            command=fill(self.command),
            args=tuple(fill(argument) for argument in self.args),
            env={name: fill(text) for name, text in self.env.items()},
            cwd=fill(self.cwd),
            url=fill(self.url),
            headers={name: fill(text) for name, text in self.headers.items()},
        )
        server._refuse_headers_in_the_open()
        return server

    def _refuse_headers_in_the_open(self) -> None:
        """Raise StepError if headers, which may hold tokens, would be sent unencrypted."""
        parts = urlsplit(self.url)
        if self.headers and parts.scheme != "https" and not is_loopback(parts.hostname or ""):
            raise StepError(
                f"the MCP server '{self.name}' has headers, which are only sent over TLS or to this machine, "
                f"not to {parts.scheme}://{parts.netloc.rpartition('@')[2]}",
                hint="use an address that begins with https://",
            )


def servers_of(given: Mapping[str, Any]) -> dict[str, McpServer]:
    """The servers of the settings. Raises RequestError."""
    return {name: _read(name, spec, "mcp_servers", strict=True) for name, spec in given.items()}


def servers_in(workspace: Path) -> dict[str, McpServer]:
    """The servers of `.mcp.json`; keys of other clients are ignored. Raises RequestError."""
    path = workspace / FILE_NAME
    try:
        document = from_json(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, ValueError) as error:
        raise RequestError(f"{path} cannot be read: {error}") from None
    listed = document.get("mcpServers", {}) if isinstance(document, dict) else None
    if not isinstance(listed, dict):
        raise RequestError(f'{path} must be an object with "mcpServers", an object of servers by name')
    return {
        name: _read(name, spec, str(path), strict=False)
        for name, spec in listed.items()
        if not (isinstance(spec, dict) and spec.get("disabled") is True)
    }


def current_environment() -> dict[str, str]:
    return dict(os.environ)


def _read(name: str, spec: Any, source: str, *, strict: bool) -> McpServer:
    where = f"{source}: the server '{name}'"
    if not NAME.fullmatch(name):
        raise RequestError(f"{where} has a name with characters other than letters, digits, '_', '-' and '.'")
    if not isinstance(spec, dict):
        raise RequestError(f"{where} must be a table with command or url, not {kind_and_value(spec)}")
    unknown = [key for key in spec if key not in KEYS]
    if strict and unknown:
        raise RequestError(f"{where} has an unknown key '{unknown[0]}'", hint=did_you_mean(unknown[0], KEYS))
    server = McpServer(
        name,
        command=_text(where, spec, "command"),
        args=_texts(where, spec, "args"),
        env=_mapping(where, spec, "env"),
        cwd=_text(where, spec, "cwd"),
        url=_text(where, spec, "url"),
        headers=_mapping(where, spec, "headers"),
    )
    if bool(server.command) == bool(server.url):
        raise RequestError(f"{where} needs either a command (a program) or a url (an address)")
    transport = _text(where, spec, "type")
    if transport and transport not in _TRANSPORTS:
        raise RequestError(
            f"{where} is of type '{transport}', which is not supported",
            hint="supported types: stdio (a command) and http (the url of streamable HTTP)",
        )
    return server


def _text(where: str, spec: dict[str, Any], key: str) -> str:
    value = spec.get(key)
    if value is None or isinstance(value, str):
        return value or ""
    raise RequestError(f"{where}: '{key}' must be text, not {kind_and_value(value)}")


def _texts(where: str, spec: dict[str, Any], key: str) -> tuple[str, ...]:
    value = spec.get(key) or []
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return tuple(value)
    raise RequestError(f"{where}: '{key}' must be a list of texts, not {shown(value)}")


def _mapping(where: str, spec: dict[str, Any], key: str) -> dict[str, str]:
    value = spec.get(key) or {}
    if isinstance(value, dict) and all(isinstance(item, str) for item in value.values()):
        return dict(value)
    raise RequestError(f"{where}: '{key}' must be a table of texts")  # its values may be secret
