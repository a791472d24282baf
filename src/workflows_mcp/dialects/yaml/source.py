"""Reads a definition file into plain data, and finds the place of each value.

It reads YAML 1.2. It collects problems that leave the rest readable (a duplicate key, a tag, an unquoted
`{{ x }}`), so that the dialects can report theirs too; only broken syntax and exceeded limits stop it. Keys
are always text, as in JSON.

This module does not know what keys mean, with two exceptions: a second `type` of a prompt is the type of the
answer, and a whole definition can be below `workflow`.

    document = read_document(text, "deploy.yaml", limits)
    document.value["blocks"][0]["id"]
    document.place(("blocks", 0, "inputs", "command"), offset=12)     # deploy.yaml:7:31
"""

from __future__ import annotations

import gc
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from yaml import MarkedYAMLError, YAMLError
from yaml.cyaml import CParser  # type: ignore[attr-defined]
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from yaml.reader import ReaderError

from workflows_mcp.dialects.yaml.places import Path, Source, index_of, is_merge, node_at
from workflows_mcp.errors import DefinitionError, Place, Problem
from workflows_mcp.limits import DEFAULT_LIMITS, Limits
from workflows_mcp.plan import MOST_PROBLEMS
from workflows_mcp.values import Value

# ----------------------------------------------------------------------------------------------------
# Reports text that is not YAML: the message of the parser, its place, and the probable cause.


_HINTS = {
    "mapping values are not allowed in this context": "text that holds ': ' needs quotes around it; "
    "or the line is indented further than the lines that it belongs to",
    "did not find expected key": "the keys of one mapping start in the same column: check the indentation",
    "did not find expected '-' indicator": "the entries of one list start in the same column: "
    "check the indentation",
    "block sequence entries are not allowed in this context": "a list starts on a line of its own; "
    "text that starts with '- ' needs quotes",
    "could not find expected ':'": "a key is followed by ':' and a space",
    "found unexpected end of stream": "the quote that is opened here is never closed",
    "found undefined alias": "text that starts with '*' needs quotes; an alias needs an anchor before it",
    "found unknown escape character": "write '\\\\' for a backslash in double quotes, or use single quotes",
    "but found another document": "a file holds one workflow: remove the line '---'",
    "found character that cannot start any token": "text that starts with @, `, % or , needs quotes",
}


def syntax_problem(error: YAMLError, source: Source) -> Problem:
    if isinstance(error, ReaderError):
        before = source.text.encode("utf-8")[: error.position].decode("utf-8", "ignore")
        return Problem(
            "yaml",
            f"not YAML: {error.reason}",
            "remove the character, or write it as an escape in double quotes",
            place=source.place(len(before)),
        )
    assert isinstance(error, MarkedYAMLError)
    what = error.problem or str(error)
    mark = error.problem_mark
    if what == "found unexpected end of stream" and error.context_mark is not None:
        mark = error.context_mark  # the opening quote is more helpful than the end of the file
    place = source.place(mark.index if mark is not None else 0)
    context = f" {error.context}" if error.context else ""
    return Problem("yaml", f"not YAML: {what}{context}", _syntax_hint(what, place), place=place)


def _syntax_hint(what: str, place: Place) -> str:
    rest = place.text[place.column - 1 :]
    if rest.startswith("\t"):
        return "a tab cannot indent: use spaces"
    if "{{" in place.text:
        return 'text with {{ }} in it needs quotes: key: "{{ name }}"'
    if what.startswith("did not find expected ','") and "${" in place.text:
        return 'inside [ ] and { } text with ${…} needs quotes: ["${inputs.name}"]'
    return _HINTS.get(what, "check indentation, quotes and brackets on this line and the one before")


# ----------------------------------------------------------------------------------------------------
# Converts unquoted words by the core schema of YAML 1.2, not by YAML 1.1.
#
# `on`, `no`, `12:30` and `1_000` are text; `012` is twelve, `0o14` too. Values must fit into JSON and into
# the journal of a run, so numbers of more than 64 bits, infinity and not-a-number are rejected.
#
#     core_value("no")      # "no"
#     core_value("0x1F")    # 31


_WORDS: dict[str, Value] = {
    "": None,
    "~": None,
    "null": None,
    "Null": None,
    "NULL": None,
    "true": True,
    "True": True,
    "TRUE": True,
    "false": False,
    "False": False,
    "FALSE": False,
}

_STARTS_A_NUMBER = frozenset("0123456789+-.")

_NUMBER = re.compile(
    r"""(?P<whole>[-+]?[0-9]+)
      | (?P<based>0o[0-7]+|0x[0-9a-fA-F]+)
      | (?P<decimal>[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?)
      | (?P<endless>[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))""",
    re.X,
)

_LONGEST_WHOLE = 40


def core_value(text: str) -> Value:
    """The value of an unquoted scalar; raises ValueError for a number that a run cannot hold."""
    if text in _WORDS:
        return _WORDS[text]
    if text[0] not in _STARTS_A_NUMBER:
        return text
    match = _NUMBER.fullmatch(text)
    if match is None:
        return text
    if match["decimal"] is not None:
        number = float(text)
        if not math.isfinite(number):
            raise ValueError(f"{text} is too large for a number")
        return number
    if match["endless"] is not None:
        raise ValueError(f"{text} is not a number that JSON can hold")
    whole = _whole(text) if len(text) <= _LONGEST_WHOLE else None
    if whole is None or not -(2**63) <= whole < 2**64:
        raise ValueError(f"{text if whole is not None else text[:20] + '…'} has more than 64 bits")
    return whole


def _whole(text: str) -> int:
    if text.startswith("0o"):
        return int(text[2:], 8)
    if text.startswith("0x"):
        return int(text[2:], 16)
    return int(text)


class PlainScalars(dict[str, Value]):
    """The unquoted words of one document with their values; `refused` are words without one."""

    def __init__(self) -> None:
        super().__init__(_WORDS)
        self.refused: dict[str, str] = {}

    def __missing__(self, text: str) -> Value:
        try:
            value = core_value(text)
        except ValueError as error:
            self.refused[text] = str(error)
            value = text
        self[text] = value
        return value


_PROMPT_TYPES = ("prompt", "user_input")

WRAPPER = "workflow"

"""The key that a whole definition may stand below."""

_EXTENSION = "x-"


@dataclass(slots=True)
class Document:
    """A file that was read; `problems` are those of its YAML, with their places."""

    source: Source
    value: Value
    root: Node | None
    problems: list[Problem] = field(default_factory=list)

    def place(self, path: Path, offset: int = 0, on_key: bool = False) -> Place:
        """The place of the value at `path`, or the nearest one; `offset` is a position in its text."""
        if self.root is None:
            return self.source.place(0)
        return self.source.place(index_of(self.root, self.source.text, path, offset, on_key=on_key))

    def written(self, path: Path) -> str | None:
        """A scalar as it is written: "1.10" where the value is the number 1.1."""
        node = node_at(self.root, path) if self.root is not None else None
        return str(node.value) if isinstance(node, ScalarNode) else None


def read_document(text: str, file: str, limits: Limits = DEFAULT_LIMITS) -> Document:
    """Reads a file; raises DefinitionError if the text is not YAML or exceeds a limit."""
    size = len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
    if size > limits.document_bytes:
        problem = Problem(
            "too_large",
            f"the file has {size} bytes, at most {limits.document_bytes} are read",
            f"split it into workflows that call each other, or raise {limits.setting('document_bytes')}",
            place=Source(file, text[:200]).place(0),
        )
        raise DefinitionError([problem])
    source = Source(file, _normalised(text))
    with collector_paused():
        root = _compose(source, limits)
        document = Document(source, None, root)
        if root is not None:
            document.value = _Construction(document, limits).value_of(root)
    return document


def unwrapped(document: Document) -> Document:
    """The definition below `workflow` if nothing is next to it; otherwise the same document."""
    inner = _inside_wrapper(document.root)
    if inner is None or not isinstance(document.value, dict):
        return document
    return Document(document.source, document.value[WRAPPER], inner, document.problems)


def _inside_wrapper(root: Node | None) -> Node | None:
    if not isinstance(root, MappingNode):
        return None
    keys = [str(key.value) for key, _ in root.value]
    if any(key != WRAPPER and not key.startswith(_EXTENSION) for key in keys):
        return None
    inner = node_at(root, (WRAPPER,))
    return inner if isinstance(inner, MappingNode) else None


def locate(text: str, file: str, path: Path, offset: int = 0, on_key: bool = False) -> Place | None:
    """The place of a value in the text of a definition; None if it cannot be read."""
    source = Source(file, _normalised(text))
    try:
        with collector_paused():
            root = _compose(source, DEFAULT_LIMITS)
    except DefinitionError:
        return None
    return Document(source, None, _inside_wrapper(root) or root).place(path, offset, on_key)


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pauses the garbage collector while a file is read.

    A large file makes many objects and no cycles: the collector would take most of the time.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _normalised(text: str) -> str:
    text = text.removeprefix("\ufeff")
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


class _TooDeep(Exception):
    """The limit on nesting is exceeded at `index`."""

    def __init__(self, index: int) -> None:
        self.index = index


class _Composer(CParser):
    """The parser in C, without resolution of tags: `tag` is None unless the file has one."""

    def __init__(self, text: str, deepest: int) -> None:
        super().__init__(text)
        self.left = deepest

    def descend_resolver(self, parent: Node | None, index: object) -> None:
        self.left -= 1
        if self.left < 0:  # before the parser's own recursion ends the process
            raise _TooDeep(parent.start_mark.index if parent is not None else 0)

    def ascend_resolver(self) -> None:
        self.left += 1

    @staticmethod
    def resolve(kind: object, value: object, implicit: object) -> None:
        return None


def _compose(source: Source, limits: Limits) -> Node | None:
    try:
        root: Node | None = _Composer(source.text, limits.document_depth).get_single_node()
        return root
    except _TooDeep as error:
        problem = Problem(
            "too_deep",
            f"the document is nested more than {limits.document_depth} levels deep",
            f"nest it less deeply, or raise {limits.setting('document_depth')}",
            place=source.place(error.index),
        )
    except UnicodeEncodeError as error:
        problem = Problem(
            "yaml",
            "the file holds half of a character (a lone surrogate)",
            "save the file as UTF-8",
            place=source.place(error.start),
        )
    except YAMLError as error:
        problem = syntax_problem(error, source)
    raise DefinitionError([problem])


class _Enough(Exception):
    """Stops the reading: a limit is exceeded, or there are too many problems."""


class _Construction:
    """Converts nodes to values; builds and counts an alias again for each use."""

    def __init__(self, document: Document, limits: Limits) -> None:
        self.source = document.source
        self.problems = document.problems
        self.limits = limits
        self.left = limits.document_nodes
        self.plain = PlainScalars()

    def value_of(self, root: Node) -> Value:
        try:
            value = self._value(root, 0)
            if self.plain.refused:
                self._report_refused(root)
        except _Enough:
            raise DefinitionError(self.problems) from None
        return value

    def _value(self, node: Node, depth: int) -> Value:
        if node.tag is not None:
            self._refuse_tag(node)
        if isinstance(node, ScalarNode):
            return node.value if node.style else self.plain[node.value]
        self.left -= len(node.value)
        if self.left < 0:
            self._too_many(node)
        if depth > self.limits.document_depth:
            self._alias_too_deep(node)
        if isinstance(node, SequenceNode):
            return self._list(node, depth + 1)
        return self._object(node, depth + 1)

    def _list(self, node: SequenceNode, depth: int) -> list[Value]:
        plain = self.plain
        return [
            (item.value if item.style else plain[item.value])
            if type(item) is ScalarNode and item.tag is None
            else self._value(item, depth)
            for item in node.value
        ]

    def _object(self, node: Node, depth: int) -> Value:
        plain = self.plain
        result: dict[str, Value] = {}
        merges: list[Node] = []
        for key_node, item in node.value:
            if type(key_node) is not ScalarNode:
                return self._unquoted(node, key_node)
            key = key_node.value
            if key == "<<" and is_merge(key_node):
                merges.append(item)
                continue
            if key_node.tag is not None:
                self._refuse_tag(key_node)
            if key in result:
                if key == "type" and result["type"] in _PROMPT_TYPES and "prompt_type" not in result:
                    key = "prompt_type"
                else:
                    self._duplicate(node, key_node)
                    continue
            if type(item) is ScalarNode and item.tag is None:
                result[key] = item.value if item.style else plain[item.value]
            else:
                result[key] = self._value(item, depth)
        for merge in merges:
            self._merge(merge, result, depth)
        return result

    def _merge(self, node: Node, result: dict[str, Value], depth: int) -> None:
        for source in node.value if isinstance(node, SequenceNode) else (node,):
            merged = self._value(source, depth)
            if not isinstance(source, MappingNode) or not isinstance(merged, dict):
                self._problem(source, "yaml", "'<<' merges mappings only", "give it an alias: <<: *name")
                continue
            for key, value in merged.items():
                result.setdefault(key, value)

    def _unquoted(self, node: Node, key: Node) -> str:
        """Reports a mapping with a key that is not a word: usually unquoted braces."""
        written = self.source.text[node.start_mark.index : node.end_mark.index]
        if isinstance(key, MappingNode) and written.startswith("{{"):
            message, hint = f"{written} is read as a mapping, not as text", f'quote it: "{written}"'
        else:
            message, hint = (
                "a key must be text, not a list or a mapping",
                "quote the key if it is meant as text",
            )
        self._problem(key if not written.startswith("{{") else node, "yaml", message, hint)
        return written

    def _duplicate(self, node: Node, key: ScalarNode) -> None:
        first = next(other for other, _ in node.value if other.value == key.value)
        before = self.source.place(first.start_mark.index).line
        line = self.source.place(key.start_mark.index).line
        self._problem(
            key,
            "duplicate_key",
            f"the key '{key.value}' is used twice: on line {before} and on line {line}",
            "keep one of the two",
        )

    def _refuse_tag(self, node: Node) -> None:
        tag = str(node.tag).replace("tag:yaml.org,2002:", "!!")
        self._problem(
            node, "tag", f"YAML tags are not supported: '{tag}'", "remove it; quote the value if it is text"
        )

    def _too_many(self, node: Node) -> None:
        limit = self.limits.document_nodes
        self._problem(
            node,
            "too_large",
            f"the document holds more than {limit} values once its aliases are followed",
            f"use fewer aliases of aliases, or raise {self.limits.setting('document_nodes')}",
        )
        raise _Enough

    def _alias_too_deep(self, node: Node) -> None:
        self._problem(
            node,
            "too_deep",
            f"aliases nest values more than {self.limits.document_depth} levels deep",
            "an anchor must not contain an alias of itself",
        )
        raise _Enough

    def _report_refused(self, root: Node) -> None:
        waiting = [root]
        seen: set[int] = set()
        while waiting:
            node = waiting.pop()
            if id(node) in seen:
                continue
            seen.add(id(node))
            if isinstance(node, ScalarNode):
                if not node.style and node.value in self.plain.refused:
                    self._problem(node, "yaml", self.plain.refused[node.value], f"quote it: '{node.value}'")
            elif isinstance(node, SequenceNode):
                waiting.extend(node.value)
            else:
                waiting.extend(value for _, value in node.value)

    def _problem(self, node: Node, code: str, message: str, hint: str) -> None:
        place = self.source.place(node.start_mark.index)
        self.problems.append(Problem(code, message, hint, place=place))
        if len(self.problems) >= MOST_PROBLEMS:
            raise _Enough
