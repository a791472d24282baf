"""Reads `retry` and decides whether and when a failed block is retried.

    retry: 3                                    three tries in all
    retry: {attempts: 5, delay: 2, backoff: 2, max_delay: 60, jitter: 0.2, on: [timeout, 75], within: 600}

The same reading serves the definition, where literals are checked, and the run, where references have
their values. Pure: chance comes from a hash of what is tried, so a run that is repeated waits as long.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import NamedTuple

from workflows_mcp.plan.inputs import converted
from workflows_mcp.plan.model import MOST_SECONDS, InputType
from workflows_mcp.values import Value, did_you_mean, kind_and_value, shown

RETRY_KEYS = ("attempts", "retries", "delay", "backoff", "max_delay", "jitter", "on", "within")
RETRY_ON = ("any", "failure", "error", "timeout")
"""Kinds of failure: the step failed (failure), it could not run (error), it took too long (timeout)."""
NEVER = frozenset(
    [
        "call_depth", "expression", "forbidden", "for_each_items", "interrupted", "invalid_inputs",
        "missing_secret", "private", "syntax", "undefined", "unencodable", "unknown_workflow",
    ]
)  # fmt: skip
"""Codes of failures that the next try cannot change; only `on: [any]` tries them again."""
MOST_ATTEMPTS = 1000


_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
_DURATION = re.compile(r"\s*(?:\d+(?:\.\d+)?\s*(?:ms|s|m|h|d)\s*)+")
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)")


def is_duration(given: Value) -> bool:
    """Whether a value is a time with units, such as `30m`."""
    return isinstance(given, str) and _DURATION.fullmatch(given) is not None


def duration_seconds(given: Value) -> float:
    """Seconds of a number, or of text such as `90`, `30m`, `1h 30m`. Raises ValueError."""
    if isinstance(given, str) and is_duration(given):
        found = sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(given))
        return int(found) if found == int(found) else found
    seconds: float = converted(given, "number")
    return seconds


class WrongRetry(ValueError):
    """`key` is the part of `retry` that is wrong; None where it is the whole."""

    def __init__(self, key: str | None, message: str, hint: str, *, on_key: bool = False) -> None:
        super().__init__(message)
        self.key = key
        self.hint = hint
        self.on_key = on_key


class Rule(NamedTuple):
    attempts: int = 3
    """Tries in all, the first included."""
    delay: float = 1.0
    """Seconds before the second try."""
    backoff: float = 2.0
    """How much longer each further pause is."""
    max_delay: float = 300.0
    jitter: float = 0.0
    """How much of a pause is left to chance: 0.2 is up to a fifth more or less."""
    on: tuple[str | int, ...] = ("failure", "error", "timeout")
    """Kinds of failure, and exit codes of commands."""
    within: float | None = None
    """Seconds since the first try after which there is no further one."""


class Failure(NamedTuple):
    """What went wrong in one try."""

    kind: str
    """failure, error or timeout."""
    code: str = ""
    exit_code: Value = None


def as_mapping(given: Value) -> dict[str, Value]:
    """What `retry` says, with its short form spelt out. Raises WrongRetry."""
    if isinstance(given, dict):
        unknown = next((key for key in given if key not in RETRY_KEYS), None)
        if unknown is not None:
            hint = did_you_mean(unknown, RETRY_KEYS, what="retry takes")
            raise WrongRetry(unknown, f"'retry' has no '{unknown}'", hint, on_key=True)
        return given
    if isinstance(given, int | str) and not isinstance(given, bool):
        return {"attempts": given}
    raise WrongRetry(
        None,
        f"'retry' must be a number of attempts or a mapping, not {kind_and_value(given)}",
        "e.g. retry: 3, three tries in all, or retry: {attempts: 3, delay: 5}",
    )


def read_rule(given: Mapping[str, Value]) -> Rule:
    """The rule that a mapping without references describes. Raises WrongRetry for its first mistake."""
    rule = Rule()
    attempts = _number(given, "attempts", "integer", rule.attempts)
    if given.get("retries") is not None:
        if given.get("attempts") is not None:
            hint = "attempts counts all tries, retries those after the first: keep one of the two"
            raise WrongRetry("retries", "'attempts' and 'retries' say the same thing", hint)
        attempts = _number(given, "retries", "integer", 0) + 1
    if not 1 <= attempts <= MOST_ATTEMPTS:
        raise WrongRetry(
            "attempts",
            f"'attempts' must be from 1 to {MOST_ATTEMPTS}, not {shown(attempts)}",
            "it counts all tries: attempts: 3 is the first and two more",
        )
    within = given.get("within")
    return Rule(
        attempts=int(attempts),
        delay=_at_least(given, "delay", 0, rule.delay),
        backoff=_at_least(given, "backoff", 1, rule.backoff),
        max_delay=_at_least(given, "max_delay", 0, rule.max_delay),
        jitter=_jitter(given, rule.jitter),
        on=_kinds(given.get("on"), rule.on),
        within=None if within is None else _at_least(given, "within", 0, 0),
    )


def retry_delay(
    rule: Rule, attempt: int, failure: Failure, since_first: float, chance_of: str
) -> float | None:
    """Seconds until the next try after try `attempt` failed, or None where there is none.

    `chance_of` names the try: the same try of the same run always draws the same pause.
    """
    if attempt >= rule.attempts or not _covers(rule, failure):
        return None
    try:
        seconds = min(rule.delay * rule.backoff ** (attempt - 1), rule.max_delay)
    except OverflowError:
        seconds = rule.max_delay
    if rule.jitter:
        seconds *= 1 + rule.jitter * _chance(chance_of)
    if rule.within is not None and since_first + seconds > rule.within:
        return None
    return seconds


def _covers(rule: Rule, failure: Failure) -> bool:
    if "any" in rule.on:
        return True
    if failure.code in NEVER:
        return False
    is_number = isinstance(failure.exit_code, int) and not isinstance(failure.exit_code, bool)
    return failure.kind in rule.on or (is_number and failure.exit_code in rule.on)


def _chance(of: str) -> float:
    """From -1 to 1."""
    drawn = int.from_bytes(hashlib.blake2b(of.encode(), digest_size=4).digest(), "big")
    return 2 * drawn / 0xFFFFFFFF - 1


def _number(given: Mapping[str, Value], key: str, kind: InputType, default: float) -> float:
    try:
        number: float = converted(given.get(key, default), kind)
    except ValueError as error:
        hint = "e.g. retry: {attempts: 3, delay: 5, backoff: 2}"
        raise WrongRetry(key, f"'{key}' {error}", hint) from None
    return number


def _at_least(given: Mapping[str, Value], key: str, least: float, default: float) -> float:
    number = _number(given, key, "number", default)
    if number > MOST_SECONDS and key != "backoff":
        raise WrongRetry(
            key, f"'{key}' must be at most {MOST_SECONDS} seconds, not {shown(number)}", _MEANS[key]
        )
    if number < least:
        raise WrongRetry(key, f"'{key}' must be {least:g} or more, not {shown(number)}", _MEANS[key])
    return float(number)


def _jitter(given: Mapping[str, Value], default: float) -> float:
    number = _at_least(given, "jitter", 0, default)
    if number > 1:
        raise WrongRetry("jitter", f"'jitter' must be from 0 to 1, not {shown(number)}", _MEANS["jitter"])
    return number


def _kinds(given: Value, default: tuple[str | int, ...]) -> tuple[str | int, ...]:
    if given is None:
        return default
    kinds = given if isinstance(given, list) else [given]
    for kind in kinds:
        if isinstance(kind, bool) or not (isinstance(kind, int) or kind in RETRY_ON):
            hint = did_you_mean(str(kind), RETRY_ON, what="an exit code, or one of")
            raise WrongRetry("on", f"'on' does not accept {shown(kind)}", hint)
    if not kinds:
        raise WrongRetry("on", "'on' is empty, so nothing would be retried", "e.g. on: [failure, timeout]")
    return tuple(kinds)


_MEANS = {
    "delay": "seconds before the second try",
    "backoff": "how much longer each further pause is: 2 doubles it, 1 keeps it",
    "max_delay": "the longest pause, in seconds",
    "jitter": "how much of a pause is left to chance: 0.2 is up to a fifth more or less",
    "within": "seconds since the first try after which there is no further one",
}
