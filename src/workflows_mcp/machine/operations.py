"""What entering a block does, for each kind of operation; and retries and interruptions of blocks.

An operation that ends at once ends its block. Any other opens a frame, and the event that it waits for ends
the block later. A new kind of operation is a function here and a row in `ENTER`.

A block that waits for its next attempt is a frame of kind `retry` with a timer. A step that was interrupted
is repeated unless its block says otherwise (`on_interrupt`): then it fails, or the agent is asked. The agent
is also asked when the same step has been interrupted `step_interruptions` times: it may be what kills the
server.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from workflows_mcp.errors import InvalidInputs
from workflows_mcp.expressions import Code
from workflows_mcp.machine.agents import agent_of_items, assignment_of, headless_agent
from workflows_mcp.machine.budgets import charge, must_confirm
from workflows_mcp.machine.changes import WrongChange, path_text
from workflows_mcp.machine.commands import Command, LoadPlan, RunStep, SetTimer, address_of, key_of
from workflows_mcp.machine.core import Core, OpenScope, Purpose
from workflows_mcp.machine.events import Forked, Interrupted, StepReport
from workflows_mcp.machine.items import OpenItems
from workflows_mcp.machine.lifecycle import advance
from workflows_mcp.machine.reactive import OpenReactive, task_variables
from workflows_mcp.machine.sequence import (
    OpenSequence,
    enter_each,
    enter_jump,
    enter_leave,
    enter_while,
    state_too_large,
)
from workflows_mcp.machine.state import Fault, Frame, FrameKind, Message, Record, Scope
from workflows_mcp.machine.verify import begin_attempt, check_command, interrupted_check
from workflows_mcp.plan import (
    ASKS_THE_USER,
    Branch,
    Call,
    Checkpoint,
    Do,
    Each,
    Failure,
    Jump,
    Leave,
    Return,
    SetState,
    Tell,
    UpdateState,
    Wait,
    While,
    can_be_names,
    check_inputs,
    fixed_name,
    inputs_of_item,
    question_in_task,
    retry_delay,
    unbound_item,
)
from workflows_mcp.values import Value, kind_and_value, to_text


def enter_do(machine: Core, scope: OpenScope, index: int, at: float) -> None:
    """Send a step to the engine, or ask the agent to perform it."""
    node = scope.program.nodes[index]
    assert isinstance(node.do, Do)
    performer = headless_agent(machine, scope, index) if node.do.by == "agent" else ""
    by_agent, by_person = node.do.by == "agent" and not performer, node.do.by == "human"
    if by_agent and machine.sequences and machine.questions >= machine.limits.pending_actions:
        message = (
            f"{machine.questions} actions wait for agents already; the limit is"
            f" {machine.limits.pending_actions} ({machine.limits.setting('pending_actions')})"
        )
        hint = "run fewer tasks at once: set max_parallel"
        machine.fail_with(scope, index, "pending_actions", message, hint)
        return
    asks = by_agent and node.do.step in ASKS_THE_USER and scope.program.plan.semantics >= 3
    if asks and (task := _task_of_sub_agent(machine, scope.prefix)):
        message, hint = question_in_task(f"step '{node.id}'", task)
        machine.fail_with(scope, index, "prompt_in_task", message, hint)
        return
    if node.do.by == "agent" and not charge(machine, scope, index, "agent_steps", at):
        return
    record = scope.scope.records.get(node.id) or Record(started_at=at)
    kind: FrameKind = "agent" if by_agent else "gate" if by_person else "step"
    frame = Frame(kind, at, scope.attempt(node.id, record))
    frame.event, frame.headless = machine.state.events, performer
    command = step_command(machine, scope, index, frame)
    timeout = scope.program.timeout(node.do.timeout, scope.names_for(index))
    scope.keep_for_later(index, record, command.code)
    machine.open_frame(command.address, frame, timeout, at)
    advance(record, "started" if kind == "step" else "asked")
    record.inputs = command.inputs
    scope.scope.records[node.id] = record
    if kind == "step":
        machine.emit(command)


def _task_of_sub_agent(machine: Core, prefix: str) -> str:
    """The name of the sub-agent task that a scope belongs to; empty if there is none."""
    cut = prefix.find("/")
    while cut >= 0:
        frame = machine.state.frames.get(prefix[:cut])
        if frame is not None and frame.kind == "each" and frame.agent:
            scope, index = machine.locate(prefix[:cut])
            return fixed_name(scope.program.nodes[index].do) or scope.program.nodes[index].id
        cut = prefix.find("/", cut + 1)
    return ""


def step_command(machine: Core, scope: OpenScope, index: int, frame: Frame) -> RunStep:
    """The command for a step, with its inputs resolved.

    Repeated calls return the same command: the blocks that it reads have ended, and values from a state that
    others change are saved when the step starts."""
    if frame.kind == "verify":
        return check_command(scope, index, frame)
    node = scope.program.nodes[index]
    assert isinstance(node.do, Do)
    address = scope.prefix + node.id
    names = scope.names_for(index)
    record = scope.scope.records.get(node.id)
    begun = record is not None and record.status == "running" and record.inputs
    if isinstance(scope, OpenReactive) and record is not None and begun:
        inputs = record.inputs
        code = {name: Code(tuple(texts), tuple(values)) for name, (texts, values) in record.code.items()}
    else:
        inputs, code = scope.program.inputs(node.do, names)
    config = scope.program.evaluate(node.do.config, names) or {}
    execution = frame.execution(address)
    shares_scratch = scope.program.plan.semantics < 3
    return RunStep(
        execution.key, address, node.do.step, inputs, code, config, execution.event, shares_scratch,
        assignment_of(machine, scope, index, frame),
    )  # fmt: skip


def enter_call(machine: Core, scope: OpenScope, index: int, at: float) -> None:
    """Open the called workflow as a scope inside the record of the block that calls it."""
    node = scope.program.nodes[index]
    assert isinstance(node.do, Call)
    program, address = scope.program, scope.prefix + node.id
    names = scope.names_for(index)
    name = to_text(program.evaluate(node.do.workflow, names))
    given = program.evaluate(node.do.inputs, names)
    variables: dict[str, Value] = {}
    if isinstance(scope, OpenItems) and scope.agent and not charge(machine, scope, index, "sub_agents", at):
        return
    if isinstance(scope, OpenItems) and node.do.of_item and name in machine.plans:
        variables = scope.variables(index)
        called = machine.plan_named(name)
        if called.reactive:
            variables = task_variables(machine.state.run_id, machine.state.workflow, scope, index, called)
        item = variables["item"]
        given = inputs_of_item(called, item, variables)
        unbound = unbound_item(called, item) if called.semantics >= 3 else None
        if unbound is not None:
            where = scope.items.at
            machine.fail_with(scope, index, "invalid_inputs", *unbound, where)
            return
    timeout = program.timeout(node.do.timeout, names)
    record = scope.scope.records.get(node.id)
    if record is None:
        record = scope.scope.records[node.id] = Record(started_at=at)
    advance(record, "started")
    record.inputs = {"workflow": name, "inputs": given}
    if name not in machine.plans:
        frame = Frame("plan", at, scope.attempt(node.id, record))
        machine.open_frame(address, frame, None, at)
        machine.emit(LoadPlan(key_of(address, frame.attempt), name, scope.program.plan.file))
        return
    depth = scope.depth + 1
    if name.find("#") > 0 and depth > machine.limits.task_depth:
        message = (
            f"tasks are nested {depth} deep; the limit is {machine.limits.task_depth}"
            f" ({machine.limits.setting('task_depth')})"
        )
        machine.fail_with(scope, index, "task_depth", message)
        return
    if depth > machine.limits.call_depth:
        message = (
            f"workflows call each other {depth} deep; the limit is {machine.limits.call_depth}"
            f" ({machine.limits.setting('call_depth')})"
        )
        machine.fail_with(scope, index, "call_depth", message)
        return
    where = node.do.inputs.at
    if not isinstance(given, dict):
        message = f"the inputs of a call must be an object, not {kind_and_value(given)}"
        machine.fail_with(scope, index, "invalid_inputs", message, path=where)
        return
    try:
        inputs = check_inputs(machine.plan_named(name), given)
    except InvalidInputs as error:
        machine.fail_with(scope, index, error.code, error.message, error.hint, where)
        return
    inputs |= {key: variables[key] for key in machine.plan_named(name).given if key in variables}
    frame = Frame("call", at, scope.attempt(node.id, record))
    inside = machine.new_scope(name, inputs, at, variables, f"{key_of(address, frame.attempt)}/")
    machine.open_frame(address, frame, timeout, at)
    record.scope = inside
    machine.open_scope(record.scope, scope, node.id)


def enter_items(machine: Core, scope: OpenScope, index: int, at: float) -> None:
    """Open the items as a scope inside the record of their block."""
    node = scope.program.nodes[index]
    assert node.for_each is not None
    each, program, names = node.for_each, scope.program, scope.names_for(index)
    items, limit = program.items(each, names), program.max_parallel(each, names)
    if len(items) > machine.limits.for_each_items:
        message = (
            f"for_each has {len(items)} items; the limit is {machine.limits.for_each_items}"
            f" ({machine.limits.setting('for_each_items')})"
        )
        where = each.items.at
        machine.fail_with(scope, index, "for_each_items", message, path=where)
        return
    if each.agent and must_confirm(machine, scope, index, at, len(items)):
        return
    at_once = len(items) if limit is None else min(limit, len(items))
    if isinstance(scope, OpenSequence) and at_once > machine.limits.parallel_children:
        message = (
            f"{at_once} tasks would be under way at once; the limit is {machine.limits.parallel_children}"
            f" ({machine.limits.setting('parallel_children')})"
        )
        hint = "set sequential: true, or max_parallel: 10"
        machine.fail_with(scope, index, "parallel_children", message, hint, each.items.at)
        return
    if isinstance(scope, OpenSequence):
        # each task has one question at a time: no more tasks than questions that may be open
        room = max(machine.limits.pending_actions - machine.questions, 1)
        limit = room if limit is None else min(limit, room)
    keys = scope.keys_of_items(index, items, machine.plans)
    inside = Scope(scope.scope.workflow, started_at=at, records={}, each=keys)
    inside.by_key = isinstance(items, dict)
    inside.named = can_be_names(inside.each or ())
    inside.limit = limit
    if isinstance(scope, OpenSequence):
        inside.items = list(items.values()) if isinstance(items, dict) else list(items)
    inside.prompt = "" if each.prompt is None else to_text(program.evaluate(each.prompt, names))
    before = scope.scope.records.get(node.id) or Record()
    record = scope.scope.records[node.id] = Record(started_at=at, scope=inside, confirmed=before.confirmed)
    advance(record, "started")
    address = scope.prefix + node.id
    frame = Frame("each", at, agent=node.for_each.agent)
    frame.headless = agent_of_items(machine, address, frame.agent)
    machine.open_frame(address, frame, None, at)
    machine.open_items(inside, scope, index, items, limit)
    if not node.for_each.wait and items:
        machine.enqueue(scope, scope.continue_beside(index))


def enter_branch(machine: Core, scope: OpenScope, index: int, at: float) -> None:
    """Evaluate the test; its result chooses the next step."""
    do = scope.program.nodes[index].do
    assert isinstance(do, Branch)
    holds = scope.program.condition(do.test, scope.names_for(index))
    machine.end(scope, index, at, "completed", "success", {"result": holds})


def enter_set_state(machine: Core, scope: OpenScope, index: int, at: float) -> None:
    do, names = scope.program.nodes[index].do, scope.names_for(index)
    assert isinstance(do, SetState)
    updates: dict[str, Value] = {}
    for name, expr in do.updates.items():  # each may use those before it by their bare names
        updates[name] = scope.program.evaluate(expr, {**names, **updates})
    too_large = state_too_large({**scope.scope.state, **updates}, machine.limits, scope.program.plan)
    if too_large is not None:
        machine.fail_with(scope, index, "state_size", too_large)
        return
    scope.scope.state.update(updates)
    machine.end(scope, index, at, "completed", "success", updates)


def enter_update(machine: Core, scope: OpenScope, index: int, at: float) -> None:
    """Change the state; all of the changes are made, or none."""
    do, program, names = scope.program.nodes[index].do, scope.program, scope.names_for(index)
    assert isinstance(scope, OpenReactive)
    assert isinstance(do, UpdateState)
    made: list[tuple[Any, Any, Value]] = []
    for change in do.changes:
        place = program.place(change.path, names)
        made.append((place, change.operation, program.new_value(change, names, None, False)))
        try:
            scope.reactive.tried(made)
        except WrongChange as wrong:
            machine.fail_with(scope, index, "state_update", str(wrong), wrong.hint, change.path.at)
            return
    scope.reactive.change(made)
    updates: list[Value] = [
        {"path": path_text(path), "operation": operation, "value": value} for path, operation, value in made
    ]
    machine.end(scope, index, at, "completed", "success", {"updates": updates})


def enter_return(machine: Core, scope: OpenScope, index: int, at: float) -> None:
    do = scope.program.nodes[index].do
    assert isinstance(do, Return)
    scope.scope.result = scope.program.evaluate(do.value, scope.names_for(index))
    machine.end(scope, index, at, "completed", "success", {})


def enter_checkpoint(machine: Core, scope: OpenScope, index: int, at: float) -> None:
    state, node = machine.state, scope.program.nodes[index]
    assert isinstance(node.do, Checkpoint)
    given = scope.program.evaluate(node.do.parameters, scope.names_for(index))
    parameters = given if isinstance(given, dict) else {}
    run_id = parameters.get("workflow_id") or state.run_id
    if run_id != state.run_id:
        message = f"a checkpoint step can only mark its own run, not {kind_and_value(run_id)}"
        hint = 'omit workflow_id, or write workflow_id: "{{ workflow_id }}"'
        machine.fail_with(scope, index, "wrong_value", message, hint)
        return
    reason, step = to_text(parameters.get("reason") or ""), to_text(parameters.get("step_id") or "")
    state.mark(at, reason, step or scope.prefix + node.id)
    machine.end(scope, index, at, "completed", "success", {"workflow_id": state.run_id, "reason": reason})


def enter_tell(machine: Core, scope: OpenScope, index: int, at: float) -> None:
    """Store a message to the user."""
    do = scope.program.nodes[index].do
    assert isinstance(do, Tell)
    text = to_text(scope.program.evaluate(do.message, scope.names_for(index)))
    state, address = machine.state, scope.prefix + scope.program.nodes[index].id
    task = machine.task_around(address) if scope.program.plan.semantics < 3 else ""
    state.messages.append(Message(state.events, text, address, task))
    if len(state.messages) > machine.limits.messages:
        del state.messages[0]
        state.dropped_messages += 1
    machine.end(scope, index, at, "completed", "success", {"message": text})


def enter_wait(machine: Core, scope: OpenScope, index: int, at: float) -> None:
    node = scope.program.nodes[index]
    names = scope.names_for(index)
    assert isinstance(node.do, Wait)
    seconds = scope.program.number(node.do.seconds, names, "duration_seconds", 0)
    message = scope.program.evaluate(node.do.message, names)
    record = scope.scope.records.get(node.id) or Record(started_at=at)
    advance(record, "started")
    record.inputs = {"duration_seconds": seconds, **({"message": message} if message else {})}
    scope.scope.records[node.id] = record
    machine.open_frame(scope.prefix + node.id, Frame("wait", at, scope.attempt(node.id, record)), seconds, at)


def enter(machine: Core, scope: OpenScope, index: int, at: float) -> None:
    node = scope.program.nodes[index]
    if node.for_each is not None:
        enter_items(machine, scope, index, at)
    else:
        ENTER[type(node.do)](machine, scope, index, at)


Enter = Callable[[Core, OpenScope, int, float], None]

ENTER: dict[type[Any], Enter] = {
    Do: enter_do,
    Call: enter_call,
    Branch: enter_branch,
    Jump: enter_jump,
    SetState: enter_set_state,
    Return: enter_return,
    Wait: enter_wait,
    While: enter_while,
    Each: enter_each,
    Leave: enter_leave,
    UpdateState: enter_update,
    Tell: enter_tell,
    Checkpoint: enter_checkpoint,
}


# Retries and interruptions


CUT_OFF = "the server stopped while this step was under way"


def schedule_retry(
    machine: Core,
    scope: OpenScope,
    index: int,
    at: float,
    record: Record,
    outputs: dict[str, Value],
    message: str | None,
    fault: Fault | None,
) -> bool:
    """Schedule a retry of a failed block. Returns False if it gets none."""
    found: list[float | None] = []

    def evaluate() -> None:
        run_id = machine.state.run_id
        found.append(_seconds_to_next_attempt(scope, index, at, run_id, record, outputs, fault))

    failed_rule = machine.guarded(scope, index, evaluate, Purpose.RETRY)
    seconds = found[0] if failed_rule is None else None  # its values may have changed since the first attempt
    if seconds is None:
        return False
    node = scope.program.nodes[index]
    address = scope.prefix + node.id
    record.attempts += 1
    begin_attempt(record)
    advance(record, "retried")
    record.outcome, record.message, record.outputs = "n/a", message, outputs
    frame = Frame("retry", at, scope.attempt(node.id, record), deadline=at + seconds)
    machine.open_frame(address, frame, None, at)
    return True


def _seconds_to_next_attempt(
    scope: OpenScope,
    index: int,
    at: float,
    run_id: str,
    record: Record,
    outputs: dict[str, Value],
    fault: Fault | None,
) -> float | None:
    """How long a block that failed waits for its next attempt; None if it gets none."""
    node = scope.program.nodes[index]
    if node.for_each is not None:
        return None  # its items have had their attempts
    rule = scope.program.retry(node, scope.names_for(index))
    if rule is None:
        return None
    code = fault.code if fault is not None else ""
    kind = "failure" if record.scope is not None or fault is None else "error"
    failure = Failure("timeout" if code == "timeout" else kind, code, outputs.get("exit_code"))
    this_attempt = f"{run_id}/{key_of(scope.prefix + node.id, scope.attempt(node.id, record))}"
    return retry_delay(rule, record.attempts, failure, at - (record.started_at or at), this_attempt)


def restart_timers(machine: Core, event: Forked) -> None:
    """Restart the timers of a fork: the original run may have started them long ago."""
    for address, frame in machine.state.frames.items():
        restart_timer(machine, address, frame, event.at, steps_restart=event.steps_restart)


def restart_timer(
    machine: Core, address: str, frame: Frame, at: float, *, steps_restart: bool = True
) -> None:
    """Let the time of an operation start now."""
    restarts = steps_restart and frame.kind in ("step", "agent", "gate", "verify")
    if frame.deadline is None and not restarts:
        return
    later = at - frame.since
    frame.since, frame.parked = at, 0.0
    frame.deadline = None if frame.deadline is None else frame.deadline + later
    scope, index = machine.locate(address)
    record = scope.scope.records[scope.program.nodes[index].id]
    if (frame.kind == "retry" or restarts) and record.started_at is not None:
        record.started_at += later  # `within` counts from the first attempt


def interrupted(machine: Core, event: Interrupted) -> None:
    """Repeat a step that was interrupted, fail it, or ask the agent."""
    address, attempt = address_of(event.key)
    frame = machine.state.frames.get(address)
    if frame is None or not frame.on_server or frame.attempt != attempt:
        return
    scope, index = machine.locate(address)
    rule = scope.program.nodes[index].on_interrupt if frame.kind == "step" else "repeat"
    frame.interruptions += 1
    if rule == "repeat" and frame.interruptions < machine.limits.step_interruptions:
        for command in repeated(machine, scope, index, frame, event.key, event.at):
            machine.emit(command)
        return
    if frame.kind == "verify":
        interrupted_check(machine, scope, index, frame, event.at)
        return
    machine.close_frame(address, "interrupted")
    if rule == "fail":
        machine.fail_with(scope, index, "interrupted", CUT_OFF)
        return
    machine.open_frame(address, Frame("agent", event.at, attempt, after_interruption=True), None, event.at)
    record = scope.scope.records[scope.program.nodes[index].id]
    times = f" ({frame.interruptions} times)" if frame.interruptions > 1 else ""
    advance(record, "interrupted")
    record.message = CUT_OFF + times


def repeated(machine: Core, scope: OpenScope, index: int, frame: Frame, key: str, at: float) -> list[Command]:
    """The commands that restart a step and its timeout."""
    timer: list[Command] = [] if frame.timeout is None else [SetTimer(key, at + frame.timeout)]
    return [*timer, step_command(machine, scope, index, frame)]


def decided(machine: Core, scope: OpenScope, index: int, event: StepReport) -> None:
    """Apply the decision of the agent about a step that was interrupted."""
    decision = event.outputs.get("decision")
    if decision == "repeat":
        scope.scope.records[scope.program.nodes[index].id].attempts += 1
        machine.enqueue(scope, [index])
    elif decision == "done":
        given = event.outputs.get("outputs")
        outputs = {**scope.program.defaults(index), **(given if isinstance(given, dict) else {})}
        machine.end(scope, index, event.at, "completed", "success", outputs)
    else:
        machine.fail_with(scope, index, "interrupted", CUT_OFF)
