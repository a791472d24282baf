"""Real processes, really killed, around a real Temporal server: workers, the MCP server, the Temporal server."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

pytest.importorskip("temporalio", reason="temporalio is not installed: pip install -e .[temporal]")

from support.mortal_servers import Victims
from support.rendered import Service
from support.temporal import running_server
from workflows_mcp.engines.temporal.connection import Address
from workflows_mcp.settings.model import Settings, TemporalSettings

pytestmark = [pytest.mark.slow, pytest.mark.rows("S13", "X1")]
ENDED = ("completed", "failed", "cancelled")


class Place:
    """A home and a workspace that several processes share, and the server that they use."""

    def __init__(self, directory: Path, address: Address) -> None:
        self.workspace = directory
        self.address = address
        self.home = directory / "home"

    def settings(self, *, worker: bool = True, steps: bool = True) -> Settings:
        given = TemporalSettings(
            host=self.address.host, task_queue=self.address.task_queue, worker=worker, steps=steps
        )
        return Settings(workspace=self.workspace, home=self.home, engine="temporal", temporal=given)

    @property
    def environment(self) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self.workspace),
            "WORKFLOWS_HOME": str(self.home),
            "WORKFLOWS_ENGINE": "temporal",
            "WORKFLOWS_TEMPORAL_HOST": self.address.host,
            "WORKFLOWS_TEMPORAL_TASK_QUEUE": self.address.task_queue,
        }

    @contextmanager
    def worker(self) -> Iterator[subprocess.Popen[bytes]]:
        """`workflows-mcp worker`, for as long as it is needed, unless somebody kills it before."""
        process = subprocess.Popen(
            [sys.executable, "-m", "workflows_mcp", "worker"],
            cwd=self.workspace,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        try:
            assert process.stderr is not None
            assert b"worker for" in process.stderr.readline()
            yield process
        finally:
            if process.poll() is None:
                process.terminate()
            said, _ = process.communicate(timeout=30)
            assert said == b"", "standard output is not ours"


@pytest.fixture
def place(tmp_path: Path, temporal_address: Address) -> Place:
    return Place(tmp_path, temporal_address)


def go(work: Awaitable[None], seconds: float = 90) -> None:
    async def within() -> None:
        await asyncio.wait_for(work, seconds)

    asyncio.run(within())


async def until(condition: Callable[[], bool], seconds: float = 40) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.02)


async def over(service: Service, run_id: str) -> dict[str, Any]:
    answer = await service.status(run_id, wait_seconds=30)
    while answer["status"] == "running":
        answer = await service.status(run_id, wait_seconds=30)
    return answer


def lines_of(log: Path) -> list[list[str]]:
    return [line.split() for line in log.read_text().splitlines()] if log.exists() else []


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


CUT_OFF = """
name: cut-off
blocks:
  - {{id: before, type: Shell, inputs: {{command: 'echo "before {policy} $$" >> log'}}}}
  - id: long
    type: Shell
    on_interrupt: {policy}
    depends_on: [before]
    inputs:
      command: |
        echo "long {policy} $$" >> log
        if [ ! -e first-{policy} ]; then echo $$ > first-{policy}; exec sleep 600; fi
        case "$(cut -d ' ' -f 3 /proc/$(cat first-{policy})/stat 2> /dev/null)" in
          ""|Z|X) echo again;;
          *) echo beside the first;;
        esac
  - {{id: after, type: Shell, depends_on: [long], inputs: {{command: 'echo "after {policy} $$" >> log'}}}}
outputs: {{said: "${{blocks.long.stdout}}"}}
"""


def test_a_step_whose_worker_is_killed_is_repeated_or_failed_or_asked_about_as_its_block_says(
    place: Place,
) -> None:
    log = place.workspace / "log"

    def tries(policy: str) -> list[int]:
        return [int(pid) for what, of, pid in lines_of(log) if (what, of) == ("long", policy)]

    async def work() -> None:
        async with Service.open(place.settings(steps=False)) as service:
            with place.worker() as victim:
                runs = {}
                for policy in ("repeat", "fail", "ask"):
                    answer = await service.start(text=CUT_OFF.format(policy=policy), wait_seconds=0)
                    runs[policy] = answer["workflow_id"]
                await until(lambda: all(tries(policy) for policy in runs))
                left = {policy: tries(policy)[0] for policy in runs}
                victim.kill()
                victim.wait()
                assert all(alive(pid) for pid in left.values()), "they do not go with the worker"
            with place.worker():
                answer = await over(service, runs["repeat"])
                assert (answer["status"], answer["outputs"]) == ("completed", {"said": "again\n"})
                assert not alive(left["repeat"]), "what was left of the first try went before the second"
                failed = await over(service, runs["fail"])
                assert (failed["status"], failed["error"]["code"]) == ("failed", "interrupted")
                asked = await over(service, runs["ask"])
                assert asked["action"]["type"] == "interrupted", asked
                answer = await service.submit(
                    runs["ask"], {"decision": "done", "outputs": {"stdout": "by hand"}}
                )
                assert (answer["status"], answer["outputs"]) == ("completed", {"said": "by hand"})
            for policy in ("fail", "ask"):
                if alive(left[policy]):
                    os.kill(left[policy], signal.SIGKILL)
        steps = [(what, of) for what, of, _ in lines_of(log)]
        assert len(tries("repeat")) == 2
        assert len(tries("fail")) == len(tries("ask")) == 1
        for policy in runs:
            assert steps.count(("before", policy)) == 1, "what had completed does not run again"
        assert sorted(of for what, of in steps if what == "after") == ["ask", "repeat"]

    go(work())


CONVERSATION = """
name: conversation
initial_state: {}
steps:
  - {id: first, type: prompt, prompt_type: text, message: "who?", needs_state: [], output_to: who}
  - id: build
    type: shell
    run_on: server
    command: "echo built >> log; echo {{ state.who.input }}"
    needs_state: [who]
    output_to: built
  - id: second
    type: prompt
    prompt_type: text
    message: "what of {{ state.built.stdout }}?"
    needs_state: [built]
    output_to: what
  - {id: third, type: prompt, prompt_type: text, message: "and now?", needs_state: [], output_to: now}
  - id: end
    type: return
    value: ["{{ state.who }}", "{{ state.what }}", "{{ state.now }}"]
    needs_state: [who, what, now]
"""


def test_the_mcp_server_can_be_killed_between_two_calls(place: Place) -> None:
    victims = Victims(place.workspace, place.environment)

    async def work() -> None:
        answer = await victims.call("start_workflow", yaml=CONVERSATION)
        run_id = answer["workflow_id"]
        asked = []
        for said in ("me", "that", "enough"):
            asked.append(answer["action"]["step_id"])
            answer = await victims.call("submit_result", workflow_id=run_id, result=said)
        assert asked == ["first", "second", "third"]
        assert (answer["status"], answer["result"]) == (
            "completed",
            [{"input": it} for it in ("me", "that", "enough")],
        )
        assert lines_of(place.workspace / "workspace" / "log") == [["built"]]
        assert victims.killed == 4

    go(work())


def test_the_temporal_server_can_be_restarted_in_the_middle_of_runs(tmp_path: Path) -> None:
    text = """
    name: through
    blocks:
      - {id: a, type: Shell, inputs: {command: 'echo a >> log; sleep 3; echo done-a >> log'}}
      - {id: ask, type: Prompt, inputs: {prompt: "on?"}}
      - {id: b, type: Shell, depends_on: [a, ask], inputs: {command: 'echo b >> log; echo ${blocks.ask.response}'}}
    outputs: {said: "${blocks.b.stdout}"}
    """
    database = tmp_path / "dev.db"
    log = tmp_path / "log"

    def work_with(host: str, restart: Callable[[], None]) -> None:
        place = Place(tmp_path, replace(Address(), host=host))

        async def work() -> None:
            async with Service.open(place.settings()) as service:
                answer = await service.start(text=text)
                run_id = answer["workflow_id"]
                await until(lambda: ["a"] in lines_of(log))
                await asyncio.to_thread(restart)
                answer = await service.submit(run_id, "yes")
                answer = await over(service, run_id)
                assert (answer["status"], answer["outputs"]) == ("completed", {"said": "yes\n"})
                assert lines_of(log) == [["a"], ["done-a"], ["b"]], "nothing ran twice"

        go(work())

    with running_server(database) as server, ExitStack() as later:

        def restart() -> None:
            server.end()
            later.enter_context(running_server(database, port=server.port))

        work_with(server.host, restart)


STEPS = ("one", "two", "three")
CHAIN = """
name: chain
inputs: {number: {type: string}}
blocks:
  - id: one
    type: Shell
    inputs:
      command: |
        while [ ! -e go ]; do sleep 0.2; done
        echo "start ${inputs.number} one" >> log; sleep 0.3; echo "end ${inputs.number} one" >> log; echo 1
  - id: two
    type: Shell
    depends_on: [one]
    inputs:
      command: |
        echo "start ${inputs.number} two" >> log; sleep 0.3; echo "end ${inputs.number} two" >> log
        echo ${blocks.one.stdout}2
  - id: three
    type: Shell
    depends_on: [two]
    inputs:
      command: |
        echo "start ${inputs.number} three" >> log; sleep 0.3; echo "end ${inputs.number} three" >> log
        echo ${blocks.two.stdout}3
outputs: {said: "${blocks.three.stdout}"}
"""


def is_cut_off(worker: subprocess.Popen[bytes]) -> bool:
    """Kill it, unless it is carrying out nothing just now: what was stopped first cannot end anything meanwhile."""
    worker.send_signal(signal.SIGSTOP)
    if any("start" in " ".join(child.cmdline()) for child in psutil.Process(worker.pid).children()):
        worker.kill()
        return True
    worker.send_signal(signal.SIGCONT)
    return False


def test_of_two_workers_one_is_killed_in_the_middle_of_fifty_runs_and_all_end_right(place: Place) -> None:
    log = place.workspace / "log"

    async def work() -> None:
        with place.worker() as victim, place.worker():
            async with Service.open(place.settings(worker=False)) as service:
                starts = [
                    service.start(text=CHAIN, inputs={"number": str(number)}, wait_seconds=0)
                    for number in range(50)
                ]
                runs = [answer["workflow_id"] for answer in await asyncio.gather(*starts)]
                (place.workspace / "go").touch()
                await until(lambda: len(lines_of(log)) > 100 and is_cut_off(victim))
                victim.wait()
                before = len(lines_of(log))
                began = time.monotonic()
                answers = await asyncio.gather(*(over(service, run_id) for run_id in runs))
                print(f"killed after {before} lines; all ended {time.monotonic() - began:.1f} s later")
                assert [answer["status"] for answer in answers] == ["completed"] * 50
                assert {answer["outputs"]["said"] for answer in answers} == {"1 2 3\n"}
        lines = lines_of(log)
        assert before < 300 - 20, "it was killed in the middle"
        repeated = 0
        for number in map(str, range(50)):
            own = [(what, step) for what, of, step in lines if of == number]
            for earlier, later in itertools.pairwise(STEPS):
                first = own.index(("start", later))
                assert ("start", earlier) not in own[first:], f"{earlier} ran again after {later} had begun"
            repeated += len([it for it in own if it[0] == "start"]) - len(STEPS)
        assert 0 < repeated <= 100, "what the killed one was carrying out was repeated, and nothing else"

    go(work())
