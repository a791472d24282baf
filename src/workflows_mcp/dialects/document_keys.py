"""What every mapping of a definition is asked: are its keys known, and is this one text?"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from workflows_mcp.dialects.yaml.source import Document
from workflows_mcp.errors import Problem
from workflows_mcp.values import Value, did_you_mean, kind_and_value

Path = tuple[str | int, ...]

EXTENSION = "x-"
"""Keys that start so are the author's own: a place for anchors."""


MEANT: dict[str, tuple[str, ...]] = {
    "if": ("condition", "when"),
    "when": ("condition",),
    "condition": ("when",),
    "needs": ("depends_on",),
    "dependencies": ("depends_on",),
    "after": ("depends_on",),
    "matrix": ("for_each", "items"),
    "strategy": ("for_each", "items"),
    "loop": ("for_each", "items"),
    "with_items": ("for_each", "items"),
    "foreach": ("for_each", "items"),
    "with": ("inputs",),
    "args": ("inputs",),
    "params": ("inputs",),
    "jobs": ("blocks",),
    "tasks": ("blocks",),
    "uses": ("type",),
    "retries": ("retry",),
    "attempts": ("retry",),
    "timeout-minutes": ("timeout",),
    "timeout_seconds": ("timeout",),
    "timeout_minutes": ("timeout",),
    "continue-on-error": ("on_failure", "on_error"),
    "continue_on_error": ("on_failure", "on_error"),
    "ignore_errors": ("on_failure", "on_error"),
    "enum": ("validation",),
    "choices": ("validation",),
    "options": ("validation",),
    "pattern": ("validation",),
    "min": ("validation",),
    "max": ("validation",),
}
"""What other systems call a key, and what it is called here: the first of these that exists."""
_WRITTEN = {
    ("enum", "validation"): "validation: {enum: […]}",
    ("choices", "validation"): "validation: {enum: […]}",
    ("options", "validation"): "validation: {enum: […]}",
    ("pattern", "validation"): "validation: {pattern: …}",
    ("min", "validation"): "validation: {min: …}",
    ("max", "validation"): "validation: {max: …}",
    ("matrix", "for_each"): "for_each: ${inputs.items}, which runs the block once for each item",
    ("strategy", "for_each"): "for_each: ${inputs.items}, which runs the block once for each item",
    ("uses", "type"): "type: ExecuteWorkflow, with inputs: {workflow: name}",
    ("retries", "retry"): "retry: {retries: N}, tries after the first",
    ("attempts", "retry"): "retry: N, tries in all",
    ("timeout-minutes", "timeout"): "timeout: …, in seconds",
    ("timeout_minutes", "timeout"): "timeout: …, in seconds",
    ("continue-on-error", "on_failure"): "on_failure: continue",
    ("continue_on_error", "on_failure"): "on_failure: continue",
    ("ignore_errors", "on_failure"): "on_failure: continue",
    ("continue-on-error", "on_error"): "on_error: continue",
    ("continue_on_error", "on_error"): "on_error: continue",
    ("ignore_errors", "on_error"): "on_error: continue",
}


def meant_by(key: str, known: Collection[str]) -> str:
    """How to write what other systems call `key`; empty where nobody calls anything so."""
    meant = next((it for it in MEANT.get(key, ()) if it in known), None)
    return f"write {_WRITTEN.get((key, meant), f'{meant}: …')}" if meant is not None else ""


def unknown_keys(
    mapping: Mapping[str, Value], known: Collection[str], path: Path, what: str
) -> Iterator[Problem]:
    for key in mapping:
        if key not in known:
            yield Problem(
                "unknown_key",
                f"{what} has no key '{key}'",
                meant_by(key, known) or did_you_mean(key, known, what="keys", limit=20),
                (*path, key),
                on_key=True,
            )


def text_of(
    mapping: Mapping[str, Value], key: str, path: Path, document: Document, problems: list[Problem]
) -> str:
    """The text at `key`, empty if there is none; a number is taken as it is written."""
    value = mapping.get(key)
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, int | float):
        return document.written((*path, key)) or str(value)
    problems.append(
        Problem(
            "wrong_type",
            f"'{key}' must be text, not {kind_and_value(value)}",
            "put quotes around it to make it text",
            (*path, key),
        )
    )
    return ""


def flag_of(mapping: Mapping[str, Value], key: str, problems: list[Problem]) -> bool | None:
    """True or false at `key` of the document itself; None if it does not say."""
    value = mapping.get(key)
    if value is None or isinstance(value, bool):
        return value
    message = f"'{key}' must be true or false, not {kind_and_value(value)}"
    problems.append(Problem("wrong_type", message, "without quotes", (key,)))
    return None


def secrets_required(mapping: Mapping[str, Value], problems: list[Problem]) -> bool:
    """Whether the document says `secrets: required`."""
    value = mapping.get("secrets")
    if value is not None and value != "required":
        message = f"'secrets' can only be: required, not {kind_and_value(value)}"
        hint = "secrets: required demands all secrets at the start; without it each when it is reached"
        problems.append(Problem("wrong_value", message, hint, ("secrets",)))
    return value == "required"


def tags_of(tags: Value, problems: list[Problem]) -> tuple[str, ...]:
    if isinstance(tags, str):
        return (tags,)
    if tags is None:
        return ()
    if isinstance(tags, list) and all(isinstance(tag, str | int | float) for tag in tags):
        return tuple(str(tag) for tag in tags)
    problems.append(
        Problem("wrong_type", "'tags' must be a list of words", "e.g. tags: [python, test]", ("tags",))
    )
    return ()
