"""A list of steps of a reactive document becomes drafts of nodes: what each does, reads and changes.

Steps that control are read in `reactive_control`; every other type is a step type, which the registry knows.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import ClassVar

from workflows_mcp.dialects.document_keys import unknown_keys
from workflows_mcp.dialects.reactive_control import ABOUT, CONTROL, FAILING, own_keys, read_control
from workflows_mcp.dialects.reactive_drafts import ReactiveDraft
from workflows_mcp.dialects.reactive_values import ReactiveValues
from workflows_mcp.dialects.step_inputs import StepShape, check_step_inputs
from workflows_mcp.dialects.step_keys import ID, ON_FAILURE, read_on_interrupt, read_on_timeout, read_word
from workflows_mcp.dialects.step_types import StepTypes
from workflows_mcp.errors import Problem
from workflows_mcp.plan.model import Checkpoint, Do
from workflows_mcp.steps.base import Hands, Step
from workflows_mcp.values import Value, kind_and_value, nearest, shown

Path = tuple[str | int, ...]

DIALECT = "reactive"
ON_ERROR = ("fail", "continue", "retry")
TIMED = ("Shell", "AgentShell", "MCPCall")
"""Types whose time can be limited, in milliseconds."""
OUTPUT_FORMAT = "output_format"
"""What steps of types that are told of it beside their inputs (`Step.told`) may say of their output."""
MCP, MCP_KEYS = "mcp", ("method", "params")
"""What a call of a tool is given stands below `mcp`, or in the step itself."""
_TOOL_SPELLINGS = {"tool": "method", "args": "params", "parameters": "params"}
"""What else the parts of a call are called, here and in other dialects."""
_SPELLINGS = {"then_steps": "then", "else_steps": "else", "timeout_seconds": "timeout"}
"""What else keys of steps are called. `timeout_seconds` is in seconds, `timeout` in milliseconds."""
_SPELT_TYPES = {"while_loop": "while"}
"""What else step types are called."""
CHECKPOINT_TOOLS = ("workflow.checkpoint", "workflow_checkpoint")
"""Our own tool: the run marks its place itself."""
RENAMED = {"MCPCall": {"tool": "method", "parameters": "params"}}
_MEANT = {
    "condition": "conditional",
    "Delegate": "parallel_foreach",
    "delegate": "parallel_foreach",
    "ExecuteWorkflow": "include_workflow",
    "for_each": "foreach",
    "goto": "while",
    "if": "conditional",
    "mcp": "mcp_call",
    "message": "user_message",
    "parallel_tasks": "parallel_foreach",
    "Prompt": "user_input",
    "prompt": "user_input",
    "return": "exit",
    "set_state": "state_update",
    "Shell": "shell_command",
    "shell": "shell_command",
    "sleep": "wait",
    "Workflow": "include_workflow",
    "workflow": "include_workflow",
}


def keys_beside(step: Step) -> tuple[str, ...]:
    """What a step of a type that is carried out takes beside its inputs."""
    keys = [*ABOUT, *FAILING, "timeout", "on_timeout"]
    if step.can_run:
        keys.append("on_interrupt")
    if step.can_run and step.can_ask:
        keys.append("run_on")
    if OUTPUT_FORMAT in step.told.get(DIALECT, {}):
        keys.append(OUTPUT_FORMAT)
    return tuple(keys)


class StepReader(StepTypes, ReactiveValues):
    """Reads the steps of a workflow and of its tasks."""

    dialect: ClassVar[str] = DIALECT
    control: ClassVar[Collection[str]] = CONTROL
    meant: ClassVar[Mapping[str, str]] = _MEANT
    renamed: ClassVar[Mapping[str, Mapping[str, str]]] = RENAMED
    step_example: ClassVar[str] = "- type: shell_command, and below it what the type takes"
    keys_beside = staticmethod(keys_beside)
    has_imports = False
    """Whether tasks and workflows may come from other files."""

    def read_list(self, given: Value, path: Path) -> list[ReactiveDraft]:
        turned = ""
        if path[-1] == "then":
            turned = 'put steps into it, or turn the test around: condition: "{{ !(…) }}"'
        return [self._read(step, at) for step, at in self.mappings(given, path, turned)]

    def kind(self, step: Mapping[str, Value], at: Path) -> str:
        """A type of another dialect has other keys too: nothing more can be said of such a step."""
        kind, given = super().kind(step, at), step.get("type")
        return "" if isinstance(given, str) and given in self.meant else kind

    def _read(self, step: dict[str, Value], at: Path) -> ReactiveDraft:
        step = self._as_documented(step, at)
        draft = ReactiveDraft("", at, self.kind(step, at), own_id=self._own_id(step.get("id"), at))
        if "when" in step:
            draft.condition = self.condition(draft, step["when"], (*at, "when"))
        if draft.kind in CONTROL:
            read_control(self, draft, step)
        elif draft.kind:
            self._work(draft, step)
        else:
            self._unknown(draft, step)
        return draft

    def _as_documented(self, step: dict[str, Value], at: Path) -> dict[str, Value]:
        """The step with the documented spellings of its type and its keys; each other one is warned of."""
        kind = step.get("type")
        if isinstance(kind, str) and kind in _SPELT_TYPES:
            step = {**step, "type": _SPELT_TYPES[kind]}
            self._spelt(f"type: {kind}", f"type: {_SPELT_TYPES[kind]}", (*at, "type"))
        known: Collection[str] = ()
        if isinstance(kind := step.get("type"), str):
            shape = self.shape(kind) if kind not in CONTROL else None
            known = own_keys(kind) if kind in CONTROL else (*shape.names, *shape.beside) if shape else ()
        found = {
            spelt: key
            for spelt, key in _SPELLINGS.items()
            if spelt in step and key in known and key not in step
        }
        for spelt, key in found.items():
            self._spelt(
                spelt, f"{key}, in milliseconds" if key == "timeout" else key, (*at, spelt), on_key=True
            )
        return {found.get(key, key): self._in_unit(key, it) for key, it in step.items()} if found else step

    def _in_unit(self, key: str, value: Value) -> Value:
        """Seconds as milliseconds."""
        if key != "timeout_seconds" or isinstance(value, bool):
            return value
        if isinstance(value, int | float):
            return value * 1000
        if isinstance(value, str) and (whole := _WHOLE.fullmatch(value)):
            return f"{{{{ ({whole[1].strip()}) * 1000 }}}}"
        return value

    def _spelt(self, written: str, documented: str, path: Path, *, on_key: bool = False) -> None:
        message = f"'{written}' is understood, and is not the documented spelling"
        hint = f"write {documented}"
        self.report(Problem("spelling", message, hint, path, on_key=on_key, warning=True))

    def _own_id(self, given: Value, at: Path) -> str:
        """What the author calls the step; expressions in it say nothing before a run."""
        if given is None:
            return ""
        if isinstance(given, int | float):
            given = self.document.written((*at, "id"))
        if isinstance(given, str):
            own = _EXPRESSION.sub("", given).strip("_- ") if "{{" in given else given
            if ID.fullmatch(own) or (not own and "{{" in given):
                return own
        hint = "an id holds letters, digits, '_' and '-', e.g. run-tests"
        self.problem("bad_id", f"{shown(given)} cannot be an id", hint, (*at, "id"))
        return ""

    def text(self, draft: ReactiveDraft, step: Mapping[str, Value], key: str, means: str) -> str | None:
        """A text, or a template."""
        given, path = step.get(key), (*draft.at, key)
        if given is None:
            return None
        draft.uses += self.references.in_value(given, path)
        if isinstance(given, str):
            return given
        self.problem("wrong_type", f"'{key}' must be text, not {kind_and_value(given)}", means, path)
        return None

    # What steps say of their failures

    def on_error_of_control(self, draft: ReactiveDraft, given: Value) -> None:
        """Steps that are not carried out by anybody cannot be tried again."""
        word = read_word(given, ON_FAILURE, (*draft.at, "on_error"), self.report)
        draft.says_on_error = True
        draft.on_failure = "continue" if word == "continue" else None

    def failing(self, draft: ReactiveDraft, step: Mapping[str, Value]) -> None:
        """What the result of a step changes, and what becomes of it when it fails."""
        at = draft.at
        draft.changes = self.changes(draft, step.get("state_update"), "state_update")
        draft.error_changes = self.changes(draft, step.get("error_state_update"), "error_state_update")
        word = None
        if step.get("on_error") is not None:
            word = read_word(step["on_error"], ON_ERROR, (*at, "on_error"), self.report)
            draft.says_on_error = True
            draft.on_failure = "continue" if word == "continue" else None
        attempts = self.attempts(draft, step, "retry_count", at)
        delay = self.seconds(draft, step, "retry_delay", least=0)
        if word == "retry":
            draft.retry = {"attempts": attempts, "delay": 1 if delay is None else delay, "backoff": 1}
        else:
            for key in ("retry_count", "retry_delay"):
                if step.get(key) is not None:
                    self._without_retry(key, (*at, key))
        if "fallback_value" in step:
            path = (*at, "fallback_value")
            draft.uses += self.references.in_value(step["fallback_value"], path)
            draft.fallback, draft.has_fallback = step["fallback_value"], True
            if word == "fail":
                message = "'fallback_value' is never used with on_error: fail"
                hint = "write on_error: continue, or on_error: retry to try it again before"
                self.problem("wrong_value", message, hint, path, on_key=True)

    def on_timeout(
        self,
        draft: ReactiveDraft,
        step: Mapping[str, Value],
        kind: Step | None = None,
        inputs: Mapping[str, Value] = MappingProxyType({}),
    ) -> None:
        path = (*draft.at, "on_timeout")
        read_on_timeout(
            draft, step.get("on_timeout"), path, self.references, self.report, step=kind, inputs=inputs
        )

    def _without_retry(self, key: str, path: Path) -> None:
        message = f"'{key}' counts only with on_error: retry; this step is not tried again"
        hint = "write on_error: retry, or remove it"
        self.report(Problem("without_effect", message, hint, path, on_key=True, warning=True))

    # Steps that are carried out

    def _work(self, draft: ReactiveDraft, step: dict[str, Value]) -> None:
        at, shape = draft.at, self.shape(draft.kind)
        assert shape is not None
        kind = shape.step
        given, places = self._given(draft, shape, step)
        inputs, dynamic = self.inputs(draft, shape, given, places)
        nested = {(*at, key): places[key] for key in MCP_KEYS if key in places}
        for problem in check_step_inputs(shape, inputs, dynamic, at, self.document, as_a_whole=True):
            self.report(_moved(problem, nested, len(at) + 1))
        known = {name: value for name, value in inputs.items() if name in shape.names}
        inputs = shape.as_the_type_has_them(known)
        config = dict(kind.told.get(DIALECT, {}))
        if OUTPUT_FORMAT in shape.beside and step.get(OUTPUT_FORMAT) is not None:
            config[OUTPUT_FORMAT] = step[OUTPUT_FORMAT]
            for path, message, hint in kind.check_config(config):
                self.problem("wrong_value", message, hint, (*at, *path))
        by = self.hands(shape, step, known, at)
        outputs = kind.output_defaults(config)
        draft.do = Do(
            step=kind.name,
            inputs=inputs,
            by=by,
            code=tuple(name for name in inputs if name in kind.code_inputs),
            literal=tuple(name for name in inputs if name in kind.literal_inputs),
            timeout=self._timeout(draft, shape, step, inputs, by),
            config=config,
            defaults=outputs,
            may_fail=kind.may_fail,
            documented=kind.result_fields if "result" in outputs else tuple(outputs),
            gives=kind.gives_in(DIALECT),
        )
        if kind.name == "MCPCall" and inputs.get("tool") in CHECKPOINT_TOOLS and "run_on" not in step:
            draft.do = Checkpoint(inputs.get("parameters", inputs.get("args", {})))
        draft.on_interrupt = kind.on_interrupt
        if step.get("on_interrupt") is not None:
            path = (*at, "on_interrupt")
            draft.on_interrupt = read_on_interrupt(step["on_interrupt"], path, self.report)
        self.failing(draft, step)
        self.on_timeout(draft, step, kind, inputs)

    def _given(
        self, draft: ReactiveDraft, shape: StepShape, step: dict[str, Value]
    ) -> tuple[dict[str, Value], dict[str, Path]]:
        """What stands in the step for its type, by the names of its inputs, and where each part stands."""
        at = draft.at
        given = dict(step)
        places: dict[str, Path] = {name: (*at, name) for name in step}
        if shape.step.name == "MCPCall":
            self._tool(given, places, at)
        within = shape.step.timeout_input
        if within is not None and shape.step.name in TIMED and given.get(within) is not None:
            given[within] = self.seconds(draft, step, within, least=1)
        return given, places

    def _tool(self, given: dict[str, Value], places: dict[str, Path], at: Path) -> None:
        """`mcp: {method, params}`, or both in the step, become the inputs of the step type."""
        inner = given.pop(MCP, None)
        if inner is not None and not isinstance(inner, dict):
            message = f"'{MCP}' must be a mapping, not {kind_and_value(inner)}"
            self.problem("wrong_type", message, "e.g. mcp: {method: lint_project, params: {}}", (*at, MCP))
            inner = {"method": "?"}  # so that nothing more is said of it
        for spelt, key in _TOOL_SPELLINGS.items():
            if spelt in given and key not in given:
                self._spelt(spelt, key, (*at, spelt), on_key=True)
                given[key], places[key] = given.pop(spelt), (*at, spelt)
            if inner is not None and spelt in inner and key not in inner:
                self._spelt(spelt, key, (*at, MCP, spelt), on_key=True)
                inner = {key if it == spelt else it: part for it, part in inner.items()}
        for problem in unknown_keys(inner or {}, MCP_KEYS, (*at, MCP), f"'{MCP}'"):
            self.report(problem)
            meant = nearest(str(problem.path[-1]), MCP_KEYS)
            if meant and inner is not None and meant not in inner:
                inner = {**inner, meant: inner[problem.path[-1]]}  # one mistake, one problem
        for key in MCP_KEYS:
            if inner is not None and key in inner:
                if key in given:
                    message = f"'{key}' stands in '{MCP}' and beside it"
                    self.problem("unknown_key", message, "keep one of the two", (*at, key), on_key=True)
                given[key], places[key] = inner[key], (*at, MCP, key)

    def _timeout(
        self,
        draft: ReactiveDraft,
        shape: StepShape,
        step: Mapping[str, Value],
        inputs: Mapping[str, Value],
        by: Hands,
    ) -> Value:
        """When the server ends the step. An agent has as long as the step says; what the type itself says of
        time is for the agent to keep to."""
        within = shape.step.timeout_input
        if within is not None:
            return inputs.get(within, shape.default_timeout if by == "server" else None)
        return self.seconds(draft, step, "timeout", least=1)

    def _unknown(self, draft: ReactiveDraft, step: dict[str, Value]) -> None:
        """A step of which nobody can say what it is: what is inside of it counts all the same."""
        for key in ("then", "else", "body", "steps", "on_complete"):
            if isinstance(step.get(key), list) and step[key]:
                draft.then += self.read_list(step[key], (*draft.at, key))
        draft.repeats = True  # so that nothing is said of a break in it


def _moved(problem: Problem, places: Mapping[Path, Path], length: int) -> Problem:
    """The problem where the value stands that it is about."""
    place = places.get(problem.path[:length])
    if place is None:
        return problem
    return Problem(
        problem.code,
        problem.message,
        problem.hint,
        (*place, *problem.path[length:]),
        problem.offset,
        problem.on_key,
    )


_WHOLE = re.compile(r"\s*\{\{((?:(?!\{\{|\}\}).)*)\}\}\s*", re.DOTALL)
_EXPRESSION = re.compile(r"\{\{.*?\}\}")
