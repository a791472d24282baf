"""Writes the prompt for a program that performs a step of an agent, and finds the result in its reply.

prompt = prompt_for(step.ask_alone(inputs), ["'files' is missing"], role="You review code.")
find_result(Asked(step, inputs, question), 'Done:\\n```json\\n{"files": []}\\n```')
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence

from workflows_mcp.steps.base import Question
from workflows_mcp.steps.results import Asked, understood, violations_of
from workflows_mcp.values import Value, from_json, to_json

_ROLE = "You perform one step of a workflow. The workflow continues with your reply."
_ALONE = (
    "Do only this step. You cannot ask anybody: if the step cannot be done, or only the user can decide it, "
    'reply {"is_error": true, "error": "<why, or the question>"}.'
)
_REPLY = "To submit the result, reply with one JSON value that fits result_schema, and with nothing else."
_REJECTED = "Your last result was rejected. What has to be fixed:"
_FENCED = re.compile(r"^[ \t]*```[\w-]*[ \t]*\n(.*?)^[ \t]*```", re.DOTALL | re.MULTILINE)
_OPENINGS, _CHARS = 1000, 200_000
"""How many places of a reply are tried as the beginning of an object, and how much of its end is searched."""


def prompt_for(question: Question, feedback: Sequence[str] = (), *, role: str = "") -> str:
    """Return the prompt for a question; `feedback` says why the last result was rejected."""
    parts = [role or _ROLE, question.instructions]
    if question.parameters:
        parts.append("\n".join(_parameter(name, value) for name, value in question.parameters.items()))
    schema = to_json(question.result_schema)
    parts += [f"<result_schema>\n{schema}\n</result_schema>", f"{_REPLY} {_ALONE}"]
    if feedback:
        parts.append("\n".join([_REJECTED, *(f"- {item}" for item in feedback)]))
    return "\n\n".join(parts) + "\n"


def _parameter(name: str, value: Value) -> str:
    text = value if isinstance(value, str) else to_json(value)
    return f"<parameters.{name}>\n{text.strip()}\n</parameters.{name}>"


def find_result(asked: Asked, reply: str) -> tuple[Value, list[str]]:
    """Return the result in a reply, as its step reads it, and what is wrong with it.

    The result may stand alone, in a code block or between words; the last one counts. Where a text is the
    result, that is the reply as a whole.
    """
    main = asked.question.main_field
    for found in _objects_in(reply):
        if main is not None and main not in found:
            continue
        result = understood(asked, found)
        if not violations_of(asked, result):
            return result, []
    result = understood(asked, reply.strip())
    wrong = violations_of(asked, result)
    if wrong and (objects := [it for it in _objects_in(reply) if main is None or main in it]):
        result = understood(asked, objects[0])
        wrong = violations_of(asked, result)
    return result, wrong


def failure_in(reply: str) -> dict[str, Value] | None:
    """Return the object of a reply that says only that the step failed."""
    return next((it for it in _objects_in(reply) if it.get("is_error") is True), None)


def _objects_in(reply: str) -> Iterator[dict[str, Value]]:
    """Yield the JSON objects of a reply: all of it, or those in code blocks and words, the last first."""
    whole = _parsed(reply)
    if whole is not None:
        yield whole
        return
    for block in reversed(_FENCED.findall(reply)):
        if (found := _parsed(block)) is not None:
            yield found
    yield from reversed(list(_objects_between_words(reply)))


def _objects_between_words(text: str) -> Iterator[dict[str, Value]]:
    decoder, at, text = json.JSONDecoder(), 0, text[-_CHARS:]
    for _ in range(_OPENINGS):
        at = text.find("{", at)
        if at < 0:
            return
        try:
            end = decoder.raw_decode(text, at)[1]
        except (ValueError, RecursionError):
            at += 1
            continue
        if (found := _parsed(text[at:end])) is not None:
            yield found
        at = end


def _parsed(text: str) -> dict[str, Value] | None:
    try:
        found = from_json(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
