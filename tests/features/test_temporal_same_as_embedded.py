"""The same workflows on both engines, each through a real MCP server: every agent is asked the same in the same
order, and the same comes of it. Nothing but settings differs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("temporalio", reason="temporalio is not installed: pip install -e .[temporal]")

from support import reactive_agents, scripted
from support.scripted import ANALYZE, DEPLOY, PLANNING, SMALL_PR, example, ran
from support.stdio import Call, served
from workflows_mcp.engines.temporal.connection import Address

pytestmark = [pytest.mark.slow, pytest.mark.rows("S13")]
Told = dict[str, Any]
"""What agents were asked and what came of a run, as data."""


@dataclass(frozen=True)
class Case:
    start: Mapping[str, Any]
    answers: Mapping[Any, Any] = field(default_factory=dict)
    """By step; of a reactive workflow by agent, in order."""
    reactive: bool = False
    files: Mapping[str, str] = field(default_factory=dict)
    """What is in the workspace before."""
    ends: str = "completed"


def stateful(
    name: str, answers: Mapping[str, Any], ours: Mapping[str, Any], **inputs: Any
) -> dict[str, Case]:
    """As it is written, and as the library has it: that runs commands, and delegates, in place of tools."""
    return {
        name: Case({"yaml": example(name), "inputs": inputs}, answers),
        f"{name} of the library": Case({"workflow": name, "inputs": inputs}, {**answers, **ours}),
    }


def library(name: str, answers: Mapping[str, Any] | None = None, **inputs: Any) -> dict[str, Case]:
    return {name: Case({"workflow": name, "inputs": inputs}, answers or {})}


GRAPH = """
name: everything
inputs: {which: {type: string, default: example-hello}}
blocks:
  - {id: found, type: Workflow, inputs: {workflow: "${inputs.which}", inputs: {who: you}}}
  - {id: each, type: Workflow, for_each: [one, two], inputs: {workflow: example-approval, inputs: {change: "${each.value}"}}}
  - {id: slow, type: Shell, timeout: 0.5, on_failure: continue, inputs: {command: "echo begun; sleep 60"}}
  - {id: bad, type: Shell, on_failure: continue, retry: {attempts: 2, delay: 0.05}, inputs: {command: "echo wrong >&2; exit 3"}}
  - {id: missing, type: Workflow, on_failure: continue, depends_on: [found], inputs: {workflow: "${inputs.which}-not"}}
  - {id: last, type: Prompt, depends_on: [each, {block: bad, required: false}], inputs: {prompt: "${blocks.bad.exit_code}?"}}
  - {id: after, type: Shell, depends_on: [last], inputs: {command: 'echo "${blocks.last.response}"; exit 4'}}
outputs:
  greeting: ${blocks.found.outputs.greeting}
  changes: ${blocks.each.outputs.results}
  slow: [ "${blocks.slow.status}", "${blocks.slow.stdout}" ]
  tries: ${blocks.bad.metadata.attempts}
  said: ${blocks.after.stdout}
"""
LOOP = """
name: mend
inputs: {most: {type: integer, default: 5}}
default_state: {raw: {errors: [one, two, three], rounds: 0, log: [], seen: []}}
state_schema:
  computed:
    left: {from: raw.errors, transform: "input.length"}
    verdict: {from: [computed.left, raw.rounds], transform: "input[0] === 0 ? 'good in ' + input[1] : 'bad'"}
steps:
  - {id: who, type: user_input, prompt: "who are you?", state_update: {path: raw.who}}
  - {id: loop, type: while, condition: "left > 0", max_iterations: "{{ most }}", body: [
      {id: look, type: shell_command, command: "printf '%s' {{ errors[0] }}", state_update: {path: raw.log, operation: append}},
      {type: user_message, message: "{{ verdict }}: {{ left }}, {{ log.join(' ') }}"},
      {id: mend, type: agent_shell_command, command: "mend {{ errors[0] }}", state_update: {path: raw.mended}},
      {type: state_update, path: raw.errors, value: "{{ errors.slice(1) }}"},
      {type: state_update, path: raw.rounds, operation: increment}]}
  - {id: all, type: parallel_foreach, items: "{{ log }}", sub_agent_task: look, max_parallel: 2}
  - {type: user_message, message: "{{ who }}: {{ verdict }}, {{ seen.length }} seen"}
sub_agent_tasks:
  look:
    default_state: {raw: {mine: 0}}
    steps:
      - {id: read, type: agent_shell_command, command: "cat {{ item }} of {{ total }}", state_update: {path: raw.mine}}
      - {id: check, type: agent_shell_command, command: "check {{ item }} {{ mine }}"}
"""

ANALYZED = {"analyze": lambda given: json.dumps({"issues": [], "score": len(given["instructions"])})}
RESEARCHED = {"research": lambda given: f"found: {given['instructions'].splitlines()[0]}"}
MERGED = {"fetch-pr": ran('{"changedFiles": 3}'), "approve-and-merge": ran("merged")}
STATEFUL = {
    **stateful(
        "deploy-service", DEPLOY, {"deploy": ran("applied")}, service_name="api", environment="production"
    ),
    **stateful("analyze-codebase", ANALYZE, ANALYZED, repository="/repo"),
    **stateful("interactive-planning", PLANNING, RESEARCHED),
    **stateful("pr-automation", SMALL_PR, MERGED, pr_number=12),
}
QUESTIONS = {"goal": "fly", "deadline": "Friday", "risk": "gravity"}
GRAPHS = {
    **library("example-approval", {"approve": "yes"}),
    **library("example-questionnaire", QUESTIONS, save_to="answers.json"),
    **library("example-composition"),
    **library("example-for-each"),
    **library("example-recursion", count=2),
    **library("example-retry"),
    "everything": Case(
        {"yaml": GRAPH}, {"each/0/approve": "yes", "each/1/approve": "no", "last": "enough"}, ends="failed"
    ),
}
CHECKS = {"checks": {"lint": "echo broken >&2; exit 2", "tests": "true"}, "threshold": 60}
PATHS = ["a.txt", "b.txt", "c.txt"]
FILES = {
    "check_command": "grep -q sound",
    "files": PATHS,
    "files_per_batch": 1,
    "max_parallel": 2,
    "most_attempts": 2,
}
REACTIVE = {
    "a loop over computed fields, then tasks": Case(
        {"yaml": LOOP},
        {
            None: ["me", *(ran(f"mended {n}") for n in range(3))],
            **{f"look.item{n}": [ran(f"it is {n}"), ran("checked")] for n in range(3)},
        },
        reactive=True,
    ),
    "quality-gate": Case({"workflow": "quality-gate", "inputs": CHECKS}, reactive=True),
    "fix-files-in-parallel": Case(
        {"workflow": "fix-files-in-parallel", "inputs": FILES},
        {f"batch_{n}": [{"applied_count": 1}] * 2 for n in range(3)},
        reactive=True,
        files=dict.fromkeys(PATHS, "broken"),
    ),
}


async def told(call: Call, case: Case, workspace: Path) -> Told:
    """Drive a run to its end."""
    for name, text in case.files.items():
        (workspace / name).write_text(text)
    if case.reactive:
        agents = reactive_agents.Agents(call, case.answers)
        answer = await agents.drive(**case.start)
        asked: dict[str, Any] = {str(who): handed for who, handed in agents.handed.items()}
        run_id = agents.run_id
    else:
        script = scripted.Agents(call, case.answers)
        answer = await script.drive(**case.start)
        asked = {who: script.asked_of(who) for who in script.calls}
        run_id = script.run_id
    text = json.dumps([answer, asked]).replace(run_id, "RUN").replace(str(workspace.parent), "HERE")
    last, of_agents = json.loads(text)
    if "next" in last:  # the steps are in the order in which they ended, which is not the same
        last["next"] = last["next"].partition(" redoes ")[0]
    return {"answer": last, "asked": of_agents}


def all_told(directory: Path, cases: Mapping[str, Case], more: Mapping[str, str]) -> dict[str, Told]:
    """Every case, all at once, through one server."""

    async def work(call: Call) -> dict[str, Told]:
        runs = (told(call, case, directory / "workspace") for case in cases.values())
        return dict(zip(cases, await asyncio.gather(*runs), strict=True))

    directory.mkdir()
    return served(directory, work, more=more, seconds=120)


@pytest.mark.parametrize("cases", [STATEFUL, GRAPHS, REACTIVE], ids=["stateful", "graph", "reactive"])
def test_every_agent_is_asked_the_same_and_the_same_comes_of_it(
    tmp_path: Path, temporal_address: Address, cases: Mapping[str, Case]
) -> None:
    settings = {
        "WORKFLOWS_ENGINE": "temporal",
        "WORKFLOWS_TEMPORAL_HOST": temporal_address.host,
        "WORKFLOWS_TEMPORAL_TASK_QUEUE": temporal_address.task_queue,
    }
    embedded = all_told(tmp_path / "embedded", cases, {})
    temporal = all_told(tmp_path / "temporal", cases, settings)
    for name, case in cases.items():
        assert temporal[name]["asked"] == embedded[name]["asked"], name
        assert temporal[name]["answer"] == embedded[name]["answer"], name
        assert embedded[name]["answer"]["status"] == case.ends, name
