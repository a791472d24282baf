"""Reads JavaScript with tree-sitter: templates split at `{{ … }}`, free names, and the text for the engine.

    split("a {{ '}}' }} b")             # Part("a "), Part(" '}}' ", source=Source(…)), Part(" b")
    analysed(read("files.filter(f => f.size > limits.size).length")).free
                                        # Free("files", …), Free("limits", (Step("size"),), …)

A name is free if nothing declares it at its place: no parameter, `const`, `let`, `var`, `function`,
`class` or `catch`. Names of the language (`Math`, `JSON`) are not free.

tree-sitter says what the names are, and the engine says what is valid: both must accept a source. What they
would read differently (`<!--` begins a comment in the engine only) is refused, because the text for the
engine is written from the tree: a filter becomes a call, and every function and loop counts down `__left` and
calls `__tick` at zero, which looks at the clock.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from workflows_mcp.errors import ExpressionError
from workflows_mcp.expressions.javascript.engine import (
    Failed,
    Function,
    OutOfMemory,
    Stopped,
    compile_function,
    evaluation_error,
    syntax_error,
    unreadable,
)
from workflows_mcp.limits import DEFAULT_LIMITS, Limits

if TYPE_CHECKING:
    from tree_sitter import Language, Node

MOST_CHARS = 100_000
BRACES_HINT = "an expression ends with }}; braces that are text themselves are written {{ '{{' }}"


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


FILTERS = words(
    """path_to_key json tojson length count upper lower trim capitalize join split replace default first last
    keys values sort reverse unique sum min max round int float string"""
)
"""The functions of `{{ path | path_to_key }}` and `{{ files | join(', ') }}`, which the prelude defines."""

GLOBALS = words(
    """Array Boolean Date Error EvalError Infinity Iterator JSON Map Math NaN Number Object RangeError
    ReferenceError Reflect RegExp Set String Symbol SyntaxError TypeError URIError WeakMap WeakSet atob btoa
    decodeURI decodeURIComponent encodeURI encodeURIComponent isFinite isNaN now parseFloat parseInt undefined
    uuid"""
)
"""The names that every expression has."""

_NOT_NAMES = words(
    "arguments await enum eval export implements interface let package private protected public static yield"
)
"""Words that tree-sitter reads as names, and that cannot be names in strict code."""


# Sources


_OPENING = " return (\n"
_NEVER = re.compile("[\0\ud800-\udfff]")
_DEFAULT = re.compile(r"(?<!\|)(\|\s*)default\b")
"""The filter that is a keyword."""


class Source:
    """The JavaScript in a text from `start` to `end`, parsed.

    From `value` on it is one expression, whose value is returned. Before `value` there are statements.
    """

    def __init__(self, text: str, start: int, end: int, value: int | None, closing: str = "\n)") -> None:
        self.text, self.start, self.end, self.value = text, start, end, value
        if end - start > MOST_CHARS + 2:
            raise unreadable(f"it has more than {MOST_CHARS:,} characters", start)
        if (never := _NEVER.search(text, start, end)) is not None:
            raise unreadable(f"{never[0]!r} cannot stand here", never.start())
        before, opening = (text[start:value], _OPENING) if value is not None else ("", "")
        code = f"{before}{opening}{text[start + len(before) : end]}{closing if opening else ''}"
        data = _DEFAULT.sub(r"\1_efault", code).encode()
        self._places: list[int] | None = None
        if len(data) != len(code):
            self._places = [place for place, one in enumerate(code) for _ in one.encode()] + [len(code)]
        self._opening = range(len(before.encode()), len(before.encode()) + len(opening))
        self._closing = len(data) - len(closing if opening else "")
        self.root = _parsed(data)
        self.is_sound = not self.root.has_error
        self.whole: Node | None = None
        """The expression."""
        if opening and self.is_sound:
            at = self._opening.stop - 2
            bracket = self.root.descendant_for_byte_range(at, at + 1)
            brackets = bracket.parent if bracket is not None else None
            # else it closes our bracket, and opens another one
            self.is_sound = brackets is not None and brackets.end_byte == len(data)
            inside = [one for one in brackets.named_children if one.type != "comment"] if brackets else []
            self.whole = inside[0] if len(inside) == 1 else None

    @property
    def code(self) -> str:
        return self.text[self.start : self.end]

    def offset(self, place: int) -> int:
        """Return the offset in the text for a byte of what was parsed."""
        if self._places is not None:
            place = self._places[place]
        place += self.start
        if self.value is not None and place > self.value:
            place = max(place - len(_OPENING), self.value)
        return min(place, self.end)

    def text_of(self, node: Node) -> str:
        return self.text[self.offset(node.start_byte) : self.offset(node.end_byte)]

    def nodes(self) -> Iterator[Node]:
        """All nodes, in the order of their places."""
        stack = [self.root]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(reversed(node.children))

    def tokens(self) -> Iterator[Node]:
        """The tokens of the text, in order; some may be missing if it is not sound."""
        for node in self.nodes():
            start, kind = node.start_byte, node.type
            is_ours = start in self._opening or (start >= self._closing and kind != "regex_pattern")
            is_comment = kind == "comment" and node.end_byte <= self._closing
            if node.child_count == 0 and start < node.end_byte and not is_comment and not is_ours:
                yield node


@cache
def _language() -> Language:
    import tree_sitter
    import tree_sitter_javascript

    return tree_sitter.Language(tree_sitter_javascript.language())


def _parsed(data: bytes) -> Node:
    from tree_sitter import Parser  # one for each source: threads cannot share it

    return Parser(_language()).parse(data).root_node


def read(text: str) -> Source:
    """Parse text that is one expression."""
    return _sound(Source(text, 0, len(text), 0))


def _sound(source: Source) -> Source:
    if not source.is_sound:
        raise fault_of(source)
    return source


class Part(NamedTuple):
    """Text of a template itself, or an expression in it."""

    text: str
    source: Source | None = None


def split(text: str) -> list[Part]:
    """Split a template into its texts and expressions."""
    parts: list[Part] = []
    position = 0
    while (opening := text.find("{{", position)) >= 0:
        if opening > position:
            parts.append(Part(text[position:opening]))
        source = _braced(text, opening + 2)
        parts.append(Part(source.code, source))
        position = source.end + 2
    if position < len(text):
        parts.append(Part(text[position:]))
    return parts


def _braced(text: str, start: int) -> Source:
    """Parse the expression that begins at `start` and ends before `}}`."""
    last = min(len(text), start + MOST_CHARS + 2)
    reach = end = text.find("}}", start, last)
    while end >= 0:
        source = Source(text, start, end, start, ")")
        if source.is_sound:
            return source
        if reach == last or _Brackets(source).fault is None:
            raise fault_of(source, braced=True)
        # these braces may be part of it: look for those that close nothing, in twice as much text
        reach = min(last, 2 * reach - start + 2)
        stops = _Brackets(Source(text, start, reach, start, ""), braced=True).stops
        end = stops if stops is not None else end if reach < last else -1
    if last < len(text):
        raise unreadable(f"it has more than {MOST_CHARS:,} characters", start)
    fault = _Brackets(Source(text, start, last, start, ""), braced=True).fault
    raise fault or unreadable("{{ is not closed, }} is missing", start - 2, BRACES_HINT)


# Transforms


_STATEMENT_BEFORE = re.compile(r"(?:[;}]|\n)\s*$")
_LEAVING = words(
    "return_statement throw_statement while_statement for_statement for_in_statement do_statement"
)
"""Statements that return a value, or may never end."""


def read_transform(text: str) -> Iterator[Source]:
    """The readings of a transform: an expression, statements that end in an expression, and a body."""
    body = Source(text, 0, len(text), None)
    tokens = list(body.tokens())
    if not tokens:
        hint = "write JavaScript that returns a value made from 'input'"
        raise ExpressionError("the transform is empty", hint=hint, code="syntax")
    end = _end_of_value(body, tokens)
    yield Source(text, 0, end, 0)
    for start in _start_of_last(body):
        yield Source(text, 0, end, start)
    yield body


def read_check(text: str) -> Source:
    """Parse an expression, which may end with a semicolon."""
    body = Source(text, 0, len(text), None)
    return _sound(Source(text, 0, _end_of_value(body, list(body.tokens())), 0))


def returns_nothing(source: Source) -> bool:
    """Whether a body has no statement that returns a value."""
    return source.value is None and not any(node.type in _LEAVING for node in source.nodes())


def _end_of_value(source: Source, tokens: Sequence[Node]) -> int:
    """The end of the last statement, without its semicolon."""
    end = len(tokens) - 1
    while end > 0 and tokens[end].type in (";", "comment"):
        end -= 1
    return source.offset(tokens[end].end_byte) if tokens else source.end


def _start_of_last(body: Source) -> list[int]:
    """The place where the last statement begins, if it may be an expression."""
    if body.is_sound:
        statements = [
            one for one in body.root.named_children if one.type not in ("comment", "empty_statement")
        ]
        is_value = statements and statements[-1].type in ("expression_statement", "statement_block")
        return [body.offset(statements[-1].start_byte)] if is_value else []
    brackets = _Brackets(body)
    last = brackets.last if brackets.fault is None else None
    return [last] if last is not None and _STATEMENT_BEFORE.search(body.text[:last]) else []


# Sources that cannot be read


_CLOSING = {"(": ")", "[": "]", "{": "}", "${": "}"}
_QUOTES = ("'", '"', "`")
_UNCLOSED = {"/": "regular expression is not closed", "/*": "comment is not closed, */ is missing"}


class _Brackets:
    """Pairs the brackets and quotes of a source that may be malformed."""

    def __init__(self, source: Source, *, braced: bool = False) -> None:
        self._braced = braced
        self.stops: int | None = None
        """The offset of `}}` that close nothing in the source."""
        self.last: int | None = None
        """The offset of the bracket that pairs with the one at the end."""
        self.fault: ExpressionError | None = None
        self._open: list[tuple[str, int]] = []
        pattern = -1
        for leaf in source.tokens():
            kind, at = leaf.type, source.offset(leaf.start_byte)
            if pattern >= 0 and kind != "/":
                break
            pattern = at - 1 if kind == "regex_pattern" else -1
            if kind in _QUOTES and self._open and self._open[-1][0] == kind:
                self._open.pop()
            elif kind in _QUOTES or kind in _CLOSING:
                self._open.append((kind, self._open[-1][1] if kind == "${" and self._open else at))
            elif kind == "comment":
                self.fault = unreadable("{{ is not closed, }} is missing", source.start - 2, BRACES_HINT)
            elif kind == "ERROR":
                self.fault = unreadable(f"'{source.text[at]}' cannot stand here", at)
                return
            elif kind in _CLOSING.values() and not self._closes(kind, at, source.text):
                return
        if pattern >= 0:
            self.fault = _unclosed("/*" if source.text.startswith("/*", pattern) else "/", pattern, braced)
        elif self._open:
            self.fault = _unclosed(*self._open[-1], braced)

    def _closes(self, kind: str, at: int, text: str) -> bool:
        opening, before = self._open[-1] if self._open else ("", 0)
        if opening in _QUOTES:
            self.fault = _unclosed(opening, before, self._braced)
        elif _CLOSING.get(opening) == kind:
            self.last = before
            self._open.pop()
            return True
        elif self._braced and not opening and text.startswith("}}", at):
            self.stops = at
        else:
            missing = f", '{_CLOSING[opening]}' is missing before it" if opening else ""
            self.fault = unreadable(f"'{kind}' closes nothing here{missing}", at)
        return False


def _unclosed(opening: str, at: int, braced: bool) -> ExpressionError:
    if opening in _QUOTES:
        message = f"the text that begins with {opening} is not closed"
    elif opening in _UNCLOSED:
        message = f"the {_UNCLOSED[opening]}"
    else:
        message = f"'{opening[-1]}' is not closed, '{_CLOSING[opening]}' is missing"
    return unreadable(message, at, BRACES_HINT if braced else "")


def fault_of(source: Source, *, braced: bool = False) -> ExpressionError:
    """The error for a source that is not sound."""
    text, start, end, value = source.text, source.start, source.end, source.value
    if not any(source.tokens()):
        message = "there is no expression" + " between {{ and }}" * braced
        hint = BRACES_HINT if braced else ""
        return ExpressionError(message, hint=hint, offset=start - 2 * braced, code="syntax")
    if (fault := _Brackets(source, braced=braced).fault) is not None:
        return fault
    written = Written(text, "function () { 'use strict';\n")
    written.add_source(Source(_DEFAULT.sub(r"\1_efault", text), start, end, value), before="return ")
    written.text += "\n}"
    try:
        for token in source.tokens():
            if token.type in _NAMES:
                _check_spelling(source, token)
            if token.type in _REFUSED:
                _refuse(source, token, *_REFUSED[token.type])
        compile_function(Function(written.text), DEFAULT_LIMITS.javascript_bytes)
        Analysis(source)
    except ExpressionError as error:
        return error
    except (Failed, OutOfMemory, Stopped) as error:
        return written.syntax_error(error)
    wrong = (node.start_byte for node in source.nodes() if node.is_error or node.is_missing)
    return unreadable("unexpected syntax", source.offset(next(wrong, 0)))


def _refuse(source: Source, node: Node, message: str, hint: str = "") -> None:
    raise unreadable(message, source.offset(node.start_byte), hint)


def _check_spelling(source: Source, name: Node) -> None:
    text = source.text_of(name)
    plain = _NAME.match(text)
    end = plain.end() if plain is not None else 0
    if end < len(text):
        raise unreadable(f"'{text[end]}' cannot stand here", source.offset(name.start_byte) + end)


# Free names, and the paths that are read from them


_NAME = re.compile(r"#?(?:[^\W\d]|\$)[\w$\u200c\u200d]*")
_POSITION = re.compile(r"0|[1-9]\d{0,8}")
_MOST_STEPS = 50
_MOST_INNER = 3
"""The maximum nesting of paths in paths, `a[b[c[d]]]`."""

_MEMBERS = ("member_expression", "subscript_expression")
_NAMES = ("identifier", "this", "shorthand_property_identifier", "shorthand_property_identifier_pattern")
_FUNCTIONS = words(
    """arrow_function function_expression function_declaration generator_function
    generator_function_declaration method_definition"""
)
_NAMED_INSIDE = words("function_expression generator_function class")
_NAMED_OUTSIDE = words("function_declaration generator_function_declaration class_declaration")
_BLOCKS = words("statement_block switch_body for_statement for_in_statement catch_clause")
_LOOPS = words("for_statement for_in_statement while_statement do_statement")
_BINDING = {"assignment_pattern": "left", "object_assignment_pattern": "left", "pair_pattern": "value"}
"""The part of a pattern that binds names."""
_ROLES = {
    "call_expression": ("function", "called"),
    "new_expression": ("constructor", "called"),
    "update_expression": ("argument", "changed"),
    "assignment_expression": ("left", "changed"),
    "augmented_assignment_expression": ("left", "changed"),
}
_BEFORE_OPERAND = words(
    """binary_expression unary_expression ternary_expression assignment_expression
    augmented_assignment_expression arrow_function yield_expression"""
)
"""What ends with an operand of its own."""

_ASYNC_HINT = "an expression must return its value at once; use a step for what takes time"
_REFUSED = {
    "import": ("import is not supported", "an expression can only use its scope"),
    "async": ("asynchronous code is not supported", _ASYNC_HINT),
    "await": ("asynchronous code is not supported", _ASYNC_HINT),
    "html_comment": ("<!-- and --> are not supported", ""),
    "jsx_element": ("JSX is not supported", ""),
    "jsx_self_closing_element": ("JSX is not supported", ""),
}
"""What is not supported, or is not what the engine reads."""


class Step(NamedTuple):
    """A member that is read, by a fixed name or position, or by the value of another path."""

    key: str | int | Free
    asked: bool = False
    """`?.` precedes it."""


class Free(NamedTuple):
    """A free name, and the path that is read from it."""

    name: str
    steps: tuple[Step, ...]
    offset: int
    """In the text."""
    may_be_missing: bool
    """The name itself may be undefined: it is tested, or has a default."""
    optional: bool
    """The value of the path may be undefined."""

    @property
    def path(self) -> tuple[str | int, ...]:
        """The path up to its first computed step."""
        path: list[str | int] = [self.name]
        for key, _ in self.steps:
            if isinstance(key, Free):
                break
            path.append(key)
        return tuple(path)

    @property
    def is_spelled(self) -> bool:
        """Whether one of its keys may have another spelling."""
        return any(_is_spelled(key) for key, _ in self.steps)


class Edit(NamedTuple):
    """A replacement for a part of the source."""

    start: int
    end: int
    text: str


class _Use(NamedTuple):
    """A name where it is used, and what is read from it."""

    top: Node
    name: Node
    members: list[Node]
    """From the inside out."""


class Analysis:
    """Finds the names in a source. Raises ExpressionError for what is valid, but not supported."""

    def __init__(self, source: Source) -> None:
        self.free: list[Free] = []
        """The free names, in order."""
        self.paths: dict[int, Free] = {}
        """Those whose path is a whole expression, by the id of its node."""
        self.edits: list[Edit] = []
        """What turns the source into the text for the engine."""
        self._source = source
        self._declared: dict[str, list[tuple[int, int]]] = {}
        """The scopes of the declared names."""
        self._uses: list[_Use] = []
        self._roles: dict[int, str] = {}
        """What is done with the value of a node, by id."""
        self._filters: dict[int, tuple[Node, Node, Node, Node]] = {}
        """By the id of the name: the name, the node around it, the operand, and the bar."""
        self._spelled: set[int] = set()
        """The ids of members that JavaScript reads by a key that may have another spelling."""
        self._walk()
        for name, scopes in self._declared.items():
            self._declared[name] = _merged(scopes)
        for use in sorted(self._uses, key=lambda use: use.name.start_byte):
            if use.name.id not in self._filters and self._is_free(use.name):
                self._add_free(use)
        self._write_filters()

    @property
    def finds_keys(self) -> bool:
        """Whether `object[key]`, with a key that may have another spelling, is read outside of the paths."""
        return bool(self._spelled)

    def _walk(self) -> None:
        root = self._source.root
        scope = root.start_byte, root.end_byte
        stack = [(root, scope, scope)]
        while stack:
            node, block, function = stack.pop()
            kind = node.type
            if kind in _REFUSED:
                _refuse(self._source, node, *_REFUSED[kind])
            if kind in _MEMBERS or kind in _NAMES:
                children = self._use(node)
            else:
                children = node.children
                if kind in _FUNCTIONS or kind == "class_body":
                    function = self._function(node)
                if kind in _BLOCKS:
                    block = node.start_byte, node.end_byte
                if kind in _LOOPS and (body := node.child_by_field_name("body")) is not None:
                    self._count(body, f"{{{_COUNTS};", "}")
                self._declarations(node, block, function)
                self._operation(node)
            stack.extend((child, block, function) for child in reversed(children))

    def _add_free(self, use: _Use) -> None:
        self.free.append(free := self._followed(use))
        self._spelled.difference_update(member.id for member in use.members[: len(free.steps)])
        if len(free.steps) == len(use.members):
            self.paths[use.top.id] = free

    def _add(self, start: int, end: int, text: str) -> None:
        self.edits.append(Edit(self._source.offset(start), self._source.offset(end), text))

    # Declarations

    def _function(self, node: Node) -> tuple[int, int]:
        """The scope of a function or a class: it counts, and has its own `this` and `arguments`."""
        parameters = node.child_by_field_name("parameters") or node.child_by_field_name("parameter")
        scope = (parameters or node).start_byte, node.end_byte
        if parameters is not None:
            self._declare(parameters, scope)
        if node.type != "arrow_function":
            for name in ("this", "arguments"):
                self._declared.setdefault(name, []).append(scope)
        if (body := node.child_by_field_name("body")) is not None:
            self._count(body, f" {_COUNTS}?0:", "")
        return scope

    def _declarations(self, node: Node, block: tuple[int, int], function: tuple[int, int]) -> None:
        kind = node.type
        if kind in ("variable_declaration", "lexical_declaration", "using_declaration"):
            for child in node.named_children:
                self._declare(child.child_by_field_name("name"), function if kind[0] == "v" else block)
        elif kind == "for_in_statement" and (word := node.child_by_field_name("kind")) is not None:
            self._declare(node.child_by_field_name("left"), function if word.type == "var" else block)
        elif kind == "catch_clause":
            self._declare(node.child_by_field_name("parameter"), block)
        elif kind in _NAMED_INSIDE:
            self._declare(node.child_by_field_name("name"), (node.start_byte, node.end_byte))
        elif kind in _NAMED_OUTSIDE:
            self._declare(node.child_by_field_name("name"), block)

    def _declare(self, pattern: Node | None, scope: tuple[int, int]) -> None:
        """Declare the names that a pattern binds: not its keys, and not what its defaults read."""
        stack = [pattern]
        while stack:
            node = stack.pop()
            if node is None:
                continue
            if node.type in _NAMES:
                self._declared.setdefault(self._source.text_of(node), []).append(scope)
            elif (part := _BINDING.get(node.type)) is not None:
                stack.append(node.child_by_field_name(part))
            else:
                stack.extend(node.named_children)

    def _is_declared(self, node: Node) -> bool:
        scopes, place = self._declared.get(self._source.text_of(node), []), node.start_byte
        before = bisect_right(scopes, place, key=lambda scope: scope[0]) - 1
        return before >= 0 and place < scopes[before][1]

    # Counting, filters, and what is done with values

    def _count(self, body: Node, before: str, behind: str) -> None:
        """Count whenever a body runs: inside of its braces, or before it."""
        if body.type == "statement_block":
            before, behind = f"{_COUNTS};", ""
            self._add(body.start_byte + 1, body.start_byte + 1, before)
        elif body.type != "class_body":
            self._add(body.start_byte, body.start_byte, before)
            if behind:
                self._add(body.end_byte, body.end_byte, behind)

    def _operation(self, node: Node) -> None:
        """Note what an operation does with the values of its operands."""
        kind = node.type
        if kind in _ROLES:
            field, role = _ROLES[kind]
            role = "asked" if kind == "call_expression" and _is_asked(node) else role
            self._note(node.child_by_field_name(field), role)
        elif kind == "unary_expression":
            self._note(node.child_by_field_name("argument"), node.children[0].type)
        elif kind == "binary_expression" and (operator := node.child_by_field_name("operator")) is not None:
            left, right = node.child_by_field_name("left"), node.child_by_field_name("right")
            sign = operator.type
            if sign == "??":
                self._note(left, "default")
            elif sign == "|" and left is not None and right is not None:
                self._filter(left, operator, right)
            elif sign in ("<", ">"):
                self._check_comment(operator)
        elif kind == "number" and self._source.text_of(node).endswith("n"):
            _refuse(self._source, node, "BigInt numbers are not supported", "values are JSON data")

    def _note(self, operand: Node | None, role: str) -> None:
        if operand is not None:
            self._roles[operand.id] = role

    def _check_comment(self, operator: Node) -> None:
        """Refuse `<!--`, and `-->` where a line begins: for the engine they begin a comment."""
        text, at = self._source.text, self._source.offset(operator.start_byte)
        line = f"{text[: at - 2]}|".splitlines()[-1].rstrip("|").strip()
        if text.startswith("<!--", at) or (text.startswith("-->", at - 2) and line[-2:] in ("", "*/")):
            _refuse(self._source, operator, *_REFUSED["html_comment"])

    def _filter(self, left: Node, bar: Node, right: Node) -> None:
        name, around = _first_in(right)
        text = self._source.text_of(name)
        if name.type != "identifier" or text not in FILTERS:
            return
        operand = left
        while operand.type in _BEFORE_OPERAND:
            operand = [child for child in operand.children if child.type != "comment"][-1]
        if text == "default":
            self._roles[operand.id] = "default"
        self._filters[name.id] = (name, around, operand, bar)

    def _write_filters(self) -> None:
        starts: dict[int, int] = {}
        openings: dict[int, str] = {}
        for name, around, operand, bar in sorted(self._filters.values(), key=lambda it: it[3].start_byte):
            first, _ = _first_in(operand)
            start = starts[name.id] = starts.get(first.id, operand.start_byte)
            # the filter that comes last is the outermost call
            openings[start] = f"__filters.{self._source.text_of(name)}({openings.get(start, '')}"
            end, text = name.end_byte, ")"
            if around.type == "call_expression" and (given := around.child_by_field_name("arguments")):
                end, text = given.start_byte + 1, ", " if given.named_children else ""
            self._add(bar.start_byte, end, text)
        for start, text in openings.items():
            self._add(start, start, text)

    # Paths

    def _use(self, top: Node) -> list[Node]:
        """Note the use of a name with its members; returns the nodes inside that are not part of it."""
        base, members = _chain(top)
        inside = []
        for member in members:
            if (index := member.child_by_field_name("index")) is not None:
                inside.append(index)
                if _is_spelled(self._fixed_key(index)):
                    self._spelled.add(member.id)
            elif (name := member.child_by_field_name("property")) is not None:
                _check_spelling(self._source, name)
        if base.type not in _NAMES:
            return [base, *inside]
        self._check_name(base)
        self._uses.append(_Use(top, base, members))
        return inside

    def _check_name(self, node: Node) -> None:
        _check_spelling(self._source, node)
        if (text := self._source.text_of(node)).startswith("__"):
            _refuse(self._source, node, f"'{text}' is private: names that start with __ cannot be used")

    def _is_free(self, node: Node) -> bool:
        text = self._source.text_of(node)
        if text in GLOBALS or self._is_declared(node):
            return False
        if text in _NOT_NAMES:
            hint = f"read a field of that name as a member: raw.{text}, inputs.{text}"
            _refuse(self._source, node, f"'{text}' is a word of JavaScript, not a name", hint)
        return True

    def _followed(self, use: _Use, inner: int = 0) -> Free:
        """Read the path that starts with a name."""
        steps: list[Step] = []
        for member in use.members[:_MOST_STEPS]:
            if (key := self._key(member, inner)) is None:
                break
            steps.append(Step(key, _is_asked(member)))
        role = self._roles.get(use.top.id, "")
        if steps and len(steps) == len(use.members) and role in ("called", "asked", "changed", "delete"):
            steps.pop()
        asked = [*(_is_asked(member) for member in use.members), role in ("asked", "default")]
        fixed = next((at for at, step in enumerate(steps) if isinstance(step.key, Free)), len(steps))
        return Free(
            name=self._source.text_of(use.name),
            steps=tuple(steps),
            offset=self._source.offset(use.name.start_byte),
            may_be_missing=role == "typeof" or asked[0],
            optional=role == "typeof" or asked[fixed],
        )

    def _key(self, member: Node, inner: int) -> str | int | Free | None:
        """The key of a member; None if only JavaScript can tell."""
        if (index := member.child_by_field_name("index")) is None:
            name = member.child_by_field_name("property")
            is_public = name is not None and name.type == "property_identifier"
            return self._source.text_of(name) if name is not None and is_public else None
        if (key := self._fixed_key(index)) is not None:
            return key
        base, members = _chain(index)
        if base.type not in _NAMES or inner == _MOST_INNER or not self._is_free(base):
            return None
        free = self._followed(_Use(index, base, members), inner + 1)
        return free if len(free.steps) == len(members) else None

    def _fixed_key(self, node: Node) -> str | int | None:
        text = self._source.text_of(node)
        if node.type == "number" and _POSITION.fullmatch(text):
            return int(text)
        return literal_text(node, text)


def _is_spelled(key: str | int | Free | None) -> bool:
    return not (isinstance(key, int) or (isinstance(key, str) and key.isidentifier()))


def literal_text(node: Node, text: str) -> str | None:
    """The text of a plain literal; None if only JavaScript can read it."""
    plain = node.type == "string" or (node.type == "template_string" and node.named_child_count <= 1)
    return text[1:-1] if plain and "\\" not in text and "\r" not in text and "${" not in text else None


def _chain(node: Node) -> tuple[Node, list[Node]]:
    """The object that members are read from, and the members from the inside out."""
    members = []
    while node.type in _MEMBERS and (base := node.child_by_field_name("object")) is not None:
        members.append(node)
        node = base
    return node, members[::-1]


def _is_asked(node: Node) -> bool:
    return node.child_by_field_name("optional_chain") is not None


def _first_in(node: Node) -> tuple[Node, Node]:
    """The first token of a node, and the node around that."""
    around = node
    while node.child_count:
        around, node = node, node.children[0]
    return node, around


def _merged(scopes: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Merge overlapping scopes, and return them in order."""
    merged: list[tuple[int, int]] = []
    for start, end in sorted(scopes):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((start, end))
    return merged


# The text for the engine


_COUNTS = "__left--<0&&__tick()"


class Written:
    """Text for the engine, mapped to the source."""

    def __init__(self, source: str, text: str) -> None:
        self.source = source
        self.text = text
        self._marks: list[tuple[int, int, int]] = []
        """Positions in the text, each with the position in the source that it comes from, and a length."""

    def add_source(self, source: Source, edits: Iterable[Edit] = (), before: str = "") -> None:
        """Write a source with its edits; `before` comes before its value."""
        opening = [] if source.value is None else [Edit(source.value, source.value, f" {before}(\n")]
        position = source.start
        for edit in sorted([*opening, *edits], key=lambda edit: edit.start):
            self._copy(source.text[position : edit.start], position)
            self.text += edit.text
            position = edit.end
        self._copy(source.text[position : source.end], position)
        self.text += "" if source.value is None else "\n)"

    def _copy(self, text: str, start: int) -> None:
        self._marks.append((len(self.text), start, len(text)))
        self.text += text

    def offset(self, line: int, column: int) -> int:
        """Return the offset in the source for a line of the text and a byte of that line."""
        lines = self.text.split("\n")
        before = lines[line - 1].encode()[: column - 1].decode(errors="ignore") if line <= len(lines) else ""
        position = sum(len(text) + 1 for text in lines[: line - 1]) + len(before)
        index = max(bisect_right(self._marks, position, key=lambda mark: mark[0]) - 1, 0)
        begins, start, length = self._marks[index]
        return start + min(max(position - begins, 0), length)

    def syntax_error(self, error: Exception) -> ExpressionError:
        """The error for what the engine cannot compile."""
        if isinstance(error, Failed):
            return syntax_error(error, self.source, self.offset(*error.place) if error.place else 0)
        return unreadable("it is too large, or nested too deeply", 0)

    def evaluation_error(self, error: Exception, limits: Limits) -> ExpressionError:
        place = error.place if isinstance(error, Failed) else None
        return evaluation_error(error, self.source, self.offset(*place) if place else None, limits)
