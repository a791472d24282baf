"""Folders that hold definition files: which files there are, and why a folder cannot be looked into."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from workflows_mcp.values import is_whole

logger = logging.getLogger(__name__)

_SUFFIXES = (".yaml", ".yml")
_SKIPPED = frozenset({"node_modules", "__pycache__"})


@dataclass(frozen=True, slots=True)
class Folder:
    """A place to look into. `deep`: the folders in it too."""

    path: Path
    label: str
    deep: bool = True

    def files(self, on_error: Callable[[OSError], None] | None = None) -> Iterator[Path]:
        """The definition files in a fixed order; a folder that does not exist has none."""
        for directory, inner, names in os.walk(self.path, onerror=on_error):
            looked_into = sorted(filter(_is_looked_into, inner)) if self.deep else []
            inner[:] = [name for name in looked_into if _can_be_told(directory, name)]
            files = sorted(name for name in names if name.endswith(_SUFFIXES))
            yield from (Path(directory, name) for name in files if _can_be_told(directory, name))

    def described(self) -> str:
        """What it is called, and what of it cannot be read."""
        errors: list[OSError] = []
        for _ in self.files(errors.append):
            pass
        closed = [self._why(error) for error in errors if not isinstance(error, FileNotFoundError)]
        return f"{self.label} (which cannot be read: {'; '.join(closed)})" if closed else self.label

    def _why(self, error: OSError) -> str:
        said = str(error.strerror)
        return said if Path(error.filename) == self.path else f"{error.filename}: {said}"


def _is_looked_into(name: str) -> bool:
    return not name.startswith(".") and name not in _SKIPPED


_passed_over: set[tuple[str, str]] = set()


def _can_be_told(directory: str, name: str) -> bool:
    """Names that are no UTF-8 can be opened, but not be told to anybody. Each is logged once."""
    if is_whole(name):
        return True
    if (directory, name) not in _passed_over:
        _passed_over.add((directory, name))
        logger.warning("%s: a name that is no UTF-8 is passed over: %r; rename it", directory, name)
    return False
