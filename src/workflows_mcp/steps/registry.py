"""Which step types there are: found through entry points, ours in the same way as everybody's.

A class is imported when its type is first used, so that a server that never runs a template does not
pay for the template engine.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points

from workflows_mcp.errors import RequestError
from workflows_mcp.steps.base import Step
from workflows_mcp.values import did_you_mean

GROUP = "workflows_mcp.steps"
ALIASES = {"Workflow": "ExecuteWorkflow"}
"""Other names of our own types, known without importing their classes."""


class StepRegistry:
    def __init__(self, found: Iterable[EntryPoint] = (), steps: Iterable[Step] = ()) -> None:
        self._found = {point.name: point for point in found}
        self._steps: dict[str, Step] = {}
        for step in steps:
            self.add(step)

    def add(self, step: Step) -> None:
        for name in (step.name, *step.aliases):
            self._steps[name] = step

    def names(self) -> list[str]:
        return sorted({*self._found, *(step.name for step in self._steps.values())})

    def find(self, name: str) -> Step | None:
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
        step = self.find(name)
        if step is None:
            raise RequestError(f"unknown step type '{name}'", hint=did_you_mean(name, self.names()))
        return step


@lru_cache(maxsize=1)
def default_registry() -> StepRegistry:
    return StepRegistry(entry_points(group=GROUP))
