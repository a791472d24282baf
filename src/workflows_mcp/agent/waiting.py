"""Where a run is: its status in one word, and why it waits in one sentence: on whom, since when, and what
would unblock it."""

from __future__ import annotations

from datetime import UTC, datetime

from workflows_mcp.agent.walk import under_way
from workflows_mcp.machine.machine import Machine
from workflows_mcp.machine.state import Frame

_NAMED = 3
_DAY = 86_400.0


def run_status(machine: Machine) -> str:
    """pending_action whenever something is asked of the agent, running while steps run, waiting when only
    time has to pass, or how it ended."""
    state = machine.state
    if state.status != "running":
        return state.status
    if under_way(machine, "agent"):
        return "pending_action"
    if under_way(machine, "step", "plan"):
        return "running"
    return "waiting" if state.frames else "running"


def why_waiting(machine: Machine, now: float) -> str:
    """Of a run that has not ended."""
    reasons: list[str] = []
    asked = under_way(machine, "agent")
    if asked:
        reasons.append("waiting for your answer to " + _listed([_asked(*item, now) for item in asked]))
    working = under_way(machine, "step", "plan")
    if working:
        reasons.append("running " + _listed([_working(*item, now) for item in working]))
    paused = sorted(under_way(machine, "retry"), key=lambda item: item[1].deadline or 0.0)
    if paused:
        reasons.append("trying again " + _listed([_trying(*item, now) for item in paused]))
    if not reasons:
        timed = [item for item in under_way(machine, "call") if item[1].deadline is not None]
        if timed:
            address, frame = timed[0]
            reasons.append(f"waiting for time to pass in '{address}'{_ends(frame, now)}")
    return "; ".join(reasons) or "about to go on"


def _asked(address: str, frame: Frame, now: float) -> str:
    return f"'{address}' since {clock(frame.since, now)}{_ends(frame, now)}"


def _working(address: str, frame: Frame, now: float) -> str:
    return f"'{address}' for {duration(now - frame.since)}"


def _trying(address: str, frame: Frame, now: float) -> str:
    return f"'{address}' at {clock(frame.deadline or now, now)} (try {frame.attempt})"


def _ends(frame: Frame, now: float) -> str:
    return f" (it times out at {clock(frame.deadline, now)})" if frame.deadline is not None else ""


def _listed(items: list[str]) -> str:
    more = len(items) - _NAMED
    return ", ".join(items[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def clock(at: float, now: float) -> str:
    """A time of today without its date, any other with it; always with its zone."""
    moment = datetime.fromtimestamp(at, UTC)
    return moment.strftime("%H:%M:%SZ" if abs(now - at) < _DAY else "%Y-%m-%dT%H:%M:%SZ")


def duration(seconds: float) -> str:
    seconds = max(seconds, 0.0)
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min"
