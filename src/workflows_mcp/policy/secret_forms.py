"""The forms in which the value of a secret can turn up in a text: as it is, escaped, quoted, encoded.

Each form has a label, and is made of the value alone. So the mark that stands for a form
(`⟦secret:KEY:base64⟧`) can be turned back into just that text, also after the value was changed. Pure.

In base64 the secret may be a part of what was encoded (`user:password`): then the characters around it depend
on its neighbours, and those that depend on the secret alone are the form; there is one for each of the three
ways in which bytes can fall on characters.
"""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Callable, Iterator
from urllib.parse import quote, quote_plus

LEAST_CHARS = 4
"""A shorter value cannot be kept out of texts: it would be found everywhere."""
LEAST_PART_CHARS = 8
"""A shorter line of a value, or part of its encoding, says little and is found in many texts."""

_LINE = "line"


def forms_of(value: str) -> Iterator[tuple[str, str]]:
    """Label and text of all forms that differ; the value itself first, with no label."""
    seen = set()
    for label, text in _all_forms(value):
        least = LEAST_CHARS if label in _WHOLE else LEAST_PART_CHARS
        if len(text) >= least and text not in seen:
            seen.add(text)
            yield label, text


def form_of(value: str, label: str) -> str | None:
    """The text of one form; None where the value has no such form."""
    if label in _FORMS:
        return _FORMS[label](value)
    if label.startswith(_LINE) and label[len(_LINE) :].isdecimal():
        lines = value.splitlines()
        number = int(label[len(_LINE) :])
        return lines[number - 1] if 0 < number <= len(lines) else None
    return None


def is_base64(label: str) -> bool:
    """Whether programs break a text in this form into lines."""
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
    """What is the same in the base64 of every text that has the value after `before` bytes (modulo 3)."""
    data = value.encode()
    encoded = base64.b64encode(b"\0" * before + data).decode()
    return encoded[-(-before * 8 // 6) : (before + len(data)) * 8 // 6]


def _json(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)[1:-1]


def _for_urls(text: str) -> str:
    return text.translate(str.maketrans("+/", "-_"))


def _lower(quoted: str) -> str:
    """Percent signs with small letters, as some programs write them."""
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
