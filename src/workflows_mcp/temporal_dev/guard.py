"""Ends a server when the process that started it has ended, however that ended.

It runs as a program of its own, with the standard library only:

    python guard.py COMMAND ARGUMENTS...

Its standard input is a pipe that nobody writes to: when the pipe closes, the process that held the other end
has ended. The output of the server goes to standard error, because standard output may belong to a protocol.
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
    os.closerange(3, _HIGHEST)  # the server alone holds its lock, which shows that it lives
    for name in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(name, lambda *_: server.terminate())
    threading.Thread(target=_end_with_the_pipe, args=(server,), daemon=True).start()
    return server.wait()


def _end_with_the_pipe(server: subprocess.Popen[bytes]) -> None:
    while os.read(0, 4096):  # unbuffered: Python locks a buffer at its exit
        pass
    server.terminate()
    try:
        server.wait(_GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        server.kill()


if __name__ == "__main__":
    sys.exit(main())
