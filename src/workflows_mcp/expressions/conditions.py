"""Conditions: a whitelisted syntax tree becomes closures. What is not listed is refused at load.

Comparison, and/or/not with short circuit, in/not in, parentheses, numbers, strings, lists, true, false,
null. Text that says true or false counts as that; `1 == true` is false; comparing text with a number is
an error, because it is always a mistake.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from workflows_mcp.errors import ExpressionError
from workflows_mcp.expressions.base import BOOLEAN, Expression, Kinds, KindsAt, Reference, Scope
from workflows_mcp.values import Value, kind_and_value

Evaluator = Callable[[Scope], Value]
MAX_DEPTH = 50
_TRUTH_HINT = "write true or false; as text it needs quotes"
_TRUTH = {"true": True, "True": True, "false": False, "False": False}


class Condition:
    __slots__ = ("_evaluator", "references", "source")

    def __init__(self, source: str, references: tuple[Reference, ...], evaluator: Evaluator) -> None:
        self.source = source
        self.references = references
        self._evaluator = evaluator

    def kinds(self, at: KindsAt) -> Kinds | None:
        return BOOLEAN

    def evaluate(self, scope: Scope) -> Value:
        return as_truth(self._evaluator(scope))


def as_truth(value: Value) -> bool:
    if value is True or value is False:
        return bool(value)
    if isinstance(value, str) and value.strip() in _TRUTH:
        return _TRUTH[value.strip()]
    raise ExpressionError(
        f"a condition must give true or false, not {kind_and_value(value)}",
        hint="compare it with something, e.g. ${…} == 'yes' or ${…} > 0",
        code="not_boolean",
    )


def equal(left: Value, right: Value) -> bool:
    """As a person means it: 'True' is true, 1 is not true, text is never a number."""
    if isinstance(left, bool) and isinstance(right, str):
        right = _TRUTH.get(right, right)
    elif isinstance(right, bool) and isinstance(left, str):
        left = _TRUTH.get(left, left)
    if isinstance(left, bool) != isinstance(right, bool):
        return False
    return bool(left == right)


def _is_number(value: Value) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _refuse_mixed(left: Value, right: Value) -> None:
    if (_is_number(left) and isinstance(right, str)) or (isinstance(left, str) and _is_number(right)):
        raise ExpressionError(
            f"{kind_and_value(left)} cannot be compared with {kind_and_value(right)}",
            hint="compare numbers with numbers, or put the number in quotes to compare text",
            code="type_mismatch",
        )


def _compared(same: bool) -> Callable[[Value, Value], bool]:
    def compare(left: Value, right: Value) -> bool:
        _refuse_mixed(left, right)
        return equal(left, right) is same

    return compare


def _ordered(compare: Callable[[Value, Value], bool]) -> Callable[[Value, Value], bool]:
    def ordered(left: Value, right: Value) -> bool:
        if (_is_number(left) and _is_number(right)) or (isinstance(left, str) and isinstance(right, str)):
            return compare(left, right)
        _refuse_mixed(left, right)
        raise ExpressionError(
            f"{kind_and_value(left)} and {kind_and_value(right)} have no order",
            code="type_mismatch",
        )

    return ordered


def _contained(item: Value, container: Value) -> bool:
    if isinstance(container, str):
        if not isinstance(item, str):
            raise ExpressionError(f"{kind_and_value(item)} cannot be part of text", code="type_mismatch")
        return item in container
    if isinstance(container, dict):
        return isinstance(item, str) and item in container
    if isinstance(container, list):
        return any(equal(item, member) for member in container)
    raise ExpressionError(
        f"'in' needs text, a list or an object on its right, not {kind_and_value(container)}",
        code="type_mismatch",
    )


_COMPARISONS: dict[type[ast.cmpop], Callable[[Value, Value], bool]] = {
    ast.Eq: _compared(True),
    ast.NotEq: _compared(False),
    ast.Is: _compared(True),
    ast.IsNot: _compared(False),
    ast.Lt: _ordered(operator.lt),
    ast.LtE: _ordered(operator.le),
    ast.Gt: _ordered(operator.gt),
    ast.GtE: _ordered(operator.ge),
    ast.In: _contained,
    ast.NotIn: lambda item, container: not _contained(item, container),
}


class Operand(Protocol):
    """A reference in a condition, with its filters."""

    @property
    def reference(self) -> Reference: ...

    def evaluate(self, scope: Scope) -> Value: ...


class ParsedCondition(NamedTuple):
    """The syntax tree of a condition in which every reference has become the name `_`, as long as the
    reference was, so that positions in the tree are positions in the text."""

    source: str
    code: str
    indent: int
    """By how much `code` was shifted to the left."""
    body: ast.expr
    references: Mapping[int, Operand]
    """By the position at which each stands."""


def compile_condition(parsed: ParsedCondition, quoted: Callable[[str, int], Expression]) -> Condition:
    """`quoted` reads the references inside of quoted text that starts at a position."""
    read: list[Reference] = []

    def compile_(node: ast.expr, depth: int) -> Evaluator:
        if depth > MAX_DEPTH:
            raise _refused(node, f"the condition is nested more than {MAX_DEPTH} levels deep", "simplify it")
        match node:
            case ast.Constant(value=str() as text):
                if "${" not in text:
                    return lambda _: text
                template = quoted(text, _offset(parsed, node) + 1)
                read.extend(template.references)
                return template.evaluate
            case ast.Constant(value=bool() | int() | float() | None as literal):
                return lambda _: literal
            case ast.Name(id="_") if (operand := parsed.references.get(_offset(parsed, node))) is not None:
                read.append(operand.reference)
                return operand.evaluate
            case ast.Name(id=name):
                hint = _TRUTH_HINT if name in ("yes", "no", "on", "off") else f"text needs quotes: '{name}'"
                raise _refused(node, f"unknown word '{name}'", hint)
            case ast.BoolOp(op=op, values=values):
                parts = [compile_(value, depth + 1) for value in values]
                if isinstance(op, ast.And):
                    return lambda scope: all(as_truth(part(scope)) for part in parts)
                return lambda scope: any(as_truth(part(scope)) for part in parts)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                negated = compile_(operand, depth + 1)
                return lambda scope: not as_truth(negated(scope))
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
                return lambda _: -number
            case ast.Compare(left=left, ops=ops, comparators=comparators):
                first, *rest = [compile_(part, depth + 1) for part in (left, *comparators)]
                return _chain(first, [_COMPARISONS[type(op)] for op in ops], rest)
            case ast.List(elts=elements) | ast.Tuple(elts=elements):
                items = [compile_(element, depth + 1) for element in elements]
                return lambda scope: [item(scope) for item in items]
        if isinstance(node, ast.Attribute):
            written = ast.unparse(node)
            raise _refused(node, f"'{written}' is no value", f"a reference is written ${{{written}}}")
        raise _refused(
            node,
            f"{_called(node)} not part of the condition language",
            "there are: == != < <= > >=, and/or/not, in/not in, ( ), numbers, 'text', [lists], true, false, "
            "null",
        )

    def _refused(node: ast.expr, message: str, hint: str) -> ExpressionError:
        return ExpressionError(message, hint=hint, offset=_offset(parsed, node), code="syntax")

    evaluator = compile_(parsed.body, 0)
    return Condition(parsed.source, tuple(read), evaluator)


def _offset(parsed: ParsedCondition, node: ast.expr) -> int:
    """The position of `node` in the source; a syntax tree counts in bytes, people in characters."""
    code, column = parsed.code, node.col_offset
    if not code.isascii():
        column = len(code.encode("utf-8")[:column].decode("utf-8", "ignore"))
    return parsed.indent + column


def _called(node: ast.expr) -> str:
    names = {ast.Call: "a function call is", ast.Attribute: "an attribute is", ast.BinOp: "arithmetic is"}
    return names.get(type(node), f"{type(node).__name__} is")


def _chain(
    first: Evaluator, compare: list[Callable[[Value, Value], bool]], rest: list[Evaluator]
) -> Evaluator:
    if len(rest) == 1:
        only, other = compare[0], rest[0]
        return lambda scope: only(first(scope), other(scope))

    def chained(scope: Scope) -> bool:
        left = first(scope)
        for step, evaluator in zip(compare, rest, strict=True):
            right = evaluator(scope)
            if not step(left, right):
                return False
            left = right
        return True

    return chained
