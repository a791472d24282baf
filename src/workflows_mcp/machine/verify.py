"""Checks the result of an agent before it is accepted: expressions here, commands as steps of the server.

    agent ──answered──▶ verify ──reported──▶ …the next check… ──▶ accepted: the block ends
                           └───────────────▶ rejected: asked again, with what to fix; or the block fails

Commands run only if all expressions hold. All failed checks are reported together. `record.checks` keeps the
evidence of every round.
"""

from __future__ import annotations

from workflows_mcp.errors import TOO_LARGE, TOO_SLOW
from workflows_mcp.machine.commands import RunStep
from workflows_mcp.machine.core import Core, OpenScope, Purpose
from workflows_mcp.machine.events import StepDone, StepFailed
from workflows_mcp.machine.lifecycle import advance
from workflows_mcp.machine.program import EvaluationError
from workflows_mcp.machine.state import Checked, Frame, Record, Submitted
from workflows_mcp.plan import Check, Do, Node
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
        for check in node.verify:
            if check.test is not None:
                found.append(_tested(scope, check, names, record.rejections + 1))

    stopped = machine.guarded(scope, index, evaluate, Purpose.VERIFY)
    if stopped is not None:
        found = [Checked(stopped.message, False, record.rejections + 1, stopped.message)]
    record.checks = [*record.checks, *found]
    submitted.failures = [it.message for it in found if not it.passed]
    _continue(machine, scope, index, at, -1)


def _tested(scope: OpenScope, check: Check, names: object, number: int) -> Checked:
    try:
        holds = scope.program.condition(check.test, names)  # type: ignore[arg-type]
        why = f"this must hold: {check.text}"
    except EvaluationError as error:
        if error.fault.code in (TOO_SLOW, TOO_LARGE):
            raise
        holds, why = False, f"{check.text}: {error.fault.message}"
    if holds:
        return Checked(check.text, True, number)
    return Checked(check.text, False, number, _with_message(scope, check, names, why))


def _with_message(scope: OpenScope, check: Check, names: object, why: str) -> str:
    """Why a check failed, after the message of its author."""
    try:
        message = to_text(scope.program.evaluate(check.message, names))  # type: ignore[arg-type]
    except EvaluationError as error:
        if error.fault.code in (TOO_SLOW, TOO_LARGE):
            raise
        message = to_text(check.message.source) if check.message is not None else ""
    return f"{message} ({why})" if check.message is not None and message else why


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
        fault = machine.guarded(
            scope, index, lambda: _run(machine, scope, index, at, following), Purpose.CHECK
        )
        if fault is None:
            return
        text = node.verify[following].text
        record.checks = [*record.checks, Checked(text, False, record.rejections + 1, fault.message)]
        submitted.failures = [*submitted.failures, f"{text}: {fault.message}"]
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
    command = check_command(scope, index, frame)
    do = node.verify[number].command
    timeout = scope.program.timeout(do.timeout if do is not None else None, scope.names_for(index))
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
    names = scope.names_with_result(index, result_of_step(node, submitted.outputs))
    inputs, code = scope.program.inputs(do, names)
    execution = frame.execution(scope.prefix + node.id)
    config = scope.program.evaluate(do.config, names) or {}
    return RunStep(
        execution.key, execution.address, do.step, inputs, code, config, execution.event, shares_scratch=False
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
        names = scope.names_with_result(index, result_of_step(node, submitted.outputs))
        message = _with_message(scope, check, names, why)
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
