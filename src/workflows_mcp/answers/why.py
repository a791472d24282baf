"""Explains in one sentence why a run or a task waits, since when, and how to continue it."""

from __future__ import annotations

from datetime import UTC, datetime

from workflows_mcp.answers.progress import failed_for_good
from workflows_mcp.answers.run_view import RunView
from workflows_mcp.answers.tasks import Delegation, Framed, Standing, Task
from workflows_mcp.machine import Frame, how_to_resume

_NAMED = 3
_DAY = 86_400.0
_MESSAGE_CHARS = 200
_LAST_MOMENT = 253_402_300_799.0
"""The end of the year 9999: later moments have no date."""


def why(view: RunView, *, brief: bool = False) -> str:
    """Say why a run or a task has not ended. `brief` leaves out tasks to start, which its action lists."""
    now, target = view.now, view.target
    if (parked := view.state.parked) is not None:
        by = "parked by the user"
        if view.state.context_full:
            by = "parked because the context of its agent was nearly full,"
        if held := view.under_way("budget"):
            used_up = _listed([_held(target.step_id(address), frame) for address, frame in held])
            return f"parked at {clock(parked, now)}, until a person allows more: {used_up}"
        return f"{by} at {clock(parked, now)}; to continue: {how_to_resume(target.run_id)}"

    def named(framed: list[Framed]) -> list[Framed]:
        return [(target.step_id(address), frame) for address, frame in framed]

    reasons: list[str] = []
    if asked := named(view.pending.questions):
        reasons.append("waiting for your answer to " + _listed([_asked(*item, now) for item in asked]))
    reasons += [
        _delegated(view, it)
        for it in view.pending.delegations
        if not brief or any(task.standing != "to start" for task in it.tasks)
    ]
    if working := named(view.under_way("step", "plan")):
        reasons.append("running " + _listed([_working(*item, now) for item in working]))
    if checking := named(view.under_way("verify")):
        reasons.append("checking the result of " + _listed([_working(*item, now) for item in checking]))
    if gates := named(view.under_way("gate")):
        decided = _listed([_asked(*item, now) for item in gates])
        reasons.append(f"waiting for the decision of a person: {decided}; {where_to_decide(view)}")
    if held := named(view.under_way("budget")):
        reasons.append("waiting until a person allows more: " + _listed([_held(*item) for item in held]))
    if passing := view.under_way("wait"):
        reasons.append("waiting " + _listed([_passing(view, *item) for item in passing]))
    if paused := sorted(named(view.under_way("retry")), key=lambda item: item[1].deadline or 0.0):
        reasons.append("trying again " + _listed([_trying(*item, now) for item in paused]))
    if not reasons:
        timed = [item for item in named(view.under_way("call")) if item[1].deadline is not None]
        if timed:
            step_id, frame = timed[0]
            reasons.append(f"waiting for time to pass in '{step_id}'{_ends(frame, now)}")
    if not reasons and view.task is not None and view.task.record.status == "pending":
        reasons.append("waiting for its turn: it comes when other tasks have ended")
    if doomed := failed_for_good(view):
        reasons.append(f"block {doomed} has failed, so the run will fail in any case")
    if not reasons and not brief and not view.why_not_driven:
        return "about to continue"
    return "; ".join(reasons)


def not_driven(view: RunView) -> str:
    """Say that no server continues a run, and how to change that; empty if one does."""
    if not view.why_not_driven:
        return ""
    directory, run_id = view.state.workspace, view.target.run_id
    if not directory:  # it has not started, and may start anywhere
        return view.why_not_driven
    return (
        f"but no server continues it: {view.why_not_driven}; start one in {directory} (workflows-mcp serve, "
        f"without --read-only), or continue it here: {how_to_resume(run_id)}"
    )


def standing(task: Task, now: float) -> str:
    """Return the status of a task for the agent that starts its sub-agent."""
    match task.standing:
        case "to start":
            return "waiting to start"
        case "at work":
            return "at work"
        case "silent":
            silence = duration(now - (task.last_contact or now))
            return f"silent for {silence}: if its agent is gone, start another with the same prompt"
    return "on the server: nothing is asked yet"


def until(frame: Frame, now: float) -> str:
    """Say when a durable timer ends, and how long that is."""
    due = frame.deadline if frame.deadline is not None else now
    return f"until {clock(due, now)} (another {duration(due - now)})"


def _delegated(view: RunView, delegation: Delegation) -> str:
    count = view.count_tasks(delegation.address)
    name = view.target.step_id(delegation.address)
    reasons = [f"waiting for the tasks of '{name}': {count.done} of {count.total} done"]
    if count.failed:
        reasons.append(f"{count.failed} failed")

    def those(standing: Standing) -> list[Task]:
        return [task for task in delegation.tasks if task.standing == standing]

    def names(tasks: list[Task]) -> str:
        return _listed([f"'{task_name(view, task)}'" for task in tasks])

    if starting := those("to start"):
        reasons.append(f"to be started: {names(starting)}")
    if working := those("at work"):
        reasons.append(f"at work: {_listed([_contact(view, task) for task in working])}")
    if silent := those("silent"):
        reasons.append(
            f"silent: {_listed([_contact(view, task) for task in silent])}; if its agent is gone, start "
            "another with the same prompt, which is in the action"
        )
    if served := those("on the server"):
        reasons.append(f"on the server: {names(served)}")
    return ", ".join(reasons)


def retry_call(task_id: str) -> str:
    return f"control_workflow(workflow_id='{task_id}', action='retry')"


def _contact(view: RunView, task: Task) -> str:
    """Say when the agent of a task started, and when its last heartbeat was."""
    now, last_contact = view.now, task.last_contact
    since = f"'{task_name(view, task)}' since {clock(task.since, now)}"
    if last_contact is None or last_contact == task.since:
        return since
    return f"{since} (last called at {clock(last_contact, now)})"


def task_name(view: RunView, task: Task) -> str:
    """Return the id of a task relative to the target of the view: a valid task_id."""
    return task.target.id[len(view.target.id) + 1 :]


TELL_USER = "tell the user what the run waits for, as `decisions` says"


def where_to_decide(view: RunView) -> str:
    """Say how a person decides what a run waits for."""
    return f"in a form of the client, or in a terminal: workflows-mcp answer {view.target.run_id}"


def _held(step_id: str, frame: Frame) -> str:
    what, _, owner = frame.budget.partition("@")
    if what.startswith("confirm "):
        return f"'{step_id}' would start about {what[8:]} sub-agents"
    return f"'{step_id}': the budget{f' of {owner!r}' if owner else ''} is used up ({what})"


def _asked(step_id: str, frame: Frame, now: float) -> str:
    return f"'{step_id}' since {clock(frame.since, now)}{_ends(frame, now)}"


def _working(step_id: str, frame: Frame, now: float) -> str:
    by = f" by the agent '{frame.headless}'" if frame.headless else ""
    return f"'{step_id}'{by} for {duration(frame.seconds(now))}"


def _trying(step_id: str, frame: Frame, now: float) -> str:
    return f"'{step_id}' at {clock(frame.deadline or now, now)} (try {frame.attempt})"


def _passing(view: RunView, address: str, frame: Frame) -> str:
    visited = view.block_at(address)
    message = visited.record.inputs.get("message") if visited is not None else None
    timer = f"{until(frame, view.now)} at '{view.target.step_id(address)}'"
    return f"{timer}: {str(message)[:_MESSAGE_CHARS]}" if message else timer


def _ends(frame: Frame, now: float) -> str:
    return f" (it times out at {clock(frame.deadline, now)})" if frame.deadline is not None else ""


def _listed(items: list[str]) -> str:
    more = len(items) - _NAMED
    return ", ".join(items[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def clock(at: float, now: float) -> str:
    """Format a time in UTC; without the date if it is less than a day away."""
    if not 0 <= at <= _LAST_MOMENT:
        return "after the year 9999"
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
