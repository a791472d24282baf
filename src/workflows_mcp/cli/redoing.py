"""`retry` and `fork`: doing some of a run again, in a new run that is followed until it ends."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Coroutine
from typing import Any

from workflows_mcp.cli.running import interruptible, meant_run, session_of
from workflows_mcp.service import Service


def retry_command(options: argparse.Namespace) -> int:
    return _followed(options, lambda service: service.retry(options.run, wait_seconds=0))


def fork_command(options: argparse.Namespace) -> int:
    return _followed(
        options, lambda service: service.fork(options.run, options.step, keep=options.keep, wait_seconds=0)
    )


def _followed(
    options: argparse.Namespace, make: Callable[[Service], Coroutine[Any, Any, dict[str, Any]]]
) -> int:
    session = session_of(options)

    async def follow() -> int:
        async with session.service() as service:
            options.run = await meant_run(service, options.run)
            forked_from = (await session.start(make(service)))["forked_from"]
            session.watch = await service.observing.so_far(session.run_id)
            if not session.quiet:
                session.paper.line(f"{session.run_id} is a new run, made of {forked_from}")
            return session.finish({**await session.follow(service), "forked_from": forked_from})

    return interruptible(follow(), session)
