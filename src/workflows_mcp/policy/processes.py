"""Runs a command as a child process, and finds and kills every process that it has started.

    finished = await run_process(["make"], directory=…, environment=…, key="build-1", …)
    finished.exit_code, finished.stdout

The command has its own session and no input, unless one is given. Its output is captured up to a limit. The
event loop watches file descriptors (a pipe per stream, and a pidfd where available), which is several times
cheaper than asyncio's subprocesses. A command is over when its process ends, even if a background process
still holds its output open. Cancelling it kills every process that it has started.

Processes are found by any of five traces: `WORKFLOWS_MCP_STEP=<key>` in the environment; on Linux, an
inherited memory file named after the key; the session; the process group; or a parent that was found. This
includes a child that called setsid, one with an empty environment whose parent has ended, and one that
outlived a killed server. A process that has dropped all five traces is not found.
"""

from __future__ import annotations

import asyncio
import codecs
import errno
import hashlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NamedTuple, Protocol

from workflows_mcp.errors import StepError
from workflows_mcp.limits import Limits

MARK = "WORKFLOWS_MCP_STEP"
LARGE_BYTES = 256 * 1024
"""Larger output is decoded in a thread, so that it does not block the event loop."""
STREAMS = ("stdout", "stderr")

CHUNK = 65536
"""The bytes per read: the capacity of a pipe."""
CHUNKS_AT_EXIT = 16
GRACE_SECONDS = 0.1
"""How long to read output after the process has ended, if another process holds it open."""
MIN_PART = 4
"""The shortest part of a secret that is removed at the end of the output of a killed command."""
START_PAUSES = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2)
"""Seconds to wait between attempts to start a command when the system is out of resources."""
NO_ROOM = frozenset({errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM})

ROUNDS = 200
PAUSE_SECONDS = 0.005
_IN_MEMORY = "/memfd:"

OnOutput = Callable[[str, bytes], None]
"""Called with output as it is printed: the name of the stream, and bytes."""


# Running a command


class Trim(Protocol):
    """Removes a partial secret at the end of truncated text."""

    def end_of_cut(self, text: str, min_chars: int = 1) -> str: ...


@dataclass(frozen=True, slots=True)
class Finished:
    """The result of a command. `exit_code` is 128 + N after signal N, as in a shell."""

    exit_code: int
    signal: int | None
    stdout: str
    stderr: str
    seconds: float
    truncated: bool = False
    """It printed more than was captured."""


class OutputTooLarge(StepError):
    """A command printed more than may be captured, and was killed."""

    code = "output_too_large"


class Killed(asyncio.CancelledError):
    """The command was cancelled and killed; `finished` has its output so far."""

    def __init__(self, finished: Finished) -> None:
        super().__init__()
        self.finished = finished


async def run_process(
    arguments: Sequence[str],
    *,
    directory: Path,
    environment: Mapping[str, str],
    key: str,
    capture: bool,
    limits: Limits,
    trim: Trim | None = None,
    truncate: bool = False,
    on_output: OnOutput | None = None,
    stdin: bytes = b"",
) -> Finished:
    """Runs a command to its end, and captures each output stream up to the limit `captured_bytes`.

    A command that prints more is killed with OutputTooLarge; with `truncate`, the beginning is kept."""
    started = time.perf_counter()
    process = await _started(arguments, directory, {**environment, MARK: key}, capture, stdin)
    running = _Running(process, limits, truncate, on_output)
    try:
        await running.finished
    except asyncio.CancelledError:
        await _kill(running, key)
        raise Killed(await _finished_of(running, trim, started, killed=True)) from None
    except BaseException:
        await _kill(running, key)
        raise
    finally:
        running.close()
    return await _finished_of(running, trim, started)


async def _finished_of(
    running: _Running, trim: Trim | None, started: float, *, killed: bool = False
) -> Finished:
    if running.captured_bytes > LARGE_BYTES:
        return await asyncio.to_thread(_finished, running, trim, started, killed=killed)
    return _finished(running, trim, started, killed=killed)


def _finished(running: _Running, trim: Trim | None, started: float, *, killed: bool = False) -> Finished:
    code = running.process.returncode
    code = -9 if code is None else code
    return Finished(
        exit_code=code if code >= 0 else 128 - code,
        signal=-code if code < 0 else None,
        stdout=running.captured[0].text(trim, killed=killed),
        stderr=running.captured[1].text(trim, killed=killed),
        seconds=time.perf_counter() - started,
        truncated=any(captured.truncated for captured in running.captured),
    )


class _NoRoom(StepError):
    """The system has no descriptors, processes or memory left at the moment."""


async def _started(
    arguments: Sequence[str], directory: Path, environment: dict[str, str], capture: bool, stdin: bytes
) -> subprocess.Popen[bytes]:
    for pause in START_PAUSES:
        try:
            return _start(arguments, directory, environment, capture, stdin)
        except _NoRoom:
            await asyncio.sleep(pause)
    return _start(arguments, directory, environment, capture, stdin)


def _start(
    arguments: Sequence[str], directory: Path, environment: dict[str, str], capture: bool, stdin: bytes
) -> subprocess.Popen[bytes]:
    output = subprocess.PIPE if capture else subprocess.DEVNULL
    mark = open_mark(environment[MARK])
    try:
        with _file_of(stdin) as given:
            return subprocess.Popen(
                arguments,
                bufsize=0,
                stdin=given,
                stdout=output,
                stderr=output,
                cwd=directory,
                env=environment,
                start_new_session=True,
                pass_fds=() if mark is None else (mark,),
            )
    except OSError as error:
        if error.errno == errno.E2BIG:
            raise StepError(
                "the command and its environment are too large for the system",
                hint="write large values to a file, and read it in the command",
            ) from None
        if error.errno in NO_ROOM:
            raise _NoRoom(
                f"cannot start {arguments[0]}: {error.strerror}",
                hint="lower WORKFLOWS_LIMIT_PARALLEL_STEPS, or raise the system's (ulimit -n, ulimit -u)",
            ) from None
        if isinstance(error, FileNotFoundError) and directory.is_dir():
            raise StepError(
                f"command not found: {arguments[0]}",
                hint="write its path, or set shell: true if it is a command of the shell",
            ) from None
        raise StepError(f"cannot start {arguments[0]}: {error.strerror}") from None
    except ValueError as error:  # a NUL character in an argument or in the environment
        raise StepError(f"cannot start {arguments[0]}: {error}") from None
    finally:
        if mark is not None:
            os.close(mark)


@contextmanager
def _file_of(stdin: bytes) -> Iterator[IO[bytes] | int]:
    """A file without a name: unlike a pipe, it needs nobody who writes while the command reads."""
    if not stdin:
        yield subprocess.DEVNULL
        return
    with tempfile.TemporaryFile() as file:
        file.write(stdin)
        file.seek(0)
        yield file


async def _kill(running: _Running, key: str) -> None:
    """Kill all processes of the command. Parents are determined before any process is killed."""
    process = running.process
    for _ in range(ROUNDS):
        # The id of a session is not reused while a process lives in it.
        if not kill_all_of((key,), process.pid) and process.poll() is not None:
            return
        await asyncio.sleep(PAUSE_SECONDS)


class _Running:
    """A running process and its output so far."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        limits: Limits,
        truncate: bool,
        on_output: OnOutput | None,
    ) -> None:
        self.process = process
        self.captured = tuple(Captured(stream, limits.captured_bytes) for stream in STREAMS)
        self._limits = limits
        self._truncate = truncate
        self._on_output = on_output
        self._loop = asyncio.get_running_loop()
        self.finished: asyncio.Future[None] = self._loop.create_future()
        self._open: dict[int, tuple[IO[bytes], Captured]] = {}
        self._exit_descriptor = -1
        self._grace: asyncio.TimerHandle | None = None
        for stream, captured in zip((process.stdout, process.stderr), self.captured, strict=True):
            if stream is not None:
                descriptor = stream.fileno()
                os.set_blocking(descriptor, False)
                self._open[descriptor] = (stream, captured)
                self._loop.add_reader(descriptor, self._read, descriptor)
        self._watch_exit()

    @property
    def captured_bytes(self) -> int:
        return sum(captured.size for captured in self.captured)

    def _watch_exit(self) -> None:
        try:
            self._exit_descriptor = os.pidfd_open(self.process.pid)
        except (AttributeError, OSError):  # not Linux, or an old kernel
            threading.Thread(target=self._wait_in_thread, daemon=True, name="wait-for-command").start()
        else:
            self._loop.add_reader(self._exit_descriptor, self._exited)

    def _wait_in_thread(self) -> None:
        self.process.wait()
        with suppress(RuntimeError):  # the loop was closed meanwhile
            self._loop.call_soon_threadsafe(self._exited)

    def _read(self, descriptor: int) -> bool:
        """Read once from the pipe; return whether more may be available."""
        stream, captured = self._open[descriptor]
        try:
            data = os.read(descriptor, CHUNK)
        except BlockingIOError:
            return False
        if data:
            captured.add(data)
            if self._on_output is not None:
                self._on_output(captured.stream, data)
            if captured.truncated and not self._truncate and not self.finished.done():
                self.finished.set_exception(self._too_large(captured))
            return True
        self._loop.remove_reader(descriptor)
        del self._open[descriptor]
        stream.close()
        self._finish_if_over()
        return False

    def _too_large(self, captured: Captured) -> OutputTooLarge:
        return OutputTooLarge(
            f"the command printed more than {captured.limit} bytes to {captured.stream}, and was killed",
            hint="write to a file in $SCRATCH and declare it as an output, or set truncate: true to keep the "
            f"beginning, or capture_output: false to keep nothing, or raise "
            f"{self._limits.setting('captured_bytes')}",
        )

    def _exited(self) -> None:
        if self._exit_descriptor >= 0:
            self._loop.remove_reader(self._exit_descriptor)
        if self.finished.done():
            return
        self.process.wait()
        for descriptor in list(self._open):
            for _ in range(CHUNKS_AT_EXIT):
                if not self._read(descriptor):
                    break
        if self._open:
            self._grace = self._loop.call_later(GRACE_SECONDS, self._finish)
        else:
            self._finish()

    def _finish_if_over(self) -> None:
        if not self._open and self.process.returncode is not None:
            self._finish()

    def _finish(self) -> None:
        if not self.finished.done():
            self.finished.set_result(None)

    def close(self) -> None:
        if self._grace is not None:
            self._grace.cancel()
        for descriptor, (stream, _) in self._open.items():
            self._loop.remove_reader(descriptor)
            stream.close()
        self._open.clear()
        if self._exit_descriptor >= 0:
            self._loop.remove_reader(self._exit_descriptor)
            os.close(self._exit_descriptor)
            self._exit_descriptor = -1


class Captured:
    """The beginning of a stream, up to the limit."""

    __slots__ = ("_data", "limit", "stream", "truncated")

    def __init__(self, stream: str, limit: int) -> None:
        self.stream = stream
        self.limit = limit
        self.truncated = False
        self._data = bytearray()

    @property
    def size(self) -> int:
        return len(self._data)

    def add(self, data: bytes) -> None:
        room = self.limit - len(self._data)
        self._data += data[:room] if len(data) > room else data
        self.truncated = self.truncated or len(data) > room

    def text(self, trim: Trim | None = None, *, killed: bool = False) -> str:
        """The captured text, without a partial character or a partial secret at its end."""
        data = _without_broken_end(self._data) if self.truncated else self._data
        text = data.decode("utf-8", "replace")
        if trim is not None and (killed or self.truncated):
            text = trim.end_of_cut(text, 1 if self.truncated else MIN_PART)
        return text


def _without_broken_end(data: bytearray) -> bytearray:
    """The data without the first bytes of a truncated character."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(data[-4:])
    return data[: len(data) - len(decoder.getstate()[0])]


# Finding and killing processes


def end_leftovers(keys: Collection[str]) -> int:
    """Kill the remaining processes of these steps on this machine, and return their number.

    Returns when they are gone. A server that replaces a killed one calls it before it repeats steps.
    """
    ended: set[int] = set()
    for _ in range(ROUNDS):
        found = kill_all_of(keys)
        if not found:
            break
        ended |= found
        time.sleep(PAUSE_SECONDS)
    return len(ended)


def kill_all_of(keys: Collection[str], session: int | None = None) -> set[int]:
    """Kill the processes of these steps and of the session, and return them.

    A process may start another during the search, so call this until nothing is found. Parents are killed
    first: a shell that outlives its command prints "Killed".
    """
    if not keys:
        return set()
    found = _belonging_to(keys, session, list(_processes()))
    for pid in found:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    return set(found)


class Process(NamedTuple):
    pid: int
    parent: int
    group: int
    session: int
    key: str | None
    """The step in its environment."""
    held: str | None = None
    """The name of the memory file inherited from its step; only looked up if `key` is None."""


def open_mark(key: str) -> int | None:
    """An empty memory file for a command to inherit, to be closed; None if not supported."""
    try:
        return os.memfd_create(_name_of(key))
    except (AttributeError, OSError):
        return None


def _name_of(key: str) -> str:
    return f"{MARK}-{hashlib.blake2b(key.encode('utf-8', 'surrogateescape'), digest_size=16).hexdigest()}"


def _belonging_to(keys: Collection[str], session: int | None, processes: list[Process]) -> list[int]:
    """The processes of these steps and of the session, parents first."""
    parents = {process.pid: process.parent for process in processes}
    children: dict[int, list[int]] = {}
    for process in processes:
        children.setdefault(process.parent, []).append(process.pid)
    ourselves = _ancestry(os.getpid(), parents)  # a server may itself have been started by a step
    found: set[int] = set()
    names = {_name_of(key) for key in keys}
    waiting = [
        process.pid
        for process in processes
        if process.key in keys
        or process.held in names
        or (session is not None and session in (process.session, process.group))
    ]
    while waiting:
        pid = waiting.pop()
        if pid not in found and pid not in ourselves:
            found.add(pid)
            waiting += children.get(pid, ())
    return sorted(found, key=lambda pid: len(_ancestry(pid, parents)))


def _ancestry(pid: int, parents: dict[int, int]) -> set[int]:
    """A process and its ancestors."""
    ancestry: set[int] = set()
    while pid and pid not in ancestry:
        ancestry.add(pid)
        pid = parents.get(pid, 0)
    return ancestry


def _processes() -> Iterator[Process]:
    """All processes except zombies."""
    return _from_proc() if sys.platform == "linux" else _from_psutil()


def _from_proc() -> Iterator[Process]:
    mark = f"{MARK}=".encode()
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb", buffering=0) as file:
                # The second field is the name in parentheses, which may hold spaces and parentheses.
                state, parent, group, session = file.read().rpartition(b")")[2].split(None, 4)[:4]
        except OSError:
            continue
        if state in (b"Z", b"X"):
            continue
        key = None
        with suppress(OSError), open(f"/proc/{name}/environ", "rb", buffering=0) as file:
            environment = b"".join(iter(lambda: file.read(65536), b""))
            if mark in environment:
                key = next(
                    (
                        entry[len(mark) :].decode("utf-8", "surrogateescape")
                        for entry in environment.split(b"\0")
                        if entry.startswith(mark)
                    ),
                    None,
                )
        held = None if key is not None else _held_by(name)
        yield Process(int(name), int(parent), int(group), int(session), key, held)


def _held_by(pid: str) -> str | None:
    """The memory file that a process has inherited, not one that it is about to pass on to a command."""
    with suppress(OSError):
        for number in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                opened = os.readlink(f"/proc/{pid}/fd/{number}")
                if opened.startswith(_IN_MEMORY + MARK) and not _closes_on_exec(pid, number):
                    return opened[len(_IN_MEMORY) :].partition(" ")[0]
    return None


def _closes_on_exec(pid: str, descriptor: str) -> bool:
    """Whether a process keeps a descriptor to itself, as a server does that is just starting a command."""
    with open(f"/proc/{pid}/fdinfo/{descriptor}", encoding="ascii") as file:
        flags = next(line for line in file if line.startswith("flags:"))
    return bool(int(flags.split()[1], 8) & os.O_CLOEXEC)


def _from_psutil() -> Iterator[Process]:
    import psutil

    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.status() == psutil.STATUS_ZOMBIE:
                continue
            key = None
            with suppress(psutil.Error):
                key = process.environ().get(MARK)
            group = session = 0
            with suppress(OSError):
                group, session = os.getpgid(process.pid), os.getsid(process.pid)
            yield Process(process.pid, process.ppid(), group, session, key)
