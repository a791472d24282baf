"""`runs`, `show`, `report`, `prune` and `checkpoints`: commands about what is in the store."""

from __future__ import annotations

import argparse
import asyncio
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from workflows_mcp.answers import Format, Report, as_json, render
from workflows_mcp.cli.run import (
    ProgressLines,
    is_checkpoint,
    outputs_of,
    print_end,
    resolve_run,
    shown,
    terminal_settings,
    with_store,
)
from workflows_mcp.cli.terminal import (
    COMPLETED,
    FAILED,
    Terminal,
    duration_text,
    err,
    out,
    print_json,
    print_table,
    print_values,
    size_text,
)
from workflows_mcp.errors import RequestError
from workflows_mcp.runs import Service
from workflows_mcp.values import Value, to_json

_SHOWN_CHARS = 100
_POLL_SECONDS = 0.2


def runs_command(options: argparse.Namespace) -> int:
    found = with_store(lambda service: service.recent(limit=options.limit))
    if options.json:
        print_json({"runs": found})
        return 0
    if not found:
        err().line("no runs yet")
        return 0
    terminal = out()
    rows = [
        (run["workflow_id"], run["status"], _when(run["started_at"]), run["workflow"], _project(run))
        for run in found
    ]
    print_table(terminal, [("RUN", "STATUS", "STARTED", "WORKFLOW", "PROJECT"), *rows])
    return 0


def _project(run: dict[str, Value]) -> str:
    """Return the directory of a run, with ~ for the home directory."""
    directory, home = str(run.get("workspace", "")), str(Path.home())
    return f"~{directory[len(home) :]}" if directory.startswith(f"{home}/") else directory


async def _follow(service: Service, run_id: str) -> None:
    """Print steps and their output until the run ends or waits for an answer."""
    progress = ProgressLines(err())

    async def lines() -> None:
        seen = 0
        while True:
            for line in service.live.lines(run_id, after=seen):
                seen = line.number
                progress.show_output(line, under_way=2)
            await asyncio.sleep(_POLL_SECONDS)

    showing = asyncio.create_task(lines())
    try:
        async for step in service.progress(run_id).steps():
            progress.show(step)
    finally:
        showing.cancel()
        progress.flush()


def show_command(options: argparse.Namespace) -> int:
    async def read(service: Service) -> tuple[dict[str, Any], dict[str, Any]]:
        run_id = await resolve_run(service, options.run)
        if options.follow and not options.json:
            await _follow(service, run_id)
        answer = await shown(service.status(run_id, alone=True))
        state = await service.state(run_id, paths=["inputs", "blocks", "metadata"])
        return answer, state["values"]

    answer, state = with_store(read)
    if options.json:
        about = ("started_at", "ended_at", "forked_from")
        known = {key: state["metadata"][key] for key in about if state["metadata"][key]}
        print_json({**answer, **known, "inputs": state["inputs"], "blocks": state["blocks"]})
        return 0
    terminal = out()
    terminal.line(
        f"{terminal.mark(answer['status'])} {terminal.paint(answer['workflow'], 'bold')} {answer['status']}"
    )
    origin_text = f", forked from {origin}" if (origin := state["metadata"]["forked_from"]) else ""
    started = _when(state["metadata"]["started_at"])
    terminal.line(terminal.paint(f"{answer['workflow_id']}, started {started}{origin_text}", "dim"))
    if state["inputs"]:
        terminal.line("\ninputs")
        print_values(terminal, state["inputs"], "  ")
    terminal.line("\nblocks")
    _print_blocks(terminal, state["blocks"], "  ")
    for part, values in outputs_of(answer).items():
        terminal.line(f"\n{part}")
        print_values(terminal, values, "  ")
    if answer["status"] != "completed":
        terminal.line()
        print_end(answer, terminal, outputs=False)
    return 0


def _print_blocks(terminal: Terminal, blocks: dict[str, Any], indent: str) -> None:
    for name, block in blocks.items():
        metadata = block["metadata"]
        status = metadata["status"]
        milliseconds = metadata["execution_time_ms"]
        details = status
        if milliseconds is not None and status != "skipped":
            details = duration_text(milliseconds / 1000)
        if metadata["attempts"] > 1:
            details += f", {metadata['attempts']} tries"
        if metadata["by"]:
            details += f", {metadata['by']}"
        message = metadata["message"]
        if message:
            details += f"  {message.splitlines()[0]}"
        mark = terminal.mark(status, metadata["outcome"])
        terminal.line(f"{indent}{mark} {name}  {terminal.paint(details, 'dim')}")
        inside = indent + "    "
        if "blocks" in block:
            _print_blocks(terminal, block["blocks"], inside)
        elif "items" in block:
            _print_blocks(terminal, _with_outputs(block), inside)
        elif status in ("completed", "failed"):
            for key, value in block["outputs"].items():
                if value not in (None, "", [], {}):
                    terminal.line(f"{inside}{terminal.paint(f'{key}: {_short(value)}', 'dim')}")


def _with_outputs(block: dict[str, Any]) -> dict[str, Any]:
    """Return the items of a for_each block, with their outputs."""
    results = block["outputs"]["results"]
    outputs = results.values() if isinstance(results, dict) else results
    return {
        key: {**item, "outputs": given}
        for (key, item), given in zip(block["items"].items(), outputs, strict=True)
    }


def report_command(options: argparse.Namespace) -> int:
    """Print or write the report; fail if the journal does not hold."""
    form: Format = options.format or ("json" if options.json else "md")

    async def read(service: Service) -> Report:
        return await service.report(await resolve_run(service, options.run), expected=options.expect or "")

    report = with_store(read)
    if form == "json" and not options.output:
        print_json(as_json(report))
    elif options.output:
        Path(options.output).write_text(render(report, form), encoding="utf-8")
    else:
        out().line(render(report, form).rstrip())
    for it in report.proof.mismatches:
        err().line(f"{err().paint('does not hold', 'red')}: {err().clean(it.message)}")
    return COMPLETED if report.proof.holds else FAILED


def prune_command(options: argparse.Namespace) -> int:
    limits = terminal_settings(steps=False).limits
    if options.days is not None:
        limits = replace(limits, run_days=options.days)
    if options.keep is not None:
        limits = replace(limits, max_ended_runs=options.keep)
    if options.size is not None:
        limits = replace(limits, store_bytes=options.size)
    pruned = with_store(lambda service: service.prune(limits, dry_run=options.dry_run))
    if options.json:
        print_json(pruned)
        return 0
    terminal, count = out(), len(pruned["deleted"])
    if options.dry_run and count:
        rows = [
            (it["workflow_id"], it["status"], _when(it["ended_at"]), size_text(it["bytes"]), it["workflow"])
            for it in pruned["deleted"]
        ]
        print_table(terminal, [("RUN", "STATUS", "ENDED", "SIZE", "WORKFLOW"), *rows])
    verb = "would delete" if options.dry_run else "deleted"
    message = f"{verb} {count} run{'' if count == 1 else 's'}, {size_text(pruned['bytes'])}"
    if returned := pruned["file_bytes_returned"]:
        message += f"; the store is {size_text(returned)} smaller"
    terminal.line(message)
    return 0


def _short(value: Value) -> str:
    text = to_json(value)
    return text if len(text) <= _SHOWN_CHARS else text[: _SHOWN_CHARS - 1] + "…"


def _when(at: Any) -> str:
    """Format a time of the journal in local time, to the second; empty if there is none."""
    if not isinstance(at, str):
        return ""
    return datetime.fromisoformat(at).astimezone().strftime("%Y-%m-%d %H:%M:%S")


# `checkpoints`


def checkpoints_command(options: argparse.Namespace) -> int:
    one = is_checkpoint(options.id or "")
    if options.delete and not one:
        raise RequestError("--delete needs a checkpoint id", hint="workflows-mcp checkpoints lists them")

    async def read(service: Service) -> dict[str, Any]:
        if options.delete:
            return await service.delete_checkpoint(options.id)
        if one:
            return await service.checkpoint_info(options.id)
        return await service.checkpoints(workflow=options.workflow, run_id=options.id, limit=options.limit)

    found = with_store(read)
    if options.json:
        print_json(found)
    elif options.delete:
        err().line(found["message"])
    elif one:
        _print_details(found)
    else:
        _print_list(found)
    return 0


def _print_list(found: dict[str, Any]) -> None:
    checkpoints = found["checkpoints"]
    if not checkpoints:
        err().line("no checkpoints")
        return
    rows = [
        (
            it["checkpoint_id"],
            _when(it["created_at"]),
            "moved on" if it["moved_on"] else "waits" if it["type"] == "pause" else "now",
            it["workflow"],
            f"{it['paused_block']}: {it['prompt']}" if it["type"] == "pause" else _ended(it),
        )
        for it in checkpoints
    ]
    terminal = out()
    print_table(terminal, [("CHECKPOINT", "CREATED", "RUN", "WORKFLOW", ""), *rows])
    if "more" in found:
        err().line("older checkpoints are not shown: use --limit N, or the id of a run")


def _print_details(info: dict[str, Any]) -> None:
    terminal = out()
    terminal.line(
        f"{terminal.paint(info['checkpoint_id'], 'bold')} {info['type']}, {_when(info['created_at'])}"
    )
    terminal.line(
        terminal.paint(f"{info['workflow']} {info['workflow_id']}, {info['position']} events", "dim")
    )
    if info["inputs"]:
        terminal.line("\ninputs")
        print_values(terminal, info["inputs"], "  ")
    terminal.line("\nwaves")
    ended = set(info["completed_blocks"])
    for number, wave in enumerate(info["execution_waves"]):
        marks = [f"{terminal.mark('completed' if name in ended else 'pending')} {name}" for name in wave]
        terminal.line(f"  {number}: {'  '.join(marks)}")
    if "prompt" in info:
        terminal.line(f"\n{terminal.mark('paused')} {terminal.paint(info['paused_block'], 'bold')}")
        terminal.line(terminal.clean(info["prompt"].rstrip()))
    if "answered_with" in info:
        terminal.line(f"answered with {terminal.clean(to_json(info['answered_with']))}")
    what = "starts a new run from here" if info["moved_on"] else "continues the run"
    response = " RESPONSE" if info["type"] == "pause" else ""
    terminal.line(f"\nworkflows-mcp resume {info['checkpoint_id']}{response}    {what}")


def _ended(checkpoint: dict[str, Any]) -> str:
    count = checkpoint["completed_blocks"]
    return f"{count} block{'s' if count != 1 else ''} ended"
