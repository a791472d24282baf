"""A list of steps of a stateful document becomes drafts of nodes: what each does, reads and writes.

Steps that control (condition, set_state, foreach, return, goto, wait, workflow) are read in
`stateful_control`; every other type is a step type, which the registry knows.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import ClassVar

from workflows_mcp.dialects.stateful_control import ABOUT, CONTROL, MODIFIERS, read_control
from workflows_mcp.dialects.stateful_drafts import StepDraft
from workflows_mcp.dialects.stateful_values import StatefulValues
from workflows_mcp.dialects.step_inputs import StepShape, check_step_inputs
from workflows_mcp.dialects.step_keys import read_id, read_on_failure, read_on_interrupt, read_timeout
from workflows_mcp.dialects.step_types import StepTypes
from workflows_mcp.plan.model import Do
from workflows_mcp.steps.base import Hands, Step
from workflows_mcp.steps.shell import ANY_EXIT
from workflows_mcp.values import Value, kind_and_value, nearest

Path = tuple[str | int, ...]

DIALECT = "stateful"
DEFAULTS: Mapping[str, Mapping[str, Value]] = {"Shell": {"timeout": 30}}
"""What inputs of step types are where the step does not say, if that is not what the type has for them."""


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
    keys = [*ABOUT, *MODIFIERS, "timeout", "on_timeout", "retry"]
    if step.can_run:
        keys.append("on_interrupt")
    if step.can_run and step.can_ask:
        keys.append("run_on")
    return tuple(keys)


class StepReader(StepTypes, StatefulValues):
    """Reads the steps of a workflow and of its tasks."""

    dialect: ClassVar[str] = DIALECT
    control: ClassVar[Collection[str]] = CONTROL
    meant: ClassVar[Mapping[str, str]] = _MEANT
    step_example: ClassVar[str] = "- id: build, and below it type and what the type takes"
    keys_beside = staticmethod(keys_beside)

    def read_list(self, given: Value, path: Path) -> list[StepDraft]:
        turned = 'put steps into it, or turn the test around: if: "{{ not … }}"' if path[-1] == "then" else ""
        return [self._read(step, at) for step, at in self.mappings(given, path, turned)]

    def _read(self, step: dict[str, Value], at: Path) -> StepDraft:
        found = read_id(step.get("id"), at, self.document, "step", self.report)
        # nobody can refer to one that is none, so that it causes no further problems
        draft = StepDraft(found if found is not None else f"#{'.'.join(map(str, at))}", at)
        draft.kind = self.kind(step, at)
        self._about(draft, step)
        if draft.kind in CONTROL:
            read_control(self, draft, step)
        elif draft.kind:
            self._work(draft, step)
        else:
            self._unknown(draft, step)
        return draft

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
        if step.get("error_to") is not None:
            draft.error_to = self.field(step["error_to"], (*at, "error_to"))
        if "when" in step:
            draft.condition = self.condition(draft, step["when"], (*at, "when"))
        if "on_error" in step:
            draft.on_failure = read_on_failure(step["on_error"], (*at, "on_error"), self.report)

    def _needs_state(self, draft: StepDraft, given: Value, path: Path) -> None:
        if not isinstance(given, list) or not all(isinstance(name, str) for name in given):
            message = f"'needs_state' must be a list of fields, not {kind_and_value(given)}"
            self.problem("wrong_type", message, 'e.g. needs_state: ["files", "config"], or ["*"]', path)
            draft.sees_all = True  # so that it causes no further problems
            return
        draft.sees_all = "*" in given
        draft.needs_state = tuple(dict.fromkeys(given))

    # Steps that are carried out

    def _work(self, draft: StepDraft, step: dict[str, Value]) -> None:
        at, shape = draft.at, self.shape(draft.kind)
        assert shape is not None
        kind = shape.step
        inputs, dynamic = self.inputs(draft, shape, step, {name: (*at, name) for name in step})
        if "agent" in shape.names and "agent" in inputs and "agent" not in dynamic:
            agent = self.agent(inputs.pop("agent"), (*at, "agent"))
            inputs |= {"agent": agent} if agent else {}
        self.problems += check_step_inputs(shape, inputs, dynamic, at, self.document, as_a_whole=True)
        inputs = {name: value for name, value in inputs.items() if name in shape.names}
        for name, value in DEFAULTS.get(kind.name, {}).items():
            inputs.setdefault(name, value)
        by = self.hands(shape, step, inputs, at)
        config = dict(kind.told.get(DIALECT, {}))
        if ANY_EXIT in config and (by == "server" or draft.on_failure == "fail"):
            config[ANY_EXIT] = False
        draft.do = Do(
            step=kind.name,
            inputs=inputs,
            by=by,
            code=tuple(name for name in inputs if name in kind.code_inputs),
            literal=tuple(name for name in inputs if name in kind.literal_inputs),
            timeout=self._timeout(draft, shape, step, inputs, by),
            config=config,
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
        self.on_timeout(draft, step, kind, inputs)

    def _timeout(
        self,
        draft: StepDraft,
        shape: StepShape,
        step: dict[str, Value],
        inputs: dict[str, Value],
        by: Hands,
    ) -> Value:
        """When the server ends the step. An agent has as long as the step says; what the type itself says of
        time is for the agent to keep to: a command that it must first ask its user for has not begun when it
        is handed out."""
        within = shape.step.timeout_input
        if within is not None:
            default = shape.default_timeout if by == "server" else None
            return inputs.get(within, default) if by == "server" or step.get(within) is not None else None
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
