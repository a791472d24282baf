"""Asking the user directly: what a run asks of its user is put to the user by the client, in a form, and the
agent hears of it when it is answered.

Where the protocol has requests to the client, the call stays open meanwhile. Since 2026-07-28 it has none:
the call is answered with the form, and made again with what the user has filled in. So nothing of it is kept
here; which run and which step it is about travels along, sealed. A call that has become a task shows the
form to whoever asks about the task, and is told the answer by its key. What came of asking is noted beside
the run (`service.elicitation`): a user who does not want to answer is not asked that again, by any server;
the question goes to the agent, who is told so, as it does where a client cannot ask, fails at it, or never
comes back.
"""

from __future__ import annotations

import logging
import os
import secrets
import tempfile
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from mcp.server.request_state import (
    AESGCMRequestStateCodec,
    InvalidRequestState,
    RequestStateCodec,
    RequestStateSecurity,
)
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
from workflows_mcp.mcp_server.tooling import Ctx, answer, service_of

if TYPE_CHECKING:
    from workflows_mcp.runs import UserQuestion, UserQuestions


logger = logging.getLogger(__name__)


Result = CallToolResult | InputRequiredResult

Fetch = Callable[[str], Awaitable[CallToolResult]]

"""The answer of the tool anew, for this run."""


_KEY = "answer"

_ROUNDS = 8

"""How often one call is answered with a form; then the agent is asked, whose next call is another one.
Clients give up a call after ten."""

_REMEMBERED = 1000


class _Asked(msgspec.Struct, array_like=True):
    """What a call that is made again is about."""

    run_id: str
    step_id: str
    rounds: int
    """How often the call was answered with a form, this one too."""


class _Answer(NamedTuple):
    asked: _Asked
    said: ElicitResult | None
    """None: the client could not ask, or says what no form can say."""


class _Taken(NamedTuple):
    """What came of an answer."""

    refusal: str = ""
    """Why it is asked for again."""
    late: str = ""
    """That nobody needed it any more."""


class Elicitation:
    """One for a server."""

    def __init__(self) -> None:
        self._refused: OrderedDict[tuple[str, str], str] = OrderedDict()
        """Why a question is asked again, where the form of a task comes with another request than the
        answer."""

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

    async def take_answer(self, given: _Answer, context: Ctx, fetch: Fetch) -> Result:
        """Take in what the user has said, and ask on."""
        taken = await _take(given, context)
        return await self._ask(given.asked, await fetch(given.asked.run_id), context, fetch, taken)

    async def ask(self, run_id: str, result: CallToolResult, context: Ctx, fetch: Fetch) -> Result:
        """The answer of a tool, as soon as the user has been asked whatever its run asks of the user."""
        return await self._ask(_Asked(run_id, "", 0), result, context, fetch, _Taken())

    async def _ask(
        self, asked: _Asked, result: CallToolResult, context: Ctx, fetch: Fetch, taken: _Taken
    ) -> Result:
        asking = service_of(context).elicitation if _can_ask(context) else None
        by_calling_again = context.protocol_version in MODERN_PROTOCOL_VERSIONS
        while asking is not None:
            of_the_run = await asking.questions(asked.run_id)
            question = of_the_run.next
            if question is None or (by_calling_again and asked.rounds >= _ROUNDS):
                break
            if (own := _own_work(result, of_the_run)) is not None:
                result = own
                break
            asked = _Asked(asked.run_id, question.step_id, asked.rounds + 1)
            form = _form(question, result, taken)
            await asking.form_shown(asked.run_id, question)
            if by_calling_again:
                return InputRequiredResult(
                    input_requests={_KEY: ElicitRequest(params=form)},
                    request_state=msgspec.json.encode(asked).decode(),
                )
            shown = await asking.until_closed(asked.run_id, question, _shown(form, asked, context))
            taken = await _take(shown, context) if shown is not None else _Taken()
            result = await fetch(asked.run_id)
        return _with_message(result, taken.late) if taken.late else result

    async def open_forms(
        self, run_id: str, result: CallToolResult, context: Ctx
    ) -> tuple[CallToolResult, dict[str, ElicitRequest]]:
        """The answer of a call that is a task, and what is to be put to the user meanwhile, by the key of the
        answer; each time that something is asked has its own."""
        of_the_run = await service_of(context).elicitation.questions(run_id) if _can_ask(context) else None
        question = of_the_run.next if of_the_run is not None else None
        if of_the_run is None or question is None:
            return result, {}
        if (own := _own_work(result, of_the_run)) is not None:
            return own, {}
        refusal = self._refused.get((run_id, question.step_id), "") if question.forms.tasks else ""
        form = _form(question, result, _Taken(refusal))
        return result, {question.forms.form_of_task: ElicitRequest(params=form)}

    async def fill_in(self, run_id: str, given: Mapping[str, Any], context: Ctx) -> None:
        """Take in what the user has said to an open form of a task. What is said to no open one is old."""
        asking = service_of(context).elicitation
        question = (await asking.questions(run_id)).next if _can_ask(context) else None
        if question is None or question.forms.form_of_task not in given:
            return
        try:
            said = ElicitResult.model_validate(given[question.forms.form_of_task])
        except ValidationError:
            said = None
        await asking.form_answered(run_id, question)
        taken = await _take(_Answer(_Asked(run_id, question.step_id, 0), said), context)
        if taken.refusal:
            self._refused[run_id, question.step_id] = taken.refusal
            while len(self._refused) > _REMEMBERED:
                self._refused.popitem(last=False)


async def _take(given: _Answer, context: Ctx) -> _Taken:
    service, (asked, said) = service_of(context), given
    if said is None or said.action != "accept":
        await service.elicitation.form_failed(
            asked.run_id, asked.step_id, "unshown" if said is None else "declined"
        )
        return _Taken()
    try:
        await service.submit(asked.run_id, dict(said.content or {}), step_id=asked.step_id, wait_seconds=0)
    except InvalidResult as error:
        return _Taken(refusal=error.for_user)
    except RequestError:
        # Somebody else has answered it, or the run has ended: the look shows how it stands.
        return _Taken(late=f"What the user answered to '{asked.step_id}' came too late, and was not used.")
    return _Taken()


async def _shown(form: ElicitRequestFormParams, asked: _Asked, context: Ctx) -> _Answer:
    try:
        said: ElicitResult = await context.session.elicit_form(
            form.message, form.requested_schema, context.request_id
        )
    except (MCPError, ValidationError) as error:
        why = error.error.message if isinstance(error, MCPError) else "its answer is none to a form"
        logger.warning("the client could not ask its user, so the agent is asked: %s", why)
        return _Answer(asked, None)
    return _Answer(asked, said)


def _can_ask(context: Ctx) -> bool:
    capabilities = context.client_capabilities
    declared = capabilities.elicitation if capabilities is not None else None
    # a client that says nothing of the kinds it knows knows forms
    return declared is not None and (declared.form is not None or declared.url is None)


def _own_work(result: CallToolResult, of_the_run: UserQuestions) -> CallToolResult | None:
    """The answer with what the agent has to do itself, where it has: that need not wait for the user, who is
    asked when it is done. Only where actions are listed one by one."""
    said = result.structured_content or {}
    if not of_the_run.agent_is_busy or "action" not in said:
        return None
    form_outcome = [question.step_id for question in of_the_run.questions]
    own = [it for it in (said["action"], *said.get("more_actions", ())) if it["step_id"] not in form_outcome]
    if not own:
        return None
    put_off = f"the user is asked {', '.join(map(repr, form_outcome))} directly, when you have done this"
    rest = {key: value for key, value in said.items() if key not in ("action", "more_actions")}
    more = {"more_actions": own[1:]} if own[1:] else {}
    return answer({**rest, "action": own[0], **more, "why": f"{said.get('why', '')}; {put_off}".lstrip("; ")})


def _form(question: UserQuestion, result: CallToolResult, taken: _Taken) -> ElicitRequestFormParams:
    """What the user was to be told until now comes first: nobody else tells it."""
    told = [] if taken.refusal else (result.structured_content or {}).get("messages", [])
    message = "\n\n".join(part for part in (*told, taken.late, taken.refusal, question.message) if part)
    return ElicitRequestFormParams(message=message, requested_schema=question.form)


def _with_message(result: CallToolResult, message: str) -> CallToolResult:
    """An answer that says this too: beside the messages of a run, or in that of an answer which has one."""
    said = result.structured_content
    if said is None or result.is_error:
        return result
    if "message" in said:
        return answer({**said, "message": f"{message} {said['message']}"})
    return answer({**said, "messages": [*said.get("messages", ()), message]})


# ----------------------------------------------------------------------------------------------------
# How long what travels along with a form holds: for a week, and for every server of the same home.
#
# A call that is answered with a form is made again with what the user has filled in, and says by a sealed
# text what it is about. People answer tomorrow, and servers come and go with the sessions of their clients.
# So the key of the seal is kept, in a file that is made when something is sealed for the first time.


HOLDS_SECONDS = 7 * 24 * 3600.0

KEY_FILE = "elicitation.key"

_KEY_BYTES = 32


def sealing_of(home: Path) -> RequestStateSecurity:
    return RequestStateSecurity(codec=KeptSeal(home / KEY_FILE), ttl=HOLDS_SECONDS)


class KeptSeal:
    """Seals with the key of a file. Where that cannot be kept, with one that lasts as long as the process."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._codec: RequestStateCodec | None = None

    def seal(self, payload: bytes) -> str:
        return self._with_key().seal(payload)

    def unseal(self, token: str) -> bytes:
        if self._codec is None and not self._path.exists():
            raise InvalidRequestState("there is no key yet, so nothing was sealed")
        return self._with_key().unseal(token)

    def _with_key(self) -> RequestStateCodec:
        if self._codec is not None:
            return self._codec
        try:
            key = _kept(self._path)
        except OSError as error:
            logger.warning(
                "%s: %s; forms that are open when this server ends cannot be answered afterwards",
                self._path,
                error.strerror or error,
            )
            key = secrets.token_bytes(_KEY_BYTES)
        self._codec = AESGCMRequestStateCodec([key])
        return self._codec


def _kept(path: Path) -> bytes:
    """The key of the file, which is made if there is none: of several processes at once, one makes it."""
    if not path.exists():
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor, part = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # nobody else reads it
        try:
            with open(descriptor, "wb") as file:
                file.write(secrets.token_bytes(_KEY_BYTES))
            with suppress(FileExistsError):
                os.link(part, path)  # unlike a move this fails if somebody was quicker
        finally:
            os.unlink(part)
    key = path.read_bytes()
    if len(key) < _KEY_BYTES:
        raise OSError(f"it has {len(key)} bytes, and a key has {_KEY_BYTES}; delete it to have another made")
    return key
