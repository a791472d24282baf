"""The last lines that running steps have printed.

    output = live.begin(run_id, execution)      # output.write("stdout", b"compil")
    live.lines(run_id, after=0)                 # [Line(1, "build", "stdout", "compiling")]

Lines are kept in memory, a bounded number for each run, with secrets redacted. A snapshot of them is written
to the run's scratch directory now and then, so that another process can follow it. Both are deleted when no
step of the run is under way: then the journal has what the steps printed.
"""

from __future__ import annotations

import asyncio
import codecs
import os
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from workflows_mcp.machine import Execution
from workflows_mcp.policy import STREAMS, Secrets

LINES = 200
"""How many lines of a run are kept."""
LINE_CHARS = 2000
"""A longer line is split."""
FILE = ".live"
WRITE_SECONDS = 0.25


class Line(msgspec.Struct, frozen=True):
    number: int
    """Counted from 1, over all steps of the run."""
    step: str
    stream: str
    text: str


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(list[Line])
Listener = Callable[[Line], None]


class LiveOutput:
    """The output of the steps that this process runs."""

    def __init__(self, secrets: Secrets, scratch: Path) -> None:
        self._secrets = secrets
        self._scratch = scratch
        self._runs: dict[str, _RunOutput] = {}
        self._listeners: dict[str, list[Listener]] = {}

    def begin(self, run_id: str, execution: Execution) -> StepOutput:
        run = self._runs.get(run_id)
        if run is None:
            run = self._runs[run_id] = _RunOutput(
                self._scratch / run_id / FILE, self._listeners.setdefault(run_id, [])
            )
        output = StepOutput(execution, run, self._secrets)
        run.under_way.add(execution)
        return output

    def end(self, run_id: str, output: StepOutput) -> None:
        """Show the rest of an output. A second call does nothing."""
        run = self._runs.get(run_id)
        if run is None or output.execution not in run.under_way:
            return
        output.close()
        run.under_way.remove(output.execution)
        if not run.under_way:
            del self._runs[run_id]
            run.close()
            if not run.listeners:
                self._listeners.pop(run_id, None)

    def lines(self, run_id: str, after: int = 0) -> list[Line]:
        """The lines of a run after line number `after`; if another process drives it, from its snapshot."""
        run = self._runs.get(run_id)
        known = list(run.lines) if run is not None else _written(self._scratch / run_id / FILE)
        return [line for line in known if line.number > after]

    def last_line(self, run_id: str) -> str:
        return next((line.text for line in reversed(self.lines(run_id)) if line.text.strip()), "")

    def under_way(self, run_id: str) -> int:
        """How many steps of a run this process is running."""
        run = self._runs.get(run_id)
        return len(run.under_way) if run is not None else 0

    @contextmanager
    def listening(self, run_id: str, listener: Listener) -> Iterator[None]:
        """Call the listener with every new line of a run."""
        listeners = self._listeners.setdefault(run_id, [])
        listeners.append(listener)
        try:
            yield
        finally:
            listeners.remove(listener)
            if not listeners and run_id not in self._runs:
                self._listeners.pop(run_id, None)


class _RunOutput:
    def __init__(self, file: Path, listeners: list[Listener]) -> None:
        self.lines: deque[Line] = deque(maxlen=LINES)
        self.under_way: set[Execution] = set()
        self.listeners = listeners
        self._file = file
        self._count = 0
        self._writing: asyncio.TimerHandle | None = None

    def add(self, step: str, stream: str, text: str) -> None:
        self._count += 1
        line = Line(self._count, step, stream, text)
        self.lines.append(line)
        for listener in self.listeners:
            listener(line)
        if self._writing is None:
            self._writing = asyncio.get_running_loop().call_later(WRITE_SECONDS, self._write)

    def _write(self) -> None:
        self._writing = None
        part = self._file.with_name(f"{FILE}-{os.getpid()}")
        with suppress(OSError):  # other processes cannot follow the output then; the run continues
            descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
            with open(descriptor, "wb") as file:
                file.write(_encoder.encode(list(self.lines)))
            os.replace(part, self._file)

    def close(self) -> None:
        if self._writing is not None:
            self._writing.cancel()
        with suppress(OSError):
            self._file.unlink()


class StepOutput:
    """The output of one execution, line by line.

    The possible beginning of a secret is held back until the rest of it has come."""

    def __init__(self, execution: Execution, run: _RunOutput, secrets: Secrets) -> None:
        self.execution = execution
        self._run = run
        self._secrets = secrets
        self._decoders = {name: codecs.getincrementaldecoder("utf-8")("replace") for name in STREAMS}
        self._unsafe = dict.fromkeys(STREAMS, "")
        """Text that may be the beginning of a secret."""
        self._line = dict.fromkeys(STREAMS, "")
        """The beginning of a line, redacted."""

    def write(self, stream: str, data: bytes) -> None:
        text = self._unsafe[stream] + self._decoders[stream].decode(data)
        safe = self._secrets.end_of_cut(text)
        self._unsafe[stream] = text[len(safe) :]
        self._show(stream, safe)

    def close(self) -> None:
        for stream in STREAMS:
            if rest := self._unsafe[stream] + self._decoders[stream].decode(b"", final=True):
                self._show(stream, rest)
            self._unsafe[stream] = ""
            if self._line[stream]:
                self._show(stream, "\n")

    def _show(self, stream: str, text: str) -> None:
        *lines, rest = (self._line[stream] + str(self._secrets.redact(text))).split("\n")
        while len(rest) > LINE_CHARS:
            lines.append(rest[:LINE_CHARS])
            rest = rest[LINE_CHARS:]
        self._line[stream] = rest
        for line in lines[-LINES:]:
            self._run.add(self.execution.address, stream, line.rstrip("\r")[:LINE_CHARS])


def _written(file: Path) -> list[Line]:
    try:
        return _decoder.decode(file.read_bytes())
    except (OSError, msgspec.DecodeError):
        return []
