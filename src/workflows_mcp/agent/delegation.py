"""How the tasks of a block are handed to sub-agents: one action for the agent that starts them, and one
prompt for all of them, in which it puts the id and the input of each task.

    {"step_id": "analyze", "type": "parallel_tasks", "instructions": "…",
     "parameters": {"agent": "@task", "task": "analyze_file", "tasks": [{"task_id": "analyze.0",
                    "workflow_id": "wf_1.analyze.0", "context": "src/a.py"}, …]},
     "sub_agent_prompt": "<workflow-server-rules>…{workflow_id}…{input}…</workflow-server-rules>…"}

Nothing is ever submitted for it: the workflow goes on by itself when all of its tasks are done.
"""

from __future__ import annotations

from workflows_mcp.agent.situation import Situation
from workflows_mcp.agent.tasks import Delegation, count_tasks
from workflows_mcp.agent.waiting import standing, task_name
from workflows_mcp.agent.walk import Visited, block_at
from workflows_mcp.machine.scope import iso
from workflows_mcp.plan.items import names_of_items
from workflows_mcp.plan.model import Call, ForEach, Node, Operation, kind_of_operation
from workflows_mcp.values import Value

GENERAL = "@task"
"""The agent that is nobody in particular."""

ROLE = "You carry out one task of a workflow."
"""What a prompt of the author's own replaces."""
_ONCE_MORE = "As before, with the same prompt (get_next_step shows it again)."
SUB_AGENT_PROMPT = """\
%(role)s

<workflow-server-rules>
Call get_next_step(workflow_id='{workflow_id}'), do what `action` says, make the call in `next`, and so on \
until nothing is left; reply with the status only. Submit what really happened. You cannot ask the user: if \
a step cannot be done, or is for the user, submit {"is_error": true, "error": "<why, or the question>"}.
Task: %(task)s
Input: {input}
</workflow-server-rules>"""


def delegated_action(
    situation: Situation, delegation: Delegation, *, brief: bool = False
) -> dict[str, Value]:
    """`brief`: without the prompt, where the agent has had it with earlier tasks of the step."""
    block = block_at(situation.machine, delegation.address)
    assert block is not None
    each, do = block.node.for_each, block.node.do
    assert each is not None
    task = task_title(do)
    count = count_tasks(situation.machine.state, delegation.address)
    one_by_one = each.max_parallel == 1
    parameters: dict[str, Value] = {"task": task}
    if each.agent != GENERAL or not brief:
        parameters["agent"] = each.agent
    if isinstance(each.max_parallel, int) and not one_by_one:
        parameters["max_parallel"] = each.max_parallel
    if count.to_come and not one_by_one:
        parameters["to_come"] = count.to_come
    parameters["tasks"] = _tasks(situation, delegation, block, brief)
    begun = count.done + count.failed > 0 or any(it.standing == "at work" for it in delegation.tasks)
    known = brief and begun and not any(it.standing == "silent" or it.again for it in delegation.tasks)
    action: dict[str, Value] = {
        "step_id": situation.part.step_id(delegation.address),
        "type": "foreach" if one_by_one else "parallel_tasks",
        "instructions": _ONCE_MORE if known else _instructions(each, delegation),
        "parameters": parameters,
    }
    if known:
        return action
    return {**action, "sub_agent_prompt": SUB_AGENT_PROMPT % {"role": role_in(block), "task": task}}


def role_in(block: Visited) -> str:
    """What the sub-agents of a block are told to be: the author's own words, or the standard ones."""
    scope = block.record.scope
    return (scope.prompt if scope is not None else "") or ROLE


def is_task(node: Node) -> bool:
    """Whether this is an item that a task of the workflow is carried out for."""
    return node.for_each is None and isinstance(node.do, Call) and node.do.of_item


def task_title(do: Operation) -> str:
    """What is carried out for an item, by its name."""
    called = do.workflow if isinstance(do, Call) and isinstance(do.workflow, str) else kind_of_operation(do)
    return called.partition("#")[2] or called


def context_of(variables: dict[str, Value]) -> Value:
    """The context of a task as its agent is told it, each value once: without the ids that expressions see
    (the agent is told one id, that of its task), and without the item where its fields are there."""
    context = variables["context"]
    if not isinstance(context, dict):
        return context
    item = context.get("item")
    own = item if isinstance(item, dict) else {}
    hidden = {"workflow_id", "task_id", *(("item",) if own else ())} - own.keys()
    return {name: value for name, value in context.items() if name not in hidden}


def _instructions(each: ForEach, delegation: Delegation) -> str:
    kind = "" if each.agent == GENERAL else f" of the kind {each.agent} (or a general one)"
    which = "the task" if each.max_parallel == 1 else "each task, all at once"
    if any(task.standing == "at work" for task in delegation.tasks):
        which = "each task that is not at work"
    return (
        f"Start one sub-agent{kind} for {which}: its prompt is sub_agent_prompt with its workflow_id and "
        "context for {workflow_id} and {input}. They submit their results themselves: submit nothing. "
        "Without sub-agents, follow the prompt yourself."
    )


def _tasks(situation: Situation, delegation: Delegation, block: Visited, brief: bool) -> list[Value]:
    """Those that may be worked at now."""
    scope = block.record.scope
    assert scope is not None
    names = names_of_items(scope.each or [], scope.named)
    keys = dict(zip(names, scope.each or [], strict=True))
    items = dict(zip(names, scope.items, strict=True)) if scope.items is not None else None
    listed: list[Value] = []
    for task in delegation.tasks:
        name = task.part.address.rpartition("/")[2]
        record = scope.records[name]
        given = record.inputs
        context = items[name] if items is not None else given.get("inputs") or given or name
        task_id: Value = task_name(situation, task)
        if record.scope is not None and "context" in record.scope.variables:  # a task that has a name
            context, task_id = context_of(record.scope.variables), keys[name]
        said: dict[str, Value] = {"workflow_id": task.part.id, "context": context}
        if not brief or not task.part.id.endswith(f".{task_id}"):
            said = {"task_id": task_id, **said}
        if not brief or task.standing != "to start":
            said["status"] = standing(task, situation.now)
        if task.last_contact is not None:
            said |= {"started_at": iso(task.since), "last_contact": iso(task.last_contact)}
        listed.append(said)
    return listed
