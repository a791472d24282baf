"""What happens next with a run or a task: the call that moves it on, and the steps that follow.

submit_result(workflow_id='wf_1', step_id='approve', result=…)
get_workflow_status(workflow_id='wf_1') waits for it; then 'deploy' if ${inputs.publish}, 'notify'
control_workflow(workflow_id='wf_1', action='retry') re-runs only what failed
"""

from __future__ import annotations

from dataclasses import dataclass

from workflows_mcp.agent.previews import shortened
from workflows_mcp.agent.progress import followers
from workflows_mcp.agent.situation import Situation
from workflows_mcp.agent.vocabulary import CORE, Vocabulary
from workflows_mcp.machine.state import TERMINAL, Scope
from workflows_mcp.plan.model import Branch, Graph, Node, Steps, While
from workflows_mcp.values import Value

_NAMED = 3
_FORKS = 6
_CONDITION_CHARS = 80
NOTHING_LEFT = "nothing: reply with the status"
"""For the agent of a task that has ended."""
HANDED_OUT = ("parallel_tasks", "foreach")
"""Actions that are done by sub-agents."""


@dataclass(frozen=True, slots=True)
class Redo:
    """What of a run that has ended can be done again."""

    can_retry: bool
    steps: tuple[str, ...]
    """Those that it can be forked from."""


def next_call(
    situation: Situation,
    actions: list[dict[str, Value]],
    redo: Redo | None = None,
    words: Vocabulary = CORE,
) -> str:
    """The exact call that moves a run or a task on."""
    workflow_id = situation.part.id
    status = f"get_workflow_status(workflow_id='{workflow_id}')"
    if situation.has_ended:
        return _after_the_end(situation, redo)
    if situation.machine.state.parked is not None:
        return f"control_workflow(workflow_id='{situation.part.run_id}', action='resume')"
    if not actions:
        return f"{status} waits for it"
    if actions[0]["type"] in HANDED_OUT:
        return f"when the sub-agents have ended: {status}"
    call = words.submit_call(workflow_id, str(actions[0]["step_id"]))
    return f"{call}, and so for each of more_actions" if len(actions) > 1 else call


def _after_the_end(situation: Situation, redo: Redo | None) -> str:
    if situation.task is not None:
        return NOTHING_LEFT + (" and the error" * (situation.status == "failed"))
    run_id = situation.part.id
    control = f"control_workflow(workflow_id='{run_id}', action="
    if situation.status == "completed":
        details = f"get_workflow_state(workflow_id='{run_id}') has the details"
        return f"nothing; {details}; {control}'fork', step_id=…) redoes a step"
    if situation.status == "cancelled":
        return f"{control}'retry') continues where it was cancelled"
    ways = [f"{control}'retry') re-runs only what failed"] if redo is None or redo.can_retry else []
    if redo is not None and redo.steps:
        steps = ", ".join(f"'{it}'" for it in redo.steps[-_FORKS:])
        ways.append(f"{control}'fork', step_id=…) redoes a step and what follows: {steps}")
    return "; ".join(ways) or "fix the workflow or its inputs, and start it again"


def steps_that_follow(situation: Situation) -> str:
    """Those behind what is under way, with what decides whether they are reached; empty where none are."""
    scope = situation.scope
    if scope is None or situation.has_ended:
        return ""
    body = situation.machine.plan_named(scope.workflow).body
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
