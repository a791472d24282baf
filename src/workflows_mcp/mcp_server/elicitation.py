"""Asking the user directly: what a run asks of its user is put to the user by the client, in a form, and the
agent hears of it when it is answered.

Where the protocol has requests to the client, the call stays open meanwhile. Since 2026-07-28 it has none:
the call is answered with the form, and made again with what the user has filled in. So nothing of it is kept
here; which run and which step it is about travels along, sealed. A user who does not want to answer is not
asked that again: the question goes to the agent, as it does where a client cannot ask.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from mcp.types import (
    CallToolResult,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitResult,
    InputRequiredResult,
)
from mcp.types.version import MODERN_PROTOCOL_VERSIONS

from workflows_mcp.errors import InvalidResult, RequestError
from workflows_mcp.mcp_server.tooling import Ctx, service_of

if TYPE_CHECKING:
    from workflows_mcp.service import UserQuestion

Result = CallToolResult | InputRequiredResult
Look = Callable[[str], Awaitable[CallToolResult]]
"""The answer of the tool anew, for this run."""

_KEY = "answer"
_TIMES = 3
"""How often an answer that does not fit is asked for again; then the agent is asked."""
_REMEMBERED = 1000


class _Asked(msgspec.Struct, array_like=True):
    """What a call that is made again is about."""

    run_id: str
    step_id: str
    times: int


class _Answer(NamedTuple):
    asked: _Asked
    result: ElicitResult | None


class Elicitation:
    """One for a server."""

    def __init__(self) -> None:
        self._declined: OrderedDict[tuple[str, str], None] = OrderedDict()

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
        run_id, times = answer.asked.run_id, answer.asked.times if refusal else 0
        return await self.ask(run_id, await look(run_id), context, look, refusal, times)

    async def ask(
        self,
        run_id: str,
        result: CallToolResult,
        context: Ctx,
        look: Look,
        refusal: str = "",
        times: int = 0,
    ) -> Result:
        """The answer of a tool, as soon as the user has been asked whatever its run asks of the user."""
        while _can_ask(context):
            question = await service_of(context).user_question(run_id)
            if question is None or self._is_over(run_id, question, times):
                break
            asked = _Asked(run_id, question.step_id, times + 1)
            form = ElicitRequestFormParams(
                message=_message(question, result, refusal), requested_schema=question.form
            )
            if context.protocol_version in MODERN_PROTOCOL_VERSIONS:
                return InputRequiredResult(
                    input_requests={_KEY: ElicitRequest(params=form)},
                    request_state=msgspec.json.encode(asked).decode(),
                )
            said = await context.session.elicit_form(form.message, form.requested_schema, context.request_id)
            refusal = await self._take(_Answer(asked, said), context)
            times = times + 1 if refusal else 0
            result = await look(run_id)
        return result

    async def _take(self, answer: _Answer, context: Ctx) -> str:
        """Why the answer is asked for again; empty: it is not."""
        asked, said = answer
        if said is None or said.action != "accept":
            self._declined[asked.run_id, asked.step_id] = None
            while len(self._declined) > _REMEMBERED:
                self._declined.popitem(last=False)
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

    def _is_over(self, run_id: str, question: UserQuestion, times: int) -> bool:
        return times >= _TIMES or (run_id, question.step_id) in self._declined


def _can_ask(context: Ctx) -> bool:
    capabilities = context.client_capabilities
    declared = capabilities.elicitation if capabilities is not None else None
    # a client that says nothing of the kinds it knows knows forms
    return declared is not None and (declared.form is not None or declared.url is None)


def _message(question: UserQuestion, result: CallToolResult, refusal: str) -> str:
    """What the user was to be told until now comes first: nobody else tells it."""
    told = [] if refusal else (result.structured_content or {}).get("messages", [])
    return "\n\n".join(part for part in (*told, refusal, question.message) if part)
