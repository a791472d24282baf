"""Real processes, really killed: what had completed is kept, what was cut off is repeated, nothing else."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import apsw
import psutil
import pytest

from support.rendered import Service
from support.victims import Processes, drive, processes, serve
from workflows_mcp.settings.model import Settings

HERE = Path(__file__).parent
FILE = HERE / "side_effects.yaml"
KILLS = 100
CHUNKS = 4

AFTER = {  # who starts only after whom has ended
    "left": ["first"],
    "right": ["first"],
    "only_after_failure": ["right"],
    "inner/one": ["left", "only_after_failure"],
    "inner/two": ["inner/one"],
    "last": ["inner/two"],
}
EXPECTED_OUTPUTS = {
    "report": "Report on one\n, left\n",
    "inner": "deep\n",
    "right": 3,
    "never": True,
}


def lines_of(log: Path) -> list[tuple[str, str, str]]:
    """(start or end, step, process id) in the order in which they were written."""
    if not log.exists():
        return []
    return [tuple(line.split()) for line in log.read_text().splitlines()]  # type: ignore[misc]


def check_log(lines: list[tuple[str, str, str]], kills: int) -> None:
    """No step that had completed ran twice; a repeated one began after its first try was over."""
    steps = {step for _, step, _ in lines}
    assert steps == {"first", *AFTER}
    for step in steps:
        tries = [pid for what, name, pid in lines if name == step and what == "start"]
        assert 1 <= len(tries) <= 1 + kills, (step, tries)
        last = max(i for i, (what, name, _) in enumerate(lines) if name == step and what == "start")
        of_earlier_tries = [line for line in lines[last:] if line[1] == step and line[2] != tries[-1]]
        assert of_earlier_tries == [], f"{step} was repeated while its first try was still going on"
        assert ("end", step, tries[-1]) in lines[last:]
    for step, earlier in AFTER.items():
        first = next(i for i, (what, name, _) in enumerate(lines) if name == step and what == "start")
        again = [line for line in lines[first:] if line[0] == "start" and line[1] in earlier]
        assert again == [], f"{again} ran again although {step}, which needs it, had started"


def check_result(answer: dict[str, Any], state: dict[str, Any]) -> None:
    assert answer["status"] == "completed", answer
    assert answer["outputs"] == EXPECTED_OUTPUTS
    statuses = {
        name: (block["status"], block.get("outcome", "n/a")) for name, block in state["blocks"].items()
    }
    assert statuses["right"] == ("completed", "failure")
    assert statuses["never"] == ("skipped", "n/a")
    assert all(value[0] == "completed" for name, value in statuses.items() if name != "never")


def undisturbed(group: Processes, home: Path) -> float:
    """How long the run takes when nothing happens to it."""
    home.mkdir()
    process, ready = group.start(drive, home, FILE, {"log": str(home / "log")})
    assert ready.wait(20)
    started = time.monotonic()
    wait_for((home / "driven.json").exists)
    took = time.monotonic() - started
    process.join(30)
    assert process.exitcode == 0
    check_log(lines_of(home / "log"), kills=0)
    assert json.loads((home / "driven.json").read_text())["outputs"] == EXPECTED_OUTPUTS
    return took


@pytest.mark.slow
@pytest.mark.rows("X1")
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_a_hundred_kills_at_random_moments_of_a_run_lose_nothing_and_repeat_nothing(
    tmp_path: Path, chunk: int
) -> None:
    chance = random.Random(f"kill {chunk}")
    hits = 0
    with processes() as group:
        length = undisturbed(group, tmp_path / "undisturbed")
        for number in range(KILLS):
            home = tmp_path / str(number)
            home.mkdir()
            hits += kill_and_recover(group, home, chance.uniform(0, length))
            if hits == KILLS // CHUNKS:
                return
    raise AssertionError(f"only {hits} kills came while the run was under way")


def kill_and_recover(group: Processes, home: Path, moment: float) -> bool:
    """Kill a server `moment` seconds into a run, let another one go on. True if the kill cut the run off."""
    log = home / "log"
    victim, ready = group.start(drive, home, FILE, {"log": str(log)})
    assert ready.wait(20)
    time.sleep(moment)
    victim.kill()
    victim.join()
    before = lines_of(log)
    status = status_of_run(home)
    survivor, _ = group.start(serve, home, True)
    survivor.join(30)
    assert survivor.exitcode == 0
    answers, states = json.loads((home / "recovered.json").read_text())
    if not answers:
        assert before == [], "steps ran of a run that was never written down"
        return False
    check_result(answers[0], states[0])
    check_log(lines_of(log), kills=1)
    return status == "running"


@pytest.mark.slow
@pytest.mark.rows("X1")
def test_the_survivor_of_two_servers_takes_over_within_seconds(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with processes() as group:
        survivor, ready = group.start(serve, tmp_path, False)
        assert ready.wait(20)
        victim, ready = group.start(drive, tmp_path, FILE, {"log": str(log), "pause": "0.4"})
        wait_for(lambda: len(lines_of(log)) >= 3)
        victim.kill()
        killed = time.monotonic()
        written = len(lines_of(log))
        wait_for(lambda: len(lines_of(log)) > written + 1)
        assert time.monotonic() - killed < 4
        wait_for(lambda: status_of_run(tmp_path) == "completed")
        survivor.kill()
    check_log(lines_of(log), kills=1)


@pytest.mark.slow
@pytest.mark.rows("X1")
def test_a_server_that_was_stopped_and_wakes_up_again_cannot_write_into_a_run_that_was_taken_over(
    tmp_path: Path,
) -> None:
    log = tmp_path / "log"
    with processes() as group:
        _, ready = group.start(serve, tmp_path, False)
        assert ready.wait(20)
        stalled, ready = group.start(drive, tmp_path, FILE, {"log": str(log), "pause": "0.4"})
        # Stopped while it waits for its steps: after waking it must not start what follows from them.
        wait_for(lambda: {("start", "left"), ("start", "right")} <= {line[:2] for line in lines_of(log)})
        assert stalled.pid is not None
        stop_between_commits(stalled.pid, tmp_path)
        try:
            wait_for(lambda: epoch_of_run(tmp_path) == 2)
            written = len(lines_of(log))
            wait_for(lambda: len(lines_of(log)) > written + 2)
        finally:
            os.kill(stalled.pid, signal.SIGCONT)
        wait_for(lambda: status_of_run(tmp_path) == "completed")
        stalled.join(20)
        assert stalled.exitcode == 0, "the one that lost the run still tells how it ended"
        answer = json.loads((tmp_path / "driven.json").read_text())
        assert answer["outputs"] == EXPECTED_OUTPUTS
    epochs = [row[0] for row in query(tmp_path, "SELECT epoch FROM journal ORDER BY position")]
    assert epochs == sorted(epochs)
    assert set(epochs) == {1, 2}
    check_log(lines_of(log), kills=1)


@pytest.mark.slow
def test_what_a_killed_server_left_running_is_ended_before_the_step_is_repeated(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with processes() as group:
        victim, _ = group.start(drive, tmp_path, FILE, {"log": str(log), "pause": "1.5"})
        wait_for(lambda: len(lines_of(log)) == 1)
        left = int(lines_of(log)[0][2])
        victim.kill()
        victim.join()
        assert psutil.pid_exists(left)
        survivor, _ = group.start(serve, tmp_path, True)
        wait_for(lambda: len(lines_of(log)) == 2)
        assert not alive(left)
        survivor.kill()
    assert [line[:2] for line in lines_of(log)] == [("start", "first"), ("start", "first")]


@pytest.mark.slow
@pytest.mark.rows("X1", "X4")
def test_whoever_only_looks_at_a_run_whose_server_was_killed_is_told_that_nobody_goes_on_with_it(
    tmp_path: Path,
) -> None:
    log = tmp_path / "log"

    async def why() -> str:
        settings = Settings(workspace=tmp_path, home=tmp_path / "store", read_only=True)
        async with Service.open(settings, recovers=False) as service:
            [run] = await service.recent()
            answer = await service.status(str(run["workflow_id"]))
            assert answer["status"] == "running"
            return str(answer["why"])

    with processes() as group:
        victim, _ = group.start(drive, tmp_path, FILE, {"log": str(log), "pause": "1.5"})
        wait_for(lambda: len(lines_of(log)) == 1)
        assert "has gone" not in asyncio.run(why())
        victim.kill()
        victim.join()
        told = asyncio.run(why())
        assert told.startswith("running 'first'")
        assert (
            "; but no server continues it: the process that ran it has exited; start one in "
            f"{tmp_path} (workflows-mcp serve, without --read-only), or continue it here: "
        ) in told
        run_id = told.rpartition(" ")[2]
        assert told.endswith(
            f": control_workflow(workflow_id='{run_id}', action='resume'), or workflows-mcp resume {run_id}"
        )


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_for(condition: Any, seconds: float = 30) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "what was waited for did not happen"
        time.sleep(0.01)


def stop_between_commits(pid: int, home: Path) -> None:
    """Stop a process. Inside a transaction it would keep the file locked for everybody, until it wakes up."""
    os.kill(pid, signal.SIGSTOP)
    while is_locked(home):
        os.kill(pid, signal.SIGCONT)
        time.sleep(0.01)
        os.kill(pid, signal.SIGSTOP)


def is_locked(home: Path) -> bool:
    connection = apsw.Connection(str(home / "store" / "runs.db"))
    connection.set_busy_timeout(1000)  # other processes write, too
    try:
        connection.execute("BEGIN IMMEDIATE; ROLLBACK")
    except apsw.BusyError:
        return True
    finally:
        connection.close()
    return False


def query(home: Path, sql: str) -> list[Any]:
    connection = apsw.Connection(str(home / "store" / "runs.db"))
    connection.set_busy_timeout(5000)
    try:
        return list(connection.execute(sql))
    finally:
        connection.close()


def status_of_run(home: Path) -> str:
    rows = query(home, "SELECT status FROM runs")
    return str(rows[0][0]) if rows else "not started"


def epoch_of_run(home: Path) -> int:
    return int(query(home, "SELECT epoch FROM runs")[0][0])
