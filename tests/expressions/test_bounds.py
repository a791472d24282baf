from __future__ import annotations

import threading
import time

import pytest

from workflows_mcp.expressions import deadline
from workflows_mcp.expressions.deadline import TookTooLong, call_within


def spin(seconds: float) -> str:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass
    return "done"


def for_ever() -> None:
    while True:
        try:
            spin(60)
        except Exception:
            continue


def test_a_quick_call_gives_its_result() -> None:
    assert call_within(5, spin, 0.0) == "done"
    assert call_within(5, dict, a=1) == {"a": 1}


def test_errors_of_the_call_pass_through() -> None:
    with pytest.raises(ZeroDivisionError):
        call_within(5, lambda: 1 / 0)


@pytest.mark.alone
def test_a_loop_that_swallows_exceptions_is_stopped_in_time() -> None:
    started = time.process_time()
    with pytest.raises(TookTooLong, match=r"0\.05 seconds"):
        call_within(0.05, for_ever)
    assert time.process_time() - started < 1


@pytest.mark.alone
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_stop_that_gets_lost_is_sent_again() -> None:
    class Swallows:
        def __del__(self) -> None:
            spin(0.2)

    def lose_it() -> None:
        Swallows()  # whatever is raised in there is only reported
        for_ever()

    started = time.process_time()
    with pytest.raises(TookTooLong):
        call_within(0.05, lose_it)
    assert time.process_time() - started < 2


@pytest.mark.alone
def test_an_earlier_deadline_is_kept_while_a_later_one_is_watched() -> None:
    def outer() -> None:
        with pytest.raises(TookTooLong):
            call_within(0.05, for_ever)

    started = time.process_time()
    call_within(30, outer)
    assert time.process_time() - started < 1


def test_only_the_thread_that_took_too_long_is_stopped() -> None:
    results: dict[str, str] = {}

    def quick() -> None:
        results["quick"] = call_within(5, spin, 0.2)

    def slow() -> None:
        try:
            call_within(0.05, for_ever)
        except TookTooLong:
            results["slow"] = "stopped"

    threads = [threading.Thread(target=target) for target in (quick, slow)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {"quick": "done", "slow": "stopped"}


def test_a_call_that_ends_at_its_deadline_is_never_stopped_afterwards() -> None:
    stopped = 0
    for _ in range(300):
        try:
            call_within(0.001, spin, 0.001)
        except TookTooLong:
            stopped += 1
        sum(range(2000))  # would be hit by an exception that came late
    assert 0 <= stopped <= 300


def test_a_call_that_is_late_before_it_begins_leaves_nothing_behind() -> None:
    """As when the process was stopped just as it began: the deadline has passed before the work starts."""
    for _ in range(200):
        with pytest.raises(TookTooLong):
            call_within(-1.0, spin, 5.0)
    assert deadline._watchdog._watched == {}
    assert deadline._watchdog._sent == set()
    time.sleep(0.01)
    assert sum(range(100_000)) == 4999950000
