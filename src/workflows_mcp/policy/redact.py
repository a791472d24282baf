"""Replaces the values of secrets with marks, and marks with values.

    redactor = Redactor({"hunter22": "PASSWORD"})
    redactor.text("it is hunter22")                 # 'it is ⟦secret:PASSWORD⟧'
    disarmed("⟦secret:PASSWORD⟧")                    # '[secret:PASSWORD⟧'

A mark (`⟦secret:KEY⟧`, or `⟦secret:KEY:base64⟧` for an encoded form) in a run is always genuine: text from
outside is disarmed first, which replaces the opening bracket of anything that looks like a mark.

A value is found in all its forms: as it is, escaped, quoted, encoded. Each form has a label and is computed
from the value alone, so a mark can be replaced with the same text later, even after the value has changed. In
base64 the secret may be a part of the encoded text (`user:password`). Then the characters that depend on the
secret alone are the form, one for each of the three offsets of bytes in base64.
"""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from urllib.parse import quote, quote_plus

import msgspec

from workflows_mcp.values import SECRET_MARK, SECRET_OPEN, Value, disarmed, secret_mark, with_texts

MIN_CHARS = 4
"""A shorter value cannot be redacted: it would be found everywhere."""
MIN_PART_CHARS = 8
"""A shorter line or encoded part of a value reveals little and is found in many texts."""

PART = "[part of a secret]"
"""Replaces a partial secret in a truncated text."""

_ELLIPSES = ("…", "...")
"""The signs of a truncated text."""
_BASE64_LINE = 60
"""Programs wrap base64 into lines longer than this."""
_HEAD = 12
"""The length of the prefix of a form that is searched first."""
_MAX_COMPILED = 256
_NEWLINE = re.compile(r"\r?\n")

ValueOf = Callable[[str, str], str]
"""Returns the secret with this name, in the form with this label."""


# Marks replaced by values


def filled(text: str, value_of: ValueOf) -> str:
    """Replace the marks in a text with values."""
    if SECRET_OPEN[0] not in text:
        return text
    return SECRET_MARK.sub(lambda mark: value_of(mark[1], mark[2] or ""), text)


def split_at_marks(text: str, value_of: ValueOf) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The texts around the marks, and the values for the marks; one more text than values."""
    marks = list(SECRET_MARK.finditer(text)) if SECRET_OPEN[0] in text else []
    starts = [0, *(mark.end() for mark in marks)]
    ends = [*(mark.start() for mark in marks), len(text)]
    texts = tuple(text[start:end] for start, end in zip(starts, ends, strict=True))
    return texts, tuple(value_of(mark[1], mark[2] or "") for mark in marks)


# Values replaced by marks


class Redactor:
    def __init__(self, known: Mapping[str, str]) -> None:
        """`known`: the name of each secret, by value."""
        marks: dict[str, str] = {}
        patterns: dict[str, str] = {}
        for value, name in known.items():
            for label, text in forms_of(value):
                if text not in marks:
                    marks[text] = secret_mark(f"{name}:{label}" if label else name)
                    patterns[text] = _pattern(text, label)
        self._marks = marks
        self._patterns = patterns
        self._forms = sorted(patterns, key=len, reverse=True)
        self.knows_any = bool(self._forms)
        self._longest = max((len(form) for form in self._forms), default=0)
        self._wrapped = any(pattern != re.escape(text) for text, pattern in patterns.items())
        self._compiled: dict[tuple[str, ...], re.Pattern[str]] = {}
        self._has_numbers = any(text.lstrip("-")[:1].isdigit() for text in marks)
        self._by_head = _grouped((text[:MIN_CHARS], text) for text in self._forms)
        self._by_tail = _grouped((text[-MIN_CHARS:], text) for text in self._forms)
        self._heads = re.compile(_any_of(self._by_head))
        self._tails = re.compile(_any_of(self._by_tail))

    def value(self, value: Value) -> Value:
        """Disarm a value from outside, and replace known secrets with marks; unchanged parts are shared."""
        return with_texts(value, lambda text: self.text(disarmed(text)), self._other_than_text)

    def _other_than_text(self, value: Value) -> Value:
        """A number, or the mark of the secret that it is; objects that are no JSON data yet as such data."""
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, int | float):
            return self._marks.get(repr(value), value) if self._has_numbers else value
        try:
            plain = msgspec.to_builtins(value)
        except (TypeError, ValueError):
            return value  # not JSON data
        return self.value(plain) if isinstance(plain, str | dict | list) else plain

    def text(self, text: str) -> str:
        """Replace every occurrence of a known value with a mark."""
        if not self._forms or len(text) < MIN_CHARS:
            return text
        found = self._forms_in(text)
        if found:
            text = self._pattern_of(found).sub(self._mark_of, text)
        return self._without_parts(text) if any(cut in text for cut in _ELLIPSES) else text

    def _forms_in(self, text: str) -> tuple[str, ...]:
        """The forms whose prefix is in the text.

        A search for plain text takes a hundredth of the time of a search for all patterns.
        """
        found = [form for form in self._forms if form[:_HEAD] in text]
        if self._wrapped and "\n" in text:
            unwrapped = _NEWLINE.sub("", text)
            found = [form for form in self._forms if form in found or form[:_HEAD] in unwrapped]
        return tuple(found)

    def _pattern_of(self, forms: tuple[str, ...]) -> re.Pattern[str]:
        pattern = self._compiled.get(forms)
        if pattern is None:
            pattern = re.compile("|".join(self._patterns[form] for form in forms))
            if len(self._compiled) < _MAX_COMPILED:
                self._compiled[forms] = pattern
        return pattern

    def _mark_of(self, found: re.Match[str]) -> str:
        return self._marks.get(found[0]) or self._marks[_NEWLINE.sub("", found[0])]

    # Where a text was cut

    def end_of_cut(self, text: str, min_chars: int = 1) -> str:
        """A truncated text without the beginning of a secret at its end."""
        end = len(text)
        start = min((_head_at_end(text, form, min_chars) for form in self._forms), default=end)
        if self._wrapped and "\n" in text[-self._longest :]:  # text broken into lines may start earlier
            near = [at for at in range(max(end - 2 * self._longest, 0), end) if text[at] not in "\r\n"]
            joined = "".join(text[at] for at in near)
            starts = (_head_at_end(joined, form, min_chars) for form in self._forms)
            prefix_start = min(starts, default=len(joined))
            start = min(start, near[prefix_start]) if prefix_start < len(joined) else start
        if start < end and (found := self._forms_in(text)):
            # The assumed beginning may be the end of a whole secret, which is removed as a whole.
            for whole in self._pattern_of(found).finditer(text):
                if whole.start() < start < whole.end():
                    start = whole.start()
                    break
        return text[:start]

    def _without_parts(self, text: str) -> str:
        """The text without partial secrets next to an ellipsis."""
        parts: list[tuple[int, int]] = []
        for start in _starts(self._heads, text):
            for form in self._by_head[text[start : start + MIN_CHARS]]:
                same = _same(form, text[start : start + len(form)])
                if same < len(form) and text.startswith(_ELLIPSES, start + same):
                    parts.append((start, start + same))
        for start in _starts(self._tails, text):
            end = start + MIN_CHARS
            for form in self._by_tail[text[end - MIN_CHARS : end]]:
                before = text[max(end - len(form), 0) : end]
                same = _same(form[::-1], before[::-1])
                if same < len(form) and text.endswith(_ELLIPSES, 0, end - same):
                    parts.append((end - same, end))
        fragments: list[str] = []
        position = 0
        for start, end in sorted(parts):
            if end > position:
                fragments += (text[position:start], PART) if start >= position else ()
                position = end
        return "".join((*fragments, text[position:]))


def _pattern(text: str, label: str) -> str:
    if is_base64(label) and len(text) > _BASE64_LINE:
        return r"(?:\r?\n)?".join(re.escape(character) for character in text)
    return re.escape(text)


def _head_at_end(text: str, form: str, min_chars: int) -> int:
    """Where the text ends with at least `min_chars` characters of the beginning of a form; else its end."""
    start = text.find(form[0], max(len(text) - len(form) + 1, 0), len(text) - min_chars + 1)
    while start >= 0:
        if form.startswith(text[start:]):
            return start
        start = text.find(form[0], start + 1, len(text) - min_chars + 1)
    return len(text)


def _starts(pattern: re.Pattern[str], text: str) -> Iterator[int]:
    """The offsets of all matches, including overlapping ones."""
    found = pattern.search(text)
    while found is not None:
        yield found.start()
        found = pattern.search(text, found.start() + 1)


def _same(one: str, other: str) -> int:
    """The length of the common prefix."""
    for position, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return position
    return min(len(one), len(other))


def _any_of(texts: Iterable[str]) -> str:
    return "|".join(re.escape(text) for text in texts) or "(?!)"


def _grouped(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for key, item in pairs:
        groups.setdefault(key, []).append(item)
    return groups


# The forms of a value


_LINE = "line"


def forms_of(value: str) -> Iterator[tuple[str, str]]:
    """Label and text of all distinct forms; first the value itself, without a label."""
    seen = set()
    for label, text in _all_forms(value):
        min_chars = MIN_CHARS if label in _WHOLE else MIN_PART_CHARS
        if len(text) >= min_chars and text not in seen:
            seen.add(text)
            yield label, text


def form_of(value: str, label: str) -> str | None:
    """The text of one form; None if the value has no such form."""
    if label in _FORMS:
        return _FORMS[label](value)
    if label.startswith(_LINE) and label[len(_LINE) :].isdecimal():
        lines = value.splitlines()
        number = int(label[len(_LINE) :])
        return lines[number - 1] if 0 < number <= len(lines) else None
    return None


def is_base64(label: str) -> bool:
    """Whether programs wrap text in this form into lines."""
    return label.startswith("base64")


def _all_forms(value: str) -> Iterator[tuple[str, str]]:
    for label, make in _FORMS.items():
        yield label, make(value)
    lines = value.splitlines()
    if len(lines) > 1:
        yield from ((f"{_LINE}{number}", line) for number, line in enumerate(lines, 1))


def _base64(value: str, end: str = "") -> str:
    return base64.b64encode((value + end).encode()).decode()


def _inside_base64(value: str, before: int) -> str:
    """The part common to the base64 of all texts with the value after `before` bytes (modulo 3)."""
    data = value.encode()
    encoded = base64.b64encode(b"\0" * before + data).decode()
    return encoded[-(-before * 8 // 6) : (before + len(data)) * 8 // 6]


def _json(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)[1:-1]


def _for_urls(text: str) -> str:
    return text.translate(str.maketrans("+/", "-_"))


def _lower(quoted: str) -> str:
    """Percent-encoding in lower case, as some programs write it."""
    parts = quoted.split("%")
    return "%".join([parts[0], *(part[:2].lower() + part[2:] for part in parts[1:])])


_FORMS: dict[str, Callable[[str], str]] = {
    "": lambda value: value,
    "trimmed": lambda value: value.strip(),
    "json": _json,
    "json-ascii": lambda value: json.dumps(value)[1:-1],
    "json-slashes": lambda value: json.dumps(value)[1:-1].replace("/", "\\/"),
    "python": lambda value: repr(value)[1:-1],
    "python-ascii": lambda value: ascii(value)[1:-1],
    "json-json": lambda value: _json(_json(value)),
    "json-json-ascii": lambda value: json.dumps(json.dumps(value)[1:-1])[1:-1],
    "python-bytes": lambda value: repr(value.encode())[2:-1],
    "html": html.escape,
    "html-text": lambda value: html.escape(value, quote=False),
    "html-decimal": lambda value: html.escape(value, quote=False).replace('"', "&#34;").replace("'", "&#39;"),
    "upper": lambda value: value.upper(),
    "lower": lambda value: value.lower(),
    "shell": lambda value: value.replace("'", "'\\''"),
    "shell-double": lambda value: value.replace("'", "'\"'\"'"),
    "url": lambda value: quote(value, safe=""),
    "url-path": quote,
    "url-form": quote_plus,
    "url-lower": lambda value: _lower(quote(value, safe="")),
    "url-path-lower": lambda value: _lower(quote(value)),
    "url-form-lower": lambda value: _lower(quote_plus(value)),
    "base64": _base64,
    "base64-line": lambda value: _base64(value, "\n"),
    "base64-bare": lambda value: _base64(value).rstrip("="),
    "base64-0": lambda value: _inside_base64(value, 0),
    "base64-1": lambda value: _inside_base64(value, 1),
    "base64-2": lambda value: _inside_base64(value, 2),
    "base64-url": lambda value: _for_urls(_base64(value)),
    "base64-url-bare": lambda value: _for_urls(_base64(value)).rstrip("="),
    "base64-url-0": lambda value: _for_urls(_inside_base64(value, 0)),
    "base64-url-1": lambda value: _for_urls(_inside_base64(value, 1)),
    "base64-url-2": lambda value: _for_urls(_inside_base64(value, 2)),
}
_CASES = {"upper", "lower"}
_WHOLE = frozenset(it for it in _FORMS if not is_base64(it)) - _CASES | {"base64", "base64-line"}
