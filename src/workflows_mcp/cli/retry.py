"""`retry` and `fork`: re-run some steps of a run in a new run, and follow it until it ends or waits."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable, Coroutine
from operator import itemgetter
from typing import Any

from workflows_mcp.cli.run import interruptible, resolve_run, session_of, terminal_settings
from workflows_mcp.cli.terminal import err, print_json
from workflows_mcp.runs import Service


def retry_command(options: argparse.Namespace) -> int:
    if "." in options.run:  # the id of a task
        return _retry_task(options)
    return _follow_until_waiting(options, lambda service: service.retry(options.run, wait_seconds=0))


def _retry_task(options: argparse.Namespace) -> int:
    """Make a task of a run available to a new sub-agent, which the agent of the run starts."""

    async def retry() -> dict[str, Any]:
        async with Service.open(terminal_settings(steps=False), recovers=False) as service:
            options.run = await resolve_run(service, options.run)
            return await service.retry(options.run, wait_seconds=0)

    answer = asyncio.run(retry())
    if options.json:
        print_json(answer)
    else:
        err().line(f"the task {options.run} will start again: get its action from {answer['workflow_id']}")
    return 0


def fork_command(options: argparse.Namespace) -> int:
    return _follow_until_waiting(
        options, lambda service: service.fork(options.run, options.step, keep=options.keep, wait_seconds=0)
    )


def _follow_until_waiting(
    options: argparse.Namespace, make: Callable[[Service], Coroutine[Any, Any, dict[str, Any]]]
) -> int:
    session = session_of(options)

    async def follow() -> int:
        async with session.service() as service:
            options.run = await resolve_run(service, options.run)
            answer = await session.start(make(service), run_id_of=itemgetter("workflow_id"))
            forked_from = answer["forked_from"]
            session.watch = await service.inspector.tracker_at_end(session.run_id)
            if not session.quiet:
                session.terminal.line(f"{session.run_id} is a new run, forked from {forked_from}")
            return session.finish({**await session.follow(service), "forked_from": forked_from})

    return interruptible(follow(), session)
