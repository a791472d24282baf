"""What the readers of all step types of a reactive document share: changes of the state, times, tries.

Times are written in milliseconds and become seconds here. Each reader gives what it read, and reports what
cannot be used.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import ClassVar, cast

from workflows_mcp.dialects.document_keys import unknown_keys
from workflows_mcp.dialects.reactive_drafts import ReactiveDraft
from workflows_mcp.dialects.reactive_paths import Keys, Pieces, WrongPath, read_path
from workflows_mcp.dialects.step_keys import read_word
from workflows_mcp.dialects.step_values import StepValues
from workflows_mcp.errors import ExpressionError, Problem
from workflows_mcp.plan.conversion import converted
from workflows_mcp.plan.model import MOST_SECONDS, Change, ChangeOperation, Do
from workflows_mcp.plan.retry import MOST_ATTEMPTS
from workflows_mcp.values import Value, kind_and_value, nearest, shown

Path = tuple[str | int, ...]

_OF_RESULTS = frozenset({"stdout", "stderr", "exit_code", "response", "result", "output", "value", "content"})
"""Names of what steps give."""
CHANGE_KEYS = ("path", "value", "operation", "transform")
OPERATIONS: tuple[ChangeOperation, ...] = ("set", "append", "increment", "merge")
MORE_TRIES = 3
"""How often something that failed is tried again where nothing is said of it."""
_FILTER = re.compile(r"(?<!\|)\|(?!\|)")


class ReactiveValues(StepValues):
    condition_example: ClassVar[str] = "{{ has_errors }}"

    @property
    def language(self) -> Pieces:
        return cast(Pieces, self.references.language)

    # Changes of the state

    def changes(self, draft: ReactiveDraft, given: Value, key: str) -> tuple[Change, ...]:
        """What `state_update` or `error_state_update` says: one change, or a list of them."""
        at = (*draft.at, key)
        if given is None:
            return ()
        if isinstance(given, list):
            found = [self._change(draft, it, (key, index)) for index, it in enumerate(given)]
        elif isinstance(given, dict):
            found = [self._change(draft, given, (key,))]
        else:
            message = f"'{key}' must be a mapping or a list of them, not {kind_and_value(given)}"
            self.problem("wrong_type", message, f"e.g. {key}: {{path: raw.result}}", at)
            return ()
        changes = tuple(change for change in found if change is not None)
        for change in changes if key == "state_update" else ():
            self._set_to_itself(draft, change)
        return changes

    def _set_to_itself(self, draft: ReactiveDraft, change: Change) -> None:
        """A field of the state goes before one of the result: setting it to itself cannot be meant."""
        name = str(change.path[-1])
        documented = draft.do.documented if isinstance(draft.do, Do) else ()
        plain = change.operation == "set" and not change.transform and len(change.path) == 2
        same = isinstance(change.value, str) and change.value.replace(" ", "") == f"{{{{{name}}}}}"
        if not (plain and same) or name in documented:
            return
        message = f"'{name}' is the field of the state as soon as it has a value: this sets it to itself"
        hint = f"write {{{{ result.{name} }}}} for the field of the result"
        path = (*draft.at, *change.at, "value")
        self.report(Problem("without_effect", message, hint, path, warning=True))

    def updates(self, draft: ReactiveDraft, given: Value) -> tuple[Change, ...]:
        """The `updates` of a step of type state_update."""
        if not isinstance(given, list) or not given:
            what = "is empty" if given == [] else f"must be a list, not {kind_and_value(given)}"
            hint = "e.g. updates: [{path: raw.count, value: 1}]"
            self.problem("wrong_type", f"'updates' {what}", hint, (*draft.at, "updates"))
            return ()
        found = [
            self._change(draft, it, ("updates", index), needs_value=True) for index, it in enumerate(given)
        ]
        return tuple(change for change in found if change is not None)

    def change(self, draft: ReactiveDraft, step: Mapping[str, Value]) -> tuple[Change, ...]:
        """The change that stands in a step of type state_update itself."""
        change = self._made(draft, step, (), needs_value=True)
        return () if change is None else (change,)

    def _change(
        self, draft: ReactiveDraft, given: Value, inside: Path, *, needs_value: bool = False
    ) -> Change | None:
        at = (*draft.at, *inside)
        if not isinstance(given, dict):
            message = f"a change of the state must be a mapping, not {kind_and_value(given)}"
            self.problem("wrong_type", message, "e.g. {path: raw.result, value: …}", at)
            return None
        missing = ["path"] if given.get("path") is None else []
        for problem in unknown_keys(given, CHANGE_KEYS, at, f"'{inside[0]}'"):
            self.report(problem)
            if nearest(str(problem.path[-1]), missing):
                missing = []  # one mistake, one problem
        if missing:
            message = "a change of the state needs 'path'"
            self.problem("missing_key", message, "add a line: path: raw.result", at, on_key=True)
        return self._made(draft, given, inside, needs_value=needs_value)

    def _made(
        self, draft: ReactiveDraft, given: Mapping[str, Value], inside: Path, *, needs_value: bool
    ) -> Change | None:
        at = (*draft.at, *inside)
        operation = OPERATIONS[0]
        if given.get("operation") is not None:
            word = read_word(given["operation"], OPERATIONS, (*at, "operation"), self.report)
            operation = cast(ChangeOperation, word or operation)
        transform = self._transform(draft, given.get("transform"), (*at, "transform"))
        has_value = "value" in given or bool(transform) or operation == "increment"
        if needs_value and not has_value and given.get("path") is not None:  # one mistake, one problem
            example = {"append": "one more", "merge": "{status: done}"}.get(operation, "5")
            message = f"the operation {operation} needs a 'value'"
            self.problem("missing_key", message, f"add a line: value: {example}", at, on_key=bool(inside))
        draft.uses += self.references.in_value(given.get("value"), (*at, "value"))
        value = given.get("value")
        if isinstance(value, str) and value in _OF_RESULTS and not needs_value:
            message = f"the value is the word '{value}', not the {value} of the step"
            hint = f'write value: "{{{{ {value} }}}}"'
            self.report(Problem("literal_value", message, hint, (*at, "value"), warning=True))
        if given.get("path") is None:
            return None
        keys = self.state_path(draft, given["path"], (*at, "path"))
        if not keys:
            return None
        return Change(keys, operation, given.get("value"), "value" in given, transform, inside)

    def state_path(self, draft: ReactiveDraft, given: Value, path: Path) -> Keys:
        """The keys of a place in the state; none where it cannot be written."""
        if not isinstance(given, str):
            message = f"'{path[-1]}' must be text, not {kind_and_value(given)}"
            self.problem("wrong_type", message, f"e.g. {path[-1]}: raw.result", path)
            return ()
        try:
            keys = read_path(given.strip(), self.language)
        except ExpressionError:
            keys = ()  # the references in it are read next, and say so
        except WrongPath as wrong:
            self.problem("bad_path", str(wrong), wrong.hint, path)
            return ()
        draft.uses += self.references.in_value(given, path)
        return keys

    def _transform(self, draft: ReactiveDraft, given: Value, path: Path) -> str:
        """A template, or JavaScript that makes a value of `input` and `result`."""
        if given is None:
            return ""
        if not isinstance(given, str) or not given.strip():
            message = f"'transform' must be JavaScript, not {kind_and_value(given)}"
            self.problem("wrong_type", message, 'e.g. transform: "input.trim()"', path)
            return ""
        dynamic = self.references.language.is_dynamic(given)
        read = self.references.in_value if dynamic else self.references.in_transform
        draft.uses += read(given, path)
        return given

    # Times and tries

    def seconds(self, draft: ReactiveDraft, step: Mapping[str, Value], key: str, *, least: float) -> Value:
        """Milliseconds as seconds: a number, or a template of it; None where there is nothing of use."""
        given, path = step.get(key), (*draft.at, key)
        if given is None:
            return None
        if isinstance(given, str) and self.references.language.is_dynamic(given):
            return self._scaled(draft, given, path, "/ 1000")
        try:
            number: float = converted(given, "number")
        except ValueError as error:
            self.problem("wrong_type", f"'{key}' {error}", f"milliseconds, e.g. {key}: 5000", path)
            return None
        if not least <= number <= MOST_SECONDS * 1000:
            most = MOST_SECONDS * 1000
            message = f"'{key}' must be from {least:g} to {most} milliseconds, not {shown(number)}"
            self.problem("wrong_value", message, f"e.g. {key}: 5000, which is five seconds", path)
            return None
        seconds = number / 1000
        return int(seconds) if seconds == int(seconds) else seconds

    def attempts(self, draft: ReactiveDraft, step: Mapping[str, Value], key: str, at: Path) -> Value:
        """How often something is tried in all, of how often it is tried again."""
        given, path = step.get(key), (*at, key)
        if given is None:
            return 1 + MORE_TRIES
        if isinstance(given, str) and self.references.language.is_dynamic(given):
            return self._scaled(draft, given, path, "+ 1")
        hint = f"how often it is tried again, e.g. {key}: 3"
        try:
            number: int = converted(given, "integer")
        except ValueError as error:
            self.problem("wrong_type", f"'{key}' {error}", hint, path)
            return 1 + MORE_TRIES
        if 0 <= number < MOST_ATTEMPTS:
            return number + 1
        message = f"'{key}' must be from 0 to {MOST_ATTEMPTS - 1}, not {shown(number)}"
        self.problem("wrong_value", message, hint, path)
        return 1 + MORE_TRIES

    def _scaled(self, draft: ReactiveDraft, text: str, path: Path, by: str) -> Value:
        """A template of a number, made into one of another."""
        malformed = len(self.references.problems)
        draft.uses += self.references.in_value(text, path)
        if len(self.references.problems) > malformed:
            return None
        pieces = self.language.pieces(text)
        if len(pieces) == 1 and pieces[0] == text.strip() and not _FILTER.search(pieces[0]):
            return f"{{{{ ({pieces[0][2:-2].strip()}) {by} }}}}"
        message = f"'{path[-1]}' must be a number, or one expression without filters, not {shown(text)}"
        self.problem("wrong_type", message, f'e.g. {path[-1]}: "{{{{ config.{path[-1]} }}}}"', path)
        return None
