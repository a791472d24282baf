"""What the readers of all step types of a stateful document share: names, numbers, conditions, agents.

Each gives what it read, and reports what cannot be used; references go to the draft of the step.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from workflows_mcp.dialects.repetition import read_retry
from workflows_mcp.dialects.stateful_drafts import StepDraft
from workflows_mcp.dialects.yaml_source import Document
from workflows_mcp.errors import Problem
from workflows_mcp.plan.conversion import converted
from workflows_mcp.plan.references import ReferenceReader
from workflows_mcp.values import Value, kind_of, shown

Path = tuple[str | int, ...]

AGENT = re.compile(r"@[a-z0-9-]+")
_FIELD = re.compile(r"[^\W\d_][\w-]*")
_TAKEN = frozenset(["state", "inputs"])


class StepValues:
    def __init__(self, document: Document, references: ReferenceReader) -> None:
        self.document = document
        self.references = references
        self.problems: list[Problem] = []
        self.report: Callable[[Problem], None] = self.problems.append

    def problem(self, code: str, message: str, hint: str, path: Path, *, on_key: bool = False) -> None:
        self.report(Problem(code, message, hint, path, on_key=on_key))

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

    def condition(self, draft: StepDraft, given: Value, path: Path) -> str | None:
        if isinstance(given, bool):
            return "{{ true }}" if given else "{{ false }}"
        if isinstance(given, str):
            draft.uses += self.references.in_condition(given, path)
            return given
        message = f"a condition is text, not {kind_of(given)} {shown(given)}"
        self.problem("wrong_type", message, f'e.g. {path[-1]}: "{{{{ state.approved }}}}"', path)
        return None

    def retry(self, draft: StepDraft, step: dict[str, Value]) -> None:
        if "retry" in step:
            path = (*draft.at, "retry")
            draft.retry, uses = read_retry(step["retry"], path, self.references, self.report)
            draft.uses += uses

    def number(
        self,
        draft: StepDraft,
        step: dict[str, Value],
        key: str,
        least: int,
        hint: str,
        *,
        whole: bool = False,
    ) -> Value:
        """A number that an operation needs, or a template of one."""
        given, path = step.get(key), (*draft.at, key)
        malformed = len(self.references.problems)
        uses = self.references.in_value(given, path)
        draft.uses += uses
        if given is None or uses or len(self.references.problems) > malformed:
            return given
        try:
            number: float = converted(given, "integer" if whole else "number")
        except ValueError as error:
            self.problem("wrong_type", f"'{key}' {error}", hint, path)
            return least
        if number < least:
            self.problem("wrong_value", f"'{key}' must be {least} or more, not {shown(number)}", hint, path)
        return number

    def flag(self, given: Value, path: Path) -> bool:
        if isinstance(given, bool):
            return given
        message = f"'{path[-1]}' must be true or false, not {kind_of(given)} {shown(given)}"
        self.problem("wrong_type", message, "true: one item after the other", path)
        return False

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
