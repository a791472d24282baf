"""Every reference in a plan, and where it stands in the document.

Templates, conditions and outputs are parsed here once when a file is loaded; what cannot be parsed is a
problem with its position. Which of the references lead somewhere is for `check` to say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, Protocol

from workflows_mcp.errors import ExpressionError, Problem
from workflows_mcp.expressions.base import Language, Reference
from workflows_mcp.expressions.dollar import Dollar
from workflows_mcp.plan.model import Call, Node, Plan
from workflows_mcp.values import Value

Path = tuple[str | int, ...]

LANGUAGES: Mapping[str, Language] = {"graph": Dollar()}
"""The expression language of each dialect."""

STATE_WORDS = frozenset(["succeeded", "failed", "skipped", "status", "outcome"])
"""What `${blocks.id.…}` says of how a block went."""
_OUTCOME_OUTPUTS = frozenset(["success", "exit_code"])


class Use(NamedTuple):
    """A reference, and the path of the text that it stands in."""

    reference: Reference
    path: Path


class Uses(NamedTuple):
    """The references of a plan: of each of its blocks, and of its outputs."""

    by_node: list[list[Use]]
    in_outputs: list[Use]


class _Parsed(Protocol):
    @property
    def references(self) -> tuple[Reference, ...]: ...


class ReferenceReader:
    """Finds references in values; what is malformed goes to `problems`."""

    def __init__(self, language: Language) -> None:
        self.language = language
        self.problems: list[Problem] = []

    def in_value(self, value: Value, path: Path) -> list[Use]:
        return self._find(value, path, self.language.template)

    def in_code(self, value: Value, path: Path) -> list[Use]:
        return self._find(value, path, self.language.code)

    def in_condition(self, text: str, path: Path) -> list[Use]:
        return self._read(text, path, self.language.condition)

    def in_output(self, value: Value, path: Path) -> list[Use]:
        return self._find(value, path, self.language.output)

    def in_node(self, node: Node) -> list[Use]:
        """All references of a block, as the graph dialect lays a block out in its document."""
        inputs = (*node.at, "inputs")
        uses: list[Use] = []
        if isinstance(node.do, Call):
            uses += self.in_value(node.do.workflow, (*inputs, "workflow"))
            uses += self.in_value(node.do.inputs, (*inputs, "inputs"))
        else:
            for name, value in node.do.inputs.items():
                read = self.in_code if name in node.do.code else self.in_value
                uses += read(value, (*inputs, name))
            uses += self.in_value(node.do.config, node.at)
        uses += self.in_value(node.do.timeout, (*node.at, "timeout"))
        if node.condition is not None:
            uses += self.in_condition(node.condition, (*node.at, "condition"))
        return uses

    def in_plan(self, plan: Plan) -> Uses:
        return Uses(
            [self.in_node(node) for node in plan.body.nodes], self.in_output(plan.outputs, ("outputs",))
        )

    def _find(self, value: Value, path: Path, parse: Callable[[str], _Parsed]) -> list[Use]:
        if isinstance(value, str):
            return self._read(value, path, parse) if self.language.is_dynamic(value) else []
        if not isinstance(value, dict | list):
            return []
        uses: list[Use] = []
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            if isinstance(item, str):
                if self.language.is_dynamic(item):
                    uses += self._read(item, (*path, key), parse)
            elif isinstance(item, dict | list):
                uses += self._find(item, (*path, key), parse)
        return uses

    def _read(self, text: str, path: Path, parse: Callable[[str], _Parsed]) -> list[Use]:
        try:
            return [Use(reference, path) for reference in parse(text).references]
        except ExpressionError as error:
            self.problems.append(Problem(error.code, error.message, error.hint, path, error.offset))
            return []


def watched_blocks(uses: Iterable[Use]) -> set[str]:
    """The ids of blocks of which some reference asks how they went."""
    return {
        str(use.reference.path[1])
        for use in uses
        if use.reference.path[0] == "blocks" and _asks_how_it_went(use.reference.path[1:])
    }


def _asks_how_it_went(path: Path) -> bool:
    """`path` starts with the id of the block."""
    match path:
        case (_,) | (_, "metadata"):
            return True
        case (_, "metadata", word, *_):
            return word in STATE_WORDS
        case (_, "outputs", word, *_):
            return word in _OUTCOME_OUTPUTS
        case (_, word, *_):
            return word in STATE_WORDS or word in _OUTCOME_OUTPUTS
    return False
