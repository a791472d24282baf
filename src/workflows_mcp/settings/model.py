"""The settings of a process, read once at its start.

The environment takes precedence over `workflows.toml`, which takes precedence over `workflows.yaml`. A
setting in a file that could widen what workflows may do is ignored until the user trusts the directory.

    WORKFLOWS_HOME             where runs are stored                  [home]
    WORKFLOWS_TEMPLATE_PATHS   directories of workflows, by comma     [template_paths]
    WORKFLOWS_ALLOWED_PATHS    directories that steps may use beside  [allowed_paths]
                               the working directory, by comma
    WORKFLOWS_ALLOW_COMMANDS   false: no step may run a command       [allow_commands]
    WORKFLOWS_SECURITY_LEVEL   the highest level of steps that may    [security_level]
                               run: safe, trusted, privileged
    WORKFLOWS_DENIED_CAPABILITIES  what no step may do, by comma      [denied_capabilities]
    WORKFLOWS_SECRETS          the only secrets that workflows may    [secrets]
                               use, by comma
    WORKFLOWS_SECRETS_FILE     a file with secrets, NAME=value        [secrets_file]
    WORKFLOWS_TOOLSETS         which tools are served, by comma       [toolsets]
    WORKFLOWS_READ_ONLY        true: only tools that read runs        [read_only]
    WORKFLOWS_TASK             the only task that is served           [task]
    WORKFLOWS_HTTP_<NAME>      where MCP is served over HTTP          [http] name = …
    WORKFLOWS_MCP_SERVERS      servers whose tools steps may call,    [mcp_servers.name]
                               as JSON
    WORKFLOWS_AGENTS           programs that perform steps of agents, [agents.name]
                               as JSON
    WORKFLOWS_STATE_ACCESS     reading state that a step does not     [state_access]
                               declare: enforce (refuse) or warn
    WORKFLOWS_ELICITATION      whose prompts the user is asked        [elicitation]
                               directly: workflow, always, never
    WORKFLOWS_APPROVERS        who may decide at gates: groups and    [approvers] name = […]
                               the people in each, as JSON
    WORKFLOWS_WORKFLOW_TOOLS   workflows that are served as tools:    [workflow_tools]
                               names, patterns, tag:NAME, by comma
    WORKFLOWS_HOOKS            off: the hooks of clients do nothing   [hooks]
    WORKFLOWS_ENGINE           where runs are stored: embedded,       [engine]
                               temporal
    WORKFLOWS_TEMPORAL_<NAME>  where the Temporal server is           [temporal] name = …
    WORKFLOWS_LIMIT_<NAME>     any limit of limits.py                 [limits] name = …
    WORKFLOWS_LOG_LEVEL        which log lines go to stderr           [log_level]
    WORKFLOWS_TRUST            directories whose files may set
                               anything, by comma
"""

from __future__ import annotations

import hashlib
import logging
import os
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from workflows_mcp.errors import RequestError
from workflows_mcp.limits import DEFAULT_LIMITS, Limits
from workflows_mcp.settings.files import TABLES, read_files
from workflows_mcp.settings.http import HttpSettings, is_loopback, read_http
from workflows_mcp.settings.trust import CHANGED, TRUSTED, trust_of
from workflows_mcp.settings.trust import VARIABLE as TRUST
from workflows_mcp.values import did_you_mean, from_json, is_whole, made_whole, to_json

if TYPE_CHECKING:
    from workflows_mcp.settings.agents import AgentCommand

logger = logging.getLogger(__name__)

PREFIX = "WORKFLOWS_"
_NOT_SETTINGS = frozenset({TRUST, "WORKFLOWS_AGENT", "WORKFLOWS_MCP_STEP"})
"""Variables that are read elsewhere: they say in which step or agent this process is."""
TOOLSETS = ("core", "graph", "stateful", "reactive", "memory", "debug")
DEFAULT_TOOLSETS = ("core",)

LEVELS = ("safe", "trusted", "privileged")
"""The security levels of step types, from the least to the most powerful."""
STATE_ACCESS = ("enforce", "warn")
ELICITATION = ("workflow", "always", "never")
"""Whether the user is asked directly: if the workflow says so, unless it says no, or never."""
HOOKS = ("on", "off")
"""Whether the hooks of clients hold an agent to its pending step."""
RENAMED_LIMITS = {"stored_bytes": "inline_bytes", "kept_runs": "max_ended_runs"}
"""Old names of limits, which still work with a notice."""
ENGINES = ("embedded", "temporal")
DEFAULT_HOST = "localhost:7233"
CAPABILITIES = ("run_commands", "read_files", "write_files", "network", "modify_state")
"""The accesses to the world that step types declare."""


@dataclass(frozen=True, slots=True)
class TemporalSettings:
    """How to reach the Temporal server, and what this process does for it."""

    host: str | None = None
    """None: a development server that we start."""
    namespace: str = "default"
    task_queue: str = "mcp-workflows"
    tls: bool | None = None
    """None: on if there is an API key or a certificate."""
    tls_ca: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    blobs: Path | None = None
    """A directory that all workers share, for large values; None: `blobs` in the home."""
    worker: bool = True
    """Whether this process runs a worker."""
    steps: bool = True
    """Whether that worker runs steps: a command that only reads runs must not start any."""
    api_key: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Settings:
    workspace: Path
    """The directory that relative paths of steps start from."""
    home: Path
    """The directory of the store of runs."""
    template_paths: tuple[Path, ...] = ()
    allowed_paths: tuple[Path, ...] = ()
    allow_commands: bool = True
    security_level: str = LEVELS[-1]
    denied_capabilities: frozenset[str] = frozenset()
    secrets: tuple[str, ...] | None = None
    """The only names of secrets that workflows may use; None: all."""
    secrets_file: Path | None = None
    toolsets: tuple[str, ...] = DEFAULT_TOOLSETS
    read_only: bool = False
    """Whether this process serves only tools that read runs, and runs no steps."""
    task: str = ""
    """The id of the only task (or run) that this server serves; empty: all."""
    http: HttpSettings = field(default_factory=HttpSettings)
    mcp_servers: Mapping[str, Any] = field(default_factory=dict)
    """MCP servers whose tools the server itself may call, by name."""
    agents: Mapping[str, AgentCommand] = field(default_factory=dict)
    """Programs that perform the steps of agents, by the name of the agent."""
    state_access: str = "enforce"
    """The default for stateful workflows that do not set it."""
    elicitation: str = ELICITATION[0]
    approvers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Who may decide at gates: groups, and the people in each."""
    workflow_tools: tuple[str, ...] = ()
    """The workflows that are served as tools: names, patterns of names, or `tag:` and a tag."""
    hooks: str = HOOKS[0]
    log_level: str = "WARNING"
    engine: str = ENGINES[0]
    temporal: TemporalSettings = field(default_factory=TemporalSettings)
    limits: Limits = field(default_factory=Limits)
    trusts: Callable[[Path], bool] = field(default=lambda _: False, repr=False, compare=False)
    """Whether the user trusts a directory as it is now; otherwise its `.mcp.json` is ignored."""

    @property
    def starts_runs(self) -> bool:
        """Whether clients of a server with these settings can start runs."""
        return not (self.read_only or self.task)

    @property
    def store(self) -> Path:
        return self.home / "runs.db"

    @property
    def scratch(self) -> Path:
        """The scratch files of the engine, which deletes those of runs that it does not know."""
        return self.home / ("scratch" if self.engine == ENGINES[0] else f"scratch-{self.engine}")

    @property
    def blobs(self) -> Path:
        return self.temporal.blobs or self.home / "blobs"

    @property
    def dev_server(self) -> Path:
        """The directory of the Temporal development server that we start."""
        return self.home / "temporal"

    @property
    def fingerprint(self) -> str:
        """A hash of the settings that decide what steps may do, and where.

        An interrupted run is recovered only by a process with the same fingerprint. No secret goes into it.
        """
        decisive = {
            "template_paths": [str(path) for path in self.template_paths],
            "allowed_paths": sorted(str(path) for path in self.allowed_paths),
            "allow_commands": self.allow_commands,
            "security_level": self.security_level,
            "denied_capabilities": sorted(self.denied_capabilities),
            "secrets": None if self.secrets is None else sorted(self.secrets),
            "secrets_file": None if self.secrets_file is None else str(self.secrets_file),
            "mcp_servers": {name: _where(it) for name, it in sorted(self.mcp_servers.items())},
        }
        if self.agents:
            decisive["agents"] = {name: it.program for name, it in sorted(self.agents.items())}
        return hashlib.blake2b(to_json(decisive).encode(), digest_size=8).hexdigest()

    @property
    def definition_directories(self) -> tuple[Path, ...]:
        """The directories of the user's workflows; a later one takes precedence."""
        user = Path.home()
        return (
            user / ".aromcp" / "workflows",
            user / ".workflows",
            *self.template_paths,
            self.workspace / ".aromcp" / "workflows",
            self.workspace / ".workflows",
        )


def _where(server: Any) -> str:
    """Return the program or address of an MCP server, without parts that may hold secrets."""
    given = server if isinstance(server, dict) else {}
    parts = urlsplit(str(given.get("url", "")))
    return f"{given.get('command', '')} {parts.hostname or ''}:{parts.path}"


def load_settings(
    environ: Mapping[str, str] | None = None, *, workspace: Path | None = None, engine: str | None = None
) -> Settings:
    """Load the settings; `engine` takes precedence over the environment and files."""
    environ = os.environ if environ is None else environ
    workspace = (workspace or Path.cwd()).resolve()
    trust = trust_of(environ)
    given = _read_files(workspace)
    untrusted = _needing_trust(given, workspace)
    if untrusted and (state := trust.state(workspace)) != TRUSTED:
        given = _without(given, untrusted)
        _warn_ignored(untrusted, workspace, state)
    limits_in_environment: dict[str, str] = {}
    limits = given.pop("limits", {})
    temporal = given.pop("temporal", {})
    _refuse_key_in_file(temporal)
    http: dict[str, str] = {}
    for name, text in environ.items():
        if name.startswith(PREFIX + "LIMIT_"):
            limits_in_environment[name[len(PREFIX) + 6 :].lower()] = text
        elif name.startswith(PREFIX + "TEMPORAL_"):
            temporal[name[len(PREFIX) + 9 :].lower()] = text
        elif name.startswith(PREFIX + "HTTP_"):
            http[name[len(PREFIX) + 5 :].lower()] = text
        elif name in _NOT_SETTINGS:
            continue
        elif name.startswith(PREFIX) and (key := name[len(PREFIX) :].lower()) in _READERS:
            given[key] = text
        elif name.startswith(PREFIX) and not name.startswith(PREFIX + "SECRET_"):
            hint = did_you_mean(key, _READERS, what="settings")
            logger.warning("%s is not a setting and is ignored; %s", name, hint)
    limits |= _rename_limits(limits_in_environment, lambda name: f"{PREFIX}LIMIT_{name.upper()}")
    if engine is not None:
        given["engine"] = engine
    http_settings = read_http(given.pop("http", {}), http)
    known = {key: _READERS[key](key, value) for key, value in given.items()}
    if "host" in temporal and "engine" not in known:
        logger.warning("temporal.host is set, but runs are stored locally: set engine = temporal to use it")
    for path in known.get("template_paths", ()):
        if not path.is_dir():
            logger.warning("template_paths: there is no directory %s", path)
    home = known.pop("home", None) or _data_directory(environ)
    for path, what in ((workspace, "the working directory"), (home, "the directory of runs (home)")):
        _require_utf8(path, what)
    return Settings(
        workspace=workspace,
        home=home,
        temporal=_temporal(temporal, environ.get("TEMPORAL_API_KEY")),
        limits=_limits(limits),
        http=http_settings,
        trusts=trust.covers,
        **known,
    )


def settings_needing_trust(directory: Path) -> list[str]:
    """Return the settings in the files of a directory that need trust. Raises RequestError."""
    directory = directory.resolve()
    return _needing_trust(_read_files(directory), directory)


def _read_files(directory: Path) -> dict[str, Any]:
    """Read the settings files of a directory, with old names of limits replaced."""
    settings = read_files(directory, _READERS)
    if "limits" in settings:
        settings["limits"] = _rename_limits(settings["limits"], lambda name: f"limits.{name}")
    return settings


def _rename_limits(limits: Mapping[str, Any], setting: Callable[[str], str]) -> dict[str, Any]:
    """Replace old names of limits; `setting` is how the user wrote the limit with a name."""
    renamed = dict(limits)
    for old, new in RENAMED_LIMITS.items():
        if old not in renamed:
            continue
        if new in renamed:
            message = f"'{setting(old)}' is the old name of '{setting(new)}'"
            raise RequestError(message, hint="set only the new one")
        renamed[new] = renamed.pop(old)
        _warn_renamed(setting(old), setting(new))
    return renamed


@lru_cache
def _warn_renamed(old: str, new: str) -> None:
    """Log the new name of a setting, once in a process."""
    logger.warning("the setting %s is deprecated: use %s", old, new)


def _needing_trust(given: Mapping[str, Any], workspace: Path) -> list[str]:
    found = []
    for key, value in given.items():
        if key in TABLES:
            found += [f"{key}.{name}" for name, raw in value.items() if not _is_free(key, name, raw)]
        elif not _WITHOUT_TRUST.get(key, _never)(_READERS[key](key, value), workspace):
            found.append(key)
    return found


def _is_free(table: str, name: str, raw: Any) -> bool:
    """Return whether a key of a table needs no trust; an invalid one is rejected later."""
    if table == "temporal":
        if name not in _TEMPORAL_READERS or name == "api_key":
            return True
        value = _TEMPORAL_READERS[name](f"temporal.{name}", raw) if raw != "" else None
        return name == "worker" and value is False
    if table == "http":
        read_http({name: raw}, {})
        return False
    kind = _LIMIT_KINDS.get(name)
    try:
        return kind is None or (
            name not in _DELETING | _HOLDING and kind(raw) <= getattr(DEFAULT_LIMITS, name)
        )
    except (TypeError, ValueError, OverflowError):
        return True


def _without(given: Mapping[str, Any], ignored: list[str]) -> dict[str, Any]:
    kept = {key: dict(value) if key in TABLES else value for key, value in given.items()}
    for place in ignored:
        key, _, name = place.partition(".")
        if name:
            del kept[key][name]
        else:
            del kept[key]
    return kept


def _warn_ignored(ignored: list[str], workspace: Path, state: str) -> None:
    why = "has changed since you trusted it" if state == CHANGED else "is not trusted"
    logger.warning(
        "%s %s; these settings of its files are ignored: %s. To use them, run: workflows-mcp trust %s",
        workspace,
        why,
        ", ".join(ignored),
        shlex.quote(str(workspace)),
    )


def _require_utf8(path: Path, what: str) -> None:
    """Reject a path that is not UTF-8: runs store it, and answers have it."""
    if not is_whole(str(path)):
        raise RequestError(
            f"the path of {what} is not UTF-8: {made_whole(str(path))}",
            hint="rename the directory, or use another one",
        )


def _temporal(given: Mapping[str, Any], shared_key: str | None) -> TemporalSettings:
    """Read the table `temporal`; `shared_key` is TEMPORAL_API_KEY, for a server that is not our own."""
    values: dict[str, Any] = {}
    for name, raw in given.items():
        if name not in _TEMPORAL_READERS:
            hint = did_you_mean(name, _TEMPORAL_READERS)
            raise RequestError(f"unknown setting 'temporal.{name}'", hint=hint)
        if raw != "":
            values[name] = _TEMPORAL_READERS[name](f"temporal.{name}", raw)
    if values.keys() & _OF_A_SERVER:
        values.setdefault("host", DEFAULT_HOST)
    if "host" in values:
        values.setdefault("api_key", _api_key("TEMPORAL_API_KEY", shared_key) if shared_key else None)
    settings = TemporalSettings(**values)
    if (settings.tls_cert is None) != (settings.tls_key is None):
        raise RequestError("temporal.tls_cert and temporal.tls_key must be set together")
    if settings.tls is False and (settings.tls_ca or settings.tls_cert):
        raise RequestError("temporal.tls is false, but certificates are set", hint="remove one or the other")
    if settings.api_key and settings.tls is False and not is_loopback(_host_name(settings.host)):
        raise RequestError(
            f"temporal.tls is false: an API key is not sent to {settings.host} unencrypted",
            hint="remove temporal.tls (with a key, TLS is the default), or unset the key",
        )
    return settings


def _host_name(host: str | None) -> str:
    return (host or DEFAULT_HOST).rpartition(":")[0].strip("[]")


def _refuse_key_in_file(temporal: Mapping[str, Any]) -> None:
    if "api_key" in temporal:
        raise RequestError(
            "an API key must not be set in a file",
            hint="set WORKFLOWS_TEMPORAL_API_KEY in the environment, and remove temporal.api_key",
        )


def _limits(given: Mapping[str, Any]) -> Limits:
    values: dict[str, Any] = {}
    for name, raw in given.items():
        if name not in _LIMIT_KINDS:
            raise RequestError(f"unknown limit '{name}'", hint=did_you_mean(name, _LIMIT_KINDS))
        try:
            values[name] = _LIMIT_KINDS[name](raw)
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
    word = str(value).lower()
    if word in ("1", "true", "yes", "on"):
        return True
    if word in ("0", "false", "no", "off"):
        return False
    raise RequestError(f"the setting '{key}' must be true or false, not {value!r}")


def _some_text(key: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise RequestError(f"the setting '{key}' must be text")
    return value.strip()


def _task(key: str, value: Any) -> str:
    """Read the id of a task; empty text sets none."""
    return "" if value == "" else _some_text(key, value)


def _api_key(key: str, value: Any) -> str:
    """Check a key; the error does not show it."""
    text = _some_text(key, value)
    if not (text.isascii() and text.isprintable() and " " not in text):
        raise RequestError(f"the setting '{key}' must be one line of printable ASCII without spaces")
    return text


def _place(key: str, value: Any) -> Path:
    return Path(_some_text(key, value)).expanduser().resolve()


def _host(key: str, value: Any) -> str:
    host = _some_text(key, value)
    name, _, port = host.rpartition(":")
    if not name or "/" in name or not port.isdecimal() or not 0 < int(port) < 65536:
        raise RequestError(
            f"the setting '{key}' must be host:port, not {host!r}", hint=f"e.g. {DEFAULT_HOST}"
        )
    return host


def read_toolsets(key: str, value: Any) -> tuple[str, ...]:
    """Read names of toolsets; `all` and `default` stand for several."""
    known = {"all": TOOLSETS, "default": DEFAULT_TOOLSETS, **{name: (name,) for name in TOOLSETS}}
    chosen: list[str] = []
    for name in read_names(key, value):
        if name not in known:
            hint = did_you_mean(name, known, what="toolsets are")
            raise RequestError(f"the setting '{key}' has an unknown toolset '{name}'", hint=hint)
        chosen += known[name]
    return tuple(name for name in TOOLSETS if name in chosen) or DEFAULT_TOOLSETS


def _tables(key: str, value: Any) -> dict[str, Any]:
    """Read tables by name, or JSON text of them."""
    if isinstance(value, str):
        try:
            value = from_json(value) if value.strip() else {}
        except ValueError as error:
            raise RequestError(f"the setting '{key}' is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise RequestError(f"the setting '{key}' must have a table for each name")
    return value


def _agents(key: str, value: Any) -> dict[str, AgentCommand]:
    from workflows_mcp.settings.agents import read_agents

    return read_agents(key, _tables(key, value))


def _groups(key: str, value: Any) -> dict[str, tuple[str, ...]]:
    """Read groups of people by name, or JSON text of them."""
    return {name: read_names(f"{key}.{name}", people) for name, people in _tables(key, value).items()}


def _one_of(words: tuple[str, ...]) -> Callable[[str, Any], str]:
    def read(key: str, value: Any) -> str:
        word = str(value).strip().lower()
        if word not in words:
            hint = did_you_mean(word, words, what="it is one of")
            raise RequestError(f"the setting '{key}' cannot be {value!r}", hint=hint)
        return word

    return read


def read_names(key: str, value: Any) -> tuple[str, ...]:
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, list) or not all(isinstance(part, str) for part in parts):
        raise RequestError(f"the setting '{key}' must be names, separated by commas, not {value!r}")
    return tuple(part.strip() for part in parts if part.strip())


def _capabilities(key: str, value: Any) -> frozenset[str]:
    names = read_names(key, value)
    for name in names:
        if name not in CAPABILITIES:
            hint = did_you_mean(name, CAPABILITIES, what="capabilities are")
            raise RequestError(f"the setting '{key}' has an unknown capability '{name}'", hint=hint)
    return frozenset(names)


_LOG_LEVELS = ("debug", "info", "warning", "error", "critical")
_READERS: dict[str, Any] = {
    "home": _path,
    "template_paths": _paths,
    "allowed_paths": _paths,
    "allow_commands": _flag,
    "security_level": _one_of(LEVELS),
    "denied_capabilities": _capabilities,
    "secrets": read_names,
    "secrets_file": _path,
    "toolsets": read_toolsets,
    "read_only": _flag,
    "task": _task,
    "mcp_servers": _tables,
    "agents": _agents,
    "state_access": _one_of(STATE_ACCESS),
    "elicitation": _one_of(ELICITATION),
    "approvers": _groups,
    "workflow_tools": read_names,
    "hooks": _one_of(HOOKS),
    "engine": _one_of(ENGINES),
    "log_level": lambda key, value: _one_of(_LOG_LEVELS)(key, value).upper(),
}
_TEMPORAL_READERS: dict[str, Any] = {
    "host": _host,
    "namespace": _some_text,
    "task_queue": _some_text,
    "tls": _flag,
    "tls_ca": _place,
    "tls_cert": _place,
    "tls_key": _place,
    "blobs": _place,
    "worker": _flag,
    "api_key": _api_key,
}
_LIMIT_KINDS = {item.name: (float if isinstance(item.default, float) else int) for item in fields(Limits)}
_DELETING = frozenset({"checkpoint_days", "run_days", "max_ended_runs", "store_bytes"})
"""Limits that need trust even if they are lower: they delete runs, also of other projects."""
_HOLDING = frozenset({"stop_refusals"})
"""Limits that need trust even if they are lower: they let agents leave their runs."""


def _never(_: Any, __: Path) -> bool:
    return False


def _always(_: Any, __: Path) -> bool:
    return True


def _all_below(paths: tuple[Path, ...], workspace: Path) -> bool:
    return all(path.is_relative_to(workspace) for path in paths)


_WITHOUT_TRUST: dict[str, Callable[[Any, Path], bool]] = {
    "template_paths": _all_below,
    "allow_commands": _always,
    "security_level": _always,
    "denied_capabilities": _always,
    "secrets": _always,
    "toolsets": _always,
    "read_only": _always,
    "state_access": _always,
    "elicitation": lambda value, _: value != "never",
    "hooks": lambda value, _: value == HOOKS[0],
    "engine": lambda value, _: value == ENGINES[0],
    "log_level": _always,
}
"""The settings, and their values, that a file may set without trust.

They cannot widen anything: the default is the widest, and the environment takes precedence over the file.
"""
_OF_A_SERVER = {"namespace", "tls", "tls_ca", "tls_cert", "tls_key", "api_key"}
"""Settings that imply a server of the user: the development server has none of them."""


def _data_directory(environ: Mapping[str, str]) -> Path:
    base = environ.get("XDG_DATA_HOME")
    return (Path(base).expanduser() if base else Path.home() / ".local" / "share") / "workflows-mcp"
