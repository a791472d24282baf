"""Shows the questions of a run to the user as forms of the client.

    content = await Elicitation().ask(run_id, content, context, fetch)

The agent gets the answer of its call when the user has filled in the forms. Before protocol version
2026-07-28 the server sends a request to the client, and the call stays open meanwhile. Since that version
there are no such requests: the server answers the call with the form, and the client repeats the call with
the user's input. The server stores nothing in between; a sealed text in the call names the run and the step.
If the call has become a task, the form is part of the state of the task, and the client sends the input by
its key.

The outcome of each form is stored beside the run (`service.elicitation`). After a refusal, no server shows
the form again: the question goes to the agent, with the reason. The same happens if the client cannot show
forms, fails to, or never answers.
"""

from __future__ import annotations

import asyncio
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
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitResult,
    InputRequiredResult,
)
from mcp.types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from workflows_mcp.errors import InvalidResult, RequestError
from workflows_mcp.mcp_server.tooling import Content, Ctx, service_of

if TYPE_CHECKING:
    from workflows_mcp.answers import Answer
    from workflows_mcp.runs import UserQuestion, UserQuestions

logger = logging.getLogger(__name__)

Result = Content | InputRequiredResult
Fetch = Callable[[str], Awaitable[Content]]
"""Returns the current answer of the tool for a run."""

_KEY = "answer"
_ROUNDS = 8
"""How often one call is answered with a form; after that, the agent is asked. Clients give up after ten."""
_REMEMBERED = 1000


class _Asked(msgspec.Struct, array_like=True):
    """The step that a repeated call is about."""

    run_id: str
    step_id: str
    rounds: int
    """How often the call was answered with a form, including this one."""


class _Answer(NamedTuple):
    asked: _Asked
    result: ElicitResult | None
    """None: the client could not show the form, or its answer is invalid."""


class _Outcome(NamedTuple):
    """The outcome of an answer."""

    refusal: str = ""
    """Why the question is asked again."""
    late: str = ""
    """The message for the user if the answer came too late."""


class Elicitation:
    """Asks the user, for all calls of a server."""

    def __init__(self) -> None:
        self._refused: OrderedDict[tuple[str, str], str] = OrderedDict()
        """Why a question is asked again, by run and step.

        The next form of a task is sent with a later request than the one that had the answer."""

    def answer_in(self, context: Ctx) -> _Answer | None:
        """Return the user's input if this call is a repeated one that has it.

        A client that cannot show forms has none."""
        if not context.request_state or not _can_ask(context):
            return None
        try:
            asked = msgspec.json.decode(context.request_state, type=_Asked)
        except msgspec.DecodeError:
            return None
        given = (context.input_responses or {}).get(_KEY)
        return _Answer(asked, given if isinstance(given, ElicitResult) else None)

    async def take_answer(self, given: _Answer, context: Ctx, fetch: Fetch) -> Result:
        """Submit the user's input, and ask the next question."""
        outcome = await _take(given, context)
        return await self._ask(given.asked, await fetch(given.asked.run_id), context, fetch, outcome)

    async def ask(self, run_id: str, content: Content, context: Ctx, fetch: Fetch) -> Result:
        """Ask the user all questions of a run, then return the answer of the tool."""
        return await self._ask(_Asked(run_id, "", 0), content, context, fetch, _Outcome())

    async def _ask(
        self, asked: _Asked, content: Content, context: Ctx, fetch: Fetch, outcome: _Outcome
    ) -> Result:
        service = service_of(context).elicitation if _can_ask(context) else None
        repeats_calls = context.protocol_version in MODERN_PROTOCOL_VERSIONS
        while service is not None:
            questions = await service.questions(asked.run_id)
            question = questions.next
            if question is None or (repeats_calls and asked.rounds >= _ROUNDS):
                break
            if (own := _own_work(content, questions)) is not None:
                content = own
                break
            asked = _Asked(asked.run_id, question.step_id, asked.rounds + 1)
            form = _form(question, content, outcome)
            await service.form_shown(asked.run_id, question)
            if repeats_calls:
                return InputRequiredResult(
                    input_requests={_KEY: ElicitRequest(params=form)},
                    request_state=msgspec.json.encode(asked).decode(),
                )
            given = await service.until_closed(asked.run_id, question, _show(form, asked, context))
            outcome = await _take(given, context) if given is not None else _Outcome()
            content = await fetch(asked.run_id)
        return _with_message(content, outcome.late) if outcome.late else content

    async def open_forms(
        self, run_id: str, content: Content, context: Ctx
    ) -> tuple[Content, dict[str, ElicitRequest]]:
        """Return the answer of a call that is a task, and the open forms by their keys.

        Each form has a key of its own, also when it asks the same question again."""
        questions = await service_of(context).elicitation.questions(run_id) if _can_ask(context) else None
        question = questions.next if questions is not None else None
        if questions is None or question is None:
            return content, {}
        if (own := _own_work(content, questions)) is not None:
            return own, {}
        refusal = self._refused.get((run_id, question.step_id), "") if question.forms.tasks else ""
        form = _form(question, content, _Outcome(refusal))
        return content, {question.forms.form_of_task: ElicitRequest(params=form)}

    async def fill_in(self, run_id: str, given: Mapping[str, Any], context: Ctx) -> None:
        """Submit the user's input for the open form of a task; input for any other form is outdated."""
        service = service_of(context).elicitation
        question = (await service.questions(run_id)).next if _can_ask(context) else None
        if question is None or question.forms.form_of_task not in given:
            return
        try:
            result = ElicitResult.model_validate(given[question.forms.form_of_task])
        except ValidationError:
            result = None
        await service.form_answered(run_id, question)
        outcome = await _take(_Answer(_Asked(run_id, question.step_id, 0), result), context)
        if outcome.refusal:
            self._refused[run_id, question.step_id] = outcome.refusal
            while len(self._refused) > _REMEMBERED:
                self._refused.popitem(last=False)


async def patiently(
    context: Ctx, wait_seconds: float, read: Callable[[float, bool], Awaitable[Answer]]
) -> Answer:
    """Read the answer about a run. Wait for the decision of a person too, unless a form asks for it at once.

    `read` takes how long to wait, and whether to wait for people."""
    loop = asyncio.get_running_loop()
    end = loop.time() + wait_seconds
    found = await read(wait_seconds, False)
    left = end - loop.time()
    if not found.decisions or found.actions or left <= 0:
        return found
    if _can_ask(context) and (await service_of(context).elicitation.questions(found.workflow_id)).next:
        return found
    return await read(left, True)


async def _take(given: _Answer, context: Ctx) -> _Outcome:
    service, (asked, result) = service_of(context), given
    if result is None or result.action != "accept":
        await service.elicitation.form_failed(
            asked.run_id, asked.step_id, "unshown" if result is None else "declined"
        )
        return _Outcome()
    try:
        from workflows_mcp.mcp_server.identity import person_of

        by = person_of(context)
        await service.answer_form(asked.run_id, asked.step_id, dict(result.content or {}), by=by)
    except InvalidResult as error:
        return _Outcome(refusal=error.for_user)
    except RequestError as error:
        if error.code in ("only_people", "not_an_approver"):
            await service.elicitation.form_failed(asked.run_id, asked.step_id, "declined")
            return _Outcome(late=f"This decision was not accepted: {error.message}.")
        # Another caller has answered the question, or the run has ended: fetching the run shows which.
        return _Outcome(late=f"The user's answer to '{asked.step_id}' came too late, and was not used.")
    return _Outcome()


async def _show(form: ElicitRequestFormParams, asked: _Asked, context: Ctx) -> _Answer:
    try:
        result: ElicitResult = await context.session.elicit_form(
            form.message, form.requested_schema, context.request_id
        )
    except (MCPError, ValidationError) as error:
        why = error.error.message if isinstance(error, MCPError) else "its answer does not fit a form"
        logger.warning("the client could not show a form, so the agent is asked: %s", why)
        return _Answer(asked, None)
    return _Answer(asked, result)


def _can_ask(context: Ctx) -> bool:
    capabilities = context.client_capabilities
    declared = capabilities.elicitation if capabilities is not None else None
    # a client that names no kind of elicitation supports forms
    return declared is not None and (declared.form is not None or declared.url is None)


def _own_work(content: Content, questions: UserQuestions) -> Content | None:
    """Return the answer with only the agent's own actions, if there are any.

    The agent need not wait for the user, who is asked when those actions are done. Answers that do not list
    their actions are not split."""
    if not questions.agent_is_busy or "action" not in content:
        return None
    for_user = [question.step_id for question in questions.questions]
    own = [
        it for it in (content["action"], *content.get("more_actions", ())) if it["step_id"] not in for_user
    ]
    if not own:
        return None
    later = f"the user is asked {', '.join(map(repr, for_user))} directly, when you have done this"
    rest = {key: value for key, value in content.items() if key not in ("action", "more_actions")}
    more = {"more_actions": own[1:]} if own[1:] else {}
    return {**rest, "action": own[0], **more, "why": f"{content.get('why', '')}; {later}".lstrip("; ")}


def _form(question: UserQuestion, content: Content, outcome: _Outcome) -> ElicitRequestFormParams:
    """Return the form of a question, after the messages for the user, which nothing else shows."""
    messages = [] if outcome.refusal else content.get("messages", [])
    parts = (*messages, outcome.late, outcome.refusal, question.message)
    message = "\n\n".join(part for part in parts if part)
    return ElicitRequestFormParams(message=message, requested_schema=question.form)


def _with_message(content: Content, message: str) -> Content:
    """Add a message to an answer: to its `messages`, or to its `message` if it has one."""
    if "message" in content:
        return {**content, "message": f"{message} {content['message']}"}
    return {**content, "messages": [*content.get("messages", ()), message]}


# ---- the seal of repeated calls
#
# A call that was answered with a form is repeated with the user's input, and names its run and step in a
# sealed text. The seal is valid for a week, on every server with the same home: users may answer the next
# day, and servers end with the sessions of their clients. So the key is stored in a file, which is created
# when something is sealed for the first time.

HOLDS_SECONDS = 7 * 24 * 3600.0
KEY_FILE = "elicitation.key"
_KEY_BYTES = 32


def sealing_of(home: Path) -> RequestStateSecurity:
    return RequestStateSecurity(codec=KeptSeal(home / KEY_FILE), ttl=HOLDS_SECONDS)


class KeptSeal:
    """Seals texts with a key from a file, or of this process if the file cannot be written."""

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
            key = _stored_key(self._path)
        except OSError as error:
            logger.warning(
                "%s: %s; forms that are open when this server ends cannot be answered afterwards",
                self._path,
                error.strerror or error,
            )
            key = secrets.token_bytes(_KEY_BYTES)
        self._codec = AESGCMRequestStateCodec([key])
        return self._codec


def _stored_key(path: Path) -> bytes:
    """Return the key in the file, and create it if it is missing: only one process can."""
    if not path.exists():
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor, part = tempfile.mkstemp(
            prefix=f".{path.name}.", dir=path.parent
        )  # readable by its owner only
        try:
            with open(descriptor, "wb") as file:
                file.write(secrets.token_bytes(_KEY_BYTES))
            with suppress(FileExistsError):
                os.link(part, path)  # unlike a move, this fails if another process was faster
        finally:
            os.unlink(part)
    key = path.read_bytes()
    if len(key) < _KEY_BYTES:
        raise OSError(f"it has {len(key)} bytes, and a key has {_KEY_BYTES}; delete it to get a new one")
    return key
