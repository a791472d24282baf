"""`ClientSessions` decides for the hooks of a client what an agent may do while it has a run.

    await sessions.bind("session-1", Agent(), "wf_7f3a", server="mcp__workflows__")   # it works on this run
    hold = await sessions.hold("session-1", Agent())         # it wants to end its turn: what waits for it
    denial = await sessions.denial("session-1", Agent(), ToolUse("Bash", {"command": "make"}))
    pending = await sessions.pending("session-1")            # what to put back into its context

A client session is one conversation of a client, under the id that the client gives it. Its runs are in a
file, `sessions/SESSION_ID.json` below the data directory, so that they survive a restart of the client and of
the server. Every server of the directory can decide, whichever of them drives the run. A run or task has one
agent: the one that has worked on it last.
"""

from __future__ import annotations

import fcntl
import os
import re
import tempfile
from collections.abc import Awaitable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, Protocol

import msgspec

from workflows_mcp.answers import Action, Answer, run_of
from workflows_mcp.errors import RequestError
from workflows_mcp.machine import Identity, RefusedWhat
from workflows_mcp.runs.agent_protocol import AgentProtocol
from workflows_mcp.runs.tool_rules import Store, ToolUse, forbidden, not_allowed
from workflows_mcp.settings import Settings, trust_of
from workflows_mcp.values import to_json

DIRECTORY = "sessions"
_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,127}")
_MOST_RUNS = 50
"""How many runs one conversation is held to; the oldest are let go."""


@dataclass(frozen=True, slots=True)
class Agent:
    """An agent of a conversation: the main one, or a sub-agent with an id of the client."""

    id: str = ""
    client: str = ""
    """The program: claude-code, codex."""

    @property
    def identity(self) -> Identity:
        name = self.client or "an agent"
        return Identity(f"{name}, sub-agent {self.id}" if self.id else name, client=self.client)


class _Bound(msgspec.Struct, omit_defaults=True):
    """A run or task that an agent works on."""

    workflow_id: str
    agent: str = ""
    left: bool = False
    """Its sub-agent has ended without finishing it."""


class _Refusals(msgspec.Struct, omit_defaults=True):
    """How often an agent was kept from ending its turn, and where its runs were then."""

    at: str
    count: int = 0


class _Session(msgspec.Struct, omit_defaults=True):
    """What is stored of a client session."""

    servers: list[str] = []
    """What the client puts before the names of our tools: `mcp__workflows__`."""
    way: str = ""
    """The toolset by which it works on its runs."""
    bound: list[_Bound] = []
    refusals: dict[str, _Refusals] = {}
    """By agent; the main one is empty."""
    cleared_by: str = ""
    """The process of the client that has begun a new conversation in its place."""

    def of(self, agent: Agent) -> list[_Bound]:
        return [it for it in self.bound if it.agent == agent.id]


@dataclass(frozen=True, slots=True)
class Held:
    """A run or task that waits for its agent."""

    answer: Answer
    actions: Sequence[Action]
    """What holds the agent back."""
    left: bool = False
    """A sub-agent has left it, and another is needed."""


@dataclass(frozen=True, slots=True)
class Hold:
    """Why an agent may not end its turn yet, or, if `given_up`, why it should not have."""

    held: Sequence[Held]
    way: str
    count: int
    most: int

    @property
    def given_up(self) -> bool:
        """The agent was kept from ending its turn so often that it may end it now."""
        return self.count > self.most


@dataclass(frozen=True, slots=True)
class Denial:
    """Why an agent may not use a tool."""

    what: Literal["tool", "command"]
    reason: str
    answer: Answer | None = None
    """The run or task whose step does not allow the tool."""
    allowed: Sequence[str] = ()
    """What its pending steps allow."""


@dataclass(frozen=True, slots=True)
class PendingRuns:
    """The runs of a conversation that have not ended."""

    answers: Sequence[Answer] = field(default_factory=list)
    way: str = ""


class RecordRefusal(Protocol):
    """Records a refusal in the journal of the run that a run or task belongs to."""

    def __call__(
        self, workflow_id: str, what: RefusedWhat, message: str, *, by: Identity, address: str
    ) -> Awaitable[None]: ...


class ClientSessions:
    def __init__(self, settings: Settings, agents: AgentProtocol, refused: RecordRefusal) -> None:
        self._directory = settings.home / DIRECTORY
        self._settings = settings
        self._agents = agents
        self._refused = refused

    # Which runs a conversation has

    async def bind(
        self, session_id: str, agent: Agent, workflow_id: str, *, server: str = "", way: str = ""
    ) -> None:
        """Store that an agent works on a run or task now; an ended one is let go.

        The agent that worked on it before is free, in whichever conversation it was.
        """
        workflow_id = await self._agents.full_id(workflow_id)
        try:
            has_ended = (await self._agents.answer(workflow_id)).has_ended
        except RequestError:
            return  # no run of this server
        with self._locked():
            for other in self._stored_ids():
                if other != session_id and (kept := self._read(other)) is not None:
                    self._write(other, _without(kept, {workflow_id}))
            session = _without(self._read(session_id) or _Session(), {workflow_id})
            if not has_ended:
                session.bound = [*session.bound, _Bound(workflow_id, agent.id)][-_MOST_RUNS:]
                if server and server not in session.servers:
                    session.servers = [*session.servers, server]
                session.way = way or session.way
            self._write(session_id, session)

    async def cleared(self, session_id: str, client: str) -> None:
        """Store that the user has cleared a conversation; the next one of the client has its runs."""
        with self._locked():
            if client and (session := self._read(session_id)) is not None:
                session.cleared_by = client
                self._write(session_id, session)

    async def inherit(self, session_id: str, client: str) -> None:
        """Give a new conversation the runs of the one that it replaces."""
        with self._locked():
            for other in self._stored_ids():
                session = self._read(other)
                if client and other != session_id and session is not None and session.cleared_by == client:
                    session.cleared_by = ""
                    session.bound = [it for it in session.bound if not it.agent]
                    session.refusals = {}
                    self._write(session_id, session)
                    self._path(other).unlink(missing_ok=True)

    # What an agent may do

    async def pending(self, session_id: str) -> PendingRuns:
        """Return the unfinished runs of the main agent of a conversation."""
        session, answers = await self._current(session_id)
        if session is None:
            return PendingRuns()
        return PendingRuns([answers[it.workflow_id] for it in session.of(Agent())], session.way)

    async def hold(self, session_id: str, agent: Agent, *, others_at_work: bool = False) -> Hold | None:
        """Return what keeps an agent from ending its turn, and count it; None if nothing does.

        `others_at_work`: the client has sub-agents that run in the background, and continues when they end.
        """
        session, answers = await self._current(session_id)
        if session is None:
            return None
        held = [
            found
            for it in session.bound
            if it.agent == agent.id or (it.left and not agent.id)
            if (found := _held(answers[it.workflow_id], left=it.left, others_at_work=others_at_work))
        ]
        if not held:
            self._forget_refusals(session_id, agent)
            return None
        may_ask = all(action.asks_user for it in held for action in it.actions)
        most = 1 if may_ask else self._settings.limits.stop_refusals
        count = self._count_refusal(session_id, agent, held)
        hold = Hold(held, session.way, count, most)
        if not hold.given_up:
            for it in held:
                await self._refused(
                    it.answer.workflow_id,
                    "stop",
                    f"the agent tried to end its turn at '{it.actions[0].step_id}'",
                    by=agent.identity,
                    address=it.actions[0].address,
                )
        return hold

    async def ended(self, session_id: str, agent: Agent) -> None:
        """Store that a sub-agent has ended: what it has left waits for the main agent."""
        if not agent.id:
            return
        with self._locked():
            session = self._read(session_id)
            if session is None:
                return
            for it in session.of(agent):
                if run_of(it.workflow_id) == it.workflow_id:
                    it.agent = ""
                else:
                    it.left = True
            session.refusals.pop(agent.id, None)
            self._write(session_id, session)

    async def denial(
        self,
        session_id: str,
        agent: Agent,
        use: ToolUse,
        *,
        protected: Sequence[str] = (),
        pids: Sequence[int] = (),
    ) -> Denial | None:
        """Return why an agent may not use a tool; None if it may.

        Our own tools always pass. A sub-agent that has no task of its own has the rules of the main agent.
        """
        known = self._read(session_id)
        if known is None or use.tool.startswith(tuple(known.servers) or "\0"):
            return None
        session, answers = await self._current(session_id)
        if session is None:
            return None
        use = replace(use, root=str(self._settings.workspace))
        mine = session.of(agent) or session.of(Agent())
        if why := forbidden(use, self._store(protected, pids)):
            for it in mine[:1]:
                message = f"{use.title}: {why}"
                await self._refused(it.workflow_id, "command", message, by=agent.identity, address="")
            return Denial("command", why, answers[mine[0].workflow_id] if mine else None)
        for it in mine:
            answer = answers[it.workflow_id]
            allowed = _allowed_now(answer)
            if allowed is not None and (why := not_allowed(allowed, use)):
                message, address = f"{use.title}: {why}", answer.actions[0].address
                await self._refused(it.workflow_id, "tool", message, by=agent.identity, address=address)
                return Denial("tool", why, answer, allowed)
        return None

    async def _current(self, session_id: str) -> tuple[_Session | None, dict[str, Answer]]:
        """Return a session and the answers about its runs, without those that have ended."""
        session = self._read(session_id)
        if session is None:
            return None, {}
        answers: dict[str, Answer] = {}
        over = set()
        for it in session.bound:
            try:
                answer = await self._agents.answer(it.workflow_id)
            except RequestError:
                over.add(it.workflow_id)  # the run is deleted, or the task is not in it any more
                continue
            if answer.has_ended:
                over.add(it.workflow_id)
            else:
                answers[it.workflow_id] = answer
        if over:
            with self._locked():
                now = self._read(session_id)
                if now is not None:
                    self._write(session_id, _without(now, over))
            session = _without(session, over)
        return (session if session.bound else None), answers

    def _store(self, protected: Sequence[str], pids: Sequence[int]) -> Store:
        settings = self._settings
        home, workspace = os.path.realpath(settings.home), os.path.realpath(settings.workspace)
        places = [home]
        if f"{workspace}/".startswith(f"{home}/"):
            names = ("runs.db", "runs.db-wal", "runs.db-shm", DIRECTORY, "hooks", "blobs", "temporal")
            places = [os.path.join(home, name) for name in names]
        free = (os.path.realpath(settings.scratch), os.path.join(home, "scratch"))
        trust = os.path.realpath(trust_of(os.environ).file.parent)
        return Store((*places, os.path.realpath(settings.blobs), trust, *protected), free, tuple(pids))

    # Refusals in a row

    def _count_refusal(self, session_id: str, agent: Agent, held: Sequence[Held]) -> int:
        at = to_json([[it.answer.workflow_id, *(_mark(action) for action in it.actions)] for it in held])
        with self._locked():
            session = self._read(session_id)
            if session is None:
                return 1
            refusals = session.refusals.get(agent.id)
            if refusals is None or refusals.at != at:
                refusals = _Refusals(at)
            refusals.count += 1
            session.refusals[agent.id] = refusals
            self._write(session_id, session)
            return refusals.count

    def _forget_refusals(self, session_id: str, agent: Agent) -> None:
        with self._locked():
            session = self._read(session_id)
            if session is not None and session.refusals.pop(agent.id, None) is not None:
                self._write(session_id, session)

    # Files

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep other servers from changing the files; nothing waits inside."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(self._directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _path(self, session_id: str) -> Path:
        return self._directory / f"{session_id}.json"

    def _stored_ids(self) -> list[str]:
        return [path.stem for path in self._directory.glob("*.json")]

    def _read(self, session_id: str) -> _Session | None:
        if _ID.fullmatch(session_id) is None:
            return None
        try:
            return msgspec.json.decode(self._path(session_id).read_bytes(), type=_Session)
        except (OSError, msgspec.DecodeError):
            return None

    def _write(self, session_id: str, session: _Session) -> None:
        """Replace the file of a session; without runs it has none, and its hooks cost nothing."""
        if _ID.fullmatch(session_id) is None:
            return
        path = self._path(session_id)
        if not session.bound:
            path.unlink(missing_ok=True)
            return
        descriptor, temporary = tempfile.mkstemp(dir=self._directory, suffix=".new")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(msgspec.json.encode(session))
            os.replace(temporary, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary)
            raise


def _without(session: _Session, workflow_ids: set[str]) -> _Session:
    kept = [it for it in session.bound if it.workflow_id not in workflow_ids]
    return msgspec.structs.replace(session, bound=kept)


def _held(answer: Answer, *, left: bool, others_at_work: bool) -> Held | None:
    """Return what of a run or task holds its agent back."""
    holding = [
        action
        for action in answer.actions
        if (action.agent_may_answer if action.delegated is None else not others_at_work)
    ]
    if left and others_at_work:
        return None  # another sub-agent may have been started for it
    return Held(answer, holding, left) if holding else None


def _mark(action: Action) -> list[str]:
    """The question that an action is; each round and attempt of a step is another."""
    tasks = action.delegated.tasks if action.delegated is not None else []
    return [action.step_id, *(task.workflow_id for task in tasks)]


def _allowed_now(answer: Answer) -> tuple[str, ...] | None:
    """Return what the pending steps of a run allow together; None if one of them allows everything.

    Which of several steps an agent is doing cannot be seen.
    """
    found: list[str] = []
    for action in answer.actions:
        if action.allow_tools is None:
            return None
        found += action.allow_tools if action.delegated is None else (*action.allow_tools, "Agent")
    return tuple(dict.fromkeys(found)) if answer.actions else None
