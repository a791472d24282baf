"""Calls of filters, tests and functions that can never work, found by their signatures.

    wrong_call(environment.filters["round"], [Const("two")], [], filters=True)
                                        # ("its argument 'precision' must be …", "it takes (precision=0, …)")

How many arguments there are, what they are called, and what type a constant one may have: all of it follows
from the signature of the function. What is not written in it is found when the expression is evaluated.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import lru_cache
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from jinja2 import nodes
from jinja2.utils import _PassArg

from workflows_mcp.values import kind_and_value

_OURS = "workflows_mcp."
_WORDS: dict[type, str] = {
    int: "a whole number",
    float: "a number",
    str: "text",
    list: "a list",
    dict: "an object",
}
_UNKNOWN = object()


def wrong_call(
    function: Callable[..., Any],
    given: list[nodes.Expr],
    named: list[nodes.Keyword],
    *,
    filters: bool = False,
) -> tuple[str, str] | None:
    """Why the call can never work, and what it takes; None if it may work. `filters`: the value on the left
    is one more argument."""
    found = _signature(function)
    if found is None:
        return None
    signature, types = found
    arguments: list[Any] = [_UNKNOWN] if filters else []
    arguments += [_constant(node) for node in given]
    try:
        bound = signature.bind(*arguments, **{it.key: _constant(it.value) for it in named})
    except TypeError as error:
        return str(error), _takes(signature, filters)
    for name, value in bound.arguments.items():
        allowed = types.get(name)
        numbers = (int, float) if allowed is not None and not {int, float}.isdisjoint(allowed) else ()
        if allowed is not None and value is not _UNKNOWN and not isinstance(value, (*allowed, *numbers)):
            words = " or ".join(_WORDS[it] for it in allowed if it in _WORDS)
            return f"its argument '{name}' must be {words}, not {kind_and_value(value)}", _takes(
                signature, filters
            )
    return None


def _constant(node: nodes.Node) -> Any:
    try:
        value = node.as_const()  # type: ignore[attr-defined]
    except Exception:
        return _UNKNOWN
    return value


def _takes(signature: inspect.Signature, filters: bool) -> str:
    names = list(signature.parameters.values())[1 if filters else 0 :]
    listed = ", ".join(str(it.replace(annotation=inspect.Parameter.empty)) for it in names)
    return f"it takes ({listed})" if names else "it takes no arguments"


@lru_cache(maxsize=512)
def _signature(function: Callable[..., Any]) -> tuple[inspect.Signature, dict[str, tuple[type, ...]]] | None:
    """What a template may pass, and the types of those arguments of which the signature says them."""
    plain = inspect.unwrap(function)
    try:
        signature = inspect.signature(plain)
    except (TypeError, ValueError):
        return None
    parameters = list(signature.parameters.values())
    if _PassArg.from_obj(plain) is not None:
        parameters = parameters[1:]
    try:
        hints = get_type_hints(plain)
    except Exception:  # of another package, and not to be resolved here
        hints = {}
    if not getattr(plain, "__module__", "").startswith(_OURS):
        hints = {}  # what others write there is not all that works
    types = {it.name: allowed for it in parameters if (allowed := _types(hints.get(it.name)))}
    return signature.replace(parameters=parameters), types


def _types(hint: Any) -> tuple[type, ...] | None:
    """The types that a constant may have; None where any may be right."""
    parts = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    kinds = [get_origin(part) or part for part in parts]
    if bool in kinds or not all(kind in (*_WORDS, NoneType) for kind in kinds):
        return None
    return tuple(kinds)
