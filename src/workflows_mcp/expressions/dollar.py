"""Implements the `${…}` language of the graph dialect: references in text, and conditions.

    Dollar().template("v${inputs.version}").evaluate({"inputs": {"version": 3}})          # "v3"
    Dollar().template("${inputs.tag | default('latest')}").evaluate({"inputs": {}})       # "latest"
    Dollar().condition("${inputs.n} > 2 and not ${inputs.dry}").evaluate({"inputs": …})   # bool

References: `${inputs.x}`, `${blocks.build.outputs.files[0]}`, and `${inputs.x | trim}` with a filter. Their
values are never parsed again. In a command, a name without a dot (`${HOME}`) belongs to the shell and stays.
`\\${inputs.x}` is the text itself.

Conditions have comparisons, and/or/not, in/not in, parentheses, numbers, strings, lists, true, false, null.
They are parsed by Python; every syntax node outside this list is rejected at load. The text 'true' counts as
true; `1 == true` is false; comparing text with a number is an error, because it is always a mistake.

Filters take literals as arguments and declare their types, so misuse is found at load. docs/graph-dialect.md
lists them.
"""

from __future__ import annotations

import ast
import operator
import posixpath
import re
import warnings
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

from workflows_mcp.errors import ExpressionError
from workflows_mcp.expressions.language import (
    BOOLEAN,
    KIND_NAMES,
    STRING,
    Code,
    Expression,
    Kinds,
    KindsAt,
    Reference,
    Scope,
    follow,
)
from workflows_mcp.values import (
    Value,
    did_you_mean,
    from_json_in_run,
    kind_and_value,
    kind_of,
    shown,
    to_json,
    to_text,
)

ROOTS = ("blocks", "inputs", "metadata")
MAX_CONDITION = 10_000
MAX_DEPTH = 50
_CACHED = 32_768

_LITERAL = r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\""""
_ARGUMENTS = rf"""\((?:[^()'"]|{_LITERAL})*\)"""
_FILTER_PATTERN = rf"\|\s*([A-Za-z_]\w*)\s*({_ARGUMENTS})?"
_REFERENCE_PATTERN = (
    r"""\$\{\s*([A-Za-z_][\w-]*)((?:\.[\w-]+|\[\d+\]|\['[^']*'\]|\["[^"]*"\])*)"""
    rf"((?:\s*\|\s*[A-Za-z_]\w*\s*(?:{_ARGUMENTS})?)*)\s*\}}"
)
_REFERENCE = re.compile(_REFERENCE_PATTERN)
_REFERENCE_OR_LITERAL = re.compile(f"{_REFERENCE_PATTERN}|{_LITERAL}", re.S)
_PART = re.compile(r"""\.([\w-]+)|\[(\d+)\]|\['([^']*)'\]|\["([^"]*)"\]""")
_FILTER = re.compile(_FILTER_PATTERN)
_UNCLOSED = re.compile(r"\$\{\s*(?:(?:blocks|inputs|metadata)(?![\w-])|(?:each|secrets)\.)")
_EXPRESSION = re.compile(r"\$\{\s*(?:\(|not\b|\$\{)")
"""The beginning of an expression in its own braces: `${(${a} or ${b}) and ${c}}`."""
_BRACES = re.compile(r"\$?\{\{\s*((?:inputs|blocks|metadata|secrets|each)\b[.\[][^{}]*?)\s*\}\}")
"""The spelling that older definitions have for `${…}`."""
_BRACED_PATH = re.compile(r"\b(?:inputs|blocks|metadata|secrets|each)(?:\.[\w-]+|\[[^\]]*\])+")
_ESCAPED_BRACES = re.compile(r"\\(?=\$?\{\{\s*(?:inputs|blocks|metadata|secrets|each)\b[.\[])")
_LITERAL_OR_WORD = re.compile(rf"{_LITERAL}|\b(true|false|null|none)\b", re.I | re.S)
_WORDS = {"true": "True", "false": "False", "null": "None", "none": "None"}
_EXAMPLE = "e.g. ${blocks.test.succeeded} and ${inputs.environment} == 'production'"
_SYNTAX_HINTS = {"=": "write == to compare", "&": "write: and", "|": "write: or", "!": "write: not"}
_TRUTH_HINT = "write true or false; as text it needs quotes"
_TRUTH = {"true": True, "True": True, "false": False, "False": False}


class Dollar:
    """Parses the language. It has no state; results are cached by source."""

    resolves_keys = True
    """Whether the keys of mappings are templates too."""

    def is_dynamic(self, text: str) -> bool:
        return "${" in text

    @staticmethod
    @lru_cache(maxsize=_CACHED)
    def template(text: str) -> Expression:
        inner = _unwrap(text)
        if inner is not None:
            return _Condition(inner)
        return _template(text, *_split(text))

    @staticmethod
    @lru_cache(maxsize=_CACHED)
    def with_variables(text: str) -> Expression:
        """A template in which `${NAME}` without a dot is a variable that the step expands: $SCRATCH."""
        return _template(text, *_split(text, old=True))

    @staticmethod
    @lru_cache(maxsize=_CACHED)
    def code(text: str) -> DollarCode:
        texts, operands = _split(text, code=True)
        return DollarCode(text, texts, operands)

    @staticmethod
    @lru_cache(maxsize=_CACHED)
    def condition(text: str) -> Expression:
        return _Condition(_unwrap(text) or text)

    @staticmethod
    @lru_cache(maxsize=_CACHED)
    def output(text: str) -> Expression:
        return _as_output(text, Dollar.template(text))

    @staticmethod
    def foreign(text: str) -> ExpressionError | None:
        """Return the error for a text with `{{ }}` instead of `${ }`, as in older definitions."""
        for found in _BRACES.finditer(text) if "{{" in text else ():
            if found.start() and text[found.start() - 1] == "\\":
                continue
            inside = found[1]
            whole = _BRACED_PATH.match(inside)
            rest = inside[whole.end() :].lstrip() if whole is not None else inside
            if rest and not rest.startswith("|"):
                suggestion = _BRACED_PATH.sub(lambda path: f"${{{path[0]}}}", inside)
            else:
                suggestion = f"${{{inside}}}"
            return ExpressionError(
                f"{found[0]} is not evaluated here: a reference is written ${{…}}",
                hint=f"write {suggestion}; a backslash before the braces keeps them as text",
                offset=found.start(),
                code="syntax",
            )
        return None


class OldDollar(Dollar):
    """The language of plans before version 3.

    White space around a single reference is ignored; names without a dot and the keys of mappings are text.
    """

    resolves_keys = False

    @staticmethod
    @lru_cache(maxsize=_CACHED)
    def template(text: str) -> Expression:
        texts, operands = _split(text, old=True)
        return _template(text, texts, operands, padded=True)

    @staticmethod
    @lru_cache(maxsize=_CACHED)
    def output(text: str) -> Expression:
        return _as_output(text, OldDollar.template(text))


def _as_output(text: str, template: Expression) -> Expression:
    """Return an expression over references if the text is one, else the template."""
    if not isinstance(template, TextTemplate) or not template.references:
        return template
    try:
        condition = _Condition(text)
    except ExpressionError:
        return template  # not an expression, so it is text with references in it
    return condition if condition.is_logic else template


def _unwrap(text: str) -> str | None:
    """Return the expression inside `${ … }`, with blanks for the braces; None if the text is not one."""
    start = _EXPRESSION.match(text.lstrip()) if "${" in text else None
    if start is None or not text.rstrip().endswith("}"):
        return None
    opening, closing = text.index("${"), text.rindex("}")
    depth = 0
    for position, sign in enumerate(text[opening + 1 : closing + 1], opening + 1):
        depth += (sign == "{") - (sign == "}")
        if depth == 0 and position < closing:
            return None  # the braces that open it close before its end
    return f"{text[:opening]}  {text[opening + 2 : closing]} {text[closing + 1 :]}"


# Compiled templates


def _template(
    source: str, texts: tuple[str, ...], operands: tuple[Operand, ...], *, padded: bool = False
) -> Expression:
    """`padded`: white space around a single reference is ignored."""
    around = "".join(texts)
    if len(operands) == 1 and not (around.strip() if padded else around):
        return WholeReference(source, operands[0])
    return TextTemplate(source, texts, operands)


class Operand(NamedTuple):
    """A reference and the filters that its value goes through."""

    reference: Reference
    filters: tuple[Applied, ...] = ()

    def evaluate(self, scope: Scope) -> Value:
        value = follow(self.reference, scope, or_null=self.reference.optional)
        for applied in self.filters:
            value = applied.to(value, self.reference)
        return value

    def kinds(self, at: KindsAt) -> Kinds | None:
        found = at(self.reference.path)
        for applied in self.filters:
            result = applied.filter.result
            if result == "same":
                other = {KIND_NAMES[type(it)] for it in applied.arguments}
                found = None if found is None else (found - {"null"}) | other
            else:
                found = None if result == "any" else frozenset({result})
        return found


class WholeReference:
    """A template that is exactly one reference: the value keeps its type."""

    __slots__ = ("operand", "references", "source")

    def __init__(self, source: str, operand: Operand) -> None:
        self.source = source
        self.operand = operand
        self.references = (operand.reference,)

    def kinds(self, at: KindsAt) -> Kinds | None:
        return self.operand.kinds(at)

    def evaluate(self, scope: Scope) -> Value:
        return self.operand.evaluate(scope)


class _Interpolated:
    """Text with references in it. `texts` has one item more than `operands`."""

    __slots__ = ("operands", "references", "source", "texts")

    def __init__(self, source: str, texts: tuple[str, ...], operands: tuple[Operand, ...]) -> None:
        self.source = source
        self.texts = texts
        self.operands = operands
        self.references = tuple(operand.reference for operand in operands)


class TextTemplate(_Interpolated):
    __slots__ = ()

    def kinds(self, at: KindsAt) -> Kinds | None:
        return STRING

    def evaluate(self, scope: Scope) -> Value:
        parts = [self.texts[0]]
        for operand, text in zip(self.operands, self.texts[1:], strict=True):
            parts.append(to_text(operand.evaluate(scope)))
            parts.append(text)
        return "".join(parts)


class QuotedReference(WholeReference):
    """A single reference in quotes, inside a condition: text, except for true and false.

    They keep their type because older files compare '${…}' with 'True' and with 'true'.
    """

    __slots__ = ()

    def evaluate(self, scope: Scope) -> Value:
        value = self.operand.evaluate(scope)
        return value if isinstance(value, bool) else to_text(value)


class DollarCode(_Interpolated):
    """A command: its text and the values in it stay apart."""

    __slots__ = ()

    @property
    def known_texts(self) -> tuple[str, ...]:
        return self.texts

    def offset(self, number: int) -> int:
        return self.references[min(number, len(self.references) - 1)].offset

    def evaluate(self, scope: Scope) -> Code:
        return Code(self.texts, tuple(operand.evaluate(scope) for operand in self.operands))


# Text split at its references


def _split(
    text: str, *, code: bool = False, old: bool = False
) -> tuple[tuple[str, ...], tuple[Operand, ...]]:
    """Return the texts around the references, and the references; code keeps escapes and shell names."""
    texts: list[str] = []
    operands: list[Operand] = []
    pending = ""
    position = 0
    for match in _REFERENCE.finditer(text):
        start = match.start()
        if start and text[start - 1] == "\\":
            pending += text[position : start if code else start - 1] + match[0]
            position = match.end()
            continue
        operand = _operand(match, all_names=not code and not old)
        if operand is None:
            continue
        _refuse_malformed(text, position, start, code=code or old)
        texts.append(pending + text[position:start])
        operands.append(operand)
        pending, position = "", match.end()
    _refuse_malformed(text, position, len(text), code=code or old)
    texts.append(pending + text[position:])
    if not code and not old and "\\" in text and "{{" in text:
        texts = [_ESCAPED_BRACES.sub("", part) for part in texts]
    return tuple(texts), tuple(operands)


def _operand(match: re.Match[str], *, all_names: bool = False) -> Operand | None:
    """The reference, or None if the name belongs to the shell."""
    head, rest = match[1], match[2]
    if head not in ROOTS and "." not in rest and not all_names:
        return None
    path: list[str | int] = [head]
    for part in _PART.finditer(rest):
        path.append(int(part[2]) if part[2] is not None else part[1] or part[3] or part[4] or "")
    filters: tuple[Applied, ...] = ()
    if match[3]:
        first = match.start(3)
        filters = tuple(
            read_filter(found[1], found[2] and found[2][1:-1], first + found.start(1))
            for found in _FILTER.finditer(match[3])
        )
    optional = any(applied.name == "default" for applied in filters)
    reference = Reference(tuple(path), match.start(), optional)
    private = next((name for name in path if isinstance(name, str) and name.startswith("_")), None)
    if private is not None:
        raise ExpressionError(
            f"${{{reference}}}: '{private}' is private: names that start with '_' cannot be reached",
            hint=f"a reference starts with one of: {', '.join(ROOTS)}",
            offset=match.start(),
            code="private",
        )
    return Operand(reference, filters)


def _refuse_malformed(text: str, start: int, end: int, *, code: bool) -> None:
    unclosed = _UNCLOSED.search(text, start, end)
    found = unclosed if unclosed or code else _EXPRESSION.search(text, start)
    if found is None or found.start() >= end or _is_escaped(text, found.start()):
        return
    if unclosed:
        raise _malformed(text, found.start())
    raise ExpressionError(
        "an expression in ${ } can only stand alone, not inside text",
        hint="make it an output or an input of its own, or put single references into the text",
        offset=found.start(),
        code="syntax",
    )


def _is_escaped(text: str, position: int) -> bool:
    return position > 0 and text[position - 1] == "\\"


def _malformed(text: str, offset: int) -> ExpressionError:
    end = text.find("}", offset) + 1
    shown = text[offset : min(end or len(text), offset + 40)].split("\n", 1)[0]
    return ExpressionError(
        f"malformed reference: {shown}",
        hint="a reference looks like ${inputs.name}, ${blocks.id.outputs.name[0]} or ${inputs.name | trim}",
        offset=offset,
        code="syntax",
    )


# Conditions


Evaluator = Callable[[Scope], Value]


class _Condition:
    """A condition. It is parsed as Python, with `_` for each reference.

    The name is padded to the length of the reference, so offsets in the tree and in the source agree.
    """

    __slots__ = ("_code", "_evaluator", "_indent", "_operands", "is_logic", "references", "source")

    def __init__(self, source: str) -> None:
        if len(source) > MAX_CONDITION:
            raise ExpressionError(
                f"the condition has {len(source)} characters, and at most {MAX_CONDITION} are allowed",
                code="syntax",
            )
        self.source = source
        self.references: tuple[Reference, ...] = ()
        self._operands: dict[int, Operand] = {}
        """The references outside quotes, by their offsets."""
        code = self._as_python().replace("\n", " ")
        self._code = code.strip()
        self._indent = len(code) - len(code.lstrip())
        body = self._parsed()
        is_not = isinstance(body, ast.UnaryOp) and isinstance(body.op, ast.Not)
        self.is_logic = bool(self._operands) and (is_not or isinstance(body, ast.BoolOp | ast.Compare))
        self._evaluator = self._compiled(body, 0)

    def kinds(self, at: KindsAt) -> Kinds | None:
        return BOOLEAN

    def evaluate(self, scope: Scope) -> Value:
        return as_truth(self._evaluator(scope))

    def _as_python(self) -> str:
        parts: list[str] = []
        position = 0
        for match in (*_REFERENCE_OR_LITERAL.finditer(self.source), None):
            start = match.start() if match else len(self.source)
            between = self.source[position:start]
            if "${" in between:
                raise _malformed(self.source, position + between.index("${"))
            parts.append(_with_python_words(between))
            if match and match[1]:
                self._operands[start] = self._operand(match)
                parts.append("_".ljust(len(match[0])))
            elif match:
                parts.append(match[0])
            position = match.end() if match else start
        return "".join(parts)

    @staticmethod
    def _operand(match: re.Match[str]) -> Operand:
        operand = _operand(match)
        if operand is None:
            raise ExpressionError(
                f"{match[0]} is not a reference: it has no dot",
                hint=f"a reference starts with one of: {', '.join(ROOTS)}",
                offset=match.start(),
                code="syntax",
            )
        return operand

    def _parsed(self) -> ast.expr:
        code = self._code
        try:
            with warnings.catch_warnings():  # ignore warnings about style
                warnings.simplefilter("ignore")
                return ast.parse(code, mode="eval").body
        except (SyntaxError, RecursionError, MemoryError, ValueError) as error:
            column = getattr(error, "offset", None) or len(code) + 1
            offset = min(column - 1, len(code)) + self._indent
            what = str(getattr(error, "msg", None) or error).split(": ")[0] if code else "it is empty"
        raise ExpressionError(
            f"the condition cannot be read: {what}",
            hint=_SYNTAX_HINTS.get(self.source[offset : offset + 1], _EXAMPLE),
            offset=offset,
            code="syntax",
        )

    def _compiled(self, node: ast.expr, depth: int) -> Evaluator:
        if depth > MAX_DEPTH:
            message = f"the condition is nested more than {MAX_DEPTH} levels deep"
            raise self._refused(node, message, "simplify it")
        match node:
            case ast.Constant(value=str() as text) if "${" in text:
                return self._quoted(text, self._offset(node) + 1).evaluate
            case ast.Constant(value=str() | bool() | int() | float() | None as literal):
                return lambda _: literal
            case ast.Name(id="_") if operand := self._operands.get(self._offset(node)):
                self.references += (operand.reference,)
                return operand.evaluate
            case ast.Name(id=name):
                hint = _TRUTH_HINT if name in ("yes", "no", "on", "off") else f"text needs quotes: '{name}'"
                raise self._refused(node, f"unknown word '{name}'", hint)
            case ast.BoolOp(op=op, values=values):
                parts = [self._compiled(value, depth + 1) for value in values]
                decides = all if isinstance(op, ast.And) else any
                return lambda scope: decides(as_truth(part(scope)) for part in parts)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                negated = self._compiled(operand, depth + 1)
                return lambda scope: not as_truth(negated(scope))
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
                return lambda _: -number
            case ast.Compare(left=left, ops=ops, comparators=comparators):
                first, *rest = [self._compiled(part, depth + 1) for part in (left, *comparators)]
                return _comparison_chain(first, [_COMPARISONS[type(op)] for op in ops], rest)
            case ast.List(elts=elements) | ast.Tuple(elts=elements):
                items = [self._compiled(element, depth + 1) for element in elements]
                return lambda scope: [item(scope) for item in items]
            case ast.Attribute():
                written = ast.unparse(node)
                raise self._refused(node, f"'{written}' is not a value", f"write ${{{written}}}")
        raise self._refused(
            node,
            f"{_describe(node)} not part of the condition language",
            "a condition can use == != < <= > >=, and/or/not, in/not in, ( ), numbers, 'text', [lists], "
            "true, false, null",
        )

    def _quoted(self, text: str, start: int) -> Expression:
        """Parse a template in quotes; its text starts at `start`."""
        try:
            texts, operands = _split(text, old=True)
        except ExpressionError as error:
            error.offset += start
            raise
        references = [it.reference._replace(offset=it.reference.offset + start) for it in operands]
        self.references += tuple(references)
        moved = tuple(it._replace(reference=new) for it, new in zip(operands, references, strict=True))
        if len(moved) == 1 and texts == ("", ""):
            return QuotedReference(text, moved[0])
        return TextTemplate(text, texts, moved)

    def _offset(self, node: ast.expr) -> int:
        """The offset of `node` in the source, in characters; the tree counts bytes."""
        code, column = self._code, node.col_offset
        if not code.isascii():
            column = len(code.encode("utf-8")[:column].decode("utf-8", "ignore"))
        return self._indent + column

    def _refused(self, node: ast.expr, message: str, hint: str) -> ExpressionError:
        return ExpressionError(message, hint=hint, offset=self._offset(node), code="syntax")


def _describe(node: ast.expr) -> str:
    names = {ast.Call: "a function call is", ast.Attribute: "an attribute is", ast.BinOp: "arithmetic is"}
    return names.get(type(node), f"{type(node).__name__} is")


def _comparison_chain(
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


# Comparison in conditions


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
    """Whether two values are equal: 'True' is true, 1 is not true, text is never a number."""
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
            hint="compare two numbers, or put the number in quotes to compare text",
            code="type_mismatch",
        )


def _equality(same: bool) -> Callable[[Value, Value], bool]:
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
            f"{kind_and_value(left)} and {kind_and_value(right)} cannot be ordered",
            code="type_mismatch",
        )

    return ordered


def _contains(item: Value, container: Value) -> bool:
    if isinstance(container, str):
        if not isinstance(item, str):
            raise ExpressionError(f"{kind_and_value(item)} cannot be in a text", code="type_mismatch")
        return item in container
    if isinstance(container, dict):
        return isinstance(item, str) and item in container
    if isinstance(container, list):
        return any(equal(item, member) for member in container)
    raise ExpressionError(
        f"'in' needs a text, a list or an object on its right, not {kind_and_value(container)}",
        code="type_mismatch",
    )


_COMPARISONS: dict[type[ast.cmpop], Callable[[Value, Value], bool]] = {
    ast.Eq: _equality(True),
    ast.NotEq: _equality(False),
    ast.Is: _equality(True),
    ast.IsNot: _equality(False),
    ast.Lt: _ordered(operator.lt),
    ast.LtE: _ordered(operator.le),
    ast.Gt: _ordered(operator.gt),
    ast.GtE: _ordered(operator.ge),
    ast.In: _contains,
    ast.NotIn: lambda item, container: not _contains(item, container),
}


# Filters


class Filter(NamedTuple):
    apply: Callable[..., Value]
    takes: frozenset[str]
    """The types of its value; empty: any."""
    result: str
    """The type of the result; "same": the type of the value."""
    arguments: tuple[int, int] = (0, 0)
    """The smallest and the largest number of arguments."""
    doc: str = ""


_SCALARS = frozenset({"string", "number", "integer", "boolean"})
_TEXT = frozenset({"string"})
_LIST = frozenset({"list"})


def _lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip()]


def _json(value: Value) -> Value:
    if not isinstance(value, str):
        return value
    try:
        return from_json_in_run(value)
    except ValueError as error:
        raise ExpressionError(f"json: {shown(value)} is not JSON: {error}") from None


def _join(items: list[Value], separator: str = ",") -> str:
    return to_text(separator).join(map(to_text, items))


FILTERS: dict[str, Filter] = {
    "trim": Filter(lambda value: to_text(value).strip(), _SCALARS, "string", doc="no white space around it"),
    "lower": Filter(lambda value: to_text(value).lower(), _SCALARS, "string", doc="in lower case"),
    "upper": Filter(lambda value: to_text(value).upper(), _SCALARS, "string", doc="in upper case"),
    "basename": Filter(
        lambda value: posixpath.basename(value.rstrip("/")), _TEXT, "string", doc="the last part of a path"
    ),
    "lines": Filter(_lines, _TEXT, "list", doc="the lines of a text, as a list; empty ones are left out"),
    "json": Filter(_json, frozenset(), "any", doc="the value that a JSON text stands for"),
    "tojson": Filter(to_json, frozenset(), "string", doc="the value as JSON text"),
    "length": Filter(
        len, frozenset({"string", "list", "object"}), "integer", doc="of text, of a list or of an object"
    ),
    "join": Filter(_join, _LIST, "string", (0, 1), doc="the items of a list as one text, `,` between them"),
    "default": Filter(
        lambda value, other: other if value is None else value,
        frozenset(),
        "same",
        (1, 1),
        doc="another value where there is none: null, absent, or of a block that did not run",
    ),
}
_ALIASES = {
    "strip": "trim",
    "from_json": "json",
    "fromjson": "json",
    "parse_json": "json",
    "loads": "json",
    "to_json": "tojson",
    "count": "length",
    "len": "length",
    "size": "length",
    "splitlines": "lines",
    "split": "lines",
    "d": "default",
}
"""Names of filters in other languages."""


class Applied(NamedTuple):
    """A filter with its arguments, at its place in the source."""

    name: str
    arguments: tuple[Value, ...]
    offset: int

    @property
    def filter(self) -> Filter:
        return FILTERS[self.name]

    def to(self, value: Value, reference: Reference) -> Value:
        takes = self.filter.takes
        if takes and kind_of(value).replace("text", "string") not in takes:
            hint = f"{self.name} takes {' or '.join(it.replace('string', 'text') for it in sorted(takes))}"
            if value is None:
                hint += "; put | default('…') before it to replace null"
            raise ExpressionError(
                f"${{{reference} | {self.name}}}: the filter cannot be applied to {kind_and_value(value)}",
                hint=hint,
                offset=self.offset,
                code="type_mismatch",
            )
        try:
            return self.filter.apply(value, *self.arguments)
        except ExpressionError as error:
            error.offset = self.offset
            raise


def read_filter(name: str, arguments: str | None, offset: int) -> Applied:
    """Parse a filter; `arguments` is the text between its parentheses."""
    known = FILTERS.get(name)
    if known is None:
        suggestion = _ALIASES.get(name)
        hint = f"write: {suggestion}" if suggestion else did_you_mean(name, FILTERS, what="filters", limit=20)
        raise ExpressionError(f"there is no filter '{name}'", hint=hint, offset=offset, code="syntax")
    try:
        given = ast.literal_eval(f"[{_with_python_words(arguments or '')}]")
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise ExpressionError(
            f"the arguments of the filter '{name}' cannot be read: {arguments}",
            hint="arguments are texts in quotes, numbers, true, false, null, or lists of these",
            offset=offset,
            code="syntax",
        ) from None
    fewest, most = known.arguments
    if not fewest <= len(given) <= most:
        wanted = f"{fewest} to {most}" if fewest != most else str(fewest) if most else "no"
        raise ExpressionError(
            f"the filter '{name}' takes {wanted} argument{'' if most == 1 else 's'}, not {len(given)}",
            hint="e.g. ${inputs.tag | default('latest')}" if name == "default" else "",
            offset=offset,
            code="syntax",
        )
    return Applied(name, tuple(given), offset)


def _with_python_words(text: str) -> str:
    """The text with true, false and null in Python's spelling, outside quotes."""
    return _LITERAL_OR_WORD.sub(lambda found: _WORDS[found[1].lower()] if found[1] else found[0], text)
