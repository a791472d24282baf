"""Builds the report of a run: what happened, who did it, and what a reader should look at.

    report = report_of(audit, redact=secrets.redact)
    report.steps[0].attempts[0].by, report.deviations, report.proof.head

It replays the journal, so it shows what was stored, and not what is cached. A journal that somebody has
changed is reported as far as it can be read. A replay evaluates the expressions of the run: call it outside
the event loop. `report_text.py` writes it as Markdown, HTML or JSON.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import msgspec

from workflows_mcp.answers.previews import shortened
from workflows_mcp.answers.results import Redact
from workflows_mcp.answers.run_view import run_view_of
from workflows_mcp.errors import RequestError
from workflows_mcp.machine import (
    HASH_BYTES,
    TERMINAL,
    AgentsAssigned,
    Answered,
    Audit,
    BudgetRaised,
    CancelRequested,
    Checked,
    ContextFull,
    Decided,
    Event,
    ExpressionStopped,
    Fault,
    Forked,
    Frame,
    Identity,
    Interrupted,
    Machine,
    Marked,
    Mismatch,
    OpenScope,
    Parked,
    PlanLoaded,
    Record,
    Refused,
    Reopened,
    Resumed,
    RunState,
    RunStatus,
    Started,
    StateUpdated,
    StepDone,
    TimerFired,
    address_of,
    handler_of,
    path_text,
    record_at,
)
from workflows_mcp.plan import REJECTED, Bundle, Call, Do, Node, bundle_key, fixed_name, kind_of_operation
from workflows_mcp.values import Value, to_json

_RESULT_CHARS = 500
_VALUE_CHARS = 200
_LEAST_DIGITS = 8
"""How many hex digits of a head are enough to compare it."""

Performer = Literal["server", "agent", "person", "workflow", "items", "timer"]
_PERFORMERS: dict[str, Performer] = {
    "agent": "agent", "gate": "person", "budget": "person", "call": "workflow", "plan": "workflow",
    "each": "items", "wait": "timer",
}  # fmt: skip


# ----------------------------------------------------------------------------------------------------
# What a report has


class RunFacts(msgspec.Struct, omit_defaults=True):
    id: str
    workflow: str
    status: RunStatus
    definition: str
    """The hash of the plan, with the plans that it calls."""
    file: str = ""
    inputs: dict[str, Value] = {}
    started_by: Identity | None = None
    started_at: float = 0.0
    ended_at: float | None = None
    changed_at: float = 0.0
    outputs: dict[str, Value] = {}
    result: Value = None
    error: Fault | None = None
    workspace: str = ""
    forked_from: str = ""
    """The run that it is a fork of, and how many events it has from there: `wf_1@7`."""
    superseded_by: str = ""


class Totals(msgspec.Struct, omit_defaults=True):
    events: int = 0
    steps: int = 0
    """Steps that ran, in every round; not those that were skipped."""
    kept: int = 0
    """Steps whose results come from the original run."""
    agent_steps: int = 0
    """Results of agents that were accepted."""
    sub_agents: int = 0
    """Tasks that were delegated."""
    tokens: int = 0
    """As far as agents and commands report them."""
    waited_for_agents: float = 0.0
    """Seconds, of all steps together."""
    waited_for_people: float = 0.0
    parked: float = 0.0


class Attempt(msgspec.Struct, omit_defaults=True):
    """One attempt of a step."""

    number: str
    performer: Performer = "server"
    by: Identity | None = None
    started_at: float = 0.0
    ended_at: float | None = None
    waited: float = 0.0
    """For how many of its seconds an agent or a person was asked."""
    outcome: str = ""
    """`success`, `failure`, `error`, `rejected` or `stopped`; empty while it is under way."""
    message: str = ""
    interruptions: int = 0
    result: str = ""
    """The beginning of its outputs, as JSON."""
    tokens: int = 0


class Rejection(msgspec.Struct, omit_defaults=True):
    """A result that the server did not accept."""

    event: int
    at: float
    reasons: list[str]
    by: Identity | None = None


class Decision(msgspec.Struct, omit_defaults=True):
    """What a person decided at a gate."""

    event: int
    at: float
    step: str
    choice: str
    by: Identity
    comment: str = ""
    redone: list[str] = []
    """The steps that it sent back, with what depends on them."""


class ReportedStep(msgspec.Struct, omit_defaults=True):
    """A step in one round, with all its attempts."""

    number: int
    step: str
    """Its address; from the second round on with the round: `fix@2`."""
    type: str
    workflow: str
    event: int
    """The number of the event with which it began."""
    started_at: float
    ended_at: float | None = None
    status: str = "under way"
    """`under way`, `completed`, `failed`, `skipped` or `stopped`."""
    outcome: str = ""
    message: str = ""
    is_gate: bool = False
    attempts: list[Attempt] = []
    checks: list[Checked] = []
    """The evidence: the checks of its results."""
    rejections: list[Rejection] = []
    decision: Decision | None = None
    items: int = 0
    agent: str = ""
    """The kind of sub-agent that its items are delegated to."""
    kept: bool = False
    """Its result comes from the original run of this fork."""
    redone_at: int = 0
    """The event that dropped its result: the step was sent back, or run again by a retry or a fork."""
    tolerated_by: str = ""
    """What handles its failure."""
    tokens: int = 0

    @property
    def failed(self) -> bool:
        return self.status == "failed" or self.outcome == "failure"


NoteKind = Literal[
    "forked", "reopened", "sent_back", "refused", "budget_raised", "state_updated", "interrupted",
    "timed_out", "parked", "resumed", "context_full", "marked", "cancelled", "expressions_stopped",
    "workflow_loaded", "agents_assigned",
]  # fmt: skip


class Note(msgspec.Struct, omit_defaults=True):
    """Something that happened beside the steps."""

    event: int
    at: float
    kind: NoteKind
    text: str
    step: str = ""
    by: Identity | None = None


class Proof(msgspec.Struct, omit_defaults=True):
    """Whether what is stored is what was stored."""

    head: str
    """The last hash; empty if no event has one."""
    events: int
    first: int = 1
    """The number of the first event that has a hash."""
    mismatches: list[Mismatch] = []
    expected: str = ""
    """The hash that the reader has from elsewhere."""
    fits_at: int = 0
    """The number of the event with the expected hash: nothing up to there was changed."""
    guarantee: str = ""
    """What the engine itself guarantees."""

    @property
    def holds(self) -> bool:
        return not self.mismatches and (not self.expected or self.fits_at > 0)


DeviationKind = Literal[
    "changed_store", "no_hashes", "skipped_gate", "gate_not_by_a_person", "rejected_result", "refused",
    "tolerated_failure", "failure", "timed_out", "interrupted", "check_changed_files", "changed_definition",
    "budget_raised", "sent_back", "expressions_stopped", "cancelled",
]  # fmt: skip


class Deviation(msgspec.Struct, omit_defaults=True):
    """Something that a reader should look at."""

    kind: DeviationKind
    text: str
    step: str = ""
    event: int = 0


class Report(msgspec.Struct):
    run: RunFacts
    totals: Totals
    steps: list[ReportedStep]
    """In the order in which they began."""
    decisions: list[Decision]
    notes: list[Note]
    proof: Proof
    deviations: list[Deviation]


# ----------------------------------------------------------------------------------------------------
# Reading the journal


class _Open:
    """A step that is under way."""

    def __init__(self, step: ReportedStep, node: Node) -> None:
        self.step = step
        self.node = node
        self.attempt: Attempt | None = None
        self.waits: tuple[str, float] | None = None
        """The kind of its frame, and since when it is open."""
        self.frame = 0
        """The number of the event that opened the frame."""


class _Recorder(Machine):
    """The interpreter, with hooks that record what it does."""

    def __init__(self, bundle: Bundle, redact: Redact) -> None:
        super().__init__(bundle)
        self.steps: list[ReportedStep] = []
        self.notes: list[Note] = []
        self.decisions: list[Decision] = []
        self.totals = Totals()
        self._redact = redact
        self._under_way: dict[str, _Open] = {}
        self._last: dict[str, ReportedStep] = {}
        """The last round of each step, by address."""
        self._rejected: dict[str, int] = {}
        """How many results of a step were rejected so far, by address."""
        self._inherited = 0
        self._event: Event = Parked(0.0)

    def take(self, event: Event) -> None:
        """Apply an event, and record what it does."""
        self._event = event
        number = self.state.events + 1
        if isinstance(event, Started) and event.forked_from:
            self._inherited = int(event.forked_from.rpartition("@")[2] or 0)
        tokens = event.tokens if isinstance(event, Answered | StepDone) else 0
        if tokens and (opened := self._under_way.get(event.address)) is not None:
            opened.step.tokens += tokens
            if opened.attempt is not None:
                opened.attempt.tokens += tokens
        self.totals.tokens += tokens
        decision = event if isinstance(event, Decided) else getattr(event, "decision", None)
        if isinstance(decision, Decided):
            self._decide(number, decision)
        parked = self.state.parked
        self._note(number, event)
        self.apply(event)
        if parked is not None and self.state.parked is None:
            self.totals.parked += max(event.at - parked, 0.0)
        if event.of_step or isinstance(event, ExpressionStopped):
            self._see_rejections(number, event)

    def close(self) -> None:
        """Fill in what is known about the steps that are still under way."""
        for address, opened in self._under_way.items():
            record = record_at(self.state, address)
            if record is not None:
                opened.step.checks = list(record.checks)
                opened.step.message = record.message or ""
            self._stop_waiting(opened, self.state.changed_at)
        for step in self.steps:
            step.kept = step.event <= self._inherited and not step.redone_at and step.ended_at is not None
        self.totals.events = self.state.events
        self.totals.kept = sum(step.kept for step in self.steps)
        self.totals.steps = sum(step.status != "skipped" for step in self.steps)

    # Hooks of the interpreter

    def _enter(self, scope: OpenScope, index: int) -> None:
        address = scope.prefix + scope.program.nodes[index].id
        opened = self._under_way.get(address) or self._begin_step(scope, index)
        self._stop_waiting(opened, self.state.changed_at)
        super()._enter(scope, index)

    def open_frame(self, address: str, frame: Frame, timeout: float | None, at: float) -> None:
        super().open_frame(address, frame, timeout, at)
        self._see_frame(address, frame, at)

    def close_frame(self, address: str, event: Any) -> None:
        super().close_frame(address, event)
        opened = self._under_way.get(address)
        if opened is None:
            return
        self._stop_waiting(opened, self.state.changed_at)
        if event in ("answered", "decided", "reported") and opened.attempt is not None:
            by = getattr(self._event, "by", None)
            if isinstance(by, Identity) and self._event.address == address:
                opened.attempt.by = by
            if event == "answered" or (isinstance(by, Identity) and by.via == "command"):
                self.totals.agent_steps += 1

    def end(self, scope: OpenScope, index: int, at: float, status: Any, *more: Any, **named: Any) -> None:
        node = scope.program.nodes[index]
        address = scope.prefix + node.id
        before = scope.scope.records.get(node.id)
        opened = self._under_way.get(address) or self._begin_step(scope, index)
        if before is not None:
            self._see_rejections(self.state.events, self._event, address, before)
        super().end(scope, index, at, status, *more, **named)
        record = before or scope.scope.records.get(node.id)
        if record is None:
            return
        if record.status not in TERMINAL:  # it will be retried
            fault: Fault | None = named.get("fault") or (more[3] if len(more) > 3 else None)
            how = "error" if status == "failed" else "failure"
            text = record.message or (fault.message if fault is not None else "")
            self._end_attempt(opened, at, how, text, record.outputs)
            self._rejected[address] = record.rejections
            return
        self._end_step(address, opened, at, record, scope)

    def mark_stopped(self, scope: OpenScope, index: int, at: float, reason: str) -> None:
        super().mark_stopped(scope, index, at, reason)
        address = scope.prefix + scope.program.nodes[index].id
        opened = self._under_way.get(address)
        if opened is not None:
            self._stop_step(address, opened, at, reason)

    def restore(self, state: RunState) -> None:
        """The state after steps were reopened: what is not in it any more will be done again."""
        super().restore(state)
        number, at = self.state.events, self.state.changed_at
        for address, opened in list(self._under_way.items()):
            frame = state.frames.get(address)
            if frame is None or frame.event != opened.frame:
                self._stop_step(address, opened, at, "its result is not needed any more")
                opened.step.redone_at = number
        for address, step in self._last.items():
            record = record_at(state, address)
            if step.ended_at is not None and (record is None or record.status not in TERMINAL):
                step.redone_at = step.redone_at or number
        for address, frame in state.frames.items():
            if address not in self._under_way:
                self._see_frame(address, frame, at)

    # Steps

    def _begin_step(self, scope: OpenScope, index: int) -> _Open:
        node = scope.program.nodes[index]
        address, visits = scope.prefix + node.id, scope.scope.visits.get(node.id, 1)
        step = ReportedStep(
            len(self.steps) + 1,
            f"{address}@{visits}" if visits > 1 else address,
            "for each" if node.for_each is not None else kind_of_operation(node.do),
            scope.scope.workflow,
            self.state.events,
            self.state.changed_at,
            is_gate=isinstance(node.do, Do) and node.do.by == "human",
        )
        self.steps.append(step)
        self._last[address] = step
        self._rejected.pop(address, None)
        opened = self._under_way[address] = _Open(step, node)
        return opened

    def _see_frame(self, address: str, frame: Frame, at: float) -> None:
        """Record that a frame was opened."""
        opened = self._under_way.get(address) or self._begin_step(*self.locate(address))
        self._stop_waiting(opened, at)
        if frame.kind == "retry":
            return
        attempt = opened.attempt
        if attempt is None or (frame.kind != "verify" and attempt.number != frame.attempt):
            if attempt is not None:
                attempt.ended_at, attempt.outcome = at, "rejected"
            attempt = self._begin_attempt(opened, frame.attempt)
        if frame.kind not in ("verify", "budget"):
            do = opened.node.do
            headless = frame.kind == "step" and isinstance(do, Do) and do.by == "agent"
            attempt.performer = "agent" if headless else _PERFORMERS.get(frame.kind, "server")
        if frame.kind == "each":
            scope = record_at(self.state, address)
            inside = scope.scope if scope is not None else None
            opened.step.items = len(inside.each or ()) if inside is not None else 0
            opened.step.agent = frame.agent
            self.totals.sub_agents += opened.step.items if frame.agent else 0
        opened.waits, opened.frame = (frame.kind, at), frame.event

    def _begin_attempt(self, opened: _Open, number: str) -> Attempt:
        attempt = opened.attempt = Attempt(number, started_at=self.state.changed_at)
        opened.step.attempts.append(attempt)
        return attempt

    def _stop_waiting(self, opened: _Open, at: float) -> None:
        if opened.waits is None:
            return
        kind, since = opened.waits
        opened.waits = None
        seconds = max(at - since, 0.0)
        if kind in ("agent", "gate", "budget") and opened.attempt is not None:
            opened.attempt.waited += seconds
            if kind == "agent":
                self.totals.waited_for_agents += seconds
            else:
                self.totals.waited_for_people += seconds

    def _end_attempt(
        self, opened: _Open, at: float, outcome: str, message: str, outputs: dict[str, Value]
    ) -> None:
        self._stop_waiting(opened, at)
        attempt = opened.attempt or self._begin_attempt(opened, "1")
        attempt.ended_at, attempt.outcome, attempt.message = at, outcome, message
        if isinstance(opened.node.do, Do) and opened.node.for_each is None:
            given = {key: value for key, value in outputs.items() if value not in (None, "", [], {})}
            attempt.result = shortened(to_json(self._redact(given)), _RESULT_CHARS) if given else ""
        opened.attempt = None

    def _end_step(self, address: str, opened: _Open, at: float, record: Record, scope: OpenScope) -> None:
        step, message = opened.step, record.message or ""
        how = {"skipped": "skipped", "failed": "error"}.get(record.status, record.outcome)
        if record.status == "skipped":
            self._stop_waiting(opened, at)
        else:
            self._end_attempt(opened, at, how, message, record.outputs)
        step.ended_at, step.status, step.outcome, step.message = at, record.status, record.outcome, message
        step.checks = list(record.checks)
        if step.failed:
            step.tolerated_by = handler_of(scope.program.plan, opened.node, record) or ""
        self._under_way.pop(address, None)

    def _stop_step(self, address: str, opened: _Open, at: float, reason: str) -> None:
        self._stop_waiting(opened, at)
        if opened.attempt is not None:
            opened.attempt.ended_at, opened.attempt.outcome, opened.attempt.message = at, "stopped", reason
        opened.step.ended_at, opened.step.status, opened.step.message = at, "stopped", reason
        if opened.step.decision is not None:
            opened.step.status, opened.step.message = "completed", "the gate sent steps back"
        self._under_way.pop(address, None)

    # Results that were rejected, and decisions

    def _see_rejections(
        self, number: int, event: Event, address: str = "", record: Record | None = None
    ) -> None:
        address = address or event.address
        record = record or record_at(self.state, address)
        opened = self._under_way.get(address)
        if record is None or opened is None:
            return
        known = self._rejected.get(address, 0)
        if record.rejections > known:
            wrong = [it.message or it.check for it in record.checks if not it.passed and it.round > known]
            by = opened.attempt.by if opened.attempt is not None else None
            opened.step.rejections.append(
                Rejection(number, event.at, list(record.feedback) or wrong, by or getattr(event, "by", None))
            )
        self._rejected[address] = record.rejections

    def _decide(self, number: int, event: Decided) -> None:
        decision = Decision(number, event.at, event.address, event.choice, event.by, event.comment)
        self.decisions.append(decision)
        if (opened := self._under_way.get(event.address)) is not None:
            opened.step.decision = decision
            if opened.attempt is not None:
                opened.attempt.by = event.by

    # Notes

    def _note(self, number: int, event: Event) -> None:
        for kind, text in self._note_texts(event):
            by = getattr(event, "by", None)
            address = event.address if not isinstance(event, ExpressionStopped) else ""
            self.notes.append(Note(number, event.at, kind, text, address, by))

    def _note_texts(self, event: Event) -> Iterator[tuple[NoteKind, str]]:
        state = self.state
        match event:
            case Forked():
                yield "forked", f"the run continues from here as a fork of {state.forked_from}"
            case Reopened(decision=decision):
                steps = [address_of(key)[0] for key in event.steps]
                rerun = f"run again, with what depends on them: {', '.join(steps)}"
                if decision is None:
                    yield "reopened", rerun
                else:
                    self.decisions[-1].redone = steps
                    comment = f" ({decision.comment})" if decision.comment else ""
                    where = f"{decision.by} chose {decision.choice} at '{decision.address}'"
                    yield "sent_back", f"{where}{comment}: {rerun}"
            case Refused():
                yield "refused", f"{event.what}: {event.message}"
            case BudgetRaised():
                limits = ", ".join(f"{name} to {limit:g}" for name, limit in event.limits.items())
                whose = f" of {event.owner}" if event.owner else ""
                yield "budget_raised", f"raised {limits}{whose}" if limits else "allowed what waited"
            case StateUpdated():
                yield "state_updated", "; ".join(self._change_text(*it) for it in event.changes)
            case Interrupted():
                if (opened := self._under_way.get(event.address)) is not None and opened.attempt is not None:
                    opened.attempt.interruptions += 1
                yield "interrupted", "the server stopped while the step was under way"
            case TimerFired():
                frame = state.frames.get(event.address)
                if frame is not None and frame.kind not in ("retry", "wait") and frame.timeout is not None:
                    yield "timed_out", f"timed out after {frame.timeout:g} s"
            case AgentsAssigned():
                names = ", ".join(f"{name} by {command}" for name, command in event.agents.items())
                yield "agents_assigned", f"commands of the settings perform the steps of agents: {names}"
            case Parked():
                yield "parked", "the user interrupted the run"
            case Resumed():
                yield "resumed", "the user resumed the run"
            case ContextFull():
                yield "context_full", event.reason or "the context of the agent was nearly full"
            case Marked():
                yield "marked", event.reason or "a checkpoint was set"
            case CancelRequested():
                yield "cancelled", event.reason or "the run was cancelled"
            case ExpressionStopped():
                what = ", ".join(event.faults)
                yield "expressions_stopped", f"expressions exceeded their limits and were stopped: {what}"
            case PlanLoaded(error=None):
                yield (
                    "workflow_loaded",
                    f"found the workflow {event.name}, which the definition names by a value",
                )

    def _change_text(self, path: list[str | int], operation: str, value: Value) -> str:
        shown = shortened(to_json(self._redact(value)), _VALUE_CHARS)
        return f"{operation} {path_text(tuple(path))}: {shown}"


# ----------------------------------------------------------------------------------------------------
# The report


def report_of(
    audit: Audit,
    redact: Redact,
    *,
    expected: str = "",
    origin: str = "",
) -> Report:
    """Build the report of a run.

    `expected`: a hash that the reader has from elsewhere, or its first digits. `origin`: the hash of the
    definition of the run that this one is a fork of, if it is known.
    """
    expected = _checked_digits(expected)
    recorder = _Recorder(audit.bundle, redact)
    mismatches = list(audit.mismatches)
    for number, event in enumerate(audit.events, start=1):
        try:
            recorder.take(event)
        except Exception as error:  # the journal was changed: show what came before
            message = f"event {number} cannot be applied, nor what follows: {type(error).__name__}: {error}"
            mismatches.append(Mismatch("unreadable", message, number))
            break
        if number == audit.position and audit.snapshot is not None and _differs(audit.snapshot, recorder):
            message = f"the snapshot after event {number} is not what the events lead to: it was edited"
            mismatches.append(Mismatch("snapshot", message))
    recorder.close()
    state = recorder.state
    mismatches += _unlike_the_status(audit, state)
    hashes = [audit.hashes[at : at + HASH_BYTES].hex() for at in range(0, len(audit.hashes), HASH_BYTES)]
    fits_at = next(
        (number for number, it in enumerate(hashes, audit.first) if expected and it.startswith(expected)), 0
    )
    if expected and not fits_at:
        message = f"no event has the expected hash {expected}: the journal was written again"
        mismatches.append(Mismatch("rewritten", message))
    proof = Proof(audit.head, len(audit.events), audit.first, mismatches, expected, fits_at, audit.guarantee)
    report = Report(
        _facts(audit, state), recorder.totals, recorder.steps, recorder.decisions, recorder.notes, proof, []
    )
    found = [*_deviations(report, recorder), *_changed_definition(report, origin)]
    report.deviations = sorted(found, key=lambda it: (it.kind not in _FIRST, it.event))
    clean: Report = _redacted(report, redact)
    return clean


def _checked_digits(expected: str) -> str:
    digits = expected.strip().lower()
    if digits and (len(digits) < _LEAST_DIGITS or not set(digits) <= set("0123456789abcdef")):
        raise RequestError(
            f"'{expected}' is not a hash of a journal",
            hint=f"give the `proof` of the run's last answer, or at least {_LEAST_DIGITS} hex digits of it",
        )
    return digits


def _differs(snapshot: RunState, machine: Machine) -> bool:
    stored = msgspec.msgpack.decode(machine.snapshot(), type=RunState)
    return bool(stored != snapshot)


def _unlike_the_status(audit: Audit, state: RunState) -> list[Mismatch]:
    ended = state.status if state.status != "running" else ""
    stored = audit.status if audit.status not in ("", "running", "idle") else ""
    if not audit.status or ended == stored:
        return []
    message = f"the run is listed as {audit.status}, but its events leave it {state.status}"
    return [Mismatch("status", message)]


def _facts(audit: Audit, state: RunState) -> RunFacts:
    bundle = audit.bundle
    return RunFacts(
        state.run_id,
        state.workflow,
        state.status,
        bundle_key(bundle),
        bundle.plans[bundle.main].file,
        state.root.inputs,
        state.by,
        state.started_at,
        state.ended_at,
        state.changed_at,
        state.outputs,
        state.result,
        state.fault,
        state.workspace,
        state.forked_from,
        state.superseded_by,
    )


# What a reader should look at

_FIRST = ("changed_store", "no_hashes", "changed_definition")


def _deviations(report: Report, machine: Machine) -> Iterator[Deviation]:
    for it in report.proof.mismatches:
        yield Deviation("changed_store", it.message, event=it.event)
    if report.proof.first > 1:
        last = min(report.proof.first - 1, report.proof.events)
        text = (
            f"events 1 to {last} have no hash: an earlier version wrote them, or somebody removed the hashes"
        )
        yield Deviation("no_hashes", text, event=1)
    if report.run.status == "completed":
        yield from _unreached_gates(machine)
    for step in report.steps:
        yield from _deviations_of(step, report.run.status)
    for note in report.notes:
        kind = _NOTED.get(note.kind)
        if kind is not None:
            who = f" ({note.by})" if note.by is not None else ""
            yield Deviation(kind, f"{note.text}{who}", note.step, note.event)


_NOTED: dict[NoteKind, DeviationKind] = {
    "refused": "refused",
    "budget_raised": "budget_raised",
    "interrupted": "interrupted",
    "timed_out": "timed_out",
    "expressions_stopped": "expressions_stopped",
    "cancelled": "cancelled",
    "sent_back": "sent_back",
}


def _deviations_of(step: ReportedStep, status: RunStatus) -> Iterator[Deviation]:
    def found(kind: DeviationKind, text: str, event: int = 0) -> Deviation:
        return Deviation(kind, text, step.step, event or step.event)

    if step.is_gate and step.status == "skipped":
        yield found("skipped_gate", f"the gate was skipped: {step.message}")
    elif step.is_gate and step.ended_at is not None and step.decision is None:
        yield found("skipped_gate", f"nobody decided at the gate: {step.message or step.status}")
    if step.decision is not None and not step.decision.by.human:
        yield found("gate_not_by_a_person", f"{step.decision.by} decided", step.decision.event)
    if step.decision is not None and step.decision.choice == REJECTED and step.outcome == "success":
        yield found("tolerated_failure", f"{step.decision.by} rejected it, and the run continued")
    for rejection in step.rejections:
        yield found(
            "rejected_result", f"a result was rejected: {'; '.join(rejection.reasons)}", rejection.event
        )
    for check in step.checks:
        if check.changed:
            text = f"the check {check.check} changed files: {', '.join(check.changed)}"
            yield found("check_changed_files", text)
    if step.failed and not step.redone_at:
        if status == "completed":
            by = f" (tolerated by {step.tolerated_by})" if step.tolerated_by else ""
            yield found("tolerated_failure", f"failed, and the run continued: {step.message}{by}")
        else:
            yield found("failure", f"failed: {step.message}")


def _unreached_gates(machine: Machine) -> Iterator[Deviation]:
    """The gates that a completed run has not passed, also those of calls that were skipped."""
    for address, node, record in run_view_of(machine).blocks():
        if isinstance(node.do, Do) and node.do.by == "human" and record.status == "pending":
            yield Deviation("skipped_gate", "the run did not reach the gate", address)
        name = fixed_name(node.do) if isinstance(node.do, Call) else ""
        if name and record.status in ("pending", "skipped"):
            for gate in _gates_in(machine, name):
                text = f"'{name}' was not called, so its gate '{gate}' was not reached"
                yield Deviation("skipped_gate", text, address)


def _gates_in(machine: Machine, workflow: str) -> Iterator[str]:
    plan = machine.plans.get(workflow)
    for node in plan.body.nodes if plan is not None else ():
        if isinstance(node.do, Do) and node.do.by == "human":
            yield node.id


def _changed_definition(report: Report, origin: str) -> Iterator[Deviation]:
    if origin and origin != report.run.definition:
        text = f"the definition is not that of {report.run.forked_from}, which had {origin}"
        yield Deviation("changed_definition", text, event=1)


# Secrets


_WORDS = {"kind", "status", "outcome", "performer", "via"}
"""Fields with words of our own."""


def _redacted(value: Any, redact: Redact) -> Any:
    """A report without the secrets that are known by now."""
    if isinstance(value, msgspec.Struct):
        fields = {name: getattr(value, name) for name in value.__struct_fields__ if name not in _WORDS}
        changed = {name: _redacted(it, redact) for name, it in fields.items()}
        return msgspec.structs.replace(value, **changed)
    if isinstance(value, list) and value and isinstance(value[0], msgspec.Struct):
        return [_redacted(it, redact) for it in value]
    return redact(value) if isinstance(value, str | list | dict) else value
