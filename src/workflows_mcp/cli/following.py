"""A run as it goes, line by line, and how it ended."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from datetime import datetime
from typing import Any

from workflows_mcp.cli.asking import show_question
from workflows_mcp.cli.printing import Paper, out, print_values, took
from workflows_mcp.service import Line, Progress

_ENDED = ("completed", "failed", "skipped", "ended")
_TOGETHER_SECONDS = 0.02
_RETRIES = re.compile(r"action='(retry|fork)'[^)]*\) ([^;]*)")
"""What `next` says of doing some of a run again."""


class ProgressLines:
    """A line for every block that starts, ends, is skipped, or asks something, in each of its rounds.

    News that come together are put in order: a block that calls a workflow ends after those inside of it.
    """

    def __init__(self, paper: Paper, *, quiet: bool = False) -> None:
        self._paper = paper
        self._quiet = quiet
        self._news: list[Progress] = []
        self.failed: list[str] = []
        """The blocks that have failed so far."""
        self.on_failure: Callable[[], None] | None = None
        """Called when the failure of a block has been shown."""

    def show(self, step: Progress) -> None:
        if step.status == "pending":
            return
        if not self._news:
            asyncio.get_running_loop().call_later(_TOGETHER_SECONDS, self.flush)
        self._news.append(step)

    def flush(self) -> None:
        news, self._news = self._news, []
        known = len(self.failed)
        for step in sorted(news, key=_in_order):
            self._print(step)
            if (step.status == "failed" or step.outcome == "failure") and step.address not in self.failed:
                self.failed.append(step.address)
        if len(self.failed) > known and self.on_failure is not None:
            self.on_failure()

    def _print(self, step: Progress) -> None:
        if self._quiet and step.status != "failed" and step.outcome != "failure":
            return
        paper = self._paper
        at = datetime.fromtimestamp(step.at).strftime("%H:%M:%S")
        depth = "  " * step.address.count("/")
        parts = [
            paper.paint(at, "dim"),
            f"{depth}{paper.mark(step.status, step.outcome)} {step.address}",
            paper.paint(paper.clean(_how(step)), "dim"),
        ]
        paper.line("  ".join(part for part in parts if part))


class LiveLines:
    """What running steps print, as it comes; with the name of the step where several are under way."""

    def __init__(self, paper: Paper, progress: ProgressLines) -> None:
        self._paper = paper
        self._progress = progress
        self._several = False

    def show(self, line: Line, under_way: int) -> None:
        self._progress.flush()
        self._several = self._several or under_way > 1
        name = f"{self._paper.paint(line.step, 'dim')} | " if self._several else "| "
        self._paper.line(f"          {name}{self._paper.clean(line.text)}")


def _in_order(step: Progress) -> tuple[float, bool, int, tuple[int, ...]]:
    """At the same time, ends come before starts; inner ends before outer ones, outer starts before inner."""
    depth, starts = step.address.count("/"), step.status not in _ENDED
    return step.at, starts, depth if starts else -depth, step.order


def _how(step: Progress) -> str:
    match step.status:
        case "running":
            return ""
        case "paused":
            return "asks for an answer"
        case "skipped":
            return f"skipped: {step.message}" if step.message else "skipped"
    said = took(step.seconds)
    if step.message:
        said += f"  {step.message.splitlines()[0]}"
    return said


def print_end(
    answer: dict[str, Any], paper: Paper, *, outputs: bool, seconds: float | None = None, quiet: bool = False
) -> None:
    """How a run ended, or what it waits for: outputs on stdout, the rest on stderr. `quiet`: success goes
    without saying."""
    status = answer["status"]
    mark = paper.mark(status)
    name = f"{answer['workflow']} {paper.paint(answer['workflow_id'], 'dim')}"
    if status in ("completed", "failed", "cancelled"):
        within = f" in {took(seconds)}" if seconds is not None else ""
        tolerated = answer.get("failed_blocks", [])
        if not quiet or status != "completed" or tolerated:
            paper.line(f"{mark} {name} {status}{within}{_tolerated(tolerated)}")
        if "error" in answer:
            _print_fault(answer, paper)
        for values in given(answer).values() if outputs else ():
            print_values(out(), values)
        return
    for action in [answer["action"], *answer.get("more_actions", ())] if "action" in answer else []:
        show_question(paper, action)
    paper.line()
    paper.line(f"{mark} {name} is {answer.get('why', status)}")
    if "action" in answer:
        paper.line(f"  to go on: {how_to_answer(answer)}")


def _tolerated(blocks: list[dict[str, Any]]) -> str:
    """What is said of blocks that failed although the run completed."""
    if not blocks:
        return ""
    named = [
        f"{it['block']} (tolerated by {it['tolerated_by']})" if "tolerated_by" in it else it["block"]
        for it in blocks
        if isinstance(it, dict) and "block" in it
    ]
    return f", {len(blocks)} block{'s' if len(blocks) > 1 else ''} failed: {', '.join(named)}"


def given(answer: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """What came of a run: its outputs; or what it returned; or, where it returned nothing, its state."""
    result = answer.get("result")
    if result is not None:
        return {"result": result if isinstance(result, dict) else {"result": result}}
    return {part: answer[part] for part in ("outputs", "state") if answer.get(part)}


def how_to_answer(answer: dict[str, Any]) -> str:
    step = f" --step {answer['action']['step_id']}" if answer.get("more_actions") else ""
    return f"workflows-mcp answer {answer['workflow_id']} VALUE{step}"


def _print_fault(answer: dict[str, Any], paper: Paper) -> None:
    error, run_id = answer["error"], answer["workflow_id"]
    paper.line(f"  {paper.paint(paper.clean(error['message']), 'red')}")
    if "place" in error:
        paper.line(f"  at {error['place']}" + (f": {error['line']}" if "line" in error else ""))
    if "printed" in error:
        paper.line("  it printed last:")
        for line in error["printed"].splitlines():
            paper.line(f"    {paper.clean(line)}")
    if "hint" in error:
        paper.line(f"  {error['hint']}")
    paper.line(paper.paint(f"  more: workflows-mcp show {run_id}", "dim"))
    for command, what in _RETRIES.findall(answer.get("next", "")):
        step = " STEP" if command == "fork" else ""
        paper.line(paper.paint(f"  workflows-mcp {command} {run_id}{step} {what}", "dim"))
