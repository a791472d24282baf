"""Which files may be read as definitions.

    reach = reach_of(settings)
    reach.allows(Path("/project/.workflows/x.yaml"))      # True, unless it is a link that leads elsewhere

A definition is quoted where it is wrong, so a file that no step may read is no definition either: neither by
`imports` nor through a link in a project. The user's own directories may hold links to wherever the user
wants.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

from workflows_mcp.settings import Settings

HINT = (
    "keep definitions in the working directory or in ~/.workflows, or add their directory to "
    "WORKFLOWS_ALLOWED_PATHS (allowed_paths in workflows.toml)"
)


@dataclass(frozen=True, slots=True)
class Reach:
    own: tuple[Path, ...] = ()
    """Directories of the user: links in them may lead anywhere."""
    roots: tuple[Path, ...] = ()
    """Where every other file must lie, after links have been followed."""

    def allows(self, path: Path) -> bool:
        if any(Path(os.path.abspath(path)).is_relative_to(it) for it in self.own):
            return True
        real = Path(os.path.realpath(path))
        return any(real.is_relative_to(os.path.realpath(it)) for it in (*self.own, *self.roots))

    def with_root(self, directory: Path) -> Reach:
        return replace(self, roots=(*self.roots, directory))


def reach_of(settings: Settings, builtin: Path) -> Reach:
    """As the steps: the working directory and `allowed_paths`, where files may be read at all."""
    workspace = Path(os.path.realpath(settings.workspace))
    user = Path.home()
    project = {it for it in settings.definition_directories if it.is_relative_to(workspace)}
    project -= {user / ".aromcp" / "workflows", user / ".workflows"}
    own = tuple(it for it in settings.definition_directories if it not in project)
    denied = "read_files" in settings.denied_capabilities
    return Reach(
        (builtin, *own),
        tuple(_inside(workspace, project)) if denied else (workspace, *settings.allowed_paths),
    )


def _inside(workspace: Path, directories: set[Path]) -> list[Path]:
    """Those that are not links out of the workspace."""
    return [it for it in directories if Path(os.path.realpath(it)).is_relative_to(workspace)]
