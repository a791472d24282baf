"""What the readers of steps share in every dialect that has steps: conditions, numbers, flags.

Each gives what it read, and reports what cannot be used; references go to the draft of the step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar

from workflows_mcp.dialects.step_drafts import Draft
from workflows_mcp.dialects.yaml_source import Document
from workflows_mcp.errors import Problem
from workflows_mcp.plan.conversion import converted
from workflows_mcp.plan.references import ReferenceReader
from workflows_mcp.values import Value, kind_and_value, shown

Path = tuple[str | int, ...]


class StepValues:
    condition_example: ClassVar[str] = "{{ ready }}"

    def __init__(self, document: Document, references: ReferenceReader) -> None:
        self.document = document
        self.references = references
        self.problems: list[Problem] = []
        self.report: Callable[[Problem], None] = self.problems.append

    def problem(self, code: str, message: str, hint: str, path: Path, *, on_key: bool = False) -> None:
        self.report(Problem(code, message, hint, path, on_key=on_key))

    def condition(self, draft: Draft, given: Value, path: Path) -> str | None:
        if isinstance(given, bool):
            return "{{ true }}" if given else "{{ false }}"
        if isinstance(given, str):
            draft.uses += self.references.in_condition(given, path)
            return given
        message = f"a condition is text, not {kind_and_value(given)}"
        self.problem("wrong_type", message, f'e.g. {path[-1]}: "{self.condition_example}"', path)
        return None

    def number(
        self,
        draft: Draft,
        step: Mapping[str, Value],
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
        is_template = bool(uses) or len(self.references.problems) > malformed
        is_template = is_template or (isinstance(given, str) and self.references.language.is_dynamic(given))
        if given is None or (isinstance(given, str) and is_template):
            return given
        try:
            number: float = converted(given, "integer" if whole else "number")
        except ValueError as error:
            self.problem("wrong_type", f"'{key}' {error}", hint, path)
            return least
        if number < least:
            self.problem("wrong_value", f"'{key}' must be {least} or more, not {shown(number)}", hint, path)
        return number

    def flag(self, given: Value, path: Path, hint: str) -> bool:
        if isinstance(given, bool):
            return given
        message = f"'{path[-1]}' must be true or false, not {kind_and_value(given)}"
        self.problem("wrong_type", message, hint, path)
        return False
