"""The settings files `workflows.toml` and `workflows.yaml`.

    temporal:                            # the same keys as the table of workflows.toml
      host: localhost:7233
    mcp_server:
      workflow_definitions: ./workflows/ # template_paths
      max_pending_actions: 50            # limits.pending_actions
      yaml_cache_ttl: 300                # ignored: a changed file is always read again
      worker_threads: 10                 # limits.parallel_steps

Both files may have every setting; `workflows.toml` takes precedence. `settings.model` knows the settings and
checks their values.
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
"""Keys of a `workflows.yaml` that is a workflow, not settings."""


def read_files(directory: Path, known: Collection[str]) -> dict[str, Any]:
    """Return the settings in the files of a directory, unchecked. Raises RequestError."""
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
        raise RequestError(f"{path} is not valid YAML: {_describe(error)}") from None
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise RequestError(f"{path} must contain settings by name, not {kind_of(document)}")
    return {} if _OF_A_WORKFLOW & set(document) else document


def _describe(error: Exception) -> str:
    """Describe a YAML error without the line itself: the file may be a link to a private file."""
    mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
    if mark is None or not problem:
        return type(error).__name__ if isinstance(error, UnicodeDecodeError) else str(error).splitlines()[0]
    return f"{problem} (line {mark.line + 1}, column {mark.column + 1})"


def _loader() -> Any:
    """Return a loader that rejects duplicate keys."""
    import yaml

    class Loader(yaml.SafeLoader):
        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            seen: set[Any] = set()
            for key, _ in node.value:
                if key.value in seen:
                    raise yaml.MarkedYAMLError(
                        problem=f"duplicate key '{key.value}'", problem_mark=key.start_mark
                    )
                seen.add(key.value)
            return super().construct_mapping(node, deep)

    return Loader


def _checked(path: Path, document: dict[str, Any], known: Collection[str]) -> dict[str, Any]:
    """Return the settings of a file, with those of `mcp_server` under their names in `settings`."""
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
            _number(path, place, value, minimum=0)
        else:
            limits = settings["limits"] = dict(settings.get("limits", {}))
            _set(path, limits, _MCP_SERVER[key], place, _number(path, place, value, minimum=1))
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


def _number(path: Path, place: str, value: Any, *, minimum: int) -> int | float:
    if isinstance(value, bool) or not isinstance(value, int | float) or value < minimum:
        raise RequestError(f"{path}: '{place}' must be a number of at least {minimum}, not {value!r}")
    return value
