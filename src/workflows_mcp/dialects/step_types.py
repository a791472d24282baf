"""Which type a step is of, and what a step of a type that is carried out is given, in every dialect of steps.

Types that control are the dialect's own; every other one is a step type, which the registry knows, and its
keys are the inputs of that type. A step of a misspelt type is reported and then read as the type that was
meant.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from functools import partial
from typing import ClassVar

from workflows_mcp.dialects.step_drafts import Draft
from workflows_mcp.dialects.step_inputs import StepShape
from workflows_mcp.dialects.step_keys import read_word
from workflows_mcp.dialects.step_values import StepValues
from workflows_mcp.dialects.yaml_source import Document
from workflows_mcp.limits import Limits
from workflows_mcp.plan.calls import is_dynamic
from workflows_mcp.plan.references import ReferenceReader
from workflows_mcp.steps.base import Hands, Step
from workflows_mcp.steps.registry import StepRegistry
from workflows_mcp.values import Value, did_you_mean, kind_and_value, kind_of, nearest, shown

Path = tuple[str | int, ...]

HANDS: tuple[Hands, Hands] = ("agent", "server")
LEFT_OUT = {"Shell": ("capture_output", "continue_on_error")}
"""Inputs of step types that mean nothing in dialects of steps, which have `on_error`."""


class StepTypes(StepValues, ABC):
    dialect: ClassVar[str]
    control: ClassVar[Collection[str]]
    """The types that are operations of the plan."""
    meant: ClassVar[Mapping[str, str]]
    """What other dialects, and people, call the types of this one."""
    renamed: ClassVar[Mapping[str, Mapping[str, str]]] = {}
    """What inputs of step types are called here, by the type and the name that it has for them."""
    step_example: ClassVar[str]
    """How a list of steps is written, for hints."""

    def __init__(
        self,
        document: Document,
        registry: StepRegistry,
        references: ReferenceReader,
        limits: Limits,
        workflow: str,
        tasks: tuple[str, ...],
    ) -> None:
        super().__init__(document, references)
        self.registry = registry
        self.limits = limits
        self.workflow = workflow
        self.tasks = tasks
        self._shapes: dict[str, StepShape] = {}

    @staticmethod
    @abstractmethod
    def keys_beside(step: Step) -> tuple[str, ...]:
        """What a step of a type that is carried out takes beside its inputs."""

    def mappings(self, given: Value, path: Path, when_empty: str = "") -> list[tuple[dict[str, Value], Path]]:
        """The steps of a list that can be read at all, each with its path."""
        if not isinstance(given, list) or not given:
            what = "is empty" if given is None or given == [] else f"must be a list, not {kind_of(given)}"
            hint = when_empty or f"each step is an entry: {self.step_example}"
            self.problem("wrong_type", f"'{path[-1]}' {what}", hint, path, on_key=True)
            return []
        found: list[tuple[dict[str, Value], Path]] = []
        for index, step in enumerate(given):
            if isinstance(step, dict):
                found.append((step, (*path, index)))
            else:
                message = f"a step must be a mapping, not {kind_and_value(step)}"
                self.problem("wrong_type", message, f"e.g. {self.step_example}", (*path, index))
        return found

    def types(self) -> list[str]:
        return [*self.control, *self.registry.names(self.dialect)]

    def kind(self, step: Mapping[str, Value], at: Path) -> str:
        """The type that is meant; empty where nobody can say."""
        given = step.get("type")
        if given is None:
            hint = f"add a line: type: …, one of: {', '.join(self.types())}"
            self.problem("missing_key", "a step needs a type", hint, at)
            return ""
        if isinstance(given, str):
            if given in self.control or self.shape(given) is not None:
                return given
            meant = self.meant.get(given) or nearest(given, self.types())
            hint = did_you_mean(meant or given, self.types(), what="types", limit=30)
            self.problem("unknown_type", f"there is no step type '{given}'", hint, (*at, "type"))
            return meant or ""
        hint = f"types: {', '.join(self.types())}"
        self.problem("unknown_type", f"{shown(given)} is no step type", hint, (*at, "type"))
        return ""

    def shape(self, kind: str) -> StepShape | None:
        shape = self._shapes.get(kind)
        if shape is None:
            step = self.registry.find(kind, self.dialect)
            if step is None:
                return None
            without = LEFT_OUT.get(step.name, ())
            beside, renamed = self.keys_beside(step), self.renamed.get(step.name, {})
            shape = self._shapes[kind] = StepShape(step, kind, beside, without, renamed)
        return shape

    def inputs(
        self, draft: Draft, shape: StepShape, given: Mapping[str, Value], at: Mapping[str, Path]
    ) -> tuple[dict[str, Value], set[str]]:
        """What the step is given, and which of it has expressions in it; `at` is where each part stands."""
        inputs: dict[str, Value] = {}
        dynamic: set[str] = set()
        for name, value in given.items():
            if name in shape.beside:
                continue
            if value is None and name in shape.names and not shape.names[name].is_required():
                continue  # null is the same as nothing: agent: null
            inputs[name] = value
            if shape.own.get(name, name) in shape.step.literal_inputs:
                continue
            references = self.references
            if name in shape.step.code_inputs:
                refusals = partial(shape.step.refusals, name, inputs=given)
                draft.uses += references.in_code(value, at[name], refusals)
            else:
                draft.uses += references.in_value(value, at[name])
            if is_dynamic(value, references.language):
                dynamic.add(name)
        return inputs, dynamic

    def hands(
        self, shape: StepShape, step: Mapping[str, Value], inputs: Mapping[str, Value], at: Path
    ) -> Hands:
        """Who carries the step out; `inputs` by the names that the dialect has for them."""
        sound = {name: it for name, it in inputs.items() if name not in shape.texts or isinstance(it, str)}
        usual = shape.step.usually_by(shape.as_the_type_has_them(sound), self.dialect)
        if "run_on" not in shape.beside or step.get("run_on") is None:
            return usual
        given = read_word(step["run_on"], HANDS, (*at, "run_on"), self.report)
        return usual if given is None else "server" if given == "server" else "agent"
