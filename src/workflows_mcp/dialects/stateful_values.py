"""What the readers of all step types of a stateful document share beyond those of other dialects."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar

from workflows_mcp.dialects.repetition import read_retry, refuse_exit_codes
from workflows_mcp.dialects.stateful_drafts import StepDraft
from workflows_mcp.dialects.step_keys import read_on_timeout
from workflows_mcp.dialects.step_values import StepValues
from workflows_mcp.steps.base import Step
from workflows_mcp.values import Value, shown

Path = tuple[str | int, ...]

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
            hint = f"'{given}' has a meaning of its own in expressions: take another name"
        message = f"{shown(given)} cannot be a field of the state"
        self.problem("bad_id", message, hint, path, on_key=on_key)
        return ""

    def retry(self, draft: StepDraft, step: dict[str, Value]) -> None:
        if "retry" in step:
            path = (*draft.at, "retry")
            draft.retry, uses = read_retry(step["retry"], path, self.references, self.report)
            draft.uses += uses
            refuse_exit_codes(draft.retry, draft.do, path, self.report)

    def on_timeout(
        self,
        draft: StepDraft,
        step: dict[str, Value],
        kind: Step | None = None,
        inputs: Mapping[str, Value] = MappingProxyType({}),
    ) -> None:
        path = (*draft.at, "on_timeout")
        read_on_timeout(
            draft, step.get("on_timeout"), path, self.references, self.report, step=kind, inputs=inputs
        )

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
