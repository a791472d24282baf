"""Answers of the toolset `graph`: success, failure or paused, with outputs and blocks.

    {"status": "paused", "workflow_id": "wf_7f3a", "checkpoint_id": "pause_wf_7f3a_2",
     "prompt": "Ship it? yes or no", "message": "answer with resume_workflow(checkpoint_id='pause_…', …)"}

`minimal` has the status and the outputs; `detailed` also has every block, with the blocks of a called
workflow inside the block that calls it. Absent fields are left out, but a success always has `blocks` and
`metadata`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from workflows_mcp.answers.actions import pending_actions
from workflows_mcp.answers.answer import FindPlace, RerunOptions, error_view, failed_blocks, next_after_end
from workflows_mcp.answers.elicitation_log import instructions_after_forms
from workflows_mcp.answers.history import Checkpoint, CheckpointId, History
from workflows_mcp.answers.previews import Cut, cut, reader, shortened, within
from workflows_mcp.answers.run_view import run_view_of
from workflows_mcp.answers.targets import question_id, whole_run
from workflows_mcp.answers.tasks import NEVER_SEEN, LastSeen
from workflows_mcp.answers.why import failed_for_good, why_waiting
from workflows_mcp.limits import Limits
from workflows_mcp.machine import TERMINAL, Blocks, Machine, iso
from workflows_mcp.plan import execution_waves
from workflows_mcp.steps import StepRegistry
from workflows_mcp.values import Value

ResponseFormat = Literal["minimal", "detailed"]
_LISTED_PROMPT_CHARS = 120
_PROMPT_SHARE = 8
"""A prompt may be this many times longer than other values before it is cut."""


@dataclass(frozen=True, slots=True)
class Questions:
    """The open questions of a run: checkpoints, and addresses of questions whose checkpoint was deleted."""

    open: Sequence[Checkpoint] = ()
    deleted: Sequence[str] = ()


NOTHING_ASKED = Questions()


def graph_answer(
    machine: Machine,
    registry: StepRegistry,
    limits: Limits,
    *,
    place: FindPlace,
    now: float,
    questions: Questions = NOTHING_ASKED,
    last_seen: LastSeen = NEVER_SEEN,
    response_format: ResponseFormat = "minimal",
    fork_of: CheckpointId | None = None,
    redo: RerunOptions | None = None,
) -> dict[str, Any]:
    """`redo`: how a failed or cancelled run can continue."""
    if machine.state.parked is not None:  # it accepts no answer until the user resumes it
        questions = NOTHING_ASKED
    schemas = _response_schemas(machine, registry) if questions.open else {}

    def build(how: Cut) -> dict[str, Any]:
        state = machine.state
        answer: dict[str, Any] = {"status": _status(machine, now), "workflow_id": state.run_id}
        if fork_of is not None:
            answer["forked_from"] = fork_of.run_id
        if state.outputs or answer["status"] == "success":
            answer["outputs"] = cut(state.outputs, ("outputs",), how, reader(state.run_id))
        if answer["status"] == "success" and (tolerated := failed_blocks(machine, state.root)):
            answer["failed_blocks"] = cut(tolerated, ("blocks",), how, reader(state.run_id))
        if answer["status"] == "failure":
            answer["error"] = error_text(machine, place)
        if questions.open:
            first, *more = [_question(it, machine, schemas, how) for it in questions.open]
            answer |= first
            if more:
                notes = [{"message": it} if it else {} for it in _declined(machine, questions, last_seen)[1:]]
                listed = [{**entry, **note} for entry, note in zip(more, notes, strict=True)]
                answer["more_prompts"] = listed[: how.items]
        message = _message(machine, questions, last_seen, fork_of, now)
        if redo is not None:
            then = next_after_end(run_view_of(machine, now=now, limits=limits), redo)
            message = f"{message}. {then}" if message else then
        if message:
            answer["message"] = message
        if response_format == "detailed":
            blocks = Blocks(state.root, machine.program_named).plain()
            answer["blocks"] = cut(blocks, ("blocks",), how, reader(state.run_id))
            answer["metadata"] = run_metadata(machine, now)
        elif answer["status"] == "success":
            answer |= {"blocks": {}, "metadata": {}}
        return answer

    return within(limits, build)


def error_text(machine: Machine, place: FindPlace) -> str:
    """Return why a run failed, as one text: message, place, last output and hint."""
    error = error_view(machine, place)
    if error is None:
        return f"the run was {machine.state.status}"
    lines = [f"cancelled: {error['message']}" if error["code"] == "cancelled" else error["message"]]
    if "block" in error and f"'{error['block']}'" not in error["message"]:
        lines[0] = f"{error['block']}: {lines[0]}"
    if "place" in error:
        lines.append(f"at {error['place']}" + (f": {error['line']}" if "line" in error else ""))
    if "printed" in error and error["printed"].strip() not in error["message"]:
        lines.append(f"it printed last:\n{error['printed']}")
    if "hint" in error:
        lines.append(error["hint"])
    return "\n".join(lines)


def run_metadata(machine: Machine, now: float) -> dict[str, Value]:
    state = machine.state
    nodes = machine.program_named(state.workflow).nodes
    ended = state.ended_at
    by_status = Counter(record.status for record in state.root.records.values())
    metadata: dict[str, Value] = {
        "workflow_name": state.workflow,
        "start_time": iso(state.started_at),
        "end_time": iso(ended),
        "execution_time_ms": round(((ended or now) - state.started_at) * 1000, 3),
        "total_blocks": len(nodes),
        "execution_waves": max((node.wave for node in nodes), default=-1) + 1,
    }
    for status in ("completed", "failed", "skipped"):
        metadata[f"{status}_blocks"] = by_status[status]
    return {name: value for name, value in metadata.items() if value is not None}


# Checkpoints


def listed_checkpoint(history: History, checkpoint: Checkpoint) -> dict[str, Value]:
    entry: dict[str, Value] = {
        "checkpoint_id": str(checkpoint.id),
        "workflow": history.machine.state.workflow,
        "workflow_id": checkpoint.id.run_id,
        "type": checkpoint.id.type,
        "created_at": iso(checkpoint.created_at),
        "position": checkpoint.id.position,
        "completed_blocks": checkpoint.ended_blocks,
        "moved_on": history.moved_on(checkpoint),
    }
    if checkpoint.reason:
        entry["reason"] = checkpoint.reason
    if checkpoint.id.type == "pause":
        entry["paused_block"] = checkpoint.address
        entry["prompt"] = shortened(" ".join(checkpoint.prompt.split()), _LISTED_PROMPT_CHARS)
    return entry


def checkpoint_details(
    history: History, checkpoint: Checkpoint, then: Machine, limits: Limits, last_seen: LastSeen = NEVER_SEEN
) -> dict[str, Any]:
    """Return the details of a checkpoint; `then` is the run as it was at its position."""
    ended = {name: it.status for name, it in then.state.root.records.items() if it.status in TERMINAL}
    waves = execution_waves(then.plan_named(then.state.workflow).body)
    current = next((wave for wave, names in enumerate(waves) if set(names) - set(ended)), None)

    def build(how: Cut) -> dict[str, Any]:
        read = reader(history.run_id)
        details = listed_checkpoint(history, checkpoint)
        details["completed_blocks"] = cut(list(ended), ("blocks",), how, read)
        for status in ("failed", "skipped"):
            names = [name for name, it in ended.items() if it == status]
            if names:
                details[f"{status}_blocks"] = cut(names, ("blocks",), how, read)
        details["execution_waves"] = cut(waves, ("blocks",), how, lambda *_: read(("blocks",), 0))
        if current is not None:
            details["current_wave"] = current
        details["inputs"] = cut(then.state.root.inputs, ("inputs",), how, read)
        if checkpoint.id.type == "pause":
            details["workflow_stack"] = _workflow_stack(then, checkpoint.address)
            details["prompt"] = shortened(checkpoint.prompt, how.characters * _PROMPT_SHARE)
        if checkpoint.answer is not None:
            answered = checkpoint.answer.outputs
            details["answered_with"] = cut(answered, (), how, lambda *_: read(("blocks",), 0))
        resume = _how_to_resume(history, checkpoint)
        if checkpoint.id.type == "pause" and checkpoint.closed_at is None:
            asked = question_id(then.state, whole_run(history.run_id), checkpoint.address)
            resume = instructions_after_forms(last_seen, asked, resume, decided=resume)
        details["how_to_resume"] = resume
        return details

    return within(limits, build)


def deleted_checkpoint(history: History, checkpoint: Checkpoint) -> dict[str, Value]:
    run_id = history.run_id
    message = f"the checkpoint is deleted; the run {run_id} is unchanged"
    if checkpoint.id.type == "pause" and not history.moved_on(checkpoint):
        message += (
            f" and still waits for an answer at '{checkpoint.address}': end it with "
            f"control_workflow(workflow_id='{run_id}', action='cancel')"
        )
    return {"deleted": True, "checkpoint_id": str(checkpoint.id), "workflow_id": run_id, "message": message}


# Wording


_STATUSES = {
    "pending_action": "paused",
    "running": "running",
    "waiting": "running",
    "completed": "success",
    "failed": "failure",
    "cancelled": "failure",
}
"""The names of the statuses of a run in this toolset."""


def _status(machine: Machine, now: float) -> str:
    return _STATUSES[run_view_of(machine, now=now, alone=True).status]


def _question(
    checkpoint: Checkpoint, machine: Machine, schemas: dict[str, dict[str, Value]], how: Cut
) -> dict[str, Value]:
    path = ("actions", checkpoint.address, "parameters", "prompt")
    generous = Cut(how.characters * _PROMPT_SHARE)
    question: dict[str, Value] = {
        "checkpoint_id": str(checkpoint.id),
        "prompt": cut(checkpoint.prompt, path, generous, reader(machine.state.run_id)),
    }
    if checkpoint.address in schemas:
        question["response_schema"] = schemas[checkpoint.address]
    return question


def _declined(machine: Machine, questions: Questions, last_seen: LastSeen) -> list[str]:
    """Return the notes about questions whose forms were declined or failed; empty for the others."""
    state = machine.state
    names = [question_id(state, whole_run(state.run_id), it.address) for it in questions.open]
    return [instructions_after_forms(last_seen, name, "", decided="").strip() for name in names]


def _response_schemas(machine: Machine, registry: StepRegistry) -> dict[str, dict[str, Value]]:
    """Return the schemas of questions that need more than a plain text."""
    return {
        action["step_id"]: action["result_schema"]
        for action in pending_actions(machine, registry)
        if action["type"] != "prompt" or not _is_plain_text(action["result_schema"])
    }


def _is_plain_text(schema: dict[str, Value]) -> bool:
    fields = list(schema.get("properties", {}).values())
    return len(fields) == 1 and set(fields[0]) <= {"type", "description"} and fields[0]["type"] == "string"


def _message(
    machine: Machine, questions: Questions, last_seen: LastSeen, fork_of: CheckpointId | None, now: float
) -> str:
    run_id = machine.state.run_id
    sentences: list[str] = []
    if fork_of is not None:
        sentences.append(
            f"this is a new run, a fork of {fork_of.run_id} from {fork_of}: that run had moved on, and is "
            "unchanged; $SCRATCH is a copy of its files, or empty if it had ended"
        )
    if questions.open:
        first = questions.open[0]
        asked = question_id(machine.state, whole_run(run_id), first.address)
        how = f"answer with resume_workflow(checkpoint_id='{first.id}', response='…')"
        sentences.append(instructions_after_forms(last_seen, asked, how, decided=how))
        if len(questions.open) > 1:
            sentences.append(
                f"{len(questions.open)} prompts are open: answer each with its own checkpoint_id"
            )
        if failed := failed_for_good(machine):
            sentences.append(f"note: block {failed} has failed, so the run will fail in any case")
    if questions.deleted:
        sentences.append(
            f"the run waits for an answer at '{questions.deleted[0]}', but the checkpoint of that question "
            f"was deleted: end it with control_workflow(workflow_id='{run_id}', action='cancel')"
        )
    elif machine.state.parked is not None:
        sentences.append(why_waiting(machine, now))
    elif machine.state.status == "running" and not questions.open:
        sentences.append(
            f"{why_waiting(machine, now)}; it continues by itself, wait for it with "
            f"resume_workflow(checkpoint_id='{run_id}')"
        )
    return ". ".join(sentences)


def _how_to_resume(history: History, checkpoint: Checkpoint) -> str:
    call = f"resume_workflow(checkpoint_id='{checkpoint.id}'"
    if checkpoint.id.type == "pause":
        call += ", response='…'"
        if checkpoint.answer is not None:
            return f"{call}): a response other than the one given makes a new run from here"
        if checkpoint.closed_at is not None:
            return f"{call}): the question was abandoned, so this makes a new run from here"
        return f"{call}): the run waits for this answer"
    if history.moved_on(checkpoint):
        return f"{call}): the run has moved on, so this makes a new run from here"
    return f"{call}): returns where the run is; nothing has happened since"


def _workflow_stack(machine: Machine, address: str) -> list[Value]:
    """List the workflows around a block, the outermost first."""
    stack: list[Value] = [machine.state.workflow]
    scope = machine.state.root
    for part in address.split("/")[:-1]:
        inner = scope.records[part].scope
        if inner is None:
            break
        scope = inner
        if scope.workflow != stack[-1]:
            stack.append(scope.workflow)
    return stack
