"""The command in the background: started by a test, heard of, told to go, and gone when the test is over."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PATIENCE_SECONDS = 60.0


def eventually(is_so: Callable[[], Any]) -> Any:
    """What `is_so` gives as soon as it gives anything."""
    until = time.monotonic() + PATIENCE_SECONDS
    while not (found := is_so()):
        assert time.monotonic() < until, "it never came to that"
        time.sleep(0.02)
    return found


class Background:
    """One process; what it says on stderr is in a file, so that it never waits for a reader."""

    def __init__(self, process: subprocess.Popen[str], stderr: Path) -> None:
        self.process = process
        self._stderr = stderr
        self._asked = 0

    @property
    def said(self) -> str:
        return self._stderr.read_text(encoding="utf-8")

    def says(self, words: str) -> str:
        """All that it has said, when it has said these words."""

        def last_seen() -> str:
            assert self.process.poll() is None or words in self.said, self.said
            return self.said if words in self.said else ""

        return str(eventually(last_seen))

    def told(self, number: int) -> int:
        """Its exit code, when it has been sent a signal."""
        self.process.send_signal(number)
        return self.process.wait(PATIENCE_SECONDS)

    # As an MCP client would speak to it

    def introduce(self) -> None:
        client = {"name": "test", "version": "1"}
        self.ask("initialize", protocolVersion="2025-06-18", capabilities={}, clientInfo=client)
        self._write({"jsonrpc": "2.0", "method": "notifications/initialized"})

    def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        result = self.ask("tools/call", name=tool, arguments=arguments)["result"]
        assert not result.get("isError"), result
        answer = result["structuredContent"]
        assert isinstance(answer, dict)
        return answer

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The answer. Everything that comes before it on stdout must be of the protocol, too."""
        self._asked += 1
        self._write({"jsonrpc": "2.0", "id": self._asked, "method": method, "params": parameters})
        assert self.process.stdout is not None
        while True:
            line = self.process.stdout.readline()
            assert line, self.said
            message: dict[str, Any] = json.loads(line)
            assert message["jsonrpc"] == "2.0"
            if message.get("id") == self._asked:
                return message

    def _write(self, message: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(message) + "\n")
        self.process.stdin.flush()


@contextmanager
def background(command: list[str], directory: Path, environment: Mapping[str, str]) -> Iterator[Background]:
    number = len(list(directory.parent.glob("stderr-*")))
    stderr = directory.parent / f"stderr-{number}"
    with stderr.open("w") as file:
        process = subprocess.Popen(
            command,
            cwd=directory,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=file,
            text=True,
            start_new_session=True,
        )
    try:
        yield Background(process, stderr)
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()
