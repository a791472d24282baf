"""Decisions of a person at the terminal: gates, and budgets that are used up.

    workflows-mcp answer wf_1f2e --step approve

An agent with a shell can start this command, so it demands a person: standard input must be a terminal,
no agent may be around the process, and the decision is confirmed by typing the name of the step. What is
refused is recorded in the run.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from workflows_mcp.answers import MORE
from workflows_mcp.cli.terminal import read_answer
from workflows_mcp.errors import RequestError
from workflows_mcp.runs import Identity, agent_around, read_choice, read_limit, user_name

if TYPE_CHECKING:
    from workflows_mcp.cli.terminal import Terminal
    from workflows_mcp.runs import OpenDecision, Service


def is_person() -> bool:
    """Whether a person is at the terminal, as far as a process can know."""
    return sys.stdin.isatty() and sys.stderr.isatty() and not agent_around(os.environ)


def person() -> Identity:
    """Return who is at the terminal; not a person if an agent or a pipe is."""
    return Identity(user_name(), "terminal", human=is_person())


async def demand_person(service: Service, run_id: str, what: str) -> Identity:
    """Return the person at the terminal. Anything else is refused and recorded."""
    by = person()
    if by.human:
        return by
    agent = agent_around(os.environ)
    why = f"it was started inside an agent ({agent} is set)" if agent else "its input is not a terminal"
    message = f"only a person at a terminal can decide {what}: {why}"
    await service.decisions.refused(run_id, "command", message, by=by)
    hint = "open a terminal of your own, and run the same command there"
    raise RequestError(message, hint=hint, code="only_people")


async def decide(
    service: Service,
    terminal: Terminal,
    run_id: str,
    decision: OpenDecision,
    choice: str | None = None,
    comment: str | None = None,
) -> bool:
    """Let the person at the terminal decide; false if they do not."""
    by = await demand_person(service, run_id, f"'{decision.step_id}'")
    _show(terminal, decision)
    chosen = (
        read_choice(decision, choice) if choice is not None else await _ask_for_choice(terminal, decision)
    )
    if not chosen:
        return False
    amount: dict[str, float] = {}
    if decision.kind == "budget" and decision.budget and chosen == MORE:
        typed = await read_answer(terminal, f"new limit of {decision.budget} ")
        if not typed:
            return False
        amount = dict([read_limit(f"{decision.budget}={typed}")])
    elif comment is None:
        comment = await read_answer(terminal, "comment (optional) ") or ""
    name = decision.step_id
    typed = await read_answer(terminal, f"type {name} to confirm '{chosen}' ")
    if typed is None or typed.strip() != name:
        terminal.line("not confirmed: nothing was decided")
        return False
    if amount:
        await service.decisions.raise_budget(run_id, amount, by=by, owner=decision.owner)
    else:
        await service.decisions.decide(run_id, name, chosen, by=by, comment=comment or "", shown=decision)
    return True


async def _ask_for_choice(terminal: Terminal, decision: OpenDecision) -> str:
    """Ask until a choice is typed; empty if nothing is."""
    while typed := (await read_answer(terminal, f"{' / '.join(decision.choices)} ") or "").strip():
        try:
            return read_choice(decision, typed)
        except RequestError as error:
            terminal.line(f"{error.message}: {error.hint}")
    return ""


def _show(terminal: Terminal, decision: OpenDecision) -> None:
    terminal.line()
    terminal.line(
        f"{terminal.mark('paused')} {terminal.paint(decision.step_id, 'bold')}  only a person can decide"
    )
    terminal.line(terminal.clean(decision.message.rstrip()))
    if decision.approvers:
        terminal.line(terminal.paint(f"approvers: {', '.join(decision.approvers)}", "dim"))
    for number, choice in enumerate(decision.choices, start=1):
        terminal.line(f"  {number}  {terminal.clean(choice)}")
