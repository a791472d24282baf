"""Checks keys, texts and flags in every mapping of a definition."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import PurePath
from typing import Any

from workflows_mcp.dialects.yaml.source import Document
from workflows_mcp.errors import Problem
from workflows_mcp.plan import SEMANTICS
from workflows_mcp.values import Value, did_you_mean, kind_and_value

Path = tuple[str | int, ...]

EXTENSION = "x-"
"""Keys with this prefix belong to the author, e.g. for anchors."""


_EQUIVALENTS: dict[str, tuple[str, ...]] = {
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
"""For each key of another system: its equivalents here; the first one that exists counts."""
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


def _equivalent(key: str, known: Collection[str]) -> str:
    """A hint for a key of another system; empty if it has no equivalent here."""
    found = next((it for it in _EQUIVALENTS.get(key, ()) if it in known), None)
    return f"write {_WRITTEN.get((key, found), f'{found}: …')}" if found is not None else ""


def unknown_keys(
    mapping: Mapping[str, Value], known: Collection[str], path: Path, what: str
) -> Iterator[Problem]:
    for key in mapping:
        if key not in known:
            yield Problem(
                "unknown_key",
                f"{what} has no key '{key}'",
                _equivalent(key, known) or did_you_mean(key, known, what="keys", limit=20),
                (*path, key),
                on_key=True,
            )


def read_header(
    document: Document, known: Collection[str], problems: list[Problem]
) -> tuple[str, dict[str, Any]]:
    """The name of a workflow, and the fields of its plan that every dialect has; reports unknown keys."""
    value: dict[str, Value] = document.value
    keys = {key: item for key, item in value.items() if not key.startswith(EXTENSION)}
    problems += unknown_keys(keys, known, (), "a workflow")
    name = text_of(value, "name", (), document, problems) or PurePath(document.source.file).stem
    return name, {
        "description": text_of(value, "description", (), document, problems),
        "tags": tags_of(value.get("tags"), problems),
        "prompt": bool(flag_of(value, "prompt", problems)),
        "version": text_of(value, "version", (), document, problems),
        "file": document.source.file,
        "elicitation": flag_of(value, "elicitation", problems),
        "secrets_required": secrets_required(value, problems),
        "semantics": SEMANTICS,
    }


def text_of(
    mapping: Mapping[str, Value], key: str, path: Path, document: Document, problems: list[Problem]
) -> str:
    """The text at `key`, empty if there is none; a number is used as written."""
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
    """The boolean at `key` of the document; None if there is none."""
    value = mapping.get(key)
    if value is None or isinstance(value, bool):
        return value
    message = f"'{key}' must be true or false, not {kind_and_value(value)}"
    problems.append(Problem("wrong_type", message, "write true or false, without quotes", (key,)))
    return None


def secrets_required(mapping: Mapping[str, Value], problems: list[Problem]) -> bool:
    """Whether the document has `secrets: required`."""
    value = mapping.get("secrets")
    if value is not None and value != "required":
        message = f"'secrets' can only be: required, not {kind_and_value(value)}"
        hint = (
            "with secrets: required, all secrets must exist at the start; without it, when a step needs them"
        )
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
