"""Runs regular expressions from workflows within a time limit.

    search(r"(\\d+)%", "45% done").groups()         # ("45",)

The package `regex` accepts the syntax of Python's `re`, supports a timeout, and releases the interpreter lock
while it matches. It is imported when the first pattern is used. A malformed or slow pattern is an
ExpressionError.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING

from workflows_mcp.errors import TOO_SLOW, ExpressionError
from workflows_mcp.values import shown

if TYPE_CHECKING:
    from regex import Match, Pattern

PATTERN_SECONDS = 1.0
"""The time limit for matching one pattern with one text."""
MAX_CHARS = 10_000
"""The maximum length of a pattern."""


@lru_cache(maxsize=512)
def compiled(pattern: str) -> Pattern[str]:
    """The compiled pattern; raises ExpressionError if it is malformed."""
    import regex

    if len(pattern) > MAX_CHARS:
        raise ExpressionError(
            f"the pattern has {len(pattern)} characters, and at most {MAX_CHARS} are allowed", code="syntax"
        )
    try:
        return regex.compile(pattern)
    except regex.error as error:
        reason = f"{error}"
    except (RecursionError, OverflowError, ValueError):
        reason = "it is nested too deeply"
    raise ExpressionError(
        f"the pattern {shown(pattern)} cannot be read: {reason}",
        hint="put a backslash before a character that stands for itself: \\. \\( \\[ \\+",
        code="syntax",
    )


def search(pattern: str, text: str) -> Match[str] | None:
    """The first match of the pattern in the text."""
    with _explain_errors(pattern, text):
        return compiled(pattern).search(text, timeout=PATTERN_SECONDS, concurrent=True)


def groups(match: Match[str], limit: int) -> list[str | None]:
    """The groups of a match, or the whole match if there are none; at most `limit` characters in total."""
    numbers = range(1, match.re.groups + 1) if match.re.groups else range(1)
    _measure(sum(match.end(number) - match.start(number) for number in numbers), limit)
    return [match.group(number) for number in numbers]


def find_all(pattern: str, text: str, limit: int) -> list[str | list[str]]:
    """Every match: its only group, a list of its groups, or the whole match if there are none."""
    found: list[str | list[str]] = []
    length = 0
    with _explain_errors(pattern, text):
        for match in compiled(pattern).finditer(text, timeout=PATTERN_SECONDS, concurrent=True):
            taken = [part or "" for part in groups(match, limit)]
            length += sum(map(len, taken)) + 1
            _measure(length, limit)
            found.append(taken[0] if len(taken) == 1 else taken)
    return found


def replaced(pattern: str, replacement: str, text: str, limit: int) -> str:
    """The text with every match replaced; \\1 and \\g<name> in the replacement stand for groups."""
    references = replacement.count("\\")
    length = len(text)

    def replace(match: Match[str]) -> str:
        nonlocal length
        longest = max((len(group) for group in groups(match, limit) if group), default=0)
        length += len(replacement) + references * max(longest, match.end() - match.start())
        _measure(length, limit)
        return match.expand(replacement) if references else replacement

    with _explain_errors(pattern, text, replacement):
        return compiled(pattern).sub(replace, text, timeout=PATTERN_SECONDS, concurrent=True)


@contextmanager
def _explain_errors(pattern: str, text: str, replacement: str = "") -> Iterator[None]:
    import regex

    try:
        yield
    except TimeoutError:
        raise ExpressionError(
            f"the pattern {shown(pattern)} took longer than {PATTERN_SECONDS:g} second on a text of"
            f" {len(text)} characters and was stopped",
            hint="remove a repetition inside a repetition, as in (a|aa)+",
            code=TOO_SLOW,
        ) from None
    except (IndexError, regex.error) as error:
        raise ExpressionError(f"the replacement {shown(replacement)} cannot be used: {error}") from None


def _measure(length: int, limit: int) -> None:
    if length > limit:
        raise ExpressionError(
            f"the result of the pattern is too long: {length} characters, and at most {limit} are allowed"
        )
