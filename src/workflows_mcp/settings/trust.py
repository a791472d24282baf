"""Which project directories the user trusts, and with which contents of their files.

    trust = trust_of(os.environ)
    trust.covers(Path("/src/project"))     # False until: workflows-mcp trust /src/project

A project directory may come from anybody: a clone, an archive, a colleague. Its `workflows.toml` and
`.mcp.json` may make the rules narrower, but may widen them only after the user has said so. Trust is kept
outside of every project, in `$XDG_CONFIG_HOME/workflows-mcp/trusted.json`, by the resolved path of the
directory and the hash of each file: a file that is changed or added asks again. `WORKFLOWS_TRUST` names
directories, with all below them, that are trusted whatever they hold, for machines without a user (CI).
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
"""Every file of a working directory that is read as settings."""
TRUSTED, CHANGED, UNKNOWN = "trusted", "changed", "unknown"


@dataclass(frozen=True, slots=True)
class Trust:
    file: Path
    """Where it is kept."""
    always: tuple[Path, ...] = ()
    """Directories that are trusted with all below them, whatever they hold."""

    def covers(self, directory: Path) -> bool:
        """Whether the user trusts this directory as it is now."""
        return self.state(directory) == TRUSTED

    def state(self, directory: Path) -> str:
        """Whether a directory is trusted, was trusted before its files were changed, or never was."""
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
        """The hashes of files by directory, as the user has trusted them. Raises RequestError."""
        try:
            kept = json.loads(self.file.read_bytes())
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except (OSError, ValueError, RecursionError) as error:
            raise self._unusable(str(error)) from None
        if not isinstance(kept, dict) or not all(isinstance(marks, dict) for marks in kept.values()):
            raise self._unusable("it must hold an object for each directory")
        return kept

    def add(self, directory: Path) -> dict[str, str]:
        """Trust a directory as it is now; the files that this is about. Raises RequestError."""
        directory = Path(os.path.realpath(directory))
        if not directory.is_dir():
            raise RequestError(f"there is no directory {directory}")
        found = marks(directory)
        if not found:
            names = ", ".join(FILES)
            raise RequestError(
                f"there is nothing to trust in {directory}",
                hint=f"only these files need trust, and none of them is there: {names}",
            )
        self._write({**self.listed(), str(directory): found})
        return found

    def remove(self, directory: Path) -> bool:
        """Whether it was trusted. Raises RequestError."""
        kept = self.listed()
        if kept.pop(str(Path(os.path.realpath(directory))), None) is None:
            return False
        self._write(kept)
        return True

    def _write(self, kept: Mapping[str, Mapping[str, str]]) -> None:
        part = ""
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            number, part = tempfile.mkstemp(dir=self.file.parent, prefix=".trusted-")
            with os.fdopen(number, "w", encoding="utf-8") as file:
                json.dump(kept, file, indent=2, sort_keys=True)
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
    """The hash of each file of `directory` that needs trust."""
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
    """Raises RequestError."""
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
