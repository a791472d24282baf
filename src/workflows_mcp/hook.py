"""Relays a hook of a client to a workflow server of the user, and prints what the server answers.

    {"hook_event_name": "Stop", "session_id": "…"} | workflows-mcp hook

A client runs this for every call of a tool, so it imports nothing that takes time: no package, no JSON. It
looks whether the conversation has a run at all: the file `sessions/SESSION_ID.json` in a data directory. Then
it sends the event to a server of that directory, through a socket in `hooks/`. Whatever goes wrong, it prints
nothing and exits with 0: a client must work without us.

The data directory of a server can be set where no hook sees it. So each server leaves a link to it in
`/tmp/workflows-mcp-UID`.
"""

from __future__ import annotations

import os
import sys
import time
from _socket import AF_UNIX, SOCK_STREAM
from _socket import socket as Socket  # the module `socket` takes as long to load as Python to start

SWITCH = "WORKFLOWS_HOOKS"
SOCKETS = "hooks"
SESSIONS = "sessions"
ANSWER_SECONDS = 2.0
START_SECONDS = 4.0
"""How long the start of a conversation waits for a server, which starts at the same time."""
_STEP_SECONDS = 0.05
_CHUNK = 65536


def links() -> str:
    """Return the directory with links to the data directories of this user."""
    return f"/tmp/workflows-mcp-{os.getuid()}"


def is_own_directory(path: str) -> bool:
    """Whether nobody else can put something into a directory."""
    try:
        found = os.lstat(path)
    except OSError:
        return False
    return found.st_uid == os.getuid() and (found.st_mode & 0o170022) == 0o040000


def data_directories() -> list[str]:
    """Return the directories where runs may be: those that servers have linked, and the usual ones."""
    found = []
    if is_own_directory(links()):
        # First, because the path of a socket must be short
        found += [f"{links()}/{name}" for name in sorted(os.listdir(links()))]
    data = os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share")
    found += [os.environ.get("WORKFLOWS_HOME", ""), f"{data}/workflows-mcp"]
    return [directory for directory in found if directory]


def relay(event: bytes) -> bytes:
    """Return what the servers answer to an event: JSON for the client, or nothing."""
    starts = b"SessionStart" in event
    # These come before a conversation has a run
    is_open = b"PostToolUse" in event or (starts and b'"clear"' in event)
    end = time.monotonic() + (START_SECONDS if starts else ANSWER_SECONDS)
    directories = {os.path.realpath(it): it for it in reversed(data_directories())}
    waiting = [it for it in reversed(directories.values()) if is_open or _has_run(it, event)]
    while waiting:
        answers = [_ask(directory, event, end) for directory in waiting]
        if found := next(filter(None, answers), b""):
            return found
        waiting = [it for it, answer in zip(waiting, answers, strict=True) if answer is None]
        if is_open or not starts or time.monotonic() + _STEP_SECONDS > end:
            break
        time.sleep(_STEP_SECONDS)
    return b""


def _has_run(directory: str, event: bytes) -> bool:
    """Whether the event is of a conversation that has a run: the id of one is in it."""
    try:
        names = os.listdir(f"{directory}/{SESSIONS}")
    except OSError:
        return False
    return any(name.endswith(".json") and f'"{name[:-5]}"'.encode() in event for name in names)


def _ask(directory: str, event: bytes, end: float) -> bytes | None:
    """Return the answer of the first server that has one; None if there is none."""
    try:
        names = [name for name in os.listdir(f"{directory}/{SOCKETS}") if name.endswith(".sock")]
    except OSError:
        return None
    for name in names:
        path = f"{directory}/{SOCKETS}/{name}"
        try:
            return _exchange(path, event, end)
        except OSError:  # it has ended, or takes too long
            continue
    return None


def _exchange(path: str, event: bytes, end: float) -> bytes:
    client, plugin = os.environ.get("CLAUDE_PID", ""), os.environ.get("CLAUDE_PLUGIN_ROOT", "")
    header = f"client={client}\nplugin={plugin}\n\n".encode(errors="surrogateescape")
    connection = Socket(AF_UNIX, SOCK_STREAM)
    try:
        connection.settimeout(max(end - time.monotonic(), 0.001))
        connection.connect(path)
        connection.sendall(header + event)
        connection.shutdown(1)
        answer = b""
        while part := connection.recv(_CHUNK):
            answer += part
            connection.settimeout(max(end - time.monotonic(), 0.001))
        return answer
    finally:
        connection.close()


def main() -> int:
    if os.environ.get(SWITCH, "").lower() == "off":
        return 0
    try:
        answer = relay(sys.stdin.buffer.read())
        if answer:
            os.write(1, answer)
    except Exception:
        pass
    return 0


if __name__ == "__main__":
    sys.exit(main())
