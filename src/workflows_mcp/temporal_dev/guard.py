"""Stands between us and a server that we started: when we are gone, however that came, the server is ended.

Run as a program of its own, with nothing imported but the standard library:

    python guard.py COMMAND ARGUMENTS...

Its standard input is a pipe that nobody writes to. When the pipe ends, whoever held the other end is gone.
What the server prints goes to standard error: standard output may belong to a protocol.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

_GRACE_SECONDS = 10.0
_HIGHEST = 1024


def main() -> int:
    server = subprocess.Popen(
        sys.argv[1:], stdin=subprocess.DEVNULL, stdout=2, close_fds=False, start_new_session=True
    )
    os.closerange(3, _HIGHEST)  # what the server holds, it alone holds: by that it is seen to be alive
    for name in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(name, lambda *_: server.terminate())
    threading.Thread(target=_end_with_the_pipe, args=(server,), daemon=True).start()
    return server.wait()


def _end_with_the_pipe(server: subprocess.Popen[bytes]) -> None:
    while os.read(0, 4096):  # not through a buffer, which Python would want to lock at its end
        pass
    server.terminate()
    try:
        server.wait(_GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        server.kill()


if __name__ == "__main__":
    sys.exit(main())
