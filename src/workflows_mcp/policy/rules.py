"""Decides whether a step may run, from the settings.

policy = Policy(workspace, security_level="trusted", denied_capabilities=frozenset({"network"}))
policy.denials("privileged", {"run_commands", "network"})
# [it is privileged, and security_level is trusted; it needs network, and denied_capabilities has network]
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from workflows_mcp.limits import Limits
from workflows_mcp.settings import LEVELS, Settings

RUN_COMMANDS = "run_commands"
READ_FILES = "read_files"
WRITE_FILES = "write_files"
NETWORK = "network"
MODIFY_STATE = "modify_state"


class Denial(NamedTuple):
    """Why a step may not run: what it needs, the setting that denies it, and how to allow it."""

    what: str
    setting: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.what}, and {self.setting}"


@dataclass(frozen=True, slots=True)
class Policy:
    workspace: Path
    """The base of relative paths; steps always have access to it."""
    allowed_paths: tuple[Path, ...] = ()
    allow_commands: bool = True
    limits: Limits = field(default_factory=Limits)
    security_level: str = LEVELS[-1]
    """The highest level that may run."""
    denied_capabilities: frozenset[str] = frozenset()
    """Denied to all steps. `allow_commands = False` is the same as denying `run_commands`."""

    @property
    def roots(self) -> tuple[Path, ...]:
        return (self.workspace, *self.allowed_paths)

    def denials(self, level: str, capabilities: Iterable[str]) -> list[Denial]:
        """All reasons why a step may not run; empty if it may."""
        if self.allow_commands and not self.denied_capabilities and self.security_level == LEVELS[-1]:
            return []
        found = []
        if _rank(level) > _rank(self.security_level):
            remedy = f"set WORKFLOWS_SECURITY_LEVEL={level} (security_level in workflows.toml) to allow it"
            found.append(Denial(f"it is {level}", f"security_level is {self.security_level}", remedy))
        denied = (self.denial(capability) for capability in sorted(capabilities))
        return found + [denial for denial in denied if denial is not None]

    def denial(self, capability: str) -> Denial | None:
        """Why no step may do this; None if it is allowed."""
        what = f"it needs {capability}"
        if capability in self.denied_capabilities:
            remedy = (
                f"remove {capability} from WORKFLOWS_DENIED_CAPABILITIES (denied_capabilities in "
                "workflows.toml) to allow it"
            )
            return Denial(what, f"denied_capabilities has {capability}", remedy)
        if capability == RUN_COMMANDS and not self.allow_commands:
            remedy = "set WORKFLOWS_ALLOW_COMMANDS=true (allow_commands in workflows.toml) to allow it"
            return Denial(what, "allow_commands is false", remedy)
        return None


def _rank(level: str) -> int:
    """The rank of a level; an unknown level counts as the highest."""
    return LEVELS.index(level) if level in LEVELS else len(LEVELS) - 1


def policy_of(settings: Settings) -> Policy:
    return Policy(
        settings.workspace,
        settings.allowed_paths,
        settings.allow_commands,
        settings.limits,
        settings.security_level,
        settings.denied_capabilities,
    )
