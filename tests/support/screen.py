"""A person at a terminal: a command on a terminal of its own, what it shows, and what is typed."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import time
from typing import Any


class Screen:
    """A process on a terminal of its own."""

    def __init__(self, terminal: Any, *arguments: str) -> None:
        self.controller, inside = pty.openpty()
        self.process = subprocess.Popen(
            [*terminal.command, *arguments],
            cwd=terminal.workspace,
            env=terminal.environment,
            stdin=inside,
            stdout=subprocess.PIPE,
            stderr=inside,
            start_new_session=True,
        )
        os.close(inside)
        self.shown = ""

    def wait_for(self, text: str, seconds: float = 20.0, *, after: str = "") -> None:
        until = time.monotonic() + seconds
        while text not in self.shown.rpartition(after or "\0")[2]:
            ready, _, _ = select.select([self.controller], [], [], max(until - time.monotonic(), 0))
            assert ready, f"never saw {text!r} in {self.shown!r}"
            try:
                self.shown += os.read(self.controller, 4096).decode()
            except OSError:
                break
        assert text in self.shown

    def read_to_end(self, seconds: float = 20.0) -> None:
        """Read what it shows until it ends, or waits for more than was typed."""
        until = time.monotonic() + seconds
        while self.process.poll() is None and time.monotonic() < until:
            self._read(0.05)
        while self._read(0.05):
            pass
        if self.process.poll() is None:
            self.process.kill()

    def _read(self, seconds: float) -> bool:
        ready, _, _ = select.select([self.controller], [], [], seconds)
        try:
            found = os.read(self.controller, 4096).decode() if ready else ""
        except OSError:
            return False
        self.shown += found
        return bool(found)

    def type(self, text: str) -> None:
        os.write(self.controller, text.encode())

    def end(self) -> tuple[int, str]:
        assert self.process.stdout is not None
        out = self.process.stdout.read().decode()
        code = self.process.wait(20)
        os.close(self.controller)
        return code, out
