"""`checkpoints` and `resume`: where runs can be gone on from, and going on from there."""

from __future__ import annotations

import argparse
import asyncio
import sys
from datetime import datetime
from typing import Any

from workflows_mcp.cli.asking import can_ask, read_answer
from workflows_mcp.cli.printing import Paper, err, out, print_json, print_table, print_values
from workflows_mcp.cli.running import Session, interruptible, meant_run, terminal_settings
from workflows_mcp.errors import RequestError
from workflows_mcp.service import Service
from workflows_mcp.values import LEFT_OUT, to_json


def checkpoints_command(options: argparse.Namespace) -> int:
    one = _is_checkpoint(options.id or "")
    if options.delete and not one:
        raise RequestError("say which checkpoint to delete", hint="workflows-mcp checkpoints lists them")

    async def read() -> dict[str, Any]:
        async with Service.open(terminal_settings(steps=False), adopt=False) as service:
            if options.delete:
                return await service.delete_checkpoint(options.id)
            if one:
                return await service.checkpoint_info(options.id)
            return await service.checkpoints(
                workflow=options.workflow, run_id=options.id, limit=options.limit
            )

    found = asyncio.run(read())
    if options.json:
        print_json(found)
    elif options.delete:
        err().line(found["message"])
    elif one:
        _print_details(found)
    else:
        _print_list(found)
    return 0


def resume_command(options: argparse.Namespace) -> int:
    session = Session(as_json=options.json, quiet=options.quiet)

    async def resume() -> int:
        async with session.service() as service:
            value = options.value
            if not _is_checkpoint(options.checkpoint):
                options.checkpoint = await meant_run(service, options.checkpoint)
            else:
                info = await service.checkpoint_info(options.checkpoint)
                session.watch = await service.observing.so_far(info["workflow_id"])
                if value is None and info["type"] == "pause":
                    value = await _asked_for(session.paper, info["prompt"])
            response = LEFT_OUT if value is None else value
            answer = await session.start(service.resume(options.checkpoint, response, wait_seconds=0))
            forked = {"forked_from": answer["forked_from"]} if "forked_from" in answer else {}
            if forked:
                session.watch = await service.observing.so_far(session.run_id)
                session.paper.line(f"{session.run_id} is a new run, from {options.checkpoint}")
            return session.finish({**await session.follow(service), **forked})

    return interruptible(resume(), session)


def _is_checkpoint(text: str) -> bool:
    return text.startswith(("chk_", "pause_"))


async def _asked_for(paper: Paper, prompt: str) -> str | None:
    """The response that was not given on the command line: typed by a person, or piped in."""
    if not can_ask():
        return sys.stdin.read().rstrip("\n") or None
    paper.line(paper.clean(prompt.rstrip()))
    return await read_answer(paper)


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
    paper = out()
    print_table(paper, [("CHECKPOINT", "CREATED", "RUN", "WORKFLOW", ""), *rows])
    if "more" in found:
        err().line("older ones are left out: --limit N shows more, and a run's id only those of that run")


def _print_details(info: dict[str, Any]) -> None:
    paper = out()
    paper.line(f"{paper.paint(info['checkpoint_id'], 'bold')} {info['type']}, {_when(info['created_at'])}")
    paper.line(paper.paint(f"{info['workflow']} {info['workflow_id']}, {info['position']} events", "dim"))
    if info["inputs"]:
        paper.line("\ninputs")
        print_values(paper, info["inputs"], "  ")
    paper.line("\nwaves")
    ended = set(info["completed_blocks"])
    for number, wave in enumerate(info["execution_waves"]):
        marks = [f"{paper.mark('completed' if name in ended else 'pending')} {name}" for name in wave]
        paper.line(f"  {number}: {'  '.join(marks)}")
    if "prompt" in info:
        paper.line(f"\n{paper.mark('paused')} {paper.paint(info['paused_block'], 'bold')}")
        paper.line(paper.clean(info["prompt"].rstrip()))
    if "answered_with" in info:
        paper.line(f"answered with {paper.clean(to_json(info['answered_with']))}")
    what = "makes a new run from here" if info["moved_on"] else "goes on with the run"
    response = " RESPONSE" if info["type"] == "pause" else ""
    paper.line(f"\nworkflows-mcp resume {info['checkpoint_id']}{response}    {what}")


def _ended(checkpoint: dict[str, Any]) -> str:
    count = checkpoint["completed_blocks"]
    return f"{count} block{'s' if count != 1 else ''} ended"


def _when(at: str) -> str:
    return datetime.fromisoformat(at).astimezone().strftime("%Y-%m-%d %H:%M:%S")
