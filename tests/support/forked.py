"""The command `workflows-mcp` in processes that are forked off one that has its modules loaded.

    subprocess.run([*command(), "run", "greet"], cwd=…, env=…)

Such a process behaves as one of its own: it has the descriptors, directory, environment and arguments that it was
started with, and gets the signals of the process that `command()` starts. Only its modules are loaded already:
loading them a thousand times is not what is tested.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import pkgutil
import random
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import workflows_mcp

_LIBRARIES = ("_quickjs", "jinja2.sandbox", "regex", "tree_sitter", "tree_sitter_javascript")
"""Those that the package loads late; it loads `temporalio` late, too, but that starts threads."""
_CLIENT = Path(__file__).with_name("fork_client.py")


@cache
def command() -> tuple[str, ...]:
    """The command; the process to fork off is started once for each process of the tests."""
    directory = tempfile.TemporaryDirectory(prefix="fork-")
    path = str(Path(directory.name) / "s")
    server = subprocess.Popen([sys.executable, __file__, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert server.stdout is not None
    assert server.stdout.readline() == b"ready\n"

    def end() -> None:
        server.kill()
        server.wait()
        directory.cleanup()

    atexit.register(end)
    return sys.executable, "-I", "-S", str(_CLIENT), path


def _serve(path: str) -> int | None:
    """Fork a process for each connection; the exit code is returned in the process that ran a command."""
    modules = [it.name for it in pkgutil.walk_packages(workflows_mcp.__path__, "workflows_mcp.")]
    for name in (*_LIBRARIES, *modules):
        if "temporal" not in name:
            importlib.import_module(name)
    gc.collect()
    gc.freeze()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen(100)
        print("ready", flush=True)
        while True:
            connection, _ = listening.accept()
            if not os.fork():
                listening.close()
                return _keep(connection)
            connection.close()
            with suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass  # not ignored, so that their processor time counts as that of the tests


def _keep(connection: socket.socket) -> int:
    """Start the command, pass on signals, and report its exit code; kill it if the other end is gone."""
    with connection:
        sent, descriptors, _, _ = socket.recv_fds(connection, 1 << 20, 3)
        while not sent.endswith(b"\n"):
            sent += connection.recv(1 << 20)
        process = os.fork()
        if process == 0:
            connection.close()
            return _run(json.loads(sent), descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        ended = os.pidfd_open(process)
        watched: list[Any] = [connection, ended]
        while True:
            ready, _, _ = select.select(watched, [], [])
            if ended in ready:
                _, status = os.waitpid(process, 0)
                code = os.waitstatus_to_exitcode(status)
                connection.sendall(json.dumps(code).encode())
                os._exit(0)
            try:
                numbers = connection.recv(16)
            except ConnectionResetError:
                numbers = b""
            for number in numbers or [signal.SIGKILL]:
                os.kill(process, number)
            if not numbers:
                os._exit(0)


def _run(request: dict[str, object], descriptors: list[int]) -> int:
    arguments, directory, environment = request["arguments"], request["directory"], request["environment"]
    assert isinstance(arguments, list)
    assert isinstance(environment, dict)
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(str(directory))
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    tempfile.tempdir = None
    random.seed()
    sys.argv = ["workflows-mcp", *arguments]
    sys.stdin = os.fdopen(0, "r", encoding="utf-8", closefd=False)
    sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = os.fdopen(2, "w", encoding="utf-8", buffering=1, errors="backslashreplace", closefd=False)
    from workflows_mcp.__main__ import main

    try:
        main()
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(_serve(sys.argv[1]))
