"""Reads the steps of a stateful document into drafts of nodes.

Control steps (condition, set_state, foreach, return, goto, wait, workflow) have a row in `CONTROL`; every
other type is a step type of the registry.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import ClassVar

from workflows_mcp.dialects.repetition import (
    check_children,
    read_retry,
    refuse_exit_codes,
)
from workflows_mcp.dialects.step_inputs import StepShape, check_step_inputs
from workflows_mcp.dialects.steps import (
    BaseStepReader,
    Draft,
    StepValues,
    read_id,
    read_on_failure,
    read_on_interrupt,
    read_on_limit,
    read_timeout,
)
from workflows_mcp.plan import Call, Do, ForEach, Return, SetState
from workflows_mcp.steps import ANY_EXIT, Performer, Step
from workflows_mcp.values import Value, kind_and_value, kind_of, nearest, shown

# ----------------------------------------------------------------------------------------------------
# A step as read from a stateful document: targets are still ids.


@dataclass(slots=True)
class StepDraft(Draft):
    output_to: str = ""
    error_to: str = ""
    needs_state: tuple[str, ...] | None = None
    """The fields that it declares; None if it has no `needs_state`."""
    sees_all: bool = False
    """It declares all of the state: ["*"]."""
    target: str | None = None
    most: Value = None
    """The maximum number of jumps of a goto."""
    task: str | None = None
    """The task that a foreach runs."""
    updates: tuple[str, ...] = ()
    """The fields that a set_state writes."""

    @property
    def writes(self) -> tuple[str, ...]:
        return (*self.updates, *(name for name in (self.output_to, self.error_to) if name))


# ----------------------------------------------------------------------------------------------------
# The control steps of the stateful dialect, which are operations of the plan.
#
# A new one needs a row in `CONTROL`, a reader here, and a row in `READERS`.


Path = tuple[str | int, ...]


ABOUT = ("id", "type", "name", "description", "needs_state")

MODIFIERS = ("output_to", "error_to", "when", "on_error")

"""Further keys of every step except return."""

CONTROL: dict[str, tuple[str, ...]] = {
    "condition": ("if", "then", "else"),
    "set_state": ("updates",),
    "foreach": ("items", "task", "agent", "sequential", "max_parallel", "timeout", "on_timeout", "retry"),
    "return": ("value",),
    "goto": ("target", "max_iterations", "on_limit"),
    "wait": ("duration_seconds", "message"),
    "workflow": ("workflow", "inputs", "timeout", "on_timeout", "retry"),
}

"""The types of control steps, with their own keys."""

REQUIRED: dict[str, dict[str, str]] = {
    "condition": {"if": 'if: "{{ state.ready }}"', "then": "then:, and below it the steps"},
    "set_state": {"updates": "updates: {field: value}"},
    "foreach": {
        "items": 'items: "{{ state.files }}"',
        "task": "task: the name of one of the tasks",
        "output_to": "output_to: a field for the list of results",
    },
    "goto": {"target": "target: the id of a step", "max_iterations": "max_iterations: 3"},
    "wait": {"duration_seconds": "duration_seconds: 30"},
    "workflow": {"workflow": "workflow: the name of a workflow"},
}

"""The required keys of each type, and how to write them."""


def own_keys(kind: str) -> tuple[str, ...]:
    """All keys of a control step."""
    modifiers = () if kind == "return" else MODIFIERS
    return (*ABOUT, *modifiers, *CONTROL[kind])


def read_control(reader: StepReader, draft: StepDraft, step: dict[str, Value]) -> None:
    reader.check_keys(draft, step)
    READERS[draft.kind](reader, draft, step)
    reader.retry(draft, step)
    if "on_timeout" in CONTROL[draft.kind]:
        reader.on_timeout(draft, step)


def _read_condition(reader: StepReader, draft: StepDraft, step: dict[str, Value]) -> None:
    reader.branches(draft, step, "if")


def _read_set_state(reader: StepReader, draft: StepDraft, step: dict[str, Value]) -> None:
    updates, path = step.get("updates"), (*draft.at, "updates")
    if updates is None:
        misspelt = next((key for key in step if nearest(key, ["updates"])), "")
        draft.updates = tuple(step[misspelt]) if isinstance(step.get(misspelt), dict) else ()
        return
    if not isinstance(updates, dict) or not updates:
        what = "is empty" if updates == {} else f"must be a mapping, not {kind_of(updates)}"
        message = f"'updates' {what}"
        reader.problem("wrong_type", message, 'e.g. updates: {count: "{{ state.count + 1 }}"}', path)
        return
    draft.updates = tuple(name for name in updates if reader.field(name, (*path, name), on_key=True))
    draft.uses += reader.references.in_value(updates, path)
    draft.do = SetState({name: updates[name] for name in draft.updates})


def _read_foreach(reader: StepReader, draft: StepDraft, step: dict[str, Value]) -> None:
    at = draft.at
    items = reader.items(draft, step, "{{ state.files }}")
    limit = reader.max_parallel(draft, step)
    if reader.flag(step.get("sequential", False), (*at, "sequential"), "true: one item after the other"):
        limit = 1
    check_children(items, limit, at, reader.limits, reader.report, ", or sequential: true")
    agent = reader.agent(step.get("agent"), (*at, "agent"))
    draft.for_each = ForEach(items, limit, agent=agent)
    timeout, uses = read_timeout(step.get("timeout"), (*at, "timeout"), reader.references, reader.report)
    draft.uses += uses
    draft.do = Call(None, timeout=timeout, of_item=True)
    task = step.get("task")
    if task is None:
        return
    if isinstance(task, str) and task in reader.tasks:
        draft.task = task
        draft.do = Call(f"{reader.workflow}#{task}", timeout=timeout, of_item=True)
        return
    draft.task = reader.unknown_task(task, (*at, "task"), "tasks")


def _read_return(reader: StepReader, draft: StepDraft, step: dict[str, Value]) -> None:
    draft.do = Return(reader.value(draft, step, "value"))


def _read_goto(reader: StepReader, draft: StepDraft, step: dict[str, Value]) -> None:
    target, path = step.get("target"), (*draft.at, "target")
    if isinstance(target, int | float):
        target = reader.document.written(path)
    if isinstance(target, str):
        draft.target = target
    elif target is not None:
        message = f"'target' must be the id of a step, not {kind_and_value(target)}"
        reader.problem("wrong_type", message, "e.g. target: improve-quality", path)
    least = "the maximum number of jumps; then it fails, or the next steps run (on_limit: continue)"
    draft.most = reader.number(draft, step, "max_iterations", 1, least, whole=True)
    if step.get("max_iterations") is not None:  # a missing one has been reported
        draft.on_limit = read_on_limit(step, draft.at, reader.report)


def _read_wait(reader: StepReader, draft: StepDraft, step: dict[str, Value]) -> None:
    reader.wait(draft, step)


def _read_workflow(reader: StepReader, draft: StepDraft, step: dict[str, Value]) -> None:
    at = draft.at
    timeout, uses = read_timeout(step.get("timeout"), (*at, "timeout"), reader.references, reader.report)
    draft.uses += uses
    called, inputs = reader.called(draft, step, "run-tests")
    draft.do = Call(called, inputs, timeout)


_ELSEWHERE = {
    ("return", "when"): "put the return into the 'then' of a condition",
    ("return", "output_to"): "its value is the result of the workflow; no step runs after it",
    ("return", "error_to"): "no step runs after it; move what can fail to a step before it",
    ("return", "on_error"): "no step runs after it; move what can fail to a step before it",
}

"""Keys of other types, and how to write the same here."""


READERS: dict[str, Callable[[StepReader, StepDraft, dict[str, Value]], None]] = {
    "condition": _read_condition,
    "set_state": _read_set_state,
    "foreach": _read_foreach,
    "return": _read_return,
    "goto": _read_goto,
    "wait": _read_wait,
    "workflow": _read_workflow,
}


# ----------------------------------------------------------------------------------------------------
# Values that many step types of a stateful document have.


AGENT = re.compile(r"@[a-z0-9-]+")

_FIELD = re.compile(r"[^\W\d_][\w-]*")

_TAKEN = frozenset(["state", "inputs"])


class StatefulValues(StepValues):
    condition_example: ClassVar[str] = "{{ state.approved }}"

    def field(self, given: Value, path: Path, *, on_key: bool = False) -> str:
        """The name of a field of the state; empty if it cannot be one."""
        if isinstance(given, str) and _FIELD.fullmatch(given) and given not in _TAKEN:
            return given
        hint = "a name of letters, digits, '_' and '-' that starts with a letter, e.g. build_result"
        if isinstance(given, str) and given in _TAKEN:
            hint = f"'{given}' already has a meaning in expressions: choose another name"
        message = f"{shown(given)} cannot be a field of the state"
        self.problem("bad_id", message, hint, path, on_key=on_key)
        return ""

    def retry(self, draft: StepDraft, step: dict[str, Value]) -> None:
        if "retry" in step:
            path = (*draft.at, "retry")
            draft.retry, uses = read_retry(step["retry"], path, self.references, self.report)
            draft.uses += uses
            refuse_exit_codes(draft.retry, draft.do, path, self.report)

    def agent(self, given: Value, path: Path) -> str:
        if given is None or (isinstance(given, str) and AGENT.fullmatch(given)):
            return given or ""
        message = f"{shown(given)} cannot be the name of an agent"
        hint = "'@' and then lower-case letters, digits and '-', e.g. @code-reviewer, or @task"
        if isinstance(given, str):
            spelt = re.sub(r"[^a-z0-9]+", "-", given.lower()).strip("-")
            hint = f"write @{spelt}: {hint}" if spelt else hint
        self.problem("bad_agent", message, hint, path)
        return ""


DIALECT = "stateful"

DEFAULTS: Mapping[str, Mapping[str, Value]] = {"Shell": {"timeout": 30}}

"""Defaults of inputs that differ from those of the step type."""


_EQUIVALENTS = {
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

"""Types of other dialects, and common mistakes, with their equivalents here."""


def _spelt(key: str, step: dict[str, Value]) -> str:
    """How a step spells a key: a misspelt key is reported elsewhere, and used here."""
    if key not in step:
        known = (*ABOUT, *MODIFIERS)
        return next((other for other in step if other not in known and nearest(other, known) == key), key)
    return key


def keys_beside(step: Step) -> tuple[str, ...]:
    """The keys of a step besides the inputs of its type."""
    keys = [*ABOUT, *MODIFIERS, "timeout", "on_timeout", "retry"]
    if step.can_run:
        keys.append("on_interrupt")
    if step.can_run and step.can_ask:
        keys.append("run_on")
    return tuple(keys)


class StepReader(BaseStepReader, StatefulValues):
    """Reads the steps of a workflow and of its tasks."""

    dialect: ClassVar[str] = DIALECT
    control: ClassVar[Collection[str]] = CONTROL
    required: ClassVar[Mapping[str, Mapping[str, str]]] = REQUIRED
    elsewhere: ClassVar[Mapping[tuple[str, str], str]] = _ELSEWHERE
    equivalents: ClassVar[Mapping[str, str]] = _EQUIVALENTS
    inner: ClassVar[tuple[str, ...]] = ("then", "else")
    own_keys = staticmethod(own_keys)
    step_example: ClassVar[str] = "- id: build, and below it type and the keys of that type"
    keys_beside = staticmethod(keys_beside)

    def read_list(self, given: Value, path: Path) -> list[StepDraft]:
        turned = 'put steps into it, or negate the test: if: "{{ not … }}"' if path[-1] == "then" else ""
        return [self._read(step, at) for step, at in self.mappings(given, path, turned)]

    def _read(self, step: dict[str, Value], at: Path) -> StepDraft:
        found = read_id(step.get("id"), at, self.document, "step", self.report)
        # nothing can refer to this id, so it causes no further problems
        draft = StepDraft(found if found is not None else f"#{'.'.join(map(str, at))}", at)
        draft.kind = self.kind(step, at)
        self._about(draft, step)
        if draft.kind in CONTROL:
            read_control(self, draft, step)
        elif draft.kind:
            self._work(draft, step)
        else:
            self.unknown(draft, step)
        return draft

    # Keys of every step

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

    # Steps of registered types

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
        by = self.performer_of(shape, step, inputs, at)
        config = dict(kind.dialect_config.get(DIALECT, {}))
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
            result_output=kind.result_output,
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
        by: Performer,
    ) -> Value:
        """Seconds after which the server ends the step.

        For an agent, only the timeout in the step counts: the agent itself applies the default of the type,
        because it may have to ask its user before it starts a command.
        """
        within = shape.step.timeout_input
        if within is not None:
            default = shape.default_timeout if by == "server" else None
            return inputs.get(within, default) if by == "server" or step.get(within) is not None else None
        path = (*draft.at, "timeout")
        timeout, uses = read_timeout(step.get("timeout"), path, self.references, self.report)
        draft.uses += uses
        return timeout

    def unknown(self, draft: Draft, step: Mapping[str, Value]) -> None:
        super().unknown(draft, step)
        assert isinstance(draft, StepDraft)
        if isinstance(step.get("updates"), dict):
            draft.updates = tuple(step["updates"])
