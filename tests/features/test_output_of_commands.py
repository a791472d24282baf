"""What commands print: kept whole up to a limit, and shown while they run."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path
from typing import Any

import pytest

from support.rendered import Service
from workflows_mcp.engines.live_output import LiveOutput
from workflows_mcp.limits import MIB, Limits
from workflows_mcp.machine.state import Execution
from workflows_mcp.policy.secrets import Secrets
from workflows_mcp.runs.progress import ProgressReport, reporting_progress
from workflows_mcp.settings.model import Settings

PRINT = "yes | head -c 3000000"
GRAPH = """
name: graph
blocks:
  - {id: print, type: Shell, inputs: {command: "COMMAND"MORE}}
  - {id: write, type: CreateFile, depends_on: [print],
     inputs: {path: $RUN_SCRATCH/all, content: "${blocks.print.outputs.stdout}"}}
  - {id: count, type: Shell, depends_on: [write], inputs: {command: 'wc -c < "$RUN_SCRATCH/all"'}}
outputs: {count: "${blocks.count.outputs.stdout}", truncated: "${blocks.print.outputs.truncated}"}
"""
STATEFUL = """
name: stateful
dialect: stateful
state_access: warn
initial_state: {out: null}
steps:
  - {id: print, type: shell, run_on: server, command: "COMMAND"MORE, output_to: out}
  - {id: done, type: return, value: {count: "{{ state.out.stdout | length }}", truncated: "{{ state.out.truncated }}"}}
"""
REACTIVE = """
name: reactive
dialect: reactive
default_state: {raw: {count: 0}}
steps:
  - id: print
    type: shell_command
    command: "COMMAND"MORE
    state_update: {path: raw.count, value: "{{ result.length }}"}
"""
DIALECTS = {"graph": GRAPH, "stateful": STATEFUL, "reactive": REACTIVE}


def carried_out(settings: Settings, text: str, limit: int) -> dict[str, Any]:
    limited = dataclasses.replace(settings, limits=Limits(captured_bytes=limit, state_bytes=10 * MIB))

    async def go() -> dict[str, Any]:
        async with Service.open(limited) as service:
            answer = await service.start(text=text)
            state = await service.state(answer["workflow_id"])
            return {**answer, "state": state}

    return asyncio.run(go())


def written(dialect: str, more: str = "") -> str:
    return DIALECTS[dialect].replace("COMMAND", PRINT).replace("MORE", more)


def count_in(dialect: str, answer: dict[str, Any]) -> int:
    if dialect == "graph":
        return int(answer["outputs"]["count"])
    if dialect == "stateful":
        return int(answer["result"]["count"] if "result" in answer else answer["outputs"]["result"]["count"])
    return int(answer["state"]["state"]["count"])


def test_the_limit_is_64_mib_by_default() -> None:
    assert Limits().captured_bytes == 64 * MIB


@pytest.mark.rows("G10", "X6")
@pytest.mark.parametrize("dialect", DIALECTS)
def test_output_flows_on_whole_up_to_the_limit(settings: Settings, dialect: str) -> None:
    answer = carried_out(settings, written(dialect), 3_000_000)
    assert answer["status"] == "completed", answer
    assert count_in(dialect, answer) == 3_000_000


@pytest.mark.rows("G10")
@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_command_that_prints_more_fails_its_step(settings: Settings, dialect: str) -> None:
    answer = carried_out(settings, written(dialect), 2_999_999)
    assert answer["status"] == "failed"
    assert "more than 2999999 bytes to stdout" in answer["error"]["message"]


@pytest.mark.rows("G10")
@pytest.mark.parametrize("dialect", DIALECTS)
def test_truncate_keeps_the_beginning_and_says_so(settings: Settings, dialect: str) -> None:
    answer = carried_out(
        settings,
        written(dialect, ", truncate: true" if dialect != "reactive" else "\n    truncate: true"),
        1000,
    )
    assert answer["status"] == "completed", answer
    assert count_in(dialect, answer) == 1000
    said = {"graph": answer.get("outputs"), "stateful": answer.get("result")}.get(dialect)
    assert said is None or said["truncated"] is True, "a reactive step keeps the text alone"


WAITS = """
name: waits
blocks:
  - {id: build, type: Shell, inputs: {command: "echo compiling; until [ -f go ]; do sleep 0.02; done; echo done"}}
  - {id: ask, type: Prompt, depends_on: [build], inputs: {prompt: "And now?"}}
"""


@pytest.mark.rows("X8")
def test_what_a_running_step_prints_is_heard_here_told_as_progress_and_seen_by_another_process(
    settings: Settings, workspace: Path
) -> None:
    async def go() -> None:
        last_seen: list[str] = []
        told_of: list[str] = []

        async def tell(how_far: ProgressReport) -> None:
            told_of.append(how_far.doing)
            if "compiling" in how_far.doing:
                (workspace / "go").touch()

        async with Service.open(settings) as service, Service.open(settings, recovers=False) as other:
            run = (await service.start(text=WAITS, wait_seconds=0))["workflow_id"]
            with service.live.listening(run, lambda line: last_seen.append(f"{line.step}: {line.text}")):
                while not [line for line in other.live.lines(run) if line.text == "compiling"]:
                    await asyncio.sleep(0.01)
                with reporting_progress(tell):
                    answer = await service.status(run, wait_seconds=60)
            assert answer["status"] == "pending_action"
            assert last_seen[-1] == "build: done"
            assert any(doing.endswith("compiling") for doing in told_of)
            assert service.live.lines(run) == other.live.lines(run) == [], (
                "what was printed is in the journal"
            )

    asyncio.run(asyncio.wait_for(go(), 60))


SECRET = "tok-1234567890"


@pytest.mark.rows("X5")
@pytest.mark.parametrize("at", range(1, len(SECRET)))
@pytest.mark.parametrize("end", ["\n", ""])
def test_no_part_of_a_secret_that_comes_in_two_pieces_is_shown_live(
    tmp_path: Path, at: int, end: str
) -> None:
    async def go() -> list[str]:
        secrets = Secrets(environ={"WORKFLOWS_SECRET_TOKEN": SECRET})
        secrets.learn(["TOKEN"])
        live = LiveOutput(secrets, tmp_path)
        last_seen: list[str] = []
        with live.listening("wf_1", lambda line: last_seen.append(line.text)):
            output = live.begin("wf_1", Execution("a", "1", 1))
            output.write("stdout", f"first\nit is {SECRET[:at]}".encode())
            assert last_seen == ["first"]
            output.write("stdout", f"{SECRET[at:]} yes{end}".encode())
            live.end("wf_1", output)
        return last_seen

    assert asyncio.run(go()) == ["first", "it is ⟦secret:TOKEN⟧ yes"]
