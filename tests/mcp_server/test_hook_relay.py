"""The program that a client runs for each event: it finds the server, costs nothing without a run, and never fails."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import signal
import stat
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from support.conversations import TOOL, TWO_STEPS
from support.stdio import Call, served
from workflows_mcp import hook
from workflows_mcp.mcp_server.toolsets import TOOLSETS, toolset

pytestmark = pytest.mark.rows("P4")

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "plugin" / "hooks" / "hook.sh"
BY_SCRIPT, BY_COMMAND = ["sh", str(SCRIPT)], [sys.executable, "-m", "workflows_mcp", "hook"]
Relay = Callable[..., Awaitable[str]]


def session_in(directory: Path) -> str:
    """The session of a test: hooks look in every directory of this user where a server was."""
    return hashlib.sha256(str(directory).encode()).hexdigest()[:20]


def relaying(directory: Path, command: list[str] = BY_SCRIPT, session: str = "", **environment: str) -> Relay:
    """A function that sends an event as a client does, and gives what the client would read."""

    async def relay(name: str, **fields: Any) -> str:
        event = {
            "session_id": session or session_in(directory),
            "cwd": str(directory),
            "hook_event_name": name,
            **fields,
        }
        arguments = [*command, "open"] if name == "PostToolUse" and command is BY_SCRIPT else command
        running = await asyncio.create_subprocess_exec(
            *arguments,
            env={"PATH": os.environ["PATH"], "HOME": str(directory), **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        printed, errors = await running.communicate(json.dumps(event).encode())
        assert (running.returncode, errors) == (0, b"")
        return printed.decode()

    return relay


async def started(call: Call, relay: Relay) -> str:
    """The id of a run that the session has begun."""
    answer = await call("start_workflow", yaml=TWO_STEPS)
    response = json.dumps(answer)
    printed = await relay(
        "PostToolUse", tool_name=f"{TOOL}start_workflow", tool_input={}, tool_response=response
    )
    assert printed == ""
    return str(answer["workflow_id"])


@pytest.mark.parametrize("command", [BY_SCRIPT, BY_COMMAND], ids=["hook.sh", "workflows-mcp hook"])
def test_an_agent_is_held_through_the_socket_of_a_real_server(tmp_path: Path, command: list[str]) -> None:
    async def work(call: Call) -> None:
        relay = relaying(tmp_path, command)
        run = await started(call, relay)
        refused = json.loads(await relay("Stop", stop_hook_active=False))
        assert refused["decision"] == "block"
        assert run in refused["reason"]
        assert await relaying(tmp_path, command, "s-2")("Stop") == "", "another session"
        [socket] = (tmp_path / "home" / "hooks").glob("*.sock")
        assert stat.S_IMODE(socket.stat().st_mode) == 0o600
        assert stat.S_IMODE(socket.parent.stat().st_mode) == 0o700
        assert stat.S_IMODE((tmp_path / "home" / "sessions").stat().st_mode) == 0o700

    served(tmp_path, work)
    assert list((tmp_path / "home" / "hooks").glob("*.sock")) == []


def test_a_deep_data_directory_has_a_socket_too(tmp_path: Path) -> None:
    deep = tmp_path / ("deep" * 30)
    deep.mkdir()

    async def work(call: Call) -> None:
        relay = relaying(deep, WORKFLOWS_HOME=str(deep / "home"))
        await started(call, relay)
        assert "block" in await relay("Stop")

    served(deep, work)


def test_hooks_that_are_off_say_nothing(tmp_path: Path) -> None:
    async def work(call: Call) -> None:
        await started(call, relaying(tmp_path))
        for command in (BY_SCRIPT, BY_COMMAND):
            assert await relaying(tmp_path, command, WORKFLOWS_HOOKS="off")("Stop") == ""

    async def without(call: Call) -> None:
        await call("list_workflows")
        assert list((tmp_path / "off" / "home").glob("hooks/*.sock")) == []

    served(tmp_path, work)
    (tmp_path / "off").mkdir()
    served(tmp_path / "off", without, more={"WORKFLOWS_HOOKS": "off"})


def test_without_a_run_the_script_starts_no_other_program(tmp_path: Path) -> None:
    async def work(call: Call) -> None:
        await call("list_workflows")  # the server listens for hooks from its first answer on
        python = tmp_path / "home" / "hooks" / "python"
        real, ran = os.readlink(python), tmp_path / "ran"
        python.unlink()
        python.write_text(f'#!/bin/sh\ntouch "{ran}"\nexec "{real}" "$@"\n', encoding="utf-8")
        python.chmod(0o755)
        relay = relaying(tmp_path, WORKFLOWS_HOME=str(tmp_path / "home"))
        for name in ("SessionStart", "PreToolUse", "Stop", "SubagentStop"):
            assert await relay(name, tool_name="Bash", tool_input={"command": "ls"}, source="startup") == ""
        others_have_runs = any(Path(hook.links()).glob("*/sessions/*.json"))
        assert others_have_runs or not ran.exists()
        run = await started(call, relay)
        await relay("Stop")
        assert ran.exists()
        for step in ("first", "second"):
            answer = await call("submit_result", workflow_id=run, step_id=step, result="x")
        assert answer["status"] == "completed"
        assert await relay("Stop") == ""
        assert list((tmp_path / "home" / "sessions").glob("*.json")) == [], "the run has ended"

    served(tmp_path, work)


def test_a_killed_server_leaves_hooks_that_say_nothing_and_the_next_server_answers(tmp_path: Path) -> None:
    async def die(call: Call) -> None:
        await started(call, relaying(tmp_path))
        [socket] = (tmp_path / "home" / "hooks").glob("*.sock")
        server = psutil.Process(int(socket.stem))
        server.send_signal(signal.SIGKILL)
        psutil.wait_procs([server], timeout=20)
        assert socket.exists()
        for name in ("PreToolUse", "Stop"):
            assert await relaying(tmp_path)(name, tool_name="Bash", tool_input={"command": "ls"}) == ""

    async def resume(call: Call) -> None:
        await call("list_workflows")
        assert "block" in await relaying(tmp_path)("Stop")
        [socket] = (tmp_path / "home" / "hooks").glob("*.sock")
        assert socket.stem in {str(child.pid) for child in psutil.Process().children(recursive=True)}

    served(tmp_path, die)
    served(tmp_path, resume)


def test_a_server_that_does_not_answer_holds_nobody(tmp_path: Path) -> None:
    async def work(call: Call) -> None:
        await started(call, relaying(tmp_path))
        [socket] = (tmp_path / "home" / "hooks").glob("*.sock")
        server = psutil.Process(int(socket.stem))
        server.suspend()
        try:
            assert await relaying(tmp_path)("Stop") == ""
        finally:
            server.resume()
        assert "block" in await relaying(tmp_path)("Stop")

    served(tmp_path, work)


def test_a_resumed_conversation_waits_for_its_server_to_start(tmp_path: Path) -> None:
    async def begin(call: Call) -> None:
        await started(call, relaying(tmp_path))

    served(tmp_path, begin)

    event = {"session_id": session_in(tmp_path), "hook_event_name": "SessionStart", "source": "resume"}
    waiting = subprocess.Popen(
        BY_SCRIPT,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )

    async def resume(call: Call) -> bytes:
        return (await asyncio.to_thread(waiting.communicate, json.dumps(event).encode()))[0]

    assert b"Write the plan" in served(tmp_path, resume)


def manifest(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROOT / "plugin" / name).read_text(encoding="utf-8"))["hooks"]
    return found


def test_both_clients_have_the_same_hooks() -> None:
    ours, of_codex = manifest("hooks/hooks.json"), manifest("codex/hooks.json")
    for found, commands in (
        (ours, {f'sh "${{CLAUDE_PLUGIN_ROOT}}/hooks/hook.sh"{more}' for more in ("", " open")}),
        (of_codex, {"workflows-mcp hook"}),
    ):
        hooks = [it for groups in found.values() for group in groups for it in group["hooks"]]
        assert {it["command"] for it in hooks} == commands
        assert all(it["timeout"] > hook.START_SECONDS for it in hooks), "a client cuts nothing off"
    assert {name: [group.get("matcher") for group in groups] for name, groups in ours.items()} == {
        name: [group.get("matcher") for group in groups] for name, groups in of_codex.items()
    }


def test_the_hook_after_a_call_sees_every_tool_that_runs_workflows_and_few_others() -> None:
    [group] = manifest("hooks/hooks.json")["PostToolUse"]
    for way in TOOLSETS:
        for name, record in toolset(way).records.items():
            for server in ("mcp__plugin_workflows_workflows__", "mcp__w__"):
                seen = re.fullmatch(group["matcher"], f"{server}{name}")
                assert seen or record.only_reads or record.shape is None, name
    assert re.fullmatch(group["matcher"], "mcp__workflows__my_own_tool"), "workflows as tools"
    for other in ("Bash", "mcp__github__list_issues", "Workflow"):
        assert not re.fullmatch(group["matcher"], other)


@pytest.mark.parametrize("printed", [b"", b"{", b'{"hook_event_name": "Stop"}', b"\xff" * 100, b"null"])
@pytest.mark.parametrize("command", [BY_SCRIPT, BY_COMMAND], ids=["hook.sh", "workflows-mcp hook"])
def test_no_input_makes_it_fail(tmp_path: Path, command: list[str], printed: bytes) -> None:
    found = subprocess.run(
        command,
        input=printed,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)},
        capture_output=True,
        check=False,
    )
    assert (found.returncode, found.stdout, found.stderr) == (0, b"", b"")


def test_a_place_of_somebody_else_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "links"
    place.mkdir(mode=0o700)
    (place / "a").symlink_to(tmp_path)
    monkeypatch.setattr(hook, "links", lambda: str(place))
    assert f"{place}/a" in hook.data_directories()
    place.chmod(0o777)
    assert f"{place}/a" not in hook.data_directories()
    place.chmod(0o700)
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    assert f"{place}/a" not in hook.data_directories()


def test_the_relay_loads_nothing_that_takes_time() -> None:
    listing = (
        "import sys; sys.argv = ['x']; exec(compile(open(%r).read(), 'hook', 'exec'), {'__name__': 'hook'})"
    )
    code = listing % str(hook.__file__) + "; print(*sorted(sys.modules))"
    bare = _modules("import sys; print(*sorted(sys.modules))")
    assert _modules(code) - bare <= {
        "__future__",
        "_collections_abc",
        "_socket",
        "_stat",
        "genericpath",
        "os",
        "os.path",
        "posixpath",
        "stat",
    }


def _modules(code: str) -> set[str]:
    environment: Mapping[str, str] = {"PATH": os.environ["PATH"]}
    found = subprocess.run(
        [os.path.realpath(sys.executable), "-I", "-S", "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return set(found.stdout.split())
