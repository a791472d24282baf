"""Finds the file, line and column of a value from its path in the document.

It walks the nodes of the parser when a place is needed, which is only for a report. Reading a file keeps no
table of positions.

It finds an offset inside a text by counting the characters that are not white space: folding, indentation and
quoting change only white space, and escapes are single tokens.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence

from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from workflows_mcp.errors import Place

Path = Sequence[str | int]

_NEWLINE = re.compile("\n")
_PROPERTIES = re.compile(r"(?:[&!]\S*\s+)*")
_VISIBLE = re.compile(r"\S")
_SINGLE_QUOTED = re.compile(r"''|\S")
_DOUBLE_QUOTED = re.compile(r"\\x..|\\u.{4}|\\U.{8}|\\.|\S", re.S)
_INVISIBLE_ESCAPES = frozenset(["\\n", "\\t", "\\ ", "\\r", "\\v", "\\f", "\\N", "\\_", "\\L", "\\P", "\\\n"])
_TOKENS = {"'": _SINGLE_QUOTED, '"': _DOUBLE_QUOTED}
_TOOL = "mcp"
_OTHER_NAMES: dict[str, tuple[str, ...]] = {
    "tool": ("method",),
    "parameters": ("params", "args"),
    "method": ("tool",),
    "params": ("parameters", "args"),
    "then": ("then_steps",),
    "else": ("else_steps",),
    "timeout": ("timeout_seconds",),
}
"""Other spellings of keys. A call of the reactive dialect is mcp: {method: …, params: …}, or without mcp."""


class Source:
    """The text of a file, with the starts of its lines, which are computed when first needed."""

    __slots__ = ("_starts", "file", "text")

    def __init__(self, file: str, text: str) -> None:
        self.file = file
        self.text = text
        self._starts: list[int] | None = None

    def place(self, index: int) -> Place:
        """The place of the character `index`."""
        if self._starts is None:
            self._starts = [0, *(match.end() for match in _NEWLINE.finditer(self.text))]
        index = min(index, len(self.text))
        line = bisect_right(self._starts, index)
        start = self._starts[line - 1]
        end = self._starts[line] - 1 if line < len(self._starts) else len(self.text)
        return Place(self.file, line, index - start + 1, self.text[start:end])


def index_of(root: Node, text: str, path: Path, offset: int = 0, *, on_key: bool = False) -> int:
    """The position in `text` of the value at `path`, or of the last existing value on the way."""
    key: Node | None = None
    node = root
    for part in path:
        found = child(node, part)
        if found is None:
            return node.start_mark.index
        key, node = found
    if key is not None and (on_key or _is_empty(node)):
        return key.start_mark.index
    if isinstance(node, ScalarNode):
        return _index_in_scalar(node, text, offset)
    return node.start_mark.index


def node_at(root: Node, path: Path) -> Node | None:
    node = root
    for part in path:
        found = child(node, part)
        if found is None:
            return None
        node = found[1]
    return node


def child(node: Node, part: str | int) -> tuple[Node | None, Node] | None:
    """The key (of a mapping) and the value of the entry `part` of `node`."""
    if isinstance(node, SequenceNode):
        if isinstance(part, int) and part < len(node.value):
            return None, node.value[part]
        return None
    if not isinstance(node, MappingNode):
        return None
    found = _entry(node, part)
    return _by_another_name(node, part) if found is None else found


def _entry(node: Node, part: str | int) -> tuple[Node | None, Node] | None:
    """The entry with exactly this key, in the mapping or in a merged one."""
    if not isinstance(node, MappingNode):
        return None
    for key, value in node.value:
        if isinstance(key, ScalarNode) and key.value == part:
            return key, value
    if part == "prompt_type":  # a second `type`, which is the prompt's
        types = [entry for entry in node.value if entry[0].value == "type"]
        if len(types) > 1:
            return types[1][0], types[1][1]
    for merged in _merged(node):
        found = _entry(merged, part)
        if found is not None:
            return found
    return None


def _by_another_name(node: MappingNode, part: str | int) -> tuple[Node | None, Node] | None:
    """The entry with another name of the key, possibly one mapping deeper."""
    if part not in _OTHER_NAMES:
        return None
    inner = _entry(node, _TOOL)
    for within in (node, inner[1]) if inner is not None else (node,):
        for spelt in (str(part), *_OTHER_NAMES[str(part)]):
            found = _entry(within, spelt)
            if found is not None:
                return found
    return None


def is_merge(key: Node) -> bool:
    return isinstance(key, ScalarNode) and key.value == "<<" and not key.style


def _merged(node: MappingNode) -> Iterator[Node]:
    for key, value in node.value:
        if is_merge(key):
            yield from value.value if isinstance(value, SequenceNode) else (value,)


def _is_empty(node: Node) -> bool:
    return isinstance(node, ScalarNode) and not node.value and node.start_mark.index == node.end_mark.index


def _index_in_scalar(node: ScalarNode, text: str, offset: int) -> int:
    """The position of the character `offset` of the value of `node`."""
    start, end = node.start_mark.index, node.end_mark.index
    properties = _PROPERTIES.match(text, start, end)
    start = properties.end() if properties else start
    style = node.style or ""
    if style in ("|", ">"):
        start = text.find("\n", start, end) + 1 or end
    elif style:
        start, end = start + 1, end - 1
    # White space has no exact position: find the visible character before it, and add one.
    value = node.value
    wanted = min(offset, len(value))
    beyond = 0
    while wanted and (wanted == len(value) or value[wanted].isspace()):
        wanted -= 1
        beyond = 1
    before = sum(1 for _ in _VISIBLE.finditer(value, 0, wanted))
    for token in _TOKENS.get(style, _VISIBLE).finditer(text, start, end):
        if _is_invisible(token[0]):
            continue
        if not before:
            return token.start() + beyond
        before -= 1
    return start


def _is_invisible(token: str) -> bool:
    """Whether a token of a double-quoted text is white space or nothing."""
    if len(token) > 2 and token[0] == "\\":
        return chr(int(token[2:], 16)).isspace()
    return token in _INVISIBLE_ESCAPES
