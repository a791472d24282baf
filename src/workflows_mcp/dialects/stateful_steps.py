"""A list of steps of a stateful document becomes drafts of nodes: what each does, reads and writes.

Steps that control (condition, set_state, foreach, return, goto, wait, workflow) are read here by their own
rules; every other type is a step type, which the registry knows, and its keys are the inputs of that type.
A step of a misspelt type is reported and then read as the type that was meant.
"""

from __future__ import annotations

from workflows_mcp.dialects.stateful_control import ABOUT, CONTROL, MODIFIERS, read_control
from workflows_mcp.dialects.stateful_drafts import StepDraft
from workflows_mcp.dialects.stateful_values import StepValues
from workflows_mcp.dialects.step_inputs import StepShape, check_step_inputs
from workflows_mcp.dialects.step_keys import (
    read_id,
    read_on_failure,
    read_on_interrupt,
    read_timeout,
    read_word,
)
from workflows_mcp.dialects.yaml_source import Document
from workflows_mcp.limits import Limits
from workflows_mcp.plan.calls import is_dynamic
from workflows_mcp.plan.model import Do
from workflows_mcp.plan.references import ReferenceReader
from workflows_mcp.steps.base import Hands, Step
from workflows_mcp.steps.registry import StepRegistry
from workflows_mcp.values import Value, did_you_mean, kind_of, nearest, shown

Path = tuple[str | int, ...]

DIALECT = "stateful"
HANDS: tuple[Hands, Hands] = ("agent", "server")
LEFT_OUT = {"Shell": ("capture_output", "shell", "continue_on_error")}
"""Inputs of step types that mean nothing here: an exit code is a result in any case."""
SHELL, SHELL_SECONDS = "Shell", 30
"""How long a command may take where the step does not say."""


_MEANT = {
    "agent_shell_command": "shell",
    "conditional": "condition",
    "ExecuteWorkflow": "workflow",
    "if": "condition",
    "parallel_foreach": "foreach",
    "shell_command": "shell",
    "sleep": "wait",
    "state_update": "set_state",
    "user_input": "prompt",
    "user_message": "prompt",
    "Workflow": "workflow",
}
"""What other dialects, and people, call the types of this one."""


def _spelt(key: str, step: dict[str, Value]) -> str:
    """How a step spells a key that others depend on: a misspelt one is reported, and counts all the same."""
    if key not in step:
        known = (*ABOUT, *MODIFIERS)
        return next((other for other in step if other not in known and nearest(other, known) == key), key)
    return key


def keys_beside(step: Step) -> tuple[str, ...]:
    """What a step of a type that is carried out takes beside its inputs."""
    keys = [*ABOUT, *MODIFIERS, "retry"]
    if step.can_run:
        keys += ["on_interrupt", "timeout"]
    if step.can_run and step.can_ask:
        keys.append("run_on")
    return tuple(keys)


class StepReader(StepValues):
    """Reads the steps of a workflow and of its tasks."""

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

    def read_list(self, given: Value, path: Path) -> list[StepDraft]:
        if not isinstance(given, list) or not given:
            what = "is empty" if given is None or given == [] else f"must be a list, not {kind_of(given)}"
            hint = "each step is an entry: - id: build, and below it type and what the type takes"
            if path[-1] == "then":
                hint = 'put steps into it, or turn the test around: if: "{{ not … }}"'
            self.problem("wrong_type", f"'{path[-1]}' {what}", hint, path, on_key=True)
            return []
        drafts = []
        for index, step in enumerate(given):
            if isinstance(step, dict):
                drafts.append(self._read(step, (*path, index)))
            else:
                message = f"a step must be a mapping, not {kind_of(step)} {shown(step)}"
                hint = "e.g. - id: build, and below it type and what the type takes"
                self.problem("wrong_type", message, hint, (*path, index))
        return drafts

    def _read(self, step: dict[str, Value], at: Path) -> StepDraft:
        found = read_id(step.get("id"), at, self.document, "step", self.report)
        # nobody can refer to one that is none, so that it causes no further problems
        draft = StepDraft(found if found is not None else f"#{'.'.join(map(str, at))}", at)
        draft.kind = self._kind(step, at)
        self._about(draft, step)
        if draft.kind in CONTROL:
            read_control(self, draft, step)
        elif draft.kind:
            self._work(draft, step)
        else:
            self._unknown(draft, step)
        return draft

    def types(self) -> list[str]:
        return [*CONTROL, *self.registry.names(DIALECT)]

    def _kind(self, step: dict[str, Value], at: Path) -> str:
        given = step.get("type")
        if given is None:
            hint = f"add a line: type: …, one of: {', '.join(self.types())}"
            self.problem("missing_key", "a step needs a type", hint, at)
            return ""
        if isinstance(given, str):
            if given in CONTROL or self._shape(given) is not None:
                return given
            meant = _MEANT.get(given) or nearest(given, self.types())
            hint = did_you_mean(meant or given, self.types(), what="types", limit=30)
            self.problem("unknown_type", f"there is no step type '{given}'", hint, (*at, "type"))
            return meant or ""
        hint = f"types: {', '.join(self.types())}"
        self.problem("unknown_type", f"{shown(given)} is no step type", hint, (*at, "type"))
        return ""

    # What every step says of itself

    def _about(self, draft: StepDraft, step: dict[str, Value]) -> None:
        at = draft.at
        key = _spelt("needs_state", step)
        if key in step:
            self._needs_state(draft, step[key], (*at, key))
        if draft.kind == "return":
            return
        key = _spelt("output_to", step)
        if step.get(key) is not None:
            draft.output_to = self.field(step[key], (*at, key))
        if "when" in step:
            draft.condition = self.condition(draft, step["when"], (*at, "when"))
        if "on_error" in step:
            draft.on_failure = read_on_failure(step["on_error"], (*at, "on_error"), self.report)

    def _needs_state(self, draft: StepDraft, given: Value, path: Path) -> None:
        if not isinstance(given, list) or not all(isinstance(name, str) for name in given):
            message = f"'needs_state' must be a list of fields, not {kind_of(given)} {shown(given)}"
            self.problem("wrong_type", message, 'e.g. needs_state: ["files", "config"], or ["*"]', path)
            draft.sees_all = True  # so that it causes no further problems
            return
        draft.sees_all = "*" in given
        draft.needs_state = tuple(dict.fromkeys(given))

    # Steps that are carried out

    def _work(self, draft: StepDraft, step: dict[str, Value]) -> None:
        at, shape = draft.at, self._shape(draft.kind)
        assert shape is not None
        kind, references = shape.step, self.references
        inputs: dict[str, Value] = {}
        dynamic: set[str] = set()
        for name, value in step.items():
            if name in shape.beside:
                continue
            if value is None and name in shape.names and not shape.names[name].is_required():
                continue  # null is the same as nothing: agent: null
            inputs[name] = value
            read = references.in_code if name in kind.code_inputs else references.in_value
            draft.uses += read(value, (*at, name))
            if is_dynamic(value, references.language):
                dynamic.add(name)
        if "agent" in shape.names and "agent" in inputs and "agent" not in dynamic:
            agent = self.agent(inputs.pop("agent"), (*at, "agent"))
            inputs |= {"agent": agent} if agent else {}
        self.problems += check_step_inputs(shape, inputs, dynamic, at, self.document, as_a_whole=True)
        inputs = {name: value for name, value in inputs.items() if name in shape.names}
        if kind.name == SHELL:
            inputs.setdefault("timeout", SHELL_SECONDS)
        by = self._hands(shape, step, inputs, at)
        draft.do = Do(
            step=kind.name,
            inputs=inputs,
            by=by,
            code=tuple(name for name in inputs if name in kind.code_inputs),
            timeout=self._timeout(draft, shape, step, inputs, by),
            config=dict(kind.told.get(DIALECT, {})),
            defaults=shape.output_defaults,
            may_fail=kind.may_fail,
            gives=kind.gives,
        )
        if "on_interrupt" in step:
            path = (*at, "on_interrupt")
            draft.on_interrupt = read_on_interrupt(step["on_interrupt"], path, self.report)
        else:
            draft.on_interrupt = kind.on_interrupt
        self.retry(draft, step)

    def _shape(self, kind: str) -> StepShape | None:
        shape = self._shapes.get(kind)
        if shape is None:
            step = self.registry.find(kind, DIALECT)
            if step is None:
                return None
            without = LEFT_OUT.get(step.name, ())
            shape = self._shapes[kind] = StepShape(step, kind, keys_beside(step), without)
        return shape

    def _hands(self, shape: StepShape, step: dict[str, Value], inputs: dict[str, Value], at: Path) -> Hands:
        """Who carries the step out."""
        sound = {name: it for name, it in inputs.items() if name not in shape.texts or isinstance(it, str)}
        usual = shape.step.usually_by(sound, DIALECT)
        if "run_on" not in shape.beside or step.get("run_on") is None:
            return usual
        given = read_word(step["run_on"], HANDS, (*at, "run_on"), self.report)
        return usual if given is None else "server" if given == "server" else "agent"

    def _timeout(
        self,
        draft: StepDraft,
        shape: StepShape,
        step: dict[str, Value],
        inputs: dict[str, Value],
        by: Hands,
    ) -> Value:
        """When the server ends the step. An agent is told how long it may take, and sees to it itself: a
        command that it must first ask its user for has not begun when it is handed out."""
        within = shape.step.timeout_input
        if by == "agent":
            return None
        if within is not None:
            return inputs.get(within, shape.default_timeout)
        path = (*draft.at, "timeout")
        timeout, uses = read_timeout(step.get("timeout"), path, self.references, self.report)
        draft.uses += uses
        return timeout

    def _unknown(self, draft: StepDraft, step: dict[str, Value]) -> None:
        """A step of which nobody can say what it is: what is inside of it counts all the same."""
        for key in ("then", "else"):
            if isinstance(step.get(key), list) and step[key]:
                draft.then += self.read_list(step[key], (*draft.at, key))
        if isinstance(step.get("updates"), dict):
            draft.updates = tuple(step["updates"])
