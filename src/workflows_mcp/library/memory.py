"""What a catalog has read before, so that nothing is read twice that has not changed."""

from __future__ import annotations

import stat
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path

from workflows_mcp.dialects import Definition
from workflows_mcp.errors import DefinitionError
from workflows_mcp.library.imports import Joined
from workflows_mcp.limits import DEFAULT_LIMITS
from workflows_mcp.plan.calls import called_workflows
from workflows_mcp.plan.model import Bundle, Plan

_BUNDLES = 64
Stamp = tuple[int, int]
"""When a file changed last, and its size: the same stamp, the same content."""


Facts = tuple[str, str, tuple[str, ...], bool, bool, bool]
"""What a list says of a workflow beside its name: description, dialect, tags; whether it is offered as a
prompt; whether it can be run, or has only tasks for others; and whether it calls others by name."""


@dataclass(slots=True)
class Memory:
    """What was read before, by file, as long as the file stays the same. Of definitions only the last ones
    are kept; what a list needs of them is small, and kept of all."""

    most: int = DEFAULT_LIMITS.cached_definitions
    most_bytes: int = DEFAULT_LIMITS.cached_bytes
    """Of the texts that the definitions were read from; the last one is kept, however large."""
    names: dict[Path, tuple[Stamp, str]] = field(default_factory=dict)
    facts: dict[Path, tuple[Stamp, Facts]] = field(default_factory=dict)
    definitions: OrderedDict[Path, tuple[Stamp, Definition | DefinitionError]] = field(
        default_factory=OrderedDict
    )
    bundles: OrderedDict[str, Bundle] = field(default_factory=OrderedDict)
    joined: Joined = field(default_factory=dict)
    told: set[tuple[Path, Path]] = field(default_factory=set)
    """Files of the same name that somebody has been told of: the hidden one, and the one that is used."""

    def definition(self, path: Path, stamp: Stamp | None) -> Definition | DefinitionError | None:
        remembered = self.definitions.get(path)
        if remembered is None or remembered[0] != stamp:
            return None
        self.definitions.move_to_end(path)
        return remembered[1]

    def keep(self, path: Path, stamp: Stamp, found: Definition | DefinitionError) -> None:
        self.definitions[path] = (stamp, found)
        self.definitions.move_to_end(path)
        size = sum(at[1] for at, _ in self.definitions.values())
        while len(self.definitions) > self.most or (size > self.most_bytes and len(self.definitions) > 1):
            _, ((_, dropped), _) = self.definitions.popitem(last=False)
            size -= dropped
        if isinstance(found, Definition):
            self.facts[path] = (stamp, facts_of(found.plan))
        else:
            self.facts.pop(path, None)

    def same(self, bundle: Bundle) -> Bundle:
        """The bundle that was handed out before, if nothing in it has changed: runs then share it."""
        known = self.bundles.get(bundle.main)
        plans = list(map(id, bundle.plans.values()))
        if known is None or list(map(id, known.plans.values())) != plans:
            known = bundle
        self.bundles[bundle.main] = known
        self.bundles.move_to_end(bundle.main)
        size = sum(map(_size_of, self.bundles.values()))
        while len(self.bundles) > _BUNDLES or (size > self.most_bytes and len(self.bundles) > 1):
            size -= _size_of(self.bundles.popitem(last=False)[1])
        return known


def _size_of(bundle: Bundle) -> int:
    return sum(map(len, bundle.sources.values()))


def facts_of(plan: Plan) -> Facts:
    calls = bool(called_workflows(plan))
    return plan.description, plan.dialect, plan.tags, plan.prompt, bool(plan.body.nodes), calls


def stamp_of(path: Path) -> Stamp | None:
    """None where there is no file, or something that is none: what is read from a pipe or a device need not
    end."""
    try:
        status = path.stat()
    except OSError:
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    return status.st_mtime_ns, status.st_size
