"""Asks the process of `support.forked` to run a command with the descriptors of this one, and waits for it.

What is set for Python itself (PYTHONPATH, …) only counts when a process starts: then the command gets its own.
"""

import json
import os
import signal
import socket
import sys

if any(name.startswith("PYTHON") for name in os.environ):
    os.execv(sys.executable, [sys.executable, "-m", "workflows_mcp", *sys.argv[2:]])
with socket.socket(socket.AF_UNIX) as connection:
    connection.connect(sys.argv[1])
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, _: connection.sendall(bytes([number])))
    request = {"arguments": sys.argv[2:], "directory": os.getcwd(), "environment": dict(os.environ)}
    sent = json.dumps(request).encode() + b"\n"
    socket.send_fds(connection, [sent], [0, 1, 2])
    code = json.loads(connection.recv(100))
if code < 0:
    signal.signal(-code, signal.SIG_DFL) if -code != signal.SIGKILL else None
    os.kill(os.getpid(), -code)
os._exit(code)
