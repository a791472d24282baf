"""The `${…}` language of the graph dialect: references in text, and conditions over them.

A reference is looked up, never spliced into anything that is parsed afterwards. `${inputs.x}`,
`${blocks.build.outputs.files[0]}` are references, and `${inputs.x | trim}` is one with a filter. In commands
a name without a dot, such as `${HOME}`, is left alone: it is the shell's. `\\${inputs.x}` is the text itself.

    Dollar().template("v${inputs.version}").evaluate({"inputs": {"version": 3}})          # "v3"
    Dollar().condition("${inputs.n} > 2 and not ${inputs.dry}").evaluate({"inputs": …})   # bool
"""

from __future__ import annotations

import ast
import re
import warnings
from functools import lru_cache
from typing import NamedTuple

from workflows_mcp.errors import ExpressionError
from workflows_mcp.expressions.base import (
    KIND_NAMES,
    MISSING,
    STRING,
    Code,
    Expression,
    Kinds,
    KindsAt,
    Reference,
    Scope,
)
from workflows_mcp.expressions.conditions import ParsedCondition, compile_condition
from workflows_mcp.expressions.dollar_filters import Applied, read_filter
from workflows_mcp.expressions.lookup import follow, follow_if_there
from workflows_mcp.values import Value, to_text

ROOTS = ("blocks", "inputs", "metadata")
MAX_CONDITION = 10_000
_CACHED = 32_768

_ARGUMENTS = r"""\((?:[^()'"]|'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")*\)"""
_FILTER_PATTERN = rf"\|\s*([A-Za-z_]\w*)\s*({_ARGUMENTS})?"
_REFERENCE_PATTERN = (
    r"""\$\{\s*([A-Za-z_][\w-]*)((?:\.[\w-]+|\[\d+\]|\['[^']*'\]|\["[^"]*"\])*)"""
    rf"((?:\s*\|\s*[A-Za-z_]\w*\s*(?:{_ARGUMENTS})?)*)\s*\}}"
)
_REFERENCE = re.compile(_REFERENCE_PATTERN)
_PART = re.compile(r"""\.([\w-]+)|\[(\d+)\]|\['([^']*)'\]|\["([^"]*)"\]""")
_FILTER = re.compile(_FILTER_PATTERN)
_UNCLOSED = re.compile(r"\$\{\s*(?:(?:blocks|inputs|metadata)(?![\w-])|(?:each|secrets)\.)")
_EXPRESSION = re.compile(r"\$\{\s*(?:\(|not\b|\$\{)")
"""The beginning of an expression that stands in braces of its own: `${(${a} or ${b}) and ${c}}`."""
_BRACES = re.compile(r"\$?\{\{\s*((?:inputs|blocks|metadata|secrets|each)\b[.\[][^{}]*?)\s*\}\}")
"""The spelling that older definitions have for `${…}`."""
_BRACED_PATH = re.compile(r"\b(?:inputs|blocks|metadata|secrets|each)(?:\.[\w-]+|\[[^\]]*\])+")
_REFERENCE_OR_LITERAL = re.compile(_REFERENCE_PATTERN + r"""|'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\"""", re.S)
_WORD = re.compile(r"\b(true|false|null|none)\b", re.I)
_EXAMPLE = "e.g. ${blocks.test.succeeded} and ${inputs.environment} == 'production'"
_SYNTAX_HINTS = {"=": "write == to compare", "&": "write: and", "|": "write: or", "!": "write: not"}
_WORDS = {"true": "True", "false": "False", "null": "None", "none": "None"}


class Operand(NamedTuple):
    """A reference and the filters that its value goes through."""

    reference: Reference
    filters: tuple[Applied, ...] = ()

    def evaluate(self, scope: Scope) -> Value:
        reference, filters = self.reference, self.filters
        if not filters:
            return follow(reference, scope)
        if reference.optional:
            found = follow_if_there(reference, scope)
            value = None if found is MISSING else found
        else:
            value = follow(reference, scope)
        for applied in filters:
            value = applied.to(value, str(reference))
        return value

    def kinds(self, at: KindsAt) -> Kinds | None:
        found = at(self.reference.path)
        for applied in self.filters:
            gives = applied.filter.gives
            if gives == "same":
                other = {KIND_NAMES[type(it)] for it in applied.arguments}
                found = None if found is None else (found - {"null"}) | other
            else:
                found = None if gives == "any" else frozenset({gives})
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


class _Several:
    """Text with references in it. `texts` has one item more than `operands`."""

    __slots__ = ("operands", "references", "source", "texts")

    def __init__(self, source: str, texts: tuple[str, ...], operands: tuple[Operand, ...]) -> None:
        self.source = source
        self.texts = texts
        self.operands = operands
        self.references = tuple(operand.reference for operand in operands)


class TextTemplate(_Several):
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
    """A reference alone in quotes, inside of a condition: text, except that true and false stay what
    they are, because older files compare '${…}' with 'True' and with 'true'."""

    __slots__ = ()

    def evaluate(self, scope: Scope) -> Value:
        value = self.operand.evaluate(scope)
        return value if isinstance(value, bool) else to_text(value)


class DollarCode(_Several):
    """A command: its text and the values in it stay apart."""

    __slots__ = ()

    @property
    def known_texts(self) -> tuple[str, ...]:
        return self.texts

    def offset(self, number: int) -> int:
        return self.references[min(number, len(self.references) - 1)].offset

    def evaluate(self, scope: Scope) -> Code:
        return Code(self.texts, tuple(operand.evaluate(scope) for operand in self.operands))


class Dollar:
    """The language; it has no state, its results are cached by source."""

    resolves_keys = True
    """Whether the keys of mappings are templates too."""

    def is_dynamic(self, text: str) -> bool:
        return "${" in text

    @staticmethod
    @lru_cache(maxsize=_CACHED)
    def template(text: str) -> Expression:
        unwrapped = _unwrapped(text)
        if unwrapped is not None:
            return compile_condition(_parse_condition(unwrapped), _quoted)
        texts, operands = _split(text)
        if len(operands) == 1 and texts == ("", ""):
            return WholeReference(text, operands[0])
        return TextTemplate(text, texts, operands)

    @staticmethod
    @lru_cache(maxsize=_CACHED)
    def with_variables(text: str) -> Expression:
        """A template in which `${NAME}` without a dot is a variable that the step expands: $SCRATCH."""
        texts, operands = _split(text, old=True)
        if len(operands) == 1 and texts == ("", ""):
            return WholeReference(text, operands[0])
        return TextTemplate(text, texts, operands)

    @staticmethod
    @lru_cache(maxsize=_CACHED)
    def code(text: str) -> DollarCode:
        texts, operands = _split(text, code=True)
        return DollarCode(text, texts, operands)

    @staticmethod
    @lru_cache(maxsize=_CACHED)
    def condition(text: str) -> Expression:
        return compile_condition(_parse_condition(_unwrapped(text) or text), _quoted)

    @staticmethod
    @lru_cache(maxsize=_CACHED)
    def output(text: str) -> Expression:
        return _as_output(text, Dollar.template(text))

    @staticmethod
    def foreign(text: str) -> ExpressionError | None:
        """What is wrong with a text that has `{{ }}` where `${ }` is meant, as older definitions do."""
        for found in _BRACES.finditer(text) if "{{" in text else ():
            if found.start() and text[found.start() - 1] == "\\":
                continue
            inside = found[1]
            whole = _BRACED_PATH.match(inside)
            rest = inside[whole.end() :].lstrip() if whole is not None else inside
            if rest and not rest.startswith("|"):
                meant = _BRACED_PATH.sub(lambda path: f"${{{path[0]}}}", inside)
            else:
                meant = f"${{{inside}}}"
            return ExpressionError(
                f"{found[0]} is not evaluated here: a reference is written ${{…}}",
                hint=f"write {meant}; a backslash before the braces keeps them as text",
                offset=found.start(),
                code="syntax",
            )
        return None


class OldDollar(Dollar):
    """As plans before version 3 have it: white space around a single reference is ignored, names without a
    dot are text everywhere, and so are the keys of mappings."""

    resolves_keys = False

    @staticmethod
    @lru_cache(maxsize=_CACHED)
    def template(text: str) -> Expression:
        texts, operands = _split(text, old=True)
        if len(operands) == 1 and not texts[0].strip() and not texts[1].strip():
            return WholeReference(text, operands[0])
        return TextTemplate(text, texts, operands)

    @staticmethod
    @lru_cache(maxsize=_CACHED)
    def output(text: str) -> Expression:
        return _as_output(text, OldDollar.template(text))


def _as_output(text: str, template: Expression) -> Expression:
    """An expression over references if it is one, else the template."""
    if not isinstance(template, TextTemplate) or not template.references:
        return template
    try:
        parsed = _parse_condition(text)
        body = parsed.body
        is_logic = isinstance(body, ast.BoolOp | ast.Compare) or (
            isinstance(body, ast.UnaryOp) and isinstance(body.op, ast.Not)
        )
        if is_logic and parsed.references:
            return compile_condition(parsed, _quoted)
    except ExpressionError:
        pass  # not an expression, so it is text with references in it
    return template


def _unwrapped(text: str) -> str | None:
    """The expression that stands in braces of its own, with blanks in place of the braces."""
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


_ESCAPED_BRACES = re.compile(r"\\(?=\$?\{\{\s*(?:inputs|blocks|metadata|secrets|each)\b[.\[])")


def _split(
    text: str, *, code: bool = False, old: bool = False
) -> tuple[tuple[str, ...], tuple[Operand, ...]]:
    """The texts around the references, and the references. In code, escapes and names of the shell stay."""
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
    """What stands there, or None where it is a name of the shell's own."""
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
    match = _UNCLOSED.search(text, start, end)
    if match is None and not code:
        match = _EXPRESSION.search(text, start)
        if match is not None and match.start() >= end:
            match = None
        if match is not None and not _is_escaped(text, match.start()):
            raise ExpressionError(
                "an expression in ${ } can only stand alone, not inside of text",
                hint="make it an output or an input of its own, or put references into the text one by one",
                offset=match.start(),
                code="syntax",
            )
    if match is None or _is_escaped(text, match.start()):
        return
    raise _malformed(text, match.start())


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


def _parse_condition(text: str) -> ParsedCondition:
    if len(text) > MAX_CONDITION:
        raise ExpressionError(
            f"a condition may have {MAX_CONDITION} characters, this one has {len(text)}", code="syntax"
        )
    references: dict[int, Operand] = {}
    pieces: list[str] = []
    position = 0
    for match in _REFERENCE_OR_LITERAL.finditer(text):
        start = match.start()
        pieces.append(_words(text, position, start))
        if match[1] is None:
            pieces.append(match[0])
        else:
            references[start] = _condition_reference(match)
            pieces.append("_".ljust(len(match[0])))
        position = match.end()
    pieces.append(_words(text, position, len(text)))
    code = "".join(pieces).replace("\n", " ")
    shifted = code.strip()
    indent = len(code) - len(code.lstrip())
    try:
        with warnings.catch_warnings():  # what Python thinks of the style is of no interest here
            warnings.simplefilter("ignore")
            body = ast.parse(shifted, mode="eval").body
    except (SyntaxError, RecursionError, MemoryError, ValueError) as error:
        column = getattr(error, "offset", None) or len(shifted) + 1
        offset = min(column - 1, len(shifted)) + indent
        what = str(getattr(error, "msg", None) or error).split(": ")[0] if shifted else "it is empty"
        raise ExpressionError(
            f"the condition cannot be read: {what}",
            hint=_SYNTAX_HINTS.get(text[offset : offset + 1], _EXAMPLE),
            offset=offset,
            code="syntax",
        ) from None
    return ParsedCondition(text, shifted, indent, body, references)


def _condition_reference(match: re.Match[str]) -> Operand:
    operand = _operand(match)
    if operand is None:
        raise ExpressionError(
            f"{match[0]} is not a reference: it has no dot",
            hint=f"a reference starts with one of: {', '.join(ROOTS)}",
            offset=match.start(),
            code="syntax",
        )
    return operand


def _words(text: str, start: int, end: int) -> str:
    """What stands between references and quoted text, with true, false and null as Python spells them."""
    between = text[start:end]
    if "${" in between:
        raise _malformed(text, start + between.index("${"))
    return _WORD.sub(lambda match: _WORDS[match[1].lower()], between)


def _quoted(text: str, start: int) -> Expression:
    """A template in quotes inside of a condition, whose text starts at `start`."""
    try:
        texts, operands = _split(text, old=True)
    except ExpressionError as error:
        error.offset += start
        raise
    moved = tuple(
        Operand(it.reference._replace(offset=it.reference.offset + start), it.filters) for it in operands
    )
    if len(moved) == 1 and texts == ("", ""):
        return QuotedReference(text, moved[0])
    return TextTemplate(text, texts, moved)
