"""Finds the Claude Code plugin, whose skills the server serves too."""

from __future__ import annotations

from pathlib import Path

import workflows_mcp


def plugin_directory() -> Path | None:
    """Return the directory of the plugin: in the package, or in the source checkout."""
    package = Path(workflows_mcp.__file__).parent
    places = (package / "plugin", package.parents[1] / "plugin")
    return next((place for place in places if place.is_dir()), None)
