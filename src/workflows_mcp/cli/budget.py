"""Allows agents to do more than a budget says: only a person at a terminal can.

workflows-mcp budget wf_1f2e agent_steps=300
workflows-mcp budget wf_1f2e --allow             # start the sub-agents that wait for a confirmation
"""

from __future__ import annotations

import argparse

from workflows_mcp.cli.decide import demand_person
from workflows_mcp.cli.run import Session, follow_run, resolve_run
from workflows_mcp.cli.terminal import read_answer
from workflows_mcp.errors import RequestError
from workflows_mcp.runs import Service, read_limit


def budget_command(options: argparse.Namespace) -> int:
    limits = dict(read_limit(text) for text in options.limits)
    if not limits and not options.allow:
        raise RequestError("say what to allow", hint="e.g. agent_steps=300, or --allow for a fan-out")

    async def begin(session: Session, service: Service) -> None:
        session.started_here = False
        session.run_id = await resolve_run(service, options.run)
        by = await demand_person(service, session.run_id, "about a budget")
        named = ", ".join(f"{name}={value:g}" for name, value in limits.items()) or "the fan-out"
        typed = await read_answer(session.terminal, f"type yes to allow {named} for {session.run_id} ")
        if typed is None or typed.strip().lower() != "yes":
            raise RequestError("not confirmed: nothing has changed")
        session.run_id = await service.raise_budget(session.run_id, limits, by=by, owner=options.of)

    return follow_run(options, begin)
