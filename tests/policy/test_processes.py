"""Commands as real processes: what is captured, when they are over, and that nothing is left of them."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from workflows_mcp.errors import StepError
from workflows_mcp.limits import Limits
from workflows_mcp.policy import processes
from workflows_mcp.policy.processes import (
    MARK,
    Captured,
    Finished,
    Killed,
    OutputTooLarge,
    Trim,
    end_leftovers,
    run_process,
)

KEY = f"run-{os.getpid()}/step"
"""No other process that runs tests at the same time ends what has this key."""


async def run(
    script: str,
    *,
    key: str = KEY,
    capture: bool = True,
    keep: int = 1024 * 1024,
    truncate: bool = False,
    trim: Trim | None = None,
) -> Finished:
    return await run_process(
        ["/bin/sh", "-c", script],
        directory=Path("/"),
        environment=dict(os.environ),
        key=key,
        capture=capture,
        limits=Limits(captured_bytes=keep),
        truncate=truncate,
        trim=trim,
    )


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in ("Z", "X")


def pids_in(path: Path, count: int) -> list[int]:
    """The process ids that a script has written, once there are so many."""
    give_up = time.monotonic() + 10
    while time.monotonic() < give_up:
        lines = path.read_text().split("\n") if path.exists() else []
        if len(lines) > count:
            return [int(line) for line in lines[:count]]
        time.sleep(0.005)
    raise AssertionError(f"{path} never held {count} process ids")


@pytest.fixture(params=["pidfd", "thread"])
def way_of_waiting(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "thread":
        monkeypatch.delattr(os, "pidfd_open", raising=False)


@pytest.mark.usefixtures("way_of_waiting")
def test_output_and_exit_code_come_back() -> None:
    finished = asyncio.run(run("echo out; echo err >&2; exit 3"))
    assert (finished.exit_code, finished.stdout, finished.stderr) == (3, "out\n", "err\n")
    assert finished.signal is None
    assert finished.seconds > 0


def test_the_input_of_the_server_cannot_be_read() -> None:
    reading, writing = os.pipe()
    before = os.dup(0)
    try:
        os.dup2(reading, 0)
        os.write(writing, b"protocol\n")
        assert asyncio.run(run("head -n 1; echo end")).stdout == "end\n"
    finally:
        os.dup2(before, 0)
        for descriptor in (reading, writing, before):
            os.close(descriptor)


def test_a_command_is_in_a_session_of_its_own() -> None:
    session, process = asyncio.run(run("ps -o sid= -p $$; echo $$")).stdout.split()
    assert session == process


def test_nothing_reaches_the_output_of_the_server(capfd: pytest.CaptureFixture[str]) -> None:
    asyncio.run(run("echo out; echo err >&2"))
    asyncio.run(run("echo out; echo err >&2", capture=False))
    assert capfd.readouterr() == ("", "")


def test_output_that_is_not_captured_is_discarded() -> None:
    finished = asyncio.run(run("echo out; echo err >&2; exit 1", capture=False))
    assert (finished.exit_code, finished.stdout, finished.stderr) == (1, "", "")


def test_a_signal_is_told_as_a_shell_tells_it() -> None:
    finished = asyncio.run(run("kill -TERM $$"))
    assert (finished.exit_code, finished.signal) == (128 + signal.SIGTERM, signal.SIGTERM)


def test_bytes_that_are_no_text_are_replaced() -> None:
    assert asyncio.run(run(r"printf 'a\377b'")).stdout == "a\N{REPLACEMENT CHARACTER}b"


MUCH = "echo first; head -c 3000000 /dev/zero | tr '\\0' x; echo; echo last"


def test_much_output_is_kept_whole_up_to_the_limit() -> None:
    finished = asyncio.run(run(MUCH, keep=3_000_012))
    assert finished.stdout == f"first\n{'x' * 3_000_000}\nlast\n"
    assert not finished.truncated


def test_a_command_that_prints_more_than_is_kept_is_ended() -> None:
    with pytest.raises(OutputTooLarge) as refused:
        asyncio.run(run("yes", keep=100_000))
    assert "more than 100000 bytes to stdout" in refused.value.message
    assert "WORKFLOWS_LIMIT_CAPTURED_BYTES" in refused.value.hint
    with pytest.raises(OutputTooLarge, match="to stderr"):
        asyncio.run(run("yes >&2", keep=100_000))


def test_a_truncated_output_is_its_beginning_and_nothing_else() -> None:
    finished = asyncio.run(run(MUCH, keep=1000, truncate=True))
    assert (finished.stdout, finished.truncated) == ("first\n" + "x" * 994, True)


@pytest.mark.alone
def test_much_output_neither_blocks_nor_slows_the_loop() -> None:
    async def scenario() -> tuple[Finished, float, float]:
        longest = 0.0

        async def watch() -> None:
            nonlocal longest
            while True:
                before = time.perf_counter()
                await asyncio.sleep(0)
                longest = max(longest, time.perf_counter() - before)

        watching = asyncio.create_task(watch())
        started = time.perf_counter()
        finished = await run("head -c 50000000 /dev/zero; head -c 50000000 /dev/zero >&2", truncate=True)
        watching.cancel()
        return finished, time.perf_counter() - started, longest

    finished, seconds, longest = asyncio.run(scenario())
    assert finished.exit_code == 0
    assert len(finished.stdout) < 1_050_000
    assert seconds < 5
    assert longest < 0.5


def test_much_output_is_trimmed_at_its_cut_beside_the_event_loop() -> None:
    """Meanwhile other runs go on."""
    threads: list[int] = []

    class Noting:
        def end_of_cut(self, text: str, least: int = 1) -> str:
            threads.append(threading.get_ident())
            return text[:-8]

    finished = asyncio.run(
        run("head -c 400000 /dev/zero | tr '\\0' x", keep=300_000, truncate=True, trim=Noting())
    )
    assert finished.stdout == "x" * 299_992
    assert threads
    assert threading.get_ident() not in threads


def test_characters_stay_whole_where_output_was_cut() -> None:
    captured = Captured("stdout", 9)
    data = ("é" * 50).encode()
    for start in range(0, len(data), 7):
        captured.add(data[start : start + 7])
    assert (captured.text(), captured.truncated) == ("éééé", True)


@pytest.mark.parametrize("size", [0, 1, 9, 10, 11, 20])
def test_output_up_to_the_limit_is_whole(size: int) -> None:
    captured = Captured("stdout", 20)
    captured.add(b"x" * size)
    assert (captured.text(), captured.truncated) == ("x" * size, False)


@pytest.mark.alone
@pytest.mark.usefixtures("way_of_waiting")
def test_a_command_is_over_although_something_in_the_background_holds_its_output(tmp_path: Path) -> None:
    started = time.perf_counter()
    finished = asyncio.run(run(f"sleep 60 & echo $! > {tmp_path}/pids; echo done"))
    assert time.perf_counter() - started < 50, "long before what is in the background would have ended"
    assert finished.stdout == "done\n"
    (pid,) = pids_in(tmp_path / "pids", 1)
    assert alive(pid)
    os.kill(pid, signal.SIGKILL)


def test_output_that_comes_just_after_the_end_is_still_read() -> None:
    assert asyncio.run(run("(sleep 0.03; echo late) & echo early")).stdout == "early\nlate\n"


@pytest.mark.alone
@pytest.mark.rows("G10")
@pytest.mark.usefixtures("way_of_waiting")
def test_cancelling_kills_the_whole_process_tree(tmp_path: Path) -> None:
    script = f"""
        cd {tmp_path}
        sleep 61 & echo $! >> pids
        setsid sh -c 'echo $$ >> pids; exec sleep 62' &
        (setsid setsid sh -c 'echo $$ >> pids; exec sleep 63' &)
        env -i setsid sh -c 'echo $$ >> pids; exec sleep 64' &
        sh -c 'trap "" TERM INT HUP; echo $$ >> pids; sleep 65' &
        echo $$ >> pids
        wait
    """

    async def scenario() -> tuple[list[int], float]:
        task = asyncio.create_task(run(script, key="cancelled"))
        pids = await asyncio.to_thread(pids_in, tmp_path / "pids", 6)
        started = time.perf_counter()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return pids, time.perf_counter() - started

    pids, seconds = asyncio.run(scenario())
    assert [pid for pid in pids if alive(pid)] == []
    assert seconds < 1


def test_whoever_has_started_a_command_is_killed_before_it_so_that_no_shell_tells_of_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = f"cd {tmp_path}; sh -c 'sh -c \"sleep 60 & echo \\$! >> pids; wait; :\"; :'; :"
    killed: list[int] = []
    kill = os.kill

    def told(pid: int, number: int) -> None:
        killed.append(pid)
        kill(pid, number)

    monkeypatch.setattr(os, "kill", told)

    async def scenario() -> tuple[list[int], Finished]:
        task = asyncio.create_task(run(script))
        [pid] = await asyncio.to_thread(pids_in, tmp_path / "pids", 1)
        line = [it.pid for it in psutil.Process(pid).parents()]
        task.cancel()
        with pytest.raises(Killed) as cancelled:
            await task
        return [pid, *line[: line.index(os.getpid())]], cancelled.value.finished

    line, finished = asyncio.run(scenario())
    assert len(line) == 4
    assert killed[:4] == line[::-1]
    assert (finished.stdout, finished.stderr) == ("", "")


def test_cancelling_one_command_leaves_others_alone(tmp_path: Path) -> None:
    async def scenario() -> str:
        one = asyncio.create_task(run("sleep 60", key="one"))
        other = asyncio.create_task(run(f"touch {tmp_path}/up; sleep 0.3; echo fine", key="other"))
        while not (tmp_path / "up").exists():
            await asyncio.sleep(0.005)
        one.cancel()
        with pytest.raises(asyncio.CancelledError):
            await one
        return (await other).stdout

    assert asyncio.run(scenario()) == "fine\n"


def test_no_descriptor_and_no_zombie_is_left() -> None:
    async def scenario() -> None:
        await run("true")
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(10):
            await run("echo x; sleep 0 & exit 0")
            task = asyncio.create_task(run("sleep 60"))
            await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert len(os.listdir("/proc/self/fd")) == before

    asyncio.run(scenario())
    children = subprocess.run(
        ["ps", "-o", "stat=", "--ppid", str(os.getpid())], capture_output=True, check=False
    )
    assert b"Z" not in children.stdout


def test_leftovers_of_a_killed_server_are_ended(tmp_path: Path) -> None:
    def orphan(key: str, name: str) -> int:
        script = f"(setsid sh -c 'echo $$ > {tmp_path}/{name}; echo >> {tmp_path}/{name}; sleep 66; true' &)"
        subprocess.run(["/bin/sh", "-c", script], env={**os.environ, MARK: key}, check=True)
        return pids_in(tmp_path / name, 1)[0]

    ours = [orphan("run-1/a", "a"), orphan("run-1/b", "b")]
    other = orphan("run-1/c", "c")
    children = subprocess.run(["ps", "-o", "pid=", "--ppid", str(ours[0])], capture_output=True, check=False)
    assert end_leftovers({"run-1/a", "run-1/b", "run-1/none"}) >= 2
    assert [pid for pid in (*ours, *map(int, children.stdout.split())) if alive(pid)] == []
    assert alive(other)
    assert end_leftovers({"run-1/a", "run-1/b"}) == 0
    assert end_leftovers({"run-1/c"}) >= 1
    assert end_leftovers(set()) == 0


def test_leftovers_are_found_without_proc_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_processes", processes._from_psutil)
    with subprocess.Popen(["sleep", "67"], env={**os.environ, MARK: "portable"}) as process:
        time.sleep(0.05)
        assert end_leftovers({"portable"}) == 1
        assert process.wait() == -signal.SIGKILL


def test_a_server_that_a_step_has_started_does_not_end_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    marked = [
        process._replace(key="mine") if process.pid == os.getpid() else process
        for process in processes._processes()
    ]
    monkeypatch.setattr(processes, "_processes", lambda: iter(marked))
    assert end_leftovers({"mine"}) == 0


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="Linux only")
def test_a_server_that_is_suspended_while_it_starts_a_command_is_not_ended_with_it() -> None:
    holds = f"import os, time; held = os.memfd_create({processes._name_of('mine')!r}); print(flush=True); time.sleep(66)"
    with subprocess.Popen([sys.executable, "-c", holds], stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        server.stdout.readline()
        assert end_leftovers({"mine"}) == 0
        assert server.poll() is None
        server.kill()


def test_a_command_that_cannot_be_started_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "text").touch(0o644)

    async def start(*arguments: str, environment: dict[str, str] | None = None) -> None:
        await run_process(
            arguments,
            directory=Path("/"),
            environment=environment or {},
            key=KEY,
            capture=True,
            limits=Limits(),
        )

    with pytest.raises(StepError, match="command not found: no-such-command"):
        asyncio.run(start("no-such-command", "x"))
    with pytest.raises(StepError, match="Permission denied"):
        asyncio.run(start(str(tmp_path / "text")))
    with pytest.raises(StepError, match="too large for the system"):
        asyncio.run(start("/bin/true", "x" * 3_000_000))
    with pytest.raises(StepError, match="null byte"):
        asyncio.run(start("/bin/true", "x\0"))


def test_a_hundred_commands_run_at_once() -> None:
    async def scenario() -> list[str]:
        finished = await asyncio.gather(*(run(f"echo {number}", key=f"k{number}") for number in range(100)))
        return [each.stdout for each in finished]

    assert asyncio.run(scenario()) == [f"{number}\n" for number in range(100)]


@pytest.mark.rows("O20")
@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM])
def test_a_command_that_the_system_has_no_room_for_is_started_again(
    monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    attempts: list[int] = []
    start = subprocess.Popen

    def scarce(*positional: Any, **named: Any) -> subprocess.Popen[bytes]:
        attempts.append(number)
        if len(attempts) < 3:
            raise OSError(number, os.strerror(number))
        return start(*positional, **named)

    monkeypatch.setattr(subprocess, "Popen", scarce)
    monkeypatch.setattr(processes, "START_PAUSES", (0, 0, 0))
    assert asyncio.run(run("echo here")).stdout == "here\n"
    assert len(attempts) == 3

    attempts.clear()
    monkeypatch.setattr(processes, "START_PAUSES", (0,))
    with pytest.raises(StepError, match=os.strerror(number)) as refusal:
        asyncio.run(run("echo here"))
    assert "WORKFLOWS_LIMIT_PARALLEL_STEPS" in refusal.value.hint


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="Linux only")
@pytest.mark.parametrize("killed_server", [False, True])
def test_an_orphan_that_has_emptied_its_environment_is_ended_too(tmp_path: Path, killed_server: bool) -> None:
    pids = tmp_path / "pids"
    orphan = f"echo $$ >> {pids}; exec sleep 1000"
    script = f"(env -i setsid /bin/sh -c '{orphan}' </dev/null >/dev/null 2>&1 &); sleep 1000"

    async def cancelled() -> int:
        task = asyncio.create_task(run(script, key=KEY))
        [pid] = await asyncio.to_thread(pids_in, pids, 1)
        if killed_server:
            assert end_leftovers(["another/step"]) == 0
            assert await asyncio.to_thread(end_leftovers, [KEY]) >= 2
            await task
        else:
            task.cancel()
            with pytest.raises(Killed):
                await task
        return pid

    assert not alive(asyncio.run(cancelled()))
