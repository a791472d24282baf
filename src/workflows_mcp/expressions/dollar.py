"""The `${…}` language of the graph dialect: references in text, and conditions over them.

A reference is looked up, never spliced into anything that is parsed afterwards. `${inputs.x}`,
`${blocks.build.outputs.files[0]}` are references; a name without a dot, such as `${HOME}`, is left alone:
it is the shell's. `\\${inputs.x}` is the text itself.

    Dollar().template("v${inputs.version}").evaluate({"inputs": {"version": 3}})          # "v3"
    Dollar().condition("${inputs.n} > 2 and not ${inputs.dry}").evaluate({"inputs": …})   # bool
"""

from __future__ import annotations

import ast
import re
import warnings
from functools import lru_cache

from workflows_mcp.errors import ExpressionError
from workflows_mcp.expressions.base import Code, Expression, Reference, Scope
from workflows_mcp.expressions.conditions import ParsedCondition, compile_condition
from workflows_mcp.expressions.lookup import follow
from workflows_mcp.values import Value, to_text

ROOTS = ("blocks", "inputs", "metadata")
MAX_CONDITION = 10_000
_CACHED = 32_768

_REFERENCE_PATTERN = r"""\$\{\s*([A-Za-z_][\w-]*)((?:\.[\w-]+|\[\d+\]|\['[^']*'\]|\["[^"]*"\])*)\s*\}"""
_REFERENCE = re.compile(_REFERENCE_PATTERN)
_PART = re.compile(r"""\.([\w-]+)|\[(\d+)\]|\['([^']*)'\]|\["([^"]*)"\]""")
_UNCLOSED = re.compile(r"\$\{\s*(?:(?:blocks|inputs|metadata)(?![\w-])|(?:each|secrets)\.)")
_REFERENCE_OR_LITERAL = re.compile(_REFERENCE_PATTERN + r"""|'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\"""", re.S)
_WORD = re.compile(r"\b(true|false|null|none)\b", re.I)
_EXAMPLE = "e.g. ${blocks.test.succeeded} and ${inputs.environment} == 'production'"
_SYNTAX_HINTS = {"=": "write == to compare", "&": "write: and", "|": "write: or", "!": "write: not"}
_WORDS = {"true": "True", "false": "False", "null": "None", "none": "None"}


class WholeReference:
    """A template that is exactly one reference: the value keeps its type."""

    __slots__ = ("reference", "references", "source")

    def __init__(self, source: str, reference: Reference) -> None:
        self.source = source
        self.reference = reference
        self.references = (reference,)

    def evaluate(self, scope: Scope) -> Value:
        return follow(self.reference, scope)


class TextTemplate:
    """Text with references in it. `texts` has one item more than `references`."""

    __slots__ = ("references", "source", "texts")

    def __init__(self, source: str, texts: tuple[str, ...], references: tuple[Reference, ...]) -> None:
        self.source = source
        self.texts = texts
        self.references = references

    def evaluate(self, scope: Scope) -> Value:
        parts = [self.texts[0]]
        for reference, text in zip(self.references, self.texts[1:], strict=True):
            parts.append(to_text(follow(reference, scope)))
            parts.append(text)
        return "".join(parts)


class QuotedReference(WholeReference):
    """A reference alone in quotes, inside of a condition: text, except that true and false stay what
    they are, because older files compare '${…}' with 'True' and with 'true'."""

    __slots__ = ()

    def evaluate(self, scope: Scope) -> Value:
        value = follow(self.reference, scope)
        return value if isinstance(value, bool) else to_text(value)


class DollarCode:
    """A command: its text and the values in it stay apart."""

    __slots__ = ("references", "source", "texts")

    def __init__(self, source: str, texts: tuple[str, ...], references: tuple[Reference, ...]) -> None:
        self.source = source
        self.texts = texts
        self.references = references

    def evaluate(self, scope: Scope) -> Code:
        return Code(self.texts, tuple(follow(reference, scope) for reference in self.references))


class Dollar:
    """The language; it has no state, its results are cached by source."""

    def is_dynamic(self, text: str) -> bool:
        return "${" in text

    @staticmethod
    @lru_cache(maxsize=_CACHED)
    def template(text: str) -> Expression:
        texts, references = _split(text, keep_escapes=False)
        if len(references) == 1 and not texts[0].strip() and not texts[1].strip():
            return WholeReference(text, references[0])
        return TextTemplate(text, texts, references)

    @staticmethod
    @lru_cache(maxsize=_CACHED)
    def code(text: str) -> DollarCode:
        texts, references = _split(text, keep_escapes=True)
        return DollarCode(text, texts, references)

    @staticmethod
    @lru_cache(maxsize=_CACHED)
    def condition(text: str) -> Expression:
        return compile_condition(_parse_condition(text), _quoted)

    @staticmethod
    @lru_cache(maxsize=_CACHED)
    def output(text: str) -> Expression:
        template = Dollar.template(text)
        if isinstance(template, WholeReference) or not template.references:
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


def _split(text: str, *, keep_escapes: bool) -> tuple[tuple[str, ...], tuple[Reference, ...]]:
    """The texts around the references, and the references."""
    texts: list[str] = []
    references: list[Reference] = []
    pending = ""
    position = 0
    for match in _REFERENCE.finditer(text):
        start = match.start()
        if start and text[start - 1] == "\\":
            pending += text[position : start if keep_escapes else start - 1] + match[0]
            position = match.end()
            continue
        reference = _reference(match)
        if reference is None:
            continue
        _refuse_unclosed(text, position, start)
        texts.append(pending + text[position:start])
        references.append(reference)
        pending, position = "", match.end()
    _refuse_unclosed(text, position, len(text))
    texts.append(pending + text[position:])
    return tuple(texts), tuple(references)


def _reference(match: re.Match[str]) -> Reference | None:
    """The reference that stands there, or None where it is a name of the shell's own."""
    head, rest = match[1], match[2]
    if head not in ROOTS and "." not in rest:
        return None
    path: list[str | int] = [head]
    for part in _PART.finditer(rest):
        path.append(int(part[2]) if part[2] is not None else part[1] or part[3] or part[4] or "")
    reference = Reference(tuple(path), match.start())
    private = next((name for name in path if isinstance(name, str) and name.startswith("_")), None)
    if private is not None:
        raise ExpressionError(
            f"${{{reference}}}: '{private}' is private: names that start with '_' cannot be reached",
            hint=f"a reference starts with one of: {', '.join(ROOTS)}",
            offset=match.start(),
            code="private",
        )
    return reference


def _refuse_unclosed(text: str, start: int, end: int) -> None:
    match = _UNCLOSED.search(text, start, end)
    if match is None or (match.start() and text[match.start() - 1] == "\\"):
        return
    raise _malformed(text, match.start())


def _malformed(text: str, offset: int) -> ExpressionError:
    end = text.find("}", offset) + 1
    shown = text[offset : min(end or len(text), offset + 40)].split("\n", 1)[0]
    return ExpressionError(
        f"malformed reference: {shown}",
        hint="a reference looks like ${inputs.name} or ${blocks.id.outputs.name[0]}",
        offset=offset,
        code="syntax",
    )


def _parse_condition(text: str) -> ParsedCondition:
    if len(text) > MAX_CONDITION:
        raise ExpressionError(
            f"a condition may have {MAX_CONDITION} characters, this one has {len(text)}", code="syntax"
        )
    references: dict[int, Reference] = {}
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


def _condition_reference(match: re.Match[str]) -> Reference:
    reference = _reference(match)
    if reference is None:
        raise ExpressionError(
            f"{match[0]} is not a reference: it has no dot",
            hint=f"a reference starts with one of: {', '.join(ROOTS)}",
            offset=match.start(),
            code="syntax",
        )
    return reference


def _words(text: str, start: int, end: int) -> str:
    """What stands between references and quoted text, with true, false and null as Python spells them."""
    between = text[start:end]
    if "${" in between:
        raise _malformed(text, start + between.index("${"))
    return _WORD.sub(lambda match: _WORDS[match[1].lower()], between)


def _quoted(text: str, start: int) -> Expression:
    """A template in quotes inside of a condition, whose text starts at `start`."""
    try:
        texts, references = _split(text, keep_escapes=False)
    except ExpressionError as error:
        error.offset += start
        raise
    moved = tuple(Reference(reference.path, reference.offset + start) for reference in references)
    if len(moved) == 1 and not texts[0] and not texts[1]:
        return QuotedReference(text, moved[0])
    return TextTemplate(text, texts, moved)
