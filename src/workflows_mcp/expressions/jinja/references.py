"""Finds the references of a Jinja template, and its mistakes, before it runs.

    read(tree, environment()).references        # (Reference(("state", "files"), offset=3),)

Names that the template defines itself (`{% set %}`, loops, macros) are no references. A reference is optional
if the template tests it (`is defined`, `'x' in state`) or has a fallback for it (`default`, `get`).

`read` also edits the tree: `a if b` without else gives null, and the filters between a reference and its
`default` (`state.urls | length | default(0)`) are skipped when the reference is absent.

The environment compiles templates that yield fragments: their own text as `str`, and the value of each `{{
}}` as a tuple of one. So one compiled form serves typed values, text and code. A macro, a call block or a
filter block yields one value. The parser's line numbers are offsets in the source here (the first character
is 1), so that nodes, syntax errors and tracebacks tell where in the source they belong.

`state.items` is always the field, never a method; before a call (`state.items()`) it is the method. A member
of an undefined value is undefined, and using it is an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple, NoReturn

from jinja2 import TemplateSyntaxError, Undefined, nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.filters import _GroupTuple
from jinja2.lexer import TokenStream
from jinja2.sandbox import ImmutableSandboxedEnvironment

from workflows_mcp.errors import ExpressionError
from workflows_mcp.expressions import patterns
from workflows_mcp.expressions.jinja.functions import (
    FILTERS,
    FUNCTIONS,
    METHODS_OF_TIME,
    PATTERN_WORDS,
    RESULT_TYPES,
    wrong_call,
)
from workflows_mcp.expressions.jinja.sandbox import (
    METHODS,
    OF_JINJA,
    BoundedGenerator,
    RawStringLexer,
    Sandbox,
)
from workflows_mcp.expressions.language import BOOLEAN, KIND_NAMES, MISSING, STRING, Kinds, Reference
from workflows_mcp.values import did_you_mean

# References


Path = tuple[str | int, ...]


class Found(NamedTuple):
    references: tuple[Reference, ...]
    takes_patterns: bool


def read(tree: nodes.Template, environment: FragmentEnvironment) -> Found:
    """The references of a template, in order. Raises ExpressionError for mistakes."""
    reader = _Reader(environment)
    reader.block(tree.body, set())
    references = (
        reference._replace(optional=True) if _starts_with(reference.path, reader.asked) else reference
        for reference in reader.references
    )
    return Found(tuple(sorted(references, key=lambda reference: reference.offset)), reader.takes_patterns)


def path_of(node: nodes.Node) -> tuple[Path, nodes.Name] | None:
    """The path and the name it starts from, if the expression is only a path."""
    whole = _Chain(node)
    if not isinstance(whole.root, nodes.Name) or whole.computed:
        return None
    return (whole.root.name, *whole.parts), whole.root


def kinds_of(node: nodes.Node) -> Kinds | None:
    """The possible types of an expression; None if they depend on its references."""
    match node:
        case nodes.Const(value=value):
            return frozenset({KIND_NAMES[type(value)]})
        case nodes.List() | nodes.Tuple():
            return frozenset({"list"})
        case nodes.Dict():
            return frozenset({"object"})
        case nodes.Not() | nodes.Test() | nodes.Compare():
            return BOOLEAN
        case nodes.Concat():
            return STRING
        case nodes.Filter(name=name) if name in RESULT_TYPES:
            return frozenset({RESULT_TYPES[name]})
    return None


def _starts_with(path: Path, asked: Iterable[Path]) -> bool:
    return any(path[: len(start)] == start for start in asked)


_SURROGATE = re.compile("[\ud800-\udfff]")
_DEFAULTS = ("default", "d")
_OF_TEMPLATES = frozenset({"self", "super"})
_METHODS_OF_JINJA = frozenset({"cycle", "changed", "next", "reset"})
MAX_BLOCKS = 18
MAX_DEPTH = 60
"""The nesting limits of statements and expressions, lower than those of Python's compiler."""

_ALONE = "a template cannot use other templates"

_OTHER_NAMES = {
    **dict.fromkeys(("json", "loads"), "use parse_json to parse JSON text, tojson to write it"),
    **dict.fromkeys(("dumps", "to_json"), "write: tojson"),
    "splitlines": "write: lines",
    "flat": "write: flatten",
}
"""Names of filters in other languages."""
_NOTES = {"sum": ("; sum adds numbers, or lists with start=[]", "use join for texts")}
"""What an error says in addition to the signature, and a hint."""


class _Reader:
    def __init__(self, environment: FragmentEnvironment) -> None:
        self.environment = environment
        self.references: list[Reference] = []
        self.asked: set[Path] = set()
        """The paths whose existence the template tests."""
        self.takes_patterns = False
        self._optional_nodes: set[int] = set()
        self._blocks = self._depth = 0
        self._methods = frozenset().union(*(names for _, names in environment.methods)) | _METHODS_OF_JINJA

    # Statements. `bound` are the names that the template has defined so far.

    def block(self, body: Iterable[nodes.Node], bound: set[str]) -> None:
        self._blocks += 1
        for node in body:
            if self._blocks > MAX_BLOCKS:
                _refuse(node, f"statements are nested more than {MAX_BLOCKS} levels deep", "simplify it")
            self.statement(node, bound)
        self._blocks -= 1

    def statement(self, node: nodes.Node, bound: set[str]) -> None:
        match node:
            case nodes.Output():
                self.expressions(node.nodes, bound)
            case nodes.Assign():
                self.expression(node.node, bound)
                self.bind(node.target, bound)
            case nodes.AssignBlock():
                self.block(node.body, set(bound))
                if node.filter is not None:
                    self.expression(node.filter, bound)
                self.bind(node.target, bound)
            case nodes.If():
                self.expression(node.test, bound)
                for branch in (node.body, node.elif_, node.else_):
                    self.block(branch, bound)
            case nodes.For():
                self.expression(node.iter, bound)
                inside = self.bind(node.target, {*bound, "loop"})
                if node.test is not None:
                    self.expression(node.test, inside)
                self.block(node.body, inside)
                self.block(node.else_, set(bound))
            case nodes.With():
                inside = set(bound)
                for target, value in zip(node.targets, node.values, strict=True):
                    self.expression(value, bound)
                    self.bind(target, inside)
                self.block(node.body, inside)
            case nodes.Macro():
                bound.add(node.name)
                self.body_with_arguments(node, {*bound, "varargs", "kwargs", "caller"})
            case nodes.CallBlock():
                self.expression(node.call, bound)
                self.body_with_arguments(node, set(bound))
            case nodes.FilterBlock():
                self.block(node.body, set(bound))
                self.expression(node.filter, bound)
            case _:
                name = "autoescape" if isinstance(node, nodes.Scope) else type(node).__name__.lower()
                _refuse(node, f"{{% {name} %}} is not supported: {_ALONE}")

    def body_with_arguments(self, node: nodes.Macro | nodes.CallBlock, bound: set[str]) -> None:
        self.expressions(node.defaults, bound)
        for argument in node.args:
            self.bind(argument, bound)
        self.block(node.body, bound)

    def bind(self, target: nodes.Node, bound: set[str]) -> set[str]:
        bound.update(name.name for name in target.find_all(nodes.Name))
        if isinstance(target, nodes.Name):
            bound.add(target.name)
        return bound

    # Expressions

    def expressions(self, found: Iterable[nodes.Node], bound: set[str]) -> None:
        self._depth += 1
        for node in found:
            if self._depth > MAX_DEPTH:
                _refuse(node, f"the expression is nested more than {MAX_DEPTH} levels deep", "simplify it")
            self.expression(node, bound)
        self._depth -= 1

    def expression(self, node: nodes.Node, bound: set[str]) -> None:
        match node:
            case nodes.Name() | nodes.Getattr() | nodes.Getitem():
                self.path(node, bound)
                return
            case nodes.Call():
                self.call(node, bound)
                return
            case nodes.Filter():
                self.known(node, "filter", self.environment.filters)
                _check_call(node, "filter", node.name, self.environment.filters)
                self.pattern(node.name, node.args)
                if node.name in _DEFAULTS:
                    self.with_default(node, bound)
                    return
            case nodes.Test():
                self.known(node, "test", self.environment.tests)
                _check_call(node, "test", node.name, self.environment.tests)
                if node.name in ("defined", "undefined"):
                    self.asks_about(node.node, bound)
            case nodes.Compare(expr=nodes.Const(value=str() as name), ops=[nodes.Operand() as operand]) if (
                operand.op in ("in", "notin") and self.asks_for_key(name, operand.expr, node, bound)
            ):
                return
            case nodes.CondExpr() if node.expr2 is None:
                node.expr2 = nodes.Const(None, lineno=node.lineno)
            case nodes.Const(value=str() as text) if _SURROGATE.search(text):
                _refuse(node, "half a character: an escape such as \\ud83d is not a character on its own")
        self.expressions(node.iter_child_nodes(), bound)

    def path(self, node: nodes.Node, bound: set[str]) -> None:
        whole = _Chain(node)
        if isinstance(whole.root, nodes.Name):
            self.name(whole.root, whole.parts, bound, optional=id(node) in self._optional_nodes)
        else:
            self.expression(whole.root, bound)
        self.expressions(whole.computed, bound)

    def name(self, node: nodes.Name, parts: Path, bound: set[str], *, optional: bool = False) -> None:
        if node.name in bound or (not parts and node.name in self.environment.globals):
            return
        if node.name in _OF_TEMPLATES:
            _refuse(node, f"'{node.name}' is not supported: {_ALONE}", code="private")
        _refuse_private(node.name, node)
        self.references.append(Reference((node.name, *parts), node.lineno - 1, optional))

    def call(self, node: nodes.Call, bound: set[str]) -> None:
        match node.node:
            case nodes.Getattr(attr=method) as called:
                _refuse_private(method, called)
                if method not in self._methods:
                    known = [f"{name}()" for name in self._methods]
                    hint = did_you_mean(f"{method}()", known, what="there are")
                    _refuse(called, f"there is no '{method}()'", hint)
                match node.args:
                    case [nodes.Const(value=str() as key), *_] if method == "get" and self.asks_for_key(
                        key, called.node, node, bound
                    ):
                        pass
                    case _:
                        self.expression(called.node, bound)
            case nodes.Name(name=name) if name not in bound:
                _refuse_private(name, node.node)
                if name not in self.environment.globals:
                    hint = did_you_mean(name, self.environment.globals, what="there are")
                    _refuse(node.node, f"there is no function '{name}'", hint)
                _check_call(node, "function", name, self.environment.globals)
                self.pattern(name, node.args)
            case called:
                self.expression(called, bound)
        self.expressions((part for part in node.iter_child_nodes(exclude=("node",))), bound)

    def pattern(self, word: str, arguments: list[nodes.Expr]) -> None:
        if word not in PATTERN_WORDS:
            return
        self.takes_patterns = True
        match arguments:
            case [nodes.Const(value=str() as pattern) as node, *_]:
                try:
                    patterns.compiled(pattern)
                except ExpressionError as error:
                    error.offset = node.lineno - 1
                    raise

    def known(self, node: nodes.Filter | nodes.Test, what: str, names: dict[str, Any]) -> None:
        if node.name not in names:
            words = [name for name in names if name.isidentifier()]
            hint = _OTHER_NAMES.get(node.name)
            hint = hint or did_you_mean(node.name, words, what="there are", limit=len(words))
            _refuse(node, f"there is no {what} '{node.name}'", hint)

    # Optional references

    def asks_about(self, node: nodes.Expr, bound: set[str]) -> None:
        self._optional_nodes.add(id(node))
        found = path_of(node)
        if found is not None and found[1].name not in bound:
            self.asked.add(found[0])

    def asks_for_key(self, name: str, owner: nodes.Expr, asking: nodes.Expr, bound: set[str]) -> bool:
        """Whether `'x' in state` or `state.get('x')` tests `state.x`; if so, add the reference."""
        found = path_of(owner)
        if found is None or len(found[0]) > 1 or found[1].name in bound or name.startswith("_"):
            return False
        path, root = found
        if isinstance(asking, nodes.Compare):
            self.asked.add((*path, name))
        self.references.append(Reference((*path, name), root.lineno - 1, optional=True))
        return True

    def with_default(self, node: nodes.Filter, bound: set[str]) -> None:
        """Read a `default`; its reference is at the start of the chain of filters and calls before it."""
        before = start = node.node
        while start is not None and not isinstance(_Chain(start).root, nodes.Name):
            match start:
                case nodes.Call(node=nodes.Getattr(node=inside)):
                    start = inside
                case nodes.Filter(node=inside) | nodes.Getattr(node=inside) | nodes.Getitem(node=inside):
                    start = inside
                case _:
                    start = None
        self._optional_nodes.add(id(start))
        self.expressions(node.iter_child_nodes(), bound)
        if start is not None and before is not None and start is not before:
            there = nodes.Test(start, "defined", [], [], None, None, lineno=node.lineno)
            node.node = nodes.CondExpr(there, before, start, lineno=node.lineno)
            node.node.set_environment(self.environment)


class _Chain:
    """`root.part['part'][0]…`: the parts up to the first computed one, and what computes others."""

    __slots__ = ("computed", "parts", "root")

    def __init__(self, node: nodes.Node) -> None:
        self.computed: list[nodes.Node] = []
        steps: list[str | int | None] = []
        while True:
            match node:
                case nodes.Getattr():
                    _refuse_private(node.attr, node)
                    steps.append(node.attr)
                case nodes.Getitem(arg=nodes.Const(value=str() as name)):
                    _refuse_private(name, node)
                    steps.append(name)
                case nodes.Getitem(arg=nodes.Const(value=int() as index)) if _is_position(index):
                    steps.append(index)
                case nodes.Getitem():
                    self.computed.append(node.arg)
                    steps.append(None)
                case _:
                    break
            node = node.node
        self.root = node
        steps.reverse()
        known = steps.index(None) if None in steps else len(steps)
        self.parts: Path = tuple(step for step in steps[:known] if step is not None)


def _check_call(
    node: nodes.Filter | nodes.Test | nodes.Call, what: str, name: str, known: Mapping[str, Any]
) -> None:
    """Refuse a call with arguments that can never work."""
    if node.dyn_args is None and node.dyn_kwargs is None and callable(known.get(name)):
        named = [it for it in node.kwargs if isinstance(it, nodes.Keyword)]
        wrong = wrong_call(known[name], node.args, named, filters=what != "function")
        if wrong is not None:
            message, hint = wrong
            note, instead = _NOTES.get(name, ("", hint))
            _refuse(node, f"the {what} '{name}' is called incorrectly: {message}{note}", instead)


def _refuse(node: nodes.Node, message: str, hint: str = "", code: str = "syntax") -> NoReturn:
    raise ExpressionError(message, hint=hint, offset=(node.lineno or 1) - 1, code=code)


def _refuse_private(name: str, node: nodes.Node) -> None:
    if name.startswith("_"):
        _refuse(node, f"'{name}' is private: names that start with '_' cannot be reached", code="private")


def _is_position(index: int) -> bool:
    return index >= 0 and not isinstance(index, bool)


# The environment that compiles templates


Fragment = str | tuple[Any]
"""Text of the template itself, or a value that it outputs."""
Token = tuple[int, str, str]


@lru_cache(maxsize=1)
def environment() -> FragmentEnvironment:
    return FragmentEnvironment()


class _OffsetLexer(RawStringLexer):
    def tokenize(
        self, source: str, name: str | None = None, filename: str | None = None, state: str | None = None
    ) -> TokenStream:
        tokens = _with_offsets(source, self.tokeniter(source, name, filename, state))
        return TokenStream(self.wrap(tokens, name, filename), name, filename)


def _with_offsets(source: str, tokens: Iterable[Token]) -> Iterator[Token]:
    """Replace the line numbers of tokens with offsets.

    Between two tokens there is nothing, or white space that a `-` in a tag removes.
    """
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


class _FragmentGenerator(BoundedGenerator):
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


class FragmentEnvironment(Sandbox):
    code_generator_class = _FragmentGenerator
    methods = (*METHODS, *METHODS_OF_TIME)

    def __init__(self) -> None:
        # Not optimized: constant folding would evaluate without limits.
        super().__init__(strict=True, keep_trailing_newline=True, optimized=False)
        self.filters.update(FILTERS)
        self.filters["attr"] = self.part
        self.globals.update(FUNCTIONS)
        self._own_lexer = _OffsetLexer(self)

    def part(self, owner: Any, name: str) -> Any:
        """The value of `owner.name`."""
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
        """The method called in `obj.attribute()`."""
        if isinstance(obj, Undefined):
            return obj
        return ImmutableSandboxedEnvironment.getattr(self, obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        """The value of `obj[argument]`. Keys are texts; a number finds its decimal text."""
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
