"""Answers the hooks of clients: reads their events from a socket, and says what the client is to do.

    {"hook_event_name": "Stop", "session_id": "…"}
    {"decision": "block", "reason": "The workflow 'release' (run wf_7f3a) waits for you. …"}

Claude Code and Codex send the same events, through the relay in `hook.py`; docs/clients.md lists them. What
an agent may do is decided by `ClientSessions` (`runs/client_sessions.py`). Here are the socket, the shapes of
the events, and the words of the answers. An event that is not understood gets no answer, and the client
continues.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from workflows_mcp import hook
from workflows_mcp.errors import WorkflowsError
from workflows_mcp.hook import SESSIONS, SOCKETS, is_own_directory, links
from workflows_mcp.settings import Settings
from workflows_mcp.values import from_json, to_json

if TYPE_CHECKING:
    from workflows_mcp.answers import Action, Answer
    from workflows_mcp.mcp_server.lazy import LazyService
    from workflows_mcp.runs import Agent, Denial, Held, Hold, PendingRuns, Service

logger = logging.getLogger(__name__)

_EVENT_BYTES = 32 * 1024 * 1024
_EVENT_SECONDS = 10.0
_LIVE_SECONDS = 0.2
_STEP_CHARS = 600
_CONTEXT_CHARS = 6000


class HookServer:
    """Listens for the hooks of clients, below the data directory of a server."""

    def __init__(self, settings: Settings, service: LazyService) -> None:
        self._settings = settings
        self._service = service
        self._directory = settings.home / SOCKETS
        self._path = self._directory / f"{os.getpid()}.sock"
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        """Listen, unless hooks are off. A server that cannot listen works without them, and logs why."""
        if self._settings.hooks == "off" or self._settings.read_only or self._settings.task:
            return  # a server for one task knows too little; the one that has started its agent answers
        try:
            await self._listen()
        except OSError as error:
            logger.warning("the hooks of clients have no effect: cannot listen at %s: %s", self._path, error)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
            self._path.unlink(missing_ok=True)
            if not any((self._settings.home / SESSIONS).glob("*.json")):
                with suppress(OSError):
                    self._link.unlink(missing_ok=True)

    async def _listen(self) -> None:
        self._prepare()
        # The path of a socket has at most 107 bytes, and a data directory may be deep
        near = self._link if self._publish() else self._settings.home
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._path.unlink(missing_ok=True)
            listening.bind(str(near / SOCKETS / self._path.name))
            self._path.chmod(0o600)
            self._server = await asyncio.start_unix_server(self._serve, sock=listening)
        except BaseException:
            listening.close()
            raise

    def _prepare(self) -> None:
        """Make the directory, with links by which hooks run the relay of this server, by its interpreter."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._directory.chmod(0o700)
        self._remove_stale()
        _replace_link(self._directory / "python", os.path.realpath(sys.executable))
        _replace_link(self._directory / "hook.py", os.path.realpath(hook.__file__))

    @property
    def _link(self) -> Path:
        name = hashlib.blake2b(os.path.realpath(self._settings.home).encode(), digest_size=6).hexdigest()
        return Path(links()) / name

    def _publish(self) -> bool:
        """Leave a link to the data directory where hooks look; False if that place is not safe.

        Where the data directory is may be set for the server only.
        """
        with suppress(OSError):
            os.mkdir(links(), 0o700)
        if not is_own_directory(links()):
            logger.warning("%s belongs to somebody else: hooks may not find this server", links())
            return False
        for link in Path(links()).iterdir():
            if not link.exists():
                link.unlink(missing_ok=True)
        _replace_link(self._link, os.path.realpath(self._settings.home))
        return True

    def _remove_stale(self) -> None:
        """Remove the sockets of servers that were killed."""
        for path in self._directory.glob("*.sock"):
            if path != self._path and not _is_process(path.stem):
                path.unlink(missing_ok=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_EVENT_SECONDS):
                header, event = await _read(reader)
                if event:
                    service = await self._service.ready()
                    pids = [int(path.stem) for path in self._directory.glob("*.sock") if path.stem.isdigit()]
                    answer = await Hooks(service, pids).answer(event, header)
                    writer.write(to_json(answer).encode() if answer else b"")
                    await writer.drain()
        except (OSError, TimeoutError, WorkflowsError) as error:
            logger.info("a hook has no answer: %s", error)
        except Exception:
            logger.exception("a hook has no answer")
        finally:
            writer.close()


async def _read(reader: asyncio.StreamReader) -> tuple[Mapping[str, str], Mapping[str, Any]]:
    """Read the header of the relay, lines of NAME=VALUE, and the event of the client."""
    whole = b""
    while part := await reader.read(65536):
        whole += part
        if len(whole) > _EVENT_BYTES:
            return {}, {}
    top, _, body = whole.decode("utf-8", "replace").partition("\n\n")
    header = dict(line.split("=", 1) for line in top.splitlines() if "=" in line)
    try:
        event = from_json(body)
    except ValueError:
        return {}, {}
    return header, event if isinstance(event, dict) else {}


class Hooks:
    """The events of clients, each answered in the shape that the client reads."""

    def __init__(self, service: Service, pids: Sequence[int] = ()) -> None:
        self._sessions = service.client_sessions
        self._pids = pids

    async def answer(self, event: Mapping[str, Any], header: Mapping[str, str]) -> dict[str, Any]:
        """Return what the client is to do; empty: nothing."""
        session = event.get("session_id")
        if not isinstance(session, str):
            return {}
        match event.get("hook_event_name"):
            case "PostToolUse":
                await self._bind(session, event)
            case "PreToolUse":
                return await self._deny(session, event, header)
            case "Stop" | "SubagentStop":
                return await self._hold(session, event)
            case "SessionStart":
                if event.get("source") == "clear":
                    await self._sessions.inherit(session, header.get("client", ""))
                return _context(await self._sessions.pending(session))
            case "SessionEnd" if event.get("reason") == "clear":
                await self._sessions.cleared(session, header.get("client", ""))
        return {}

    async def _bind(self, session: str, event: Mapping[str, Any]) -> None:
        call = _call_of(event)
        if call is not None:
            server, way, workflow_id = call
            await self._sessions.bind(session, _agent(event), workflow_id, server=server, way=way)

    async def _deny(
        self, session: str, event: Mapping[str, Any], header: Mapping[str, str]
    ) -> dict[str, Any]:
        from workflows_mcp.runs import ToolUse

        given = event.get("tool_input")
        use = ToolUse(
            str(event.get("tool_name", "")),
            given if isinstance(given, dict) else {"command": given},
            str(event.get("cwd", "")),
        )
        plugin = header.get("plugin", "")
        protected = [links(), *([f"{plugin}/{SOCKETS}"] if plugin else [])]
        denial = await self._sessions.denial(
            session, _agent(event), use, protected=protected, pids=self._pids
        )
        if denial is None:
            return {}
        decision = {"permissionDecision": "deny", "permissionDecisionReason": _why_denied(denial)}
        return {"hookSpecificOutput": {"hookEventName": "PreToolUse", **decision}}

    async def _hold(self, session: str, event: Mapping[str, Any]) -> dict[str, Any]:
        agent = _agent(event)
        background = event.get("background_tasks") or []
        others = any(
            isinstance(it, dict) and it.get("type") == "subagent" and it.get("id") != agent.id
            for it in background
        )
        hold = await self._sessions.hold(session, agent, others_at_work=others)
        if hold is not None and not hold.given_up:
            return {"decision": "block", "reason": _why_held(hold, is_sub_agent=bool(agent.id))}
        await self._sessions.ended(session, agent)
        if hold is not None and hold.count == hold.most + 1 and hold.most > 1:
            return {"systemMessage": _why_given_up(hold)}
        return {}


def _agent(event: Mapping[str, Any]) -> Agent:
    from workflows_mcp.runs import Agent

    found = event.get("agent_id")
    # Only Codex numbers the turns of a conversation
    client = "codex" if "turn_id" in event else "claude-code"
    return Agent(found if isinstance(found, str) else "", client)


# Which run a call of our tools was about


def _call_of(event: Mapping[str, Any]) -> tuple[str, str, str] | None:
    """Return what stands before the name of a tool, its toolset, and the run or task that it was about.

    None for other tools, and for those that only look at runs.
    """
    tool = event.get("tool_name")
    if not isinstance(tool, str) or not tool.startswith("mcp__"):
        return None
    given, content = _mapping(event.get("tool_input")), _content(event.get("tool_response"))
    server, name = _split(tool)
    record = _record_of(name)
    if record is not None and record[1].only_reads:
        return None
    found, named = content.get("workflow_id"), given.get("workflow_id")
    if record is not None and isinstance(named, str) and not isinstance(found, str):
        from workflows_mcp.answers import joined

        context = _mapping(given.get("sub_agent_context"))
        task = given.get("task_id") or context.get("task_id") or context.get("batch_id")
        found = joined(named, str(task) if task else None)
    if not isinstance(found, str):
        return None
    way = record[0] if record is not None and record[0] in ("graph", "reactive") else "core"
    return server, way, found


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _split(tool: str) -> tuple[str, str]:
    """Split `mcp__SERVER__TOOL`; the name of a server may have `__`, too."""
    parts = tool.split("__")
    for length in range(2, len(parts)):
        name = "__".join(parts[length:])
        if _record_of(name) is not None:
            return f"{tool[: -len(name)]}", name
    return tool[: -len(parts[-1])], parts[-1]


def _record_of(name: str) -> tuple[str, Any] | None:
    from workflows_mcp.mcp_server.toolsets import TOOLSETS, toolset

    for way in TOOLSETS:
        if (record := toolset(way).records.get(name)) is not None:
            return way, record
    return None


def _content(response: object) -> Mapping[str, Any]:
    """Return the answer of our tool: Claude Code gives it as JSON text, Codex as the result of the call."""
    if isinstance(response, str):
        with suppress(ValueError):
            response = from_json(response)
    if isinstance(response, list):
        response = {"content": response}
    if not isinstance(response, dict):
        return {}
    structured = response.get("structuredContent")
    if isinstance(structured, dict):
        return structured
    if "workflow_id" not in response and isinstance(blocks := response.get("content"), list):
        for block in blocks:
            text = block.get("text") if isinstance(block, dict) else None
            if isinstance(text, str) and text.startswith("{"):
                return _content(text)
    return cast("Mapping[str, Any]", response)


# Words


def _why_held(hold: Hold, *, is_sub_agent: bool) -> str:
    parts = [_held(it, hold.way) for it in hold.held]
    runs = dict.fromkeys(it.answer.workflow_id.partition(".")[0] for it in hold.held)
    if is_sub_agent:
        leave = 'If it cannot be done, submit {"is_error": true, "error": "<why>"}.'
    else:
        control = f"control_workflow(workflow_id='{next(iter(runs))}', action="
        leave = (
            f"Leave it unfinished only if the user wants that: {control}'cancel') ends the run, "
            f"{control}'context_full') parks it."
        )
    return "\n".join((*parts, leave))


def _held(held: Held, way: str) -> str:
    answer, first = held.answer, held.actions[0]
    title = _title(answer)
    if held.left:
        retry = f"control_workflow(workflow_id='{answer.workflow_id}', action='retry')"
        return (
            f"A sub-agent has ended without finishing its task: {title} waits at the step '{first.step_id}'. "
            f"Call {retry}, and start another sub-agent for it."
        )
    if first.delegated is not None:
        tasks = ", ".join(task.workflow_id for task in first.delegated.tasks if not task.is_at_work)
        return (
            f"Your turn is not over: {title} waits for sub-agents. The step '{first.step_id}' has tasks that "
            f"nobody works on: {tasks}. {_show_again(answer, way)} has the prompt for them."
        )
    ask = (
        "If only the user can answer it, and you have asked, end your turn again." if first.asks_user else ""
    )
    text = (
        f"Your turn is not over: {title} waits for you. Pending step: {_step(first)} When it is done: "
        f"{_submit(answer, first, way)}. {_show_again(answer, way)} shows the step again. {ask}"
    )
    more = len(held.actions) - 1
    return f"{text.strip()} {more} more steps wait as well." if more else text.strip()


def _why_given_up(hold: Hold) -> str:
    runs = ", ".join(dict.fromkeys(it.answer.workflow_id for it in hold.held))
    return (
        f"workflows: the agent has ended its turn {hold.most + 1} times without doing the pending step of "
        f"{runs}. It is not kept from that any more; the run waits, and continues when the agent does."
    )


def _why_denied(denial: Denial) -> str:
    answer = denial.answer
    if answer is None:
        return f"Not while a workflow is under way: {denial.reason}."
    title = _title(answer)
    step = f"the step '{answer.actions[0].step_id}'" if answer.actions else ""
    if denial.what == "command":
        pending = f", which waits for you at {step}" if step else ""
        return (
            f"Not while you have an unfinished run: {denial.reason}. What only the user may decide, the user "
            f"decides, and not through you. Continue with {title}{pending}."
        )
    allowed = ", ".join(denial.allowed) or "no other tool"
    return (
        f"Not now: {denial.reason}. {title} is at {step}, during which you may use: {allowed}. Reading "
        "files, asking the user and the tools of the workflow server always work. Do this step, and submit "
        "its result."
    )


def _context(pending: PendingRuns) -> dict[str, Any]:
    parts = [_reminder(answer, pending.way) for answer in pending.answers]
    if not parts:
        return {}
    text = "\n\n".join(parts)
    return {"hookSpecificOutput": {"hookEventName": "SessionStart", "additionalContext": text}}


def _reminder(answer: Answer, way: str) -> str:
    begun = f"This conversation works on {_title(answer)}, which has not ended. Do not start it again."
    if answer.is_parked or not answer.actions:
        return f"{begun} It is {answer.status}: {answer.reason}. Next: {answer.next}"
    shown = to_json(answer.rendered("step"))
    if len(shown) > _CONTEXT_CHARS or way not in ("", "core"):
        shown = " ".join(_step(action) for action in answer.actions[:3])
    next_call, call = _submit(answer, answer.actions[0], way), _show_again(answer, way)
    return f"{begun} Its pending step:\n{shown}\nWhen it is done: {next_call}. {call} shows it again."


def _title(answer: Answer) -> str:
    what = "task" if answer.is_task else "run"
    return f"the workflow '{answer.workflow}' ({what} {answer.workflow_id})"


def _step(action: Action) -> str:
    shown = [action.instructions, *([to_json(action.parameters)] if action.parameters else [])]
    if action.feedback:
        shown.append(f"Your last result was rejected: {'; '.join(action.feedback)}")
    text = " ".join(_beginning(" ".join(it.split())) for it in shown)
    return f"'{action.step_id}' ({action.type}): {text}"


def _beginning(text: str) -> str:
    return text if len(text) <= _STEP_CHARS else f"{text[: _STEP_CHARS - 1]}…"


def _submit(answer: Answer, action: Action, way: str) -> str:
    """Return the call that moves a run on, in the names of the toolset that the agent uses."""
    if action.delegated is not None:
        return answer.next
    if way == "graph":
        call = _show_again(answer, way)
        return f"resume_workflow(checkpoint_id=…, response=…) with the checkpoint_id that {call} shows"
    tool = "workflow_step_complete" if way == "reactive" else "submit_result"
    return f"{tool}(workflow_id='{answer.workflow_id}', step_id='{action.step_id}', result=…)"


def _show_again(answer: Answer, way: str) -> str:
    match way:
        case "graph":
            return f"resume_workflow(checkpoint_id='{answer.workflow_id}')"
        case "reactive":
            return f"workflow_get_next_step(workflow_id='{answer.workflow_id}')"
    return f"get_next_step(workflow_id='{answer.workflow_id}')"


def _replace_link(link: Path, target: str) -> None:
    if link.is_symlink() and os.readlink(link) == target:
        return
    temporary = link.with_name(f"{link.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(target)
    os.replace(temporary, link)


def _is_process(text: str) -> bool:
    try:
        os.kill(int(text), 0)
    except ValueError:
        return False
    except OSError as error:
        return isinstance(error, PermissionError)
    return True
