"""The project directories that the user trusts, with hashes of their settings files.

    trust = trust_of(os.environ)
    trust.covers(Path("/src/project"))     # False until: workflows-mcp trust /src/project

A project directory may come from anyone: a clone, an archive, a colleague. Its `workflows.toml` and
`.mcp.json` may narrow what workflows may do, but widen it only after the user trusts the directory. Trust is
stored outside of projects, in `$XDG_CONFIG_HOME/workflows-mcp/trusted.json`, by the resolved path of the
directory and the hash of each file: a changed or new file needs trust again. `WORKFLOWS_TRUST` names
directories that are always trusted, with everything below them, for machines without a user (CI).
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from workflows_mcp.errors import RequestError
from workflows_mcp.settings.files import TOML, YAML

logger = logging.getLogger(__name__)

VARIABLE = "WORKFLOWS_TRUST"
MCP_SERVERS = ".mcp.json"
FILES = (TOML, *YAML, MCP_SERVERS)
"""The files of a working directory that are read as settings."""
TRUSTED, CHANGED, UNKNOWN = "trusted", "changed", "unknown"


@dataclass(frozen=True, slots=True)
class Trust:
    file: Path
    """Where trust is stored."""
    always: tuple[Path, ...] = ()
    """Directories that are always trusted, with everything below them."""

    def covers(self, directory: Path) -> bool:
        """Return whether the user trusts this directory as it is now."""
        return self.state(directory) == TRUSTED

    def state(self, directory: Path) -> str:
        """Return TRUSTED, CHANGED (the files changed since it was trusted) or UNKNOWN."""
        directory = Path(os.path.realpath(directory))
        if any(directory.is_relative_to(root) for root in self.always):
            return TRUSTED
        try:
            known = self.listed().get(str(directory))
        except RequestError as error:
            logger.warning("no directory is trusted: %s", error.message)
            return UNKNOWN
        if known is None:
            return UNKNOWN
        return TRUSTED if all(known.get(name) == mark for name, mark in marks(directory).items()) else CHANGED

    def listed(self) -> dict[str, dict[str, str]]:
        """Return the hashes of trusted files by directory. Raises RequestError."""
        try:
            trusted = json.loads(self.file.read_bytes())
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except (OSError, ValueError, RecursionError) as error:
            raise self._unusable(str(error)) from None
        if not isinstance(trusted, dict) or not all(isinstance(marks, dict) for marks in trusted.values()):
            raise self._unusable("it must have an object for each directory")
        return trusted

    def add(self, directory: Path) -> dict[str, str]:
        """Trust a directory as it is now, and return the hashes of its files. Raises RequestError."""
        directory = Path(os.path.realpath(directory))
        if not directory.is_dir():
            raise RequestError(f"there is no directory {directory}")
        found = marks(directory)
        if not found:
            names = ", ".join(FILES)
            raise RequestError(
                f"there is nothing to trust in {directory}",
                hint=f"it has none of the files that need trust: {names}",
            )
        self._write({**self.listed(), str(directory): found})
        return found

    def remove(self, directory: Path) -> bool:
        """Stop trusting a directory, and return whether it was trusted. Raises RequestError."""
        trusted = self.listed()
        if trusted.pop(str(Path(os.path.realpath(directory))), None) is None:
            return False
        self._write(trusted)
        return True

    def _write(self, trusted: Mapping[str, Mapping[str, str]]) -> None:
        part = ""
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            number, part = tempfile.mkstemp(dir=self.file.parent, prefix=".trusted-")
            with os.fdopen(number, "w", encoding="utf-8") as file:
                json.dump(trusted, file, indent=2, sort_keys=True)
                file.flush()
                os.fsync(file.fileno())
            os.replace(part, self.file)
        except OSError as error:
            if part:
                Path(part).unlink(missing_ok=True)
            raise self._unusable(error.strerror or str(error)) from None

    def _unusable(self, why: str) -> RequestError:
        return RequestError(f"{self.file} cannot be used: {why}", hint="repair or remove it")


def marks(directory: Path) -> dict[str, str]:
    """Return the hash of each file of `directory` that needs trust."""
    found = {}
    for name in FILES:
        path = directory / name
        try:
            if path.is_file():
                found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
        except OSError as error:
            found[name] = f"unreadable: {error.strerror}"
    return found


def trust_of(environ: Mapping[str, str]) -> Trust:
    """Return the trust of the user with this environment. Raises RequestError."""
    base = environ.get("XDG_CONFIG_HOME")
    config = Path(base).expanduser() if base else Path.home() / ".config"
    return Trust(config / "workflows-mcp" / "trusted.json", tuple(_directories(environ.get(VARIABLE, ""))))


def _directories(text: str) -> list[Path]:
    found = []
    for part in filter(None, map(str.strip, text.split(","))):
        path = Path(part).expanduser()
        if not path.is_absolute():
            raise RequestError(
                f"{VARIABLE} must be absolute paths of directories, separated by commas, not {part!r}",
                hint=f'e.g. {VARIABLE}="$PWD"',
            )
        found.append(Path(os.path.realpath(path)))
    return found
