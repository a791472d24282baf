"""Finds step types through entry points: ours, and those of other packages.

Plans use the own name of a type. A dialect may have another name for it, or not have it
(`Step.dialect_names`):

    registry.get("Shell")                       # the own name, as in a plan
    registry.find("shell", dialect="stateful")  # the name in a dialect, as in a definition: the same type

A class is imported when its type is first used, so that a server that never renders a template does not load
the template engine.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points

from workflows_mcp.errors import RequestError
from workflows_mcp.steps.base import Step
from workflows_mcp.values import did_you_mean

logger = logging.getLogger(__name__)

GROUP = "workflows_mcp.steps"
GRAPH = "graph"
ALIASES = {"Workflow": "ExecuteWorkflow", "gate": "Gate"}
"""Other names of our own types, known without importing their classes."""
DIALECT_NAMES: dict[str, Mapping[str, str]] = {
    "AgentShell": {"reactive": "agent_shell_command"},
    "ApplyHints": {"reactive": "apply_hints"},
    "Delegate": {"graph": "Delegate", "stateful": "delegate", "reactive": "delegate"},
    "ExecuteWorkflow": {"graph": "ExecuteWorkflow"},
    "Fail": {"graph": "Fail", "stateful": "fail", "reactive": "fail"},
    "Gate": {"graph": "Gate", "stateful": "gate", "reactive": "gate"},
    "MCPCall": {"stateful": "mcp_call", "reactive": "mcp_call"},
    "Prompt": {"graph": "Prompt"},
    "Shell": {"graph": "Shell", "stateful": "shell", "reactive": "shell_command"},
    "UserInput": {"reactive": "user_input"},
    "UserPrompt": {"stateful": "prompt"},
    "Wait": {"graph": "Wait"},
}
"""The `dialect_names` of our own types, known without importing their classes."""
_OURS = "workflows_mcp."


class StepRegistry:
    def __init__(self, found: Iterable[EntryPoint] = (), steps: Iterable[Step] = ()) -> None:
        self._found = {point.name: point for point in found}
        self._steps: dict[str, Step] = {}
        for step in steps:
            self.add(step)

    def add(self, step: Step) -> None:
        for name in (step.name, *step.aliases):
            self._steps[name] = step

    # By own name, as in plans

    def own_names(self) -> list[str]:
        return sorted({*self._found, *(step.name for step in self._steps.values())})

    def known(self, name: str) -> Step | None:
        """The type with this own name, in any dialect; None if there is none."""
        step = self._steps.get(name)
        if step is not None:
            return step
        point = self._found.get(ALIASES.get(name, name))
        if point is None:
            return None
        step = point.load()()
        if not isinstance(step, Step):
            raise RequestError(f"the entry point '{point.name}' of group {GROUP} is not a step type")
        self._steps[name] = step
        self.add(step)
        return step

    def get(self, name: str) -> Step:
        step = self.known(name)
        if step is None:
            raise RequestError(f"unknown step type '{name}'", hint=did_you_mean(name, self.own_names()))
        return step

    # By name in a dialect, as in definitions

    def names(self, dialect: str = GRAPH) -> list[str]:
        """The names of the types of a dialect."""
        called = (self._name_in(dialect, own) for own in self.own_names())
        return sorted(name for name in called if name is not None)

    def find(self, name: str, dialect: str = GRAPH) -> Step | None:
        """The type with this name in the dialect; None if there is none."""
        step = self.known(name) if name in ALIASES or name in self._steps else None
        if step is not None and name in step.aliases and self._name_in(dialect, step.name) is not None:
            return step
        known = self.own_names()
        for own in (name, *known) if name in known else known:
            if self._name_in(dialect, own) == name:
                return self.known(own)
        return None

    def _name_in(self, dialect: str, own: str) -> str | None:
        offered = self._offered(own)
        return offered.get(dialect) if offered else own

    def _offered(self, own: str) -> Mapping[str, str]:
        step = self._steps.get(own)
        if step is not None:
            return step.dialect_names
        if self._found[own].value.startswith(_OURS):
            return DIALECT_NAMES.get(own, {})
        try:
            return self.get(own).dialect_names
        except Exception:  # of another package: `get` raises when it is used
            logger.warning("the step type %s cannot be loaded", own, exc_info=True)
            return {}


@lru_cache(maxsize=1)
def default_registry() -> StepRegistry:
    return StepRegistry(entry_points(group=GROUP))
