"""The Jinja environment of expressions: output stays in pieces, and every node knows its place.

A compiled template yields its own text as text, and what `{{ }}` puts out as a tuple of one value. So one
compiled form serves whoever wants the value with its type, text, or code in which values stay data. What a
macro, a call block or a filter block makes is one value.

The parser's line numbers are positions in the source here (the first character is 1): Jinja hands them on to
every node, to every syntax error, and to the table from which the place of an error is found at run time.

After a dot stands a part of data, never a method: `state.items` is the field. Before a call it is the other
way round. What is missing stays missing along a path and is an error when it is used. Must not know scopes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

from jinja2 import TemplateSyntaxError, Undefined, nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.filters import _GroupTuple
from jinja2.lexer import TokenStream
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from workflows_mcp.expressions.base import MISSING
from workflows_mcp.expressions.jinja_functions import FILTERS, FUNCTIONS, METHODS_OF_TIME
from workflows_mcp.expressions.jinja_sandbox import (
    METHODS,
    OF_JINJA,
    BoundedGenerator,
    RawStringLexer,
    Sandbox,
)

Piece = str | tuple[Any]
"""Text of the template itself, or a value that it puts out."""

Token = tuple[int, str, str]


class _PlacingLexer(RawStringLexer):
    def tokenize(
        self, source: str, name: str | None = None, filename: str | None = None, state: str | None = None
    ) -> TokenStream:
        tokens = _placed(source, self.tokeniter(source, name, filename, state))
        return TokenStream(self.wrap(tokens, name, filename), name, filename)


def _placed(source: str, tokens: Iterable[Token]) -> Iterator[Token]:
    """Tokens with positions instead of lines. Between two of them there is nothing, or white space that a
    `-` in a tag has taken away."""
    position = 0
    try:
        for _, kind, text in tokens:
            start = source.find(text, position)
            if start >= 0:
                position = start
            yield position + 1, kind, text
            position += len(text) if start >= 0 else 0
    except TemplateSyntaxError as error:
        error.lineno = min(position, max(len(source) - 1, 0)) + 1
        raise


class _PiecesGenerator(BoundedGenerator):
    _called: nodes.Expr | None = None

    def visit_Call(self, node: nodes.Call, frame: Frame, forward_caller: bool = False) -> None:
        self._called = node.node
        super().visit_Call(node, frame, forward_caller=forward_caller)

    def visit_Getattr(self, node: nodes.Getattr, frame: Frame) -> None:
        self.write("environment.getattr(" if node is self._called else "environment.part(")
        self.visit(node.node, frame)
        self.write(f", {node.attr!r})")

    def _make_finalize(self) -> CodeGenerator._FinalizeInfo:
        return self._FinalizeInfo(None, None)

    def _output_child_pre(
        self, node: nodes.Expr, frame: Frame, finalize: CodeGenerator._FinalizeInfo
    ) -> None:
        self.write("(" if frame.buffer is None else "environment.finalize(")

    def _output_child_post(
        self, node: nodes.Expr, frame: Frame, finalize: CodeGenerator._FinalizeInfo
    ) -> None:
        self.write(",)" if frame.buffer is None else ")")

    def start_write(self, frame: Frame, node: nodes.Node | None = None) -> None:
        super().start_write(frame, node)
        self.write("(")

    def end_write(self, frame: Frame) -> None:
        self.write(",)" if frame.buffer is None else ")")
        super().end_write(frame)


class PiecesEnvironment(Sandbox):
    code_generator_class = _PiecesGenerator
    methods = (*METHODS, *METHODS_OF_TIME)

    def __init__(self) -> None:
        # Not optimized: nothing is evaluated before it is evaluated within limits.
        super().__init__(strict=True, keep_trailing_newline=True, optimized=False)
        self.filters.update(FILTERS)
        self.filters["attr"] = self.part
        self.globals.update(FUNCTIONS)
        self._own_lexer = _PlacingLexer(self)

    def part(self, owner: Any, name: str) -> Any:
        """What `owner.name` is."""
        if isinstance(owner, Mapping):
            if name in owner:
                return owner[name]
        elif isinstance(owner, Undefined):
            return owner
        elif isinstance(owner, OF_JINJA):
            return super().getattr(owner, name)
        elif isinstance(owner, _GroupTuple) and name in _GroupTuple._fields:
            return getattr(owner, name)
        elif hasattr(type(owner), "lookup"):
            found = owner.lookup(name)
            if found is not MISSING:
                return found
        return self.undefined(obj=owner, name=name)

    def getattr(self, obj: Any, attribute: str) -> Any:
        """What is called in `obj.attribute()`."""
        if isinstance(obj, Undefined):
            return obj
        return ImmutableSandboxedEnvironment.getattr(self, obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        """What `obj[argument]` is. Keys of data are texts: a number finds the text that it is written as."""
        if isinstance(argument, int) and not isinstance(argument, bool):
            if isinstance(obj, list | tuple | str):
                if -len(obj) <= argument < len(obj):
                    return obj[argument]
                return self.undefined(obj=obj, name=argument)  # type: ignore[arg-type]
            if isinstance(obj, Mapping) and argument in obj:
                return obj[argument]
            argument = str(argument)
        if isinstance(argument, Undefined):
            argument = str(argument)  # which says what is missing
        if isinstance(argument, str):
            return self.part(obj, argument)
        return obj if isinstance(obj, Undefined) else self.undefined(obj=obj, name=argument)


@lru_cache(maxsize=1)
def environment() -> PiecesEnvironment:
    return PiecesEnvironment()


@lru_cache(maxsize=1)
def functions() -> dict[str, Any]:
    """The names that every template has."""
    return dict(environment().globals)


def context_of(names: Mapping[str, Any]) -> Context:
    """What a template looks its names up in."""
    return Context(environment(), {**functions(), **names}, None, {})
