"""Checks the result of an agent before it is accepted: expressions here, commands as steps of the server.

    agent ──answered──▶ verify ──reported──▶ …the next check… ──▶ accepted: the block ends
                           └───────────────▶ rejected: asked again, with what to fix; or the block fails

Commands run only if all expressions hold. All failed checks are reported together. `record.checks` keeps the
evidence of every round.
"""

from __future__ import annotations

from typing import Any

from workflows_mcp.errors import TOO_LARGE, TOO_SLOW
from workflows_mcp.expressions import Code
from workflows_mcp.machine.commands import RunStep
from workflows_mcp.machine.core import Core, OpenScope, Purpose
from workflows_mcp.machine.events import StepDone, StepFailed
from workflows_mcp.machine.lifecycle import advance
from workflows_mcp.machine.program import EvaluationError
from workflows_mcp.machine.state import Checked, Frame, Record, Submitted
from workflows_mcp.plan import Do, Node
from workflows_mcp.values import Value, to_text

REJECTED_CODE = "rejected"
_TAIL_LINES = 15
_TAIL_CHARS = 2_000
_LISTED = 20


def verify(machine: Core, scope: OpenScope, index: int, at: float, submitted: Submitted) -> None:
    """Check a result; the block ends when all of its checks have passed."""
    node = scope.program.nodes[index]
    record = scope.scope.records[node.id]
    record.submitted = submitted
    found: list[Checked] = []

    def evaluate() -> None:
        names = scope.names_with_result(index, result_of_step(node, submitted.outputs))
        for place, check in enumerate(node.verify):
            if check.test is not None:
                found.append(_tested(machine, scope, index, place, names))

    stopped = machine.guarded(scope, index, evaluate, Purpose.VERIFY)
    if stopped is not None:
        found = [Checked(stopped.message, False, record.rejections + 1, stopped.message)]
    record.checks = [*record.checks, *found]
    submitted.failures = [it.message for it in found if not it.passed]
    _continue(machine, scope, index, at, -1)


def _tested(machine: Core, scope: OpenScope, index: int, place: int, names: Any) -> Checked:
    node = scope.program.nodes[index]
    check, number = node.verify[place], scope.scope.records[node.id].rejections + 1
    assert check.test is not None
    try:
        holds, why = scope.program.condition(check.test, names), f"this must hold: {check.text}"
    except EvaluationError as error:
        if error.fault.code in (TOO_SLOW, TOO_LARGE):
            raise
        holds, why = False, f"{check.text}: {error.fault.message}"
    if holds:
        return Checked(check.text, True, number)
    return Checked(check.text, False, number, _with_message(machine, scope, index, place, why))


def _guard_key(scope: OpenScope, index: int, place: int, purpose: Purpose) -> str:
    """The key of an expression of one check, for `guarded_at`."""
    return f"{scope.attempt_key(index)}{purpose}{place + 1}"


def _with_message(machine: Core, scope: OpenScope, index: int, place: int, why: str) -> str:
    """Why a check failed, after the message of its author."""
    node = scope.program.nodes[index]
    given, submitted = node.verify[place].message, scope.scope.records[node.id].submitted
    if given is None or submitted is None:
        return why
    message = to_text(given.source)

    def evaluate() -> None:
        nonlocal message
        names = scope.names_with_result(index, result_of_step(node, submitted.outputs))
        message = to_text(scope.program.evaluate(given, names))

    machine.guarded_at(_guard_key(scope, index, place, Purpose.CHECK_MESSAGE), evaluate)
    return f"{message} ({why})" if message else why


def result_of_step(node: Node, outputs: dict[str, Value]) -> Value:
    """The result as its checks see it."""
    name = node.do.result_output if isinstance(node.do, Do) else ""
    return outputs.get(name) if name else outputs


def _continue(machine: Core, scope: OpenScope, index: int, at: float, last: int) -> None:
    """Run the next command, or decide."""
    node = scope.program.nodes[index]
    record = scope.scope.records[node.id]
    submitted = record.submitted
    assert submitted is not None
    commands = [number for number, check in enumerate(node.verify) if check.command is not None]
    following = next((number for number in commands if number > last), None)
    if following is not None and (last >= 0 or not submitted.failures):
        key = _guard_key(scope, index, following, Purpose.CHECK)
        fault = machine.guarded_at(key, lambda: _run(machine, scope, index, at, following))
        if fault is None:
            return
        check = node.verify[following]
        message = _with_message(machine, scope, index, following, f"{check.text}: {fault.message}")
        record.checks = [*record.checks, Checked(check.text, False, record.rejections + 1, message)]
        submitted.failures = [*submitted.failures, message]
        _continue(machine, scope, index, at, following)
        return
    record.submitted = None
    if not submitted.failures:
        record.feedback = []
        machine.end(scope, index, at, "completed", "success", submitted.outputs, submitted.message)
    else:
        _reject(machine, scope, index, at, submitted.failures)


def _run(machine: Core, scope: OpenScope, index: int, at: float, number: int) -> None:
    node = scope.program.nodes[index]
    record = scope.scope.records[node.id]
    frame = Frame("verify", at, f"{scope.attempt(node.id, record)}.c{number + 1}", check=number)
    frame.event = machine.state.events
    do, submitted = node.verify[number].command, record.submitted
    assert do is not None
    assert submitted is not None
    names = scope.names_with_result(index, result_of_step(node, submitted.outputs))
    submitted.inputs, code = scope.program.inputs(do, names)
    submitted.code = {name: (list(it.texts), list(it.values)) for name, it in code.items()}
    timeout = scope.program.timeout(do.timeout, names)
    command = check_command(scope, index, frame)
    machine.open_frame(command.address, frame, timeout, at)
    advance(record, "started")
    machine.emit(command)


def check_command(scope: OpenScope, index: int, frame: Frame) -> RunStep:
    """The command of a check; repeated calls return the same one."""
    node = scope.program.nodes[index]
    submitted = scope.scope.records[node.id].submitted
    do = node.verify[frame.check].command
    assert do is not None
    assert submitted is not None
    code = {name: Code(tuple(texts), tuple(values)) for name, (texts, values) in submitted.code.items()}
    execution = frame.execution(scope.prefix + node.id)
    config = do.config.source if do.config is not None else {}
    return RunStep(
        execution.key,
        execution.address,
        do.step,
        submitted.inputs,
        code,
        config,
        execution.event,
        shares_scratch=False,
    )


def checked(
    machine: Core, scope: OpenScope, index: int, frame: Frame, event: StepDone | StepFailed | None, at: float
) -> None:
    """Note how the command of a check ended; without an event, it never ended."""
    node = scope.program.nodes[index]
    record = scope.scope.records[node.id]
    check, submitted = node.verify[frame.check], record.submitted
    assert submitted is not None
    passed = isinstance(event, StepDone) and event.ok
    outputs = event.outputs if event is not None else {}
    code, changed = outputs.get("exit_code"), outputs.get("changed_files")
    message = ""
    if not passed:
        why = f"{check.text}: {_why(event, frame)}"
        message = _with_message(machine, scope, index, frame.check, why)
        submitted.failures = [*submitted.failures, message]
    evidence = Checked(
        check.text,
        passed,
        record.rejections + 1,
        message,
        round(max(at - frame.since, 0.0), 3),
        code if isinstance(code, int) else None,
        [str(path) for path in changed[:_LISTED]] if isinstance(changed, list) else [],
    )
    record.checks = [*record.checks, evidence]
    _continue(machine, scope, index, at, frame.check)


def _why(event: StepDone | StepFailed | None, frame: Frame) -> str:
    if event is None:
        return f"the server stopped {frame.interruptions} times while it ran"
    printed = [text for name in ("stdout", "stderr") if isinstance(text := event.outputs.get(name), str)]
    tail = "\n".join("\n".join(printed).strip().splitlines()[-_TAIL_LINES:])[-_TAIL_CHARS:]
    code = event.outputs.get("exit_code")
    message = event.message or "it failed"
    if isinstance(event, StepDone) and isinstance(code, int):
        message = f"exit code {code}"
    return f"{message}\n{tail}" if tail else message


def _reject(machine: Core, scope: OpenScope, index: int, at: float, failures: list[str]) -> None:
    """Ask again with what to fix, or fail the block after its last attempt."""
    node = scope.program.nodes[index]
    record = scope.scope.records[node.id]
    record.rejections += 1
    record.feedback = failures
    if record.rejections < node.attempts:
        machine.enqueue(scope, [index])
        return
    times = "once" if record.rejections == 1 else f"{record.rejections} times"
    message = f"its result was rejected {times}: {'; '.join(failures)}"
    hint = "retry the run, or raise attempts; the report has the evidence of each check"
    fault = machine.fault(scope, index, REJECTED_CODE, message, hint)
    machine.end(scope, index, at, "failed", "n/a", scope.program.defaults(index), message, fault)


def interrupted_check(machine: Core, scope: OpenScope, index: int, frame: Frame, at: float) -> None:
    """Fail a check that was interrupted too often: it may be what ends the server."""
    machine.close_frame(scope.prefix + scope.program.nodes[index].id, "interrupted")
    checked(machine, scope, index, frame, None, at)


def begin_attempt(record: Record) -> None:
    """Forget the rejections of the attempt before."""
    record.rejections, record.submitted = 0, None
