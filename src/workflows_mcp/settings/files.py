"""The files that settings are kept in: `workflows.toml`, and `workflows.yaml` in the words of the documents.

    temporal:                            # the same keys as the table of workflows.toml
      host: localhost:7233
    mcp_server:
      workflow_definitions: ./workflows/ # template_paths
      max_pending_actions: 50            # limits.pending_actions
      yaml_cache_ttl: 300                # nothing has to expire: a file that has changed is read again
      worker_threads: 10                 # limits.parallel_steps

Both files may hold every setting; what `workflows.toml` says goes before `workflows.yaml`. Which settings
there are, and what they may be, is known to `settings`.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from workflows_mcp.errors import RequestError
from workflows_mcp.values import did_you_mean, kind_of

TOML = "workflows.toml"
YAML = ("workflows.yaml", "workflows.yml")
TABLES = ("limits", "temporal", "http")
_MCP_SERVER = {
    "workflow_definitions": "template_paths",
    "max_pending_actions": "pending_actions",
    "yaml_cache_ttl": "",
    "worker_threads": "parallel_steps",
}
_OF_A_WORKFLOW = {"name", "blocks", "steps"}
"""What tells that a `workflows.yaml` is a workflow, which is nobody's settings."""


def read_files(directory: Path, known: Collection[str]) -> dict[str, Any]:
    """What the files of a directory set, as it stands there. Raises RequestError."""
    found: dict[str, Any] = {}
    for path in (*(directory / name for name in YAML), directory / TOML):
        if not path.is_file():
            continue
        document = _toml(path) if path.name == TOML else _yaml(path)
        for key, value in _checked(path, document, known).items():
            found[key] = {**found.get(key, {}), **value} if key in TABLES else value
    return found


def _toml(path: Path) -> dict[str, Any]:
    import tomllib

    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RequestError(f"{path} is not valid TOML: {error}") from None


def _yaml(path: Path) -> dict[str, Any]:
    import yaml

    try:
        document = yaml.load(path.read_text(encoding="utf-8"), _loader())
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise RequestError(f"{path} is not valid YAML: {_what_is_wrong(error)}") from None
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise RequestError(f"{path} must hold settings by name, not {kind_of(document)}")
    return {} if _OF_A_WORKFLOW & set(document) else document


def _what_is_wrong(error: Exception) -> str:
    """Without the line itself: the file may be a link to one that is not for everybody."""
    mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
    if mark is None or not problem:
        return type(error).__name__ if isinstance(error, UnicodeDecodeError) else str(error).splitlines()[0]
    return f"{problem} (line {mark.line + 1}, column {mark.column + 1})"


def _loader() -> Any:
    """A loader to which a key that stands twice is an error."""
    import yaml

    class Loader(yaml.SafeLoader):
        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            seen: set[Any] = set()
            for key, _ in node.value:
                if key.value in seen:
                    raise yaml.MarkedYAMLError(
                        problem=f"'{key.value}' stands twice", problem_mark=key.start_mark
                    )
                seen.add(key.value)
            return super().construct_mapping(node, deep)

    return Loader


def _checked(path: Path, document: dict[str, Any], known: Collection[str]) -> dict[str, Any]:
    """The settings of a file, with those of `mcp_server` under their own names."""
    names = [*known, *TABLES, "mcp_server"]
    for key in document:
        if key not in names:
            raise RequestError(f"{path}: unknown setting '{key}'", hint=did_you_mean(str(key), names))
    settings = dict(document)
    for key in (*TABLES, "mcp_server"):
        if key in settings and settings[key] is None:
            settings[key] = {}
        if not isinstance(settings.get(key, {}), dict):
            raise RequestError(f"{path}: '{key}' must be a table, not {kind_of(settings[key])}")
    for key, value in settings.pop("mcp_server", {}).items():
        place = f"mcp_server.{key}"
        if key not in _MCP_SERVER:
            hint = did_you_mean(str(key), _MCP_SERVER)
            raise RequestError(f"{path}: unknown setting '{place}'", hint=hint)
        if key == "workflow_definitions":
            _set(path, settings, _MCP_SERVER[key], place, _directories(path, place, value))
        elif key == "yaml_cache_ttl":
            _number(path, place, value, least=0)
        else:
            limits = settings["limits"] = dict(settings.get("limits", {}))
            _set(path, limits, _MCP_SERVER[key], place, _number(path, place, value, least=1))
    return settings


def _set(path: Path, settings: dict[str, Any], key: str, place: str, value: Any) -> None:
    if key in settings:
        raise RequestError(f"{path}: '{key}' and '{place}' are the same setting", hint="keep one of them")
    settings[key] = value


def _directories(path: Path, place: str, value: Any) -> list[str]:
    directories = [value] if isinstance(value, str) else value
    if not isinstance(directories, list) or not all(isinstance(it, str) for it in directories):
        raise RequestError(f"{path}: '{place}' must be a directory, or a list of them, not {kind_of(value)}")
    return [str(path.parent / Path(it).expanduser()) for it in directories]


def _number(path: Path, place: str, value: Any, *, least: int) -> int | float:
    if isinstance(value, bool) or not isinstance(value, int | float) or value < least:
        raise RequestError(f"{path}: '{place}' must be a number from {least} on, not {value!r}")
    return value
