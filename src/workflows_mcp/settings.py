"""What a user can set, and where from: the environment over `workflows.toml` over the defaults.

Read once at start and handed down; no other module looks at the environment.

    WORKFLOWS_HOME             where runs are kept                    [home]
    WORKFLOWS_TEMPLATE_PATHS   directories of workflows, by comma     [template_paths]
    WORKFLOWS_ALLOWED_PATHS    what steps may touch beside the        [allowed_paths]
                               working directory, by comma
    WORKFLOWS_ALLOW_COMMANDS   false: no step may run a command       [allow_commands]
    WORKFLOWS_SECURITY_LEVEL   the highest level of steps that may    [security_level]
                               run: safe, trusted, privileged
    WORKFLOWS_DENIED_CAPABILITIES  what no step may do, by comma      [denied_capabilities]
    WORKFLOWS_SECRETS          the only secrets that workflows may    [secrets]
                               use, by comma
    WORKFLOWS_SECRETS_FILE     a file with secrets, NAME=value        [secrets_file]
    WORKFLOWS_TOOLSETS         which tools are served, by comma       [toolsets]
    WORKFLOWS_MCP_SERVERS      servers whose tools steps may call,    [mcp_servers.name]
                               as JSON
    WORKFLOWS_STATE_ACCESS     whether reading state that a step does [state_access]
                               not declare is refused: enforce, warn
    WORKFLOWS_LIMIT_<NAME>     any limit of limits.py                 [limits] name = …
    WORKFLOWS_LOG_LEVEL        what goes to stderr                    [log_level]
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from workflows_mcp.errors import RequestError
from workflows_mcp.limits import Limits
from workflows_mcp.values import did_you_mean, from_json

logger = logging.getLogger(__name__)

PREFIX = "WORKFLOWS_"
FILE_NAME = "workflows.toml"
TOOLSETS = ("core", "graph", "stateful", "memory")
DEFAULT_TOOLSETS = ("core",)

LEVELS = ("safe", "trusted", "privileged")
"""How much a step type may do, from the least to the most; `steps.base` says what each means."""
STATE_ACCESS = ("enforce", "warn")
CAPABILITIES = ("run_commands", "read_files", "write_files", "network", "modify_state")
"""What a step type may need of the world."""


@dataclass(frozen=True, slots=True)
class Settings:
    workspace: Path
    """The directory that relative paths of steps start from."""
    home: Path
    """Where runs are kept."""
    template_paths: tuple[Path, ...] = ()
    allowed_paths: tuple[Path, ...] = ()
    allow_commands: bool = True
    security_level: str = LEVELS[-1]
    denied_capabilities: frozenset[str] = frozenset()
    secrets: tuple[str, ...] | None = None
    """The only names of secrets that workflows may use; None: all."""
    secrets_file: Path | None = None
    toolsets: tuple[str, ...] = DEFAULT_TOOLSETS
    mcp_servers: Mapping[str, Any] = field(default_factory=dict)
    """MCP servers whose tools the server itself may call, by name; `policy.mcp_servers` reads them."""
    state_access: str = "enforce"
    """What holds for workflows of steps that do not say it themselves."""
    log_level: str = "WARNING"
    limits: Limits = field(default_factory=Limits)

    @property
    def store(self) -> Path:
        return self.home / "runs.db"

    @property
    def scratch(self) -> Path:
        return self.home / "scratch"

    @property
    def definition_directories(self) -> tuple[Path, ...]:
        """Where workflows of the user are looked for; a later one overrides an earlier one."""
        user = Path.home()
        return (
            user / ".aromcp" / "workflows",
            user / ".workflows",
            *self.template_paths,
            self.workspace / ".aromcp" / "workflows",
            self.workspace / ".workflows",
        )


def load_settings(environ: Mapping[str, str] | None = None, *, workspace: Path | None = None) -> Settings:
    environ = os.environ if environ is None else environ
    workspace = (workspace or Path.cwd()).resolve()
    given = _from_file(workspace / FILE_NAME)
    limits = dict(given.pop("limits", {}))
    for name, text in environ.items():
        if name.startswith(PREFIX + "LIMIT_"):
            limits[name[len(PREFIX) + 6 :].lower()] = text
        elif name.startswith(PREFIX) and (key := name[len(PREFIX) :].lower()) in _READERS:
            given[key] = text
        elif name.startswith(PREFIX) and not name.startswith(PREFIX + "SECRET_"):
            hint = did_you_mean(key, _READERS, what="settings")
            logger.warning("%s is no setting and is ignored; %s", name, hint)
    known = {key: _READERS[key](key, value) for key, value in given.items()}
    return Settings(
        workspace=workspace,
        home=known.pop("home", None) or _data_directory(environ),
        limits=_limits(limits),
        **known,
    )


def _from_file(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    import tomllib

    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RequestError(f"{path} is not valid TOML: {error}") from None
    unknown = [key for key in document if key not in _READERS and key != "limits"]
    if unknown:
        raise RequestError(
            f"{path}: unknown setting '{unknown[0]}'", hint=did_you_mean(unknown[0], [*_READERS, "limits"])
        )
    return document


def _limits(given: Mapping[str, Any]) -> Limits:
    kinds = {item.name: (float if isinstance(item.default, float) else int) for item in fields(Limits)}
    values: dict[str, Any] = {}
    for name, raw in given.items():
        if name not in kinds:
            raise RequestError(f"unknown limit '{name}'", hint=did_you_mean(name, kinds))
        try:
            values[name] = kinds[name](raw)
        except (TypeError, ValueError):
            raise RequestError(f"the limit '{name}' must be a number, not {raw!r}") from None
        if values[name] <= 0:
            raise RequestError(f"the limit '{name}' must be more than 0, not {raw!r}")
    return Limits(**values)


def _paths(_: str, value: str | list[str]) -> tuple[Path, ...]:
    parts = value.split(",") if isinstance(value, str) else value
    return tuple(Path(part.strip()).expanduser().resolve() for part in parts if part.strip())


def _path(_: str, value: str) -> Path | None:
    return Path(value).expanduser().resolve() if value else None


def _flag(key: str, value: str | bool) -> bool:
    if isinstance(value, bool):
        return value
    if value.lower() in ("1", "true", "yes", "on"):
        return True
    if value.lower() in ("0", "false", "no", "off"):
        return False
    raise RequestError(f"the setting '{key}' must be true or false, not {value!r}")


def _text(_: str, value: str) -> str:
    return value


def read_toolsets(key: str, value: Any) -> tuple[str, ...]:
    """Names of toolsets; `all` and `default` stand for several."""
    known = {"all": TOOLSETS, "default": DEFAULT_TOOLSETS, **{name: (name,) for name in TOOLSETS}}
    chosen: list[str] = []
    for name in _names(key, value):
        if name not in known:
            hint = did_you_mean(name, known, what="toolsets are")
            raise RequestError(f"the setting '{key}' has an unknown toolset '{name}'", hint=hint)
        chosen += known[name]
    return tuple(name for name in TOOLSETS if name in chosen) or DEFAULT_TOOLSETS


def _tables(key: str, value: Any) -> dict[str, Any]:
    """Tables by name, or JSON text of them."""
    if isinstance(value, str):
        try:
            value = from_json(value) if value.strip() else {}
        except ValueError as error:
            raise RequestError(f"the setting '{key}' is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise RequestError(f"the setting '{key}' must be a table for each name")
    return value


def _level(key: str, value: Any) -> str:
    level = str(value).strip().lower()
    if level not in LEVELS:
        raise RequestError(
            f"the setting '{key}' cannot be {value!r}", hint=did_you_mean(level, LEVELS, what="levels are")
        )
    return level


def _state_access(key: str, value: Any) -> str:
    access = str(value).strip().lower()
    if access not in STATE_ACCESS:
        hint = did_you_mean(access, STATE_ACCESS, what="it is one of")
        raise RequestError(f"the setting '{key}' cannot be {value!r}", hint=hint)
    return access


def _names(key: str, value: Any) -> tuple[str, ...]:
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, list) or not all(isinstance(part, str) for part in parts):
        raise RequestError(f"the setting '{key}' must be names, separated by commas, not {value!r}")
    return tuple(part.strip() for part in parts if part.strip())


def _capabilities(key: str, value: Any) -> frozenset[str]:
    names = _names(key, value)
    for name in names:
        if name not in CAPABILITIES:
            hint = did_you_mean(name, CAPABILITIES, what="capabilities are")
            raise RequestError(f"the setting '{key}' has an unknown capability '{name}'", hint=hint)
    return frozenset(names)


_READERS: dict[str, Any] = {
    "home": _path,
    "template_paths": _paths,
    "allowed_paths": _paths,
    "allow_commands": _flag,
    "security_level": _level,
    "denied_capabilities": _capabilities,
    "secrets": _names,
    "secrets_file": _path,
    "toolsets": read_toolsets,
    "mcp_servers": _tables,
    "state_access": _state_access,
    "log_level": _text,
}


def _data_directory(environ: Mapping[str, str]) -> Path:
    base = environ.get("XDG_DATA_HOME")
    return (Path(base).expanduser() if base else Path.home() / ".local" / "share") / "workflows-mcp"
