"""The settings of MCP over HTTP: the address, who may connect, and limits of connections.

    WORKFLOWS_HTTP_ADDRESS         host and port; if set, `serve` serves HTTP there
    WORKFLOWS_HTTP_TOKEN           clients must send it: Authorization: Bearer …
    WORKFLOWS_HTTP_TOKENS          named tokens with roles, as JSON:
                                   {"ada": {"token": "…", "role": "approver"}, "bot": "…"}
    WORKFLOWS_HTTP_HOSTS           more host names of the server, by comma    [http] hosts
    WORKFLOWS_HTTP_CONNECTIONS     connections that are open at once          [http] connections
    WORKFLOWS_HTTP_HEADER_SECONDS  time for the headers of a request          [http] header_seconds
    WORKFLOWS_HTTP_BODY_SECONDS    time for the body of a request             [http] body_seconds

The address cannot be set in a file. Every process of a directory reads the file, so a client that starts a
server for stdio would get a server that listens on HTTP instead.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from workflows_mcp.errors import RequestError
from workflows_mcp.values import did_you_mean, from_json

PREFIX = "WORKFLOWS_HTTP_"
NAMES = ("address", "token", "tokens", "hosts", "connections", "header_seconds", "body_seconds")
_ENVIRONMENT_ONLY = {
    "address": "the address must not be set in a file",
    "token": "the token must not be set in a file",
    "tokens": "tokens must not be set in a file",
}
_ADDRESS = re.compile(r"(?:\[(?P<six>[0-9A-Fa-f:.]+)\]|(?P<host>[\w.-]*))(?::(?P<port>[0-9]+))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Address:
    host: str
    port: int
    """0: any free port."""

    def __str__(self) -> str:
        return f"{in_url(self.host)}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        return is_loopback(self.host)


def is_loopback(host: str) -> bool:
    """Return whether a host is always this machine; other names than localhost may resolve differently."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


DEFAULT = Address("127.0.0.1", 8000)


ROLES = ("agent", "approver")
"""What the user of a token may do: `approver` also decides at gates."""


@dataclass(frozen=True, slots=True)
class NamedToken:
    token: str = field(repr=False)
    role: str = ROLES[0]


@dataclass(frozen=True, slots=True)
class HttpSettings:
    address: Address | None = None
    """None: serve MCP over stdin and stdout."""
    token: str | None = field(default=None, repr=False)
    hosts: tuple[str, ...] = ()
    connections: int = 1000
    header_seconds: float = 20.0
    body_seconds: float = 120.0
    tokens: Mapping[str, NamedToken] = field(default_factory=dict, repr=False)
    """Further tokens, by the names of their users."""


def in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def read_address(key: str, value: Any) -> Address:
    """Read HOST:PORT, HOST or PORT."""
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
                hint=f"set {PREFIX}{name.upper()} in the environment, and remove http.{name}",
            )
    address = in_environment.get("address", "").strip()
    token = in_environment.get("token", "").strip()
    given = {**in_files, **in_environment}
    return HttpSettings(
        address=read_address(f"{PREFIX}ADDRESS", address) if address else None,
        token=_token(token) if token else None,
        tokens=_tokens(in_environment.get("tokens", "")),
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
    """Check the token; the error does not show it."""
    if not (token.isascii() and token.isprintable() and " " not in token):
        raise RequestError(f"{PREFIX}TOKEN must be one line of printable ASCII without spaces")
    return token


def _tokens(text: str) -> dict[str, NamedToken]:
    """Read named tokens from JSON; errors show no token."""
    name = f"{PREFIX}TOKENS"
    try:
        given = from_json(text) if text.strip() else {}
    except ValueError:
        given = None
    if not isinstance(given, dict):
        raise RequestError(
            f"{name} must be a JSON object", hint='e.g. {"ada": {"token": "…", "role": "approver"}}'
        )
    found: dict[str, NamedToken] = {}
    for user, about in given.items():
        entry = {"token": about} if isinstance(about, str) else about
        if not isinstance(entry, dict) or not isinstance(entry.get("token"), str) or not entry["token"]:
            raise RequestError(
                f"{name}: '{user}' needs a token", hint='write {"token": "…", "role": "agent"}'
            )
        role = entry.get("role", ROLES[0])
        if role not in ROLES:
            raise RequestError(f"{name}: '{user}' has an unknown role", hint=did_you_mean(str(role), ROLES))
        found[user] = NamedToken(_token(entry["token"]), role)
    if len({it.token for it in found.values()}) != len(found):
        raise RequestError(f"{name}: two names have the same token", hint="give each its own")
    return found


def _hosts(value: Any) -> tuple[str, ...]:
    given = value.split(",") if isinstance(value, str) else value
    if not isinstance(given, list | tuple) or not all(isinstance(it, str) for it in given):
        raise RequestError(f"the setting 'http.hosts' must be host names, separated by commas, not {value!r}")
    hosts = tuple(it.strip().lower() for it in given if it.strip())
    for host in hosts:
        if not re.fullmatch(r"[\w.-]+|\[[0-9a-f:.]+\]", host, re.ASCII):
            raise RequestError(
                f"the setting 'http.hosts' has {host!r}, which is not a host name",
                hint="use names without http:// and port, e.g. workflows.example.org",
            )
    return hosts
