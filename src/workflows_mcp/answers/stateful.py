"""Answers of the toolset `stateful`: a step with its parameters beside its id.

    {"step_id": "read-file", "type": "shell", "command": "cat src/main.py", "timeout": 30, "status":
     "pending_action", "workflow_id": "wf_1.analyze.0", "action": {…}}
    {"status": "complete", "final_result": {…}, "workflow_id": "wf_1.analyze.0"}

`action` has the rest: the instructions, and the parameters whose names are fields of the answer.
"""

from __future__ import annotations

from typing import Any

from workflows_mcp.answers.answer import FindPlace, RerunOptions, answer_about
from workflows_mcp.answers.run_view import RunView
from workflows_mcp.answers.targets import block_at
from workflows_mcp.answers.vocabulary import STATEFUL
from workflows_mcp.limits import Limits
from workflows_mcp.steps import StepRegistry
from workflows_mcp.values import Value


def step_answer(
    view: RunView,
    registry: StepRegistry,
    limits: Limits,
    *,
    place: FindPlace,
    redo: RerunOptions | None = None,
) -> dict[str, Any]:
    answer = answer_about(
        view, registry, limits, place=place, at_work=True, detail="step", with_result=True, redo=redo,
        words=STATEFUL,
    )  # fmt: skip
    return in_stateful_words({**_timer(view), **answer})


def in_stateful_words(answer: dict[str, Any]) -> dict[str, Any]:
    """Translate an answer: move parameters beside the step id, and the result to `final_result`."""
    if answer["status"] == "completed":
        final = answer.pop("result", None) if "result" in answer else answer.pop("outputs", None)
        return {**answer, "status": "complete", "final_result": final}
    action = answer.get("action")
    if action is None:
        return answer
    own = {"step_id": action["step_id"], "type": action["type"]}
    taken = {*own, *answer}
    flat = {name: it for name, it in action["parameters"].items() if name not in taken}
    rest = {name: it for name, it in action["parameters"].items() if name in taken}
    action = {name: it for name, it in action.items() if name != "parameters"} | (
        {"parameters": rest} if rest else {}
    )
    action["instructions"] = STATEFUL.instructions(str(action["instructions"]), as_before=rest)
    return {**own, **flat, **answer, "action": action}


def _timer(view: RunView) -> dict[str, Value]:
    """Return the fields of a timer step, for an agent that has nothing else to do."""
    waits = view.under_way("wait")
    if view.status != "waiting" or not waits:
        return {}
    address, frame = waits[0]
    visited = block_at(view.machine, address)
    message = visited.record.inputs.get("message") if visited is not None else None
    timer: dict[str, Value] = {
        "step_id": view.target.step_id(address),
        "type": "wait",
        "duration": frame.timeout,
        "seconds_left": round(max((frame.deadline or 0.0) - view.now, 0.0), 3),
        "requires_action": False,
    }
    return {**timer, "message": message} if message else timer
