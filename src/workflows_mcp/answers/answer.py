"""The answer about a run or a task: one shape for every tool, without empty fields.

    {"workflow_id": "wf_7f3a", "status": "pending_action", "action": {…}, "progress": {"done": 3, "total": 9},
     "next": "submit_result(workflow_id='wf_7f3a', step_id='approve', result=…)"}

Building it reads the run and changes nothing. The caller passes `place`, which finds a fault in its file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Literal

from workflows_mcp.answers.actions import actions_of
from workflows_mcp.answers.previews import Cut, Reader, cut, reader, shortened, within
from workflows_mcp.answers.run_view import RunView
from workflows_mcp.answers.targets import Target, block_at, blocks_in, whole_run
from workflows_mcp.answers.vocabulary import CORE, Vocabulary
from workflows_mcp.answers.why import retry_call, why
from workflows_mcp.errors import Place
from workflows_mcp.limits import Limits
from workflows_mcp.machine import TERMINAL, Fault, Machine, Record, Scope, failed, handler_of, outputs_of
from workflows_mcp.plan import Branch, Call, Do, Each, Graph, Jump, Leave, Node, Return, Steps, While
from workflows_mcp.steps import StepRegistry
from workflows_mcp.values import Value

# Progress: done and total steps, and the rounds of its loops
#
#     {"done": 3, "total": 9}
#     {"done": 2, "failed": 1, "total": 4}
#     {"done": 5, "total": 8, "loop": "item 2 of 3 of 'each', round 1 of at most 5 of 'fix'"}
#
# A step counts once, however often a loop repeats it. The branches of a sequence are not known in advance, so
# its total is the done steps plus the longest remaining path. Failed and cancelled steps are not done.


def progress_of(machine: Machine, scope: Scope, *, ended: bool, address: str = "") -> dict[str, Value]:
    """Return the progress of a scope. `address`: of a running step, relative to the scope."""
    body = machine.plan_named(scope.workflow).body
    ended_records = [record for record in scope.records.values() if record.status in TERMINAL]
    wrong = sum(failed(record) and not _was_stopped(record) for record in ended_records)
    done = sum(_is_done(scope, name) for name in scope.records)
    progress: dict[str, Value] = {"done": done}
    if wrong:
        progress["failed"] = wrong
    progress["total"] = done + _left(body.nodes, scope, ended) if isinstance(body, Steps) else len(body.nodes)
    if not ended and (loops := ", ".join(_loops(machine, scope, address))):
        progress["loop"] = loops
    return progress


def _is_done(scope: Scope, name: str) -> bool:
    """Whether a step has ended, in this round or an earlier one."""
    record = scope.records[name]
    return (record.status in TERMINAL and not failed(record)) or scope.visits.get(name, 1) > 1


def _was_stopped(record: Record) -> bool:
    """Whether it was stopped from outside: a block that fails by itself has a fault."""
    return record.status == "failed" and record.fault is None


def _left(nodes: tuple[Node, ...], scope: Scope, ended: bool) -> int:
    """Count the steps on the longest remaining path; of an ended run, from where it failed."""
    left = [0] * (len(nodes) + 1)
    for index in reversed(range(len(nodes))):
        name = nodes[index].id
        own = 0 if name in scope.records and _is_done(scope, name) else 1
        left[index] = own + max((left[it] for it in followers(nodes, index)), default=0)
    begins = [
        index
        for index, node in enumerate(nodes)
        if (record := scope.records.get(node.id)) is not None
        and (failed(record) if ended else record.status not in TERMINAL)
    ]
    return max((left[index] for index in begins), default=0)


def followers(nodes: tuple[Node, ...], index: int) -> set[int]:
    """Return the later steps that can come next; a jump back to a loop counts as leaving the loop."""
    node = nodes[index]
    usual = index + 1 if node.goes_to < 0 else node.goes_to
    match node.do:
        case Return():
            found: tuple[int, ...] = ()
        case Branch(otherwise=otherwise):
            found = (index + 1, otherwise, usual)
        case While(otherwise=otherwise) | Each(otherwise=otherwise):
            found = (index + 1, otherwise)
        case Leave(target=target):
            found = (target,)
        case Jump(target=target):
            found = (target, usual)
        case _:
            found = (usual,)
    return {it for target in found if (it := _behind(nodes, index, target)) > index}


def _behind(nodes: tuple[Node, ...], index: int, target: int) -> int:
    if target > index:
        return target
    head = nodes[target].do
    return head.otherwise if isinstance(head, While | Each) else target


def _loops(machine: Machine, scope: Scope, address: str) -> Iterator[str]:
    """Yield the round of each loop around a step, the outermost first."""
    inside: Scope | None = scope
    for name in (*(address.split("/") if address else ()), ""):
        if inside is None:
            return
        if inside.each is None:
            for head, loop in inside.loops.items():
                node = next(it for it in machine.plan_named(inside.workflow).body.nodes if it.id == head)
                yield _loop(node, loop.count, loop.items)
        record = inside.records.get(name)
        below = record.scope if record is not None else None
        if below is not None and below.each is not None:
            yield _items(name, below)
        inside = below


def _items(name: str, scope: Scope) -> str:
    ended = [record for record in scope.records.values() if record.status in TERMINAL]
    wrong = sum(failed(record) for record in ended)
    done = f"{len(ended) - wrong} of {len(scope.each or ())} items of '{name}' done"
    return f"{done}, {wrong} failed" if wrong else done


def _loop(node: Node, count: int, items: list[Value] | None) -> str:
    if items is not None:
        return f"item {count} of {len(items)} of '{node.id}'"
    most = node.do.most if isinstance(node.do, While) else None
    return f"round {count}{f' of at most {most}' if isinstance(most, int) else ''} of '{node.id}'"


# The next call, and the steps that follow
#
# submit_result(workflow_id='wf_1', step_id='approve', result=…)
# get_workflow_status(workflow_id='wf_1') waits for it; then 'deploy' if ${inputs.publish}, 'notify'
# control_workflow(workflow_id='wf_1', action='retry') re-runs only what failed, in a new run

_NAMED = 3
_FORKS = 6
_CONDITION_CHARS = 80
NOTHING_LEFT = "nothing: reply with the status"
"""For the agent of a task that has ended."""
DELEGATED = ("parallel_tasks", "foreach")
"""Actions that sub-agents perform."""


@dataclass(frozen=True, slots=True)
class RerunOptions:
    """How an ended run can continue."""

    can_retry: bool
    continued_as: str | None
    """The run that a retry has made from it."""


def next_call(
    view: RunView,
    actions: list[dict[str, Value]],
    redo: RerunOptions | None = None,
    words: Vocabulary = CORE,
) -> str:
    """Return the exact call that continues a run or a task."""
    workflow_id = view.target.id
    status = f"get_workflow_status(workflow_id='{workflow_id}')"
    if view.has_ended:
        return next_after_end(view, redo)
    if view.machine.state.parked is not None:
        return f"control_workflow(workflow_id='{view.target.run_id}', action='resume')"
    if not actions:
        tasks = [task for it in view.pending.delegations for task in it.tasks if task.standing == "at work"]
        gone = f"; if its agent is gone: {retry_call(tasks[0].target.id)}" if tasks else ""
        return f"{status} waits for it{gone}"
    if actions[0]["type"] in DELEGATED:
        return f"when the sub-agents have ended: {status}"
    call = words.submit_call(workflow_id, str(actions[0]["step_id"]))
    return f"{call}, and so for each of more_actions" if len(actions) > 1 else call


def next_after_end(view: RunView, redo: RerunOptions | None) -> str:
    """Return the exact calls that continue an ended run, or read its result."""
    if view.task is not None:
        return NOTHING_LEFT + (" and the error" * (view.status == "failed"))
    run_id = view.target.id
    control = f"control_workflow(workflow_id='{run_id}', action="
    ways = []
    if redo is not None and redo.continued_as:
        new = redo.continued_as
        ways.append(f"continued as {new}: get_workflow_status(workflow_id='{new}')")
    elif view.status == "cancelled":
        ways.append(f"{control}'retry') continues where it was cancelled, in a new run")
    elif view.status == "failed" and (redo is None or redo.can_retry):
        ways.append(f"{control}'retry') re-runs only what failed, in a new run")
    elif view.status == "completed":
        ways.append(f"nothing; get_workflow_state(workflow_id='{run_id}') has the details and step ids")
    if view.status != "cancelled" and (steps := _steps_to_redo(view)):
        named = ", ".join(f"'{it}'" for it in steps)
        ways.append(f"{control}'fork', step_id=…) redoes one of these steps and what follows it: {named}")
    return "; ".join(ways) or "fix the workflow or its inputs, and start it again"


def _steps_to_redo(view: RunView) -> list[str]:
    """Return the last completed steps of the outermost workflow, in the order in which they ended."""
    machine = view.machine
    completed = [
        (record.completed_at or 0.0, node.id)
        for node, record in blocks_in(machine, machine.state.root, None)
        if record.status == "completed" and (node.for_each is not None or isinstance(node.do, Do | Call))
    ]
    return [name for _, name in sorted(completed, key=itemgetter(0))][-_FORKS:]


def steps_that_follow(view: RunView) -> str:
    """Name the steps after the running ones, each with its condition."""
    scope = view.scope
    if scope is None or view.has_ended:
        return ""
    body = view.machine.plan_named(scope.workflow).body
    found = _in_graph(body, scope) if isinstance(body, Graph) else _in_sequence(body, scope)
    more = len(found) - _NAMED
    return ", ".join(found[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def _in_graph(body: Graph, scope: Scope) -> list[str]:
    nodes = body.nodes

    def is_open(node: Node) -> bool:
        record = scope.records.get(node.id)
        return record is None or record.status == "pending"

    under_way = {index for index, node in enumerate(nodes) if not is_open(node) and not _over(scope, node)}
    return [
        _with_condition(node)
        for node in nodes
        if is_open(node) and any(need.node in under_way for need in node.needs)
    ]


def _in_sequence(body: Steps, scope: Scope) -> list[str]:
    nodes = body.nodes
    found: list[str] = []
    for index, node in enumerate(nodes):
        if node.id in scope.records and not _over(scope, node):
            ahead = sorted(it for it in followers(nodes, index) if it < len(nodes))
            found += [_with_condition(nodes[it]) for it in ahead]
    return list(dict.fromkeys(found))


def _over(scope: Scope, node: Node) -> bool:
    record = scope.records.get(node.id)
    return record is not None and record.status in TERMINAL


def _with_condition(node: Node) -> str:
    condition = node.condition
    match node.do:
        case Branch(test=test) | While(test=test):
            condition = test
    if not condition:
        return f"'{node.id}'"
    return f"'{node.id}' if {shortened(' '.join(condition.split()), _CONDITION_CHARS)}"


# The answer

MESSAGE_CHARS = 2000
PRINTED_CHARS = 500
"""How much of the last output of a failed block the error has."""
STATE_SHARE = 8
"""The fraction of the usual length that the state gets beside a result."""

FindPlace = Callable[[Fault], Place | None]
Detail = Literal["step", "status", "all"]
"""How much an answer says. `step`: what an agent needs to drive the run; `status`: also progress and why it
waits; `all`: for programs, also every schema and the final state."""


def answer_about(
    view: RunView,
    registry: StepRegistry,
    limits: Limits,
    *,
    place: FindPlace,
    at_work: bool = False,
    detail: Detail = "all",
    with_result: bool | None = None,
    redo: RerunOptions | None = None,
    words: Vocabulary = CORE,
) -> dict[str, Any]:
    """Return the answer about a run or a task.

    `at_work` includes tasks that sub-agents are working on, for an agent that has lost its action.
    `with_result` includes the result; the agent of a task has it already.
    """
    actions = actions_of(view, registry, at_work=at_work, brief=detail != "all")
    if with_result is None:
        with_result = view.task is None or detail == "all"
    return within(limits, lambda how: _answer(view, actions, how, place, detail, with_result, redo, words))


def over_answer(workflow_id: str, message: str) -> dict[str, Any]:
    """Return the answer about a task whose step has started a new round."""
    return {"workflow_id": workflow_id, "status": "completed", "why": message, "next": NOTHING_LEFT}


def _answer(
    view: RunView,
    actions: list[dict[str, Value]],
    how: Cut,
    place: FindPlace,
    detail: Detail,
    with_result: bool,
    redo: RerunOptions | None,
    words: Vocabulary,
) -> dict[str, Any]:
    read = reader(view.target.id)
    answer: dict[str, Any] = {"workflow_id": view.target.id}
    if detail != "step":
        answer["workflow"] = view.workflow
    answer["status"] = view.status
    if messages := view.messages:
        answer["messages"] = cut(messages, ("messages",), how, read)
    left_out = 0
    if actions:
        first, *more = [shortened_action(action, how, read) for action in actions[: how.items + 1]]
        answer["action"] = first
        if more:
            answer["more_actions"] = more
        left_out = len(actions) - 1 - len(more)
    scope = view.scope
    if scope is not None and (detail != "step" or not (actions or view.task)):
        answer["progress"] = progress_of(view.machine, scope, ended=view.has_ended, address=_under_way(view))
    if not view.has_ended:
        reasons = []
        if detail == "all" or not actions:
            reasons.append(why(view))
        elif detail == "status" and (beside := why(view, brief=True)):
            reasons.append(beside)
        if left_out:
            reasons.append(f"{left_out} more actions are shown when these have been answered")
        if reasons:
            answer["why"] = "; ".join(reasons)
    elif view.task is not None and view.task.record.status == "skipped":
        answer["why"] = f"skipped: {view.task.record.message}"
    if view.has_ended:
        if with_result:
            answer |= _given(view, how, read, with_state=detail == "all")
        if (
            scope is not None
            and view.status == "completed"
            and (tolerated := failed_blocks(view.machine, scope))
        ):
            answer["failed_blocks"] = cut(tolerated, ("failed_blocks",), how, read)
        error = error_view(view.machine, place, view.target)
        if error is not None:
            answer["error"] = error
    answer["next"] = next_call(view, actions, redo, words)
    delegated = bool(actions) and actions[0]["type"] in DELEGATED
    if detail != "step" and not delegated and (following := steps_that_follow(view)):
        answer["next"] += f"; then {following}"
    return answer


def _under_way(view: RunView) -> str:
    """Return the address of the current step, relative to the target."""
    pending = view.pending
    addresses = [address for address, _ in pending.questions] + [it.address for it in pending.delegations]
    addresses += [address for address, _ in view.under_way()]
    prefix = f"{view.target.address}/" if view.target.address else ""
    return next((it[len(prefix) :] for it in addresses if it.startswith(prefix)), "")


def _given(view: RunView, how: Cut, read: Reader, *, with_state: bool) -> dict[str, Value]:
    """Return the result: the value and the state of a sequence, or the outputs."""
    completed = view.status == "completed"
    scope, state = view.scope, view.machine.state
    if view.is_sequence and scope is not None:
        if not completed:
            return {}
        given: dict[str, Value] = {}
        if scope.result is not None or with_state:
            given["result"] = cut(scope.result, ("result",), how, read)
        if view.task is None and with_state:
            shown = how if scope.result is None else Cut(how.characters // STATE_SHARE, how.items)
            fields = scope.state if view.fields is None else view.fields.flat
            given["state"] = cut(fields, ("state",) if view.fields is None else (), shown, read)
        return given
    outputs = state.outputs if view.task is None else outputs_of(view.task.record)
    return {"outputs": cut(outputs, ("outputs",), how, read)} if outputs or completed else {}


def failed_blocks(machine: Machine, scope: Scope) -> list[Value]:
    """List the failed blocks of a workflow, with the handler that tolerated each failure."""
    plan = machine.plan_named(scope.workflow)
    found: list[Value] = []
    for node in plan.body.nodes:
        record = scope.records.get(node.id)
        if record is None or not failed(record):
            continue
        by = handler_of(plan, node, record)
        block: dict[str, Value] = {"block": node.id}
        if by:
            block["tolerated_by"] = by
        if record.message:
            block["message"] = shortened(record.message, PRINTED_CHARS)
        found.append(block)
    return found


def error_view(machine: Machine, place: FindPlace, target: Target | None = None) -> dict[str, Value] | None:
    """Return why the run or the task failed: code, message, block, place, and last output."""
    target = target or whole_run(machine.state.run_id)
    fault = _fault_of(machine, target)
    if fault is None or (fault.code == "cancelled" and fault.message == "cancelled"):
        return None
    error: dict[str, Value] = {"code": fault.code, "message": shortened(fault.message, MESSAGE_CHARS)}
    if fault.address:
        error["block"] = target.step_id(fault.address) if target.covers(fault.address) else fault.address
    where = place(fault)
    if where is not None:
        error["place"] = str(where)
        if where.text.strip():
            error["line"] = where.excerpt()[0].strip()
    if fault.hint:
        error["hint"] = fault.hint
    printed = _printed(machine, fault.address)
    if printed:
        error["printed"] = printed
    return error


def _fault_of(machine: Machine, target: Target) -> Fault | None:
    visited = None if target.is_run else block_at(machine, target.address)
    if visited is None:
        return machine.state.fault
    record = visited.record
    if record.fault is not None or not failed(record):
        return record.fault
    code = "cancelled" if machine.state.status == "cancelled" else "block_failed"
    return Fault(code, record.message or "no reason was given", address=target.address)


def _printed(machine: Machine, address: str) -> str:
    visited = block_at(machine, address) if address else None
    if visited is None:
        return ""
    for stream in ("stderr", "stdout"):
        text = visited.record.outputs.get(stream)
        if isinstance(text, str) and text.strip():
            text = text.rstrip()
            return text if len(text) <= PRINTED_CHARS else "…" + text[-PRINTED_CHARS:]
    return ""


def shortened_action(action: dict[str, Value], how: Cut, read: Reader) -> dict[str, Value]:
    """Return an action with long texts cut; the schema of its result stays whole."""
    path = ("actions", action["step_id"])
    short = dict(action)
    for name in ("instructions", "parameters"):
        short[name] = cut(action[name], (*path, name), how, read)
    return short
