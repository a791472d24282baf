"""Asking the user directly: what a run asks of its user is put to the user by the client, in a form, and the
agent hears of it when it is answered.

Where the protocol has requests to the client, the call stays open meanwhile. Since 2026-07-28 it has none:
the call is answered with the form, and made again with what the user has filled in. So nothing of it is kept
here; which run and which step it is about travels along, sealed. A call that has become a task shows the form
to whoever asks about the task, and is told the answer by its key. A user who does not want to answer is not
asked that again: the question goes to the agent, as it does where a client cannot ask, or fails at it.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec
from mcp.shared.exceptions import MCPError
from mcp.types import (
    CallToolResult,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitResult,
    InputRequiredResult,
)
from mcp.types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from workflows_mcp.errors import InvalidResult, RequestError
from workflows_mcp.mcp_server.tooling import Ctx, service_of

if TYPE_CHECKING:
    from workflows_mcp.service import UserQuestion

logger = logging.getLogger(__name__)

Result = CallToolResult | InputRequiredResult
Look = Callable[[str], Awaitable[CallToolResult]]
"""The answer of the tool anew, for this run."""

_Kept = TypeVar("_Kept")

_KEY = "answer"
_TIMES = 3
"""How often an answer that does not fit is asked for again; then the agent is asked."""
_ROUNDS = 8
"""How often one call is answered with a form; then the agent is asked, whose next call is another one.
Clients give up a call after ten."""
_REMEMBERED = 1000


class _Asked(msgspec.Struct, array_like=True):
    """What a call that is made again is about."""

    run_id: str
    step_id: str
    times: int
    rounds: int
    """How often the call was answered with a form, this one too."""


class _Answer(NamedTuple):
    asked: _Asked
    result: ElicitResult | None


class Elicitation:
    """One for a server."""

    def __init__(self) -> None:
        self._declined: OrderedDict[tuple[str, str], None] = OrderedDict()
        self._refused: OrderedDict[tuple[str, str], tuple[int, str]] = OrderedDict()
        """Of questions of tasks that are asked again: how often they were asked, and why they are again."""

    def answer_in(self, context: Ctx) -> _Answer | None:
        """What the user has said, if this call is one that is made again with it."""
        if not context.request_state:
            return None
        try:
            asked = msgspec.json.decode(context.request_state, type=_Asked)
        except msgspec.DecodeError:
            return None
        given = (context.input_responses or {}).get(_KEY)
        return _Answer(asked, given if isinstance(given, ElicitResult) else None)

    async def go_on(self, answer: _Answer, context: Ctx, look: Look) -> Result:
        """Take in what the user has said, and ask on."""
        refusal = await self._take(answer, context)
        asked = answer.asked if refusal else msgspec.structs.replace(answer.asked, times=0)
        return await self._ask(asked, await look(asked.run_id), context, look, refusal)

    async def ask(self, run_id: str, result: CallToolResult, context: Ctx, look: Look) -> Result:
        """The answer of a tool, as soon as the user has been asked whatever its run asks of the user."""
        return await self._ask(_Asked(run_id, "", 0, 0), result, context, look)

    async def _ask(
        self, asked: _Asked, result: CallToolResult, context: Ctx, look: Look, refusal: str = ""
    ) -> Result:
        while _can_ask(context):
            question = await service_of(context).user_question(asked.run_id)
            if question is None or self._is_over(asked, question):
                break
            asked = _Asked(asked.run_id, question.step_id, asked.times + 1, asked.rounds + 1)
            form = ElicitRequestFormParams(
                message=_message(question, result, refusal), requested_schema=question.form
            )
            if context.protocol_version in MODERN_PROTOCOL_VERSIONS:
                if asked.rounds > _ROUNDS:
                    break
                return InputRequiredResult(
                    input_requests={_KEY: ElicitRequest(params=form)},
                    request_state=msgspec.json.encode(asked).decode(),
                )
            refusal = await self._take(_Answer(asked, await _shown(form, context)), context)
            if not refusal:
                asked.times = 0
            result = await look(asked.run_id)
        return result

    async def open_forms(self, run_id: str, result: CallToolResult, context: Ctx) -> dict[str, ElicitRequest]:
        """What is to be put to the user while a call is a task, by the key of the answer; each time that
        something is asked has its own."""
        question = await service_of(context).user_question(run_id) if _can_ask(context) else None
        if question is None:
            return {}
        times, refusal = self._refused.get((run_id, question.step_id), (0, ""))
        if self._is_over(_Asked(run_id, question.step_id, times, 0), question):
            return {}
        form = ElicitRequestFormParams(
            message=_message(question, result, refusal), requested_schema=question.form
        )
        return {_key(question, times): ElicitRequest(params=form)}

    async def fill_in(self, run_id: str, given: Mapping[str, Any], context: Ctx) -> None:
        """Take in what the user has said to an open form of a task. What is said to no open one is old."""
        question = await service_of(context).user_question(run_id) if _can_ask(context) else None
        if question is None:
            return
        times, _ = self._refused.get((run_id, question.step_id), (0, ""))
        if (key := _key(question, times)) not in given:
            return
        try:
            said = ElicitResult.model_validate(given[key])
        except ValidationError:
            said = None
        asked = _Asked(run_id, question.step_id, times + 1, 0)
        refusal = await self._take(_Answer(asked, said), context)
        if refusal:
            _remember(self._refused, (run_id, question.step_id), (asked.times, refusal))

    async def _take(self, answer: _Answer, context: Ctx) -> str:
        """Why the answer is asked for again; empty: it is not."""
        asked, said = answer
        if said is None or said.action != "accept":
            _remember(self._declined, (asked.run_id, asked.step_id), None)
            return ""
        try:
            await service_of(context).submit(
                asked.run_id, dict(said.content or {}), step_id=asked.step_id, wait_seconds=0
            )
        except InvalidResult as error:
            return error.message
        except RequestError:
            return ""  # somebody else has answered it, or the run has ended: the look shows how it stands
        return ""

    def _is_over(self, asked: _Asked, question: UserQuestion) -> bool:
        return asked.times >= _TIMES or (asked.run_id, question.step_id) in self._declined


def _key(question: UserQuestion, times: int) -> str:
    return f"{question.step_id}#{times + 1}"


def _remember(memory: OrderedDict[tuple[str, str], _Kept], question: tuple[str, str], value: _Kept) -> None:
    memory[question] = value
    while len(memory) > _REMEMBERED:
        memory.popitem(last=False)


async def _shown(form: ElicitRequestFormParams, context: Ctx) -> ElicitResult | None:
    """What the user has filled in; None where the client could not ask, or says what no form can say."""
    try:
        said: ElicitResult = await context.session.elicit_form(
            form.message, form.requested_schema, context.request_id
        )
    except (MCPError, ValidationError) as error:
        why = error.error.message if isinstance(error, MCPError) else "its answer is none to a form"
        logger.warning("the client could not ask its user, so the agent is asked: %s", why)
        return None
    return said


def _can_ask(context: Ctx) -> bool:
    capabilities = context.client_capabilities
    declared = capabilities.elicitation if capabilities is not None else None
    # a client that says nothing of the kinds it knows knows forms
    return declared is not None and (declared.form is not None or declared.url is None)


def _message(question: UserQuestion, result: CallToolResult, refusal: str) -> str:
    """What the user was to be told until now comes first: nobody else tells it."""
    told = [] if refusal else (result.structured_content or {}).get("messages", [])
    return "\n\n".join(part for part in (*told, refusal, question.message) if part)
