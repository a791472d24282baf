"""The rules in force for a run, as data. `handles` enforces them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from workflows_mcp.limits import Limits
from workflows_mcp.settings import Settings


@dataclass(frozen=True, slots=True)
class Policy:
    workspace: Path
    """Where relative paths start, and what steps may always touch."""
    allowed_paths: tuple[Path, ...] = ()
    allow_commands: bool = True
    limits: Limits = field(default_factory=Limits)

    @property
    def roots(self) -> tuple[Path, ...]:
        return (self.workspace, *self.allowed_paths)


def policy_of(settings: Settings) -> Policy:
    return Policy(settings.workspace, settings.allowed_paths, settings.allow_commands, settings.limits)
