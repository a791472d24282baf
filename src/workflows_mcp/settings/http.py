"""Where MCP is served over HTTP, and to whom.

    WORKFLOWS_HTTP_ADDRESS   host and port; set: `serve` serves HTTP there
    WORKFLOWS_HTTP_TOKEN     what clients must send: Authorization: Bearer …
    WORKFLOWS_HTTP_HOSTS     more names by which clients reach it, by comma    [http] hosts
    WORKFLOWS_HTTP_CONNECTIONS     how many connections are open at once      [http] connections
    WORKFLOWS_HTTP_HEADER_SECONDS  how long the head of a request may take    [http] header_seconds
    WORKFLOWS_HTTP_BODY_SECONDS    how long the body of a request may take    [http] body_seconds

Where a process listens is a matter of how it is started: in a file, which every process of a directory reads,
the address would turn the server that a client has started for stdio into one that it cannot hear.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from workflows_mcp.errors import RequestError
from workflows_mcp.values import did_you_mean

PREFIX = "WORKFLOWS_HTTP_"
NAMES = ("address", "token", "hosts", "connections", "header_seconds", "body_seconds")
_ENVIRONMENT_ONLY = {
    "address": "where a server listens does not belong into a file",
    "token": "a token does not belong into a file",
}
_ADDRESS = re.compile(r"(?:\[(?P<six>[0-9A-Fa-f:.]+)\]|(?P<host>[\w.-]*))(?::(?P<port>[0-9]+))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Address:
    host: str
    port: int
    """0: any that is free."""

    def __str__(self) -> str:
        return f"{in_url(self.host)}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Whether nobody but this machine can reach it."""
        return is_loopback(self.host)


def is_loopback(host: str) -> bool:
    """Whether it can be nothing but this machine. A name may come to mean something else."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


DEFAULT = Address("127.0.0.1", 8000)


@dataclass(frozen=True, slots=True)
class HttpSettings:
    address: Address | None = None
    """None: MCP is served over stdin and stdout."""
    token: str | None = field(default=None, repr=False)
    hosts: tuple[str, ...] = ()
    connections: int = 1000
    header_seconds: float = 20.0
    body_seconds: float = 120.0


def in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def read_address(key: str, value: Any) -> Address:
    """HOST:PORT, or either alone."""
    text = str(value).strip()
    found = _ADDRESS.fullmatch(f":{text}" if text.isdecimal() else text)
    port = int(found["port"] or DEFAULT.port) if found else -1
    if found is None or not 0 <= port < 65536:
        raise RequestError(f"{key} must be HOST:PORT, not {value!r}", hint=f"e.g. {DEFAULT}, or :0")
    return Address(found["six"] or found["host"] or DEFAULT.host, port)


def read_http(in_files: Mapping[str, Any], in_environment: Mapping[str, str]) -> HttpSettings:
    for name in (*in_files, *in_environment):
        if name not in NAMES:
            hint = did_you_mean(name, NAMES)
            raise RequestError(f"unknown setting 'http.{name}'", hint=hint)
        if name in in_files and name in _ENVIRONMENT_ONLY:
            raise RequestError(
                _ENVIRONMENT_ONLY[name],
                hint=f"set {PREFIX}{name.upper()} in the environment, and take http.{name} out",
            )
    address = in_environment.get("address", "").strip()
    token = in_environment.get("token", "").strip()
    given = {**in_files, **in_environment}
    return HttpSettings(
        address=read_address(f"{PREFIX}ADDRESS", address) if address else None,
        token=_token(token) if token else None,
        hosts=_hosts(given.get("hosts", ())),
        connections=int(_positive("connections", given, int)),
        header_seconds=_positive("header_seconds", given, float),
        body_seconds=_positive("body_seconds", given, float),
    )


def _positive(name: str, given: Mapping[str, Any], kind: type[float]) -> float:
    raw = given.get(name, "")
    if raw == "":
        return float(getattr(HttpSettings(), name))
    try:
        value = kind(raw)
    except (TypeError, ValueError, OverflowError):
        value = 0
    if isinstance(raw, bool) or not 0 < value < 1e9:
        raise RequestError(f"the setting 'http.{name}' must be a number above 0, not {raw!r}")
    return value


def _token(token: str) -> str:
    """What is wrong with it is said without showing it."""
    if not (token.isascii() and token.isprintable() and " " not in token):
        raise RequestError(f"{PREFIX}TOKEN must be one line of letters, digits and signs")
    return token


def _hosts(value: Any) -> tuple[str, ...]:
    given = value.split(",") if isinstance(value, str) else value
    if not isinstance(given, list | tuple) or not all(isinstance(it, str) for it in given):
        raise RequestError(f"the setting 'http.hosts' must be names, separated by commas, not {value!r}")
    hosts = tuple(it.strip().lower() for it in given if it.strip())
    for host in hosts:
        if not re.fullmatch(r"[\w.-]+|\[[0-9a-f:.]+\]", host, re.ASCII):
            raise RequestError(
                f"the setting 'http.hosts' has {host!r}, which is no name of a host",
                hint="names alone, without http:// and port, e.g. workflows.example.org",
            )
    return hosts
