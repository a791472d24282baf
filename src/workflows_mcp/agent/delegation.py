"""How the tasks of a block are handed to sub-agents: one action for the agent that starts them, and one
prompt for all of them, in which it puts the id and the input of each task.

    {"step_id": "analyze", "type": "parallel_tasks", "instructions": "…",
     "parameters": {"agent": "@task", "task": "analyze_file", "tasks": [{"task_id": "analyze.0",
                    "workflow_id": "wf_1.analyze.0", "agent": "@task", "context": "src/a.py",
                    "status": "waiting to start"}, …]},
     "sub_agent_prompt": "<workflow-server-rules>…{workflow_id}…{input}…</workflow-server-rules>…"}

Nothing is ever submitted for it: the workflow goes on by itself when all of its tasks are done.
"""

from __future__ import annotations

from workflows_mcp.agent.situation import Situation
from workflows_mcp.agent.tasks import Delegation, count_tasks
from workflows_mcp.agent.waiting import standing, task_name
from workflows_mcp.agent.walk import Visited, block_at
from workflows_mcp.plan.items import names_of_items
from workflows_mcp.plan.model import Call, ForEach, Node, Operation, kind_of_operation
from workflows_mcp.values import Value

GENERAL = "@task"
"""The agent that is nobody in particular."""

ROLE = "You carry out one task of a workflow."
"""What a prompt of the author's own replaces."""
SUB_AGENT_PROMPT = """\
%(role)s

<workflow-server-rules>
The workflow server knows the steps of your task and keeps its state: you carry out one step at a time and \
hand in what came of it.

1. Call get_next_step(workflow_id="{workflow_id}").
2. While `status` is "pending_action", do what action.instructions say with action.parameters (shell: run \
the command; mcp_call: call the tool), then call submit_result(workflow_id="{workflow_id}", \
step_id=<action.step_id>, result=<as action.result_schema says>). Its reply carries the next action, so do \
not call get_next_step in between.
3. While it is "running" or "waiting", call get_workflow_status(workflow_id="{workflow_id}"), which waits.
4. Stop when it is "completed", "complete", "failed" or "cancelled". The server has the result: answer with \
the status alone, and with the error if there is one.

Hand in what really happened: a command that fails is a result too (exit_code, stderr). What cannot be done \
at all is handed in as {"is_error": true, "error": "<why>"}: never make a result up. If a call gets no \
answer, repeat it, which is harmless. Do nothing that no step asks for, and do not ask the user.

Workflow ID: {workflow_id}
Task: %(task)s
Input: {input}
</workflow-server-rules>

Begin with get_next_step."""


def delegated_action(situation: Situation, delegation: Delegation) -> dict[str, Value]:
    block = block_at(situation.machine, delegation.address)
    assert block is not None
    each, do = block.node.for_each, block.node.do
    assert each is not None
    task = task_title(do)
    count = count_tasks(situation.machine.state, delegation.address)
    parameters: dict[str, Value] = {"agent": each.agent, "task": task}
    if isinstance(each.max_parallel, int):
        parameters["max_parallel"] = each.max_parallel
    parameters["total"] = count.total
    for name in ("done", "failed", "to_come"):
        if number := getattr(count, name):
            parameters[name] = number
    parameters["tasks"] = _tasks(situation, delegation, block, each.agent)
    return {
        "step_id": situation.part.step_id(delegation.address),
        "type": "foreach" if each.max_parallel == 1 else "parallel_tasks",
        "instructions": _instructions(situation, each),
        "parameters": parameters,
        "sub_agent_prompt": SUB_AGENT_PROMPT % {"role": role_in(block), "task": task},
    }


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


def _instructions(situation: Situation, each: ForEach) -> str:
    one_by_one = each.max_parallel == 1
    kind = "a general one" if each.agent == GENERAL else f"of the kind {each.agent}, else a general one"
    which = "the task that is" if one_by_one else "each task that is"
    return (
        f"Start exactly one sub-agent ({kind}) for {which} waiting to start"
        f"{'' if one_by_one else ', all of them at once'}. Its prompt is sub_agent_prompt with the "
        "workflow_id and the context of the task in place of {workflow_id} and {input}. Sub-agents drive "
        "their tasks themselves with get_next_step and submit_result: do not carry out their steps, and "
        "submit nothing for this one. When they have ended, call "
        f"get_workflow_status(workflow_id='{situation.part.id}'): the workflow goes on by itself when all "
        "tasks are done, and further tasks may start as others end. If you cannot start sub-agents, follow "
        "the prompt yourself, task by task."
    )


_IDS = ("workflow_id", "task_id")


def context_of(variables: dict[str, Value]) -> Value:
    """The context of a task as its agent is told it. Ids in it are those that expressions see; the agent is
    told one id, that of its task."""
    context = variables["context"]
    if not isinstance(context, dict):
        return context
    item = context.get("item")
    own = item if isinstance(item, dict) else {}
    return {name: value for name, value in context.items() if name not in _IDS or name in own}


def _tasks(situation: Situation, delegation: Delegation, block: Visited, agent: str) -> list[Value]:
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
        listed.append(
            {
                "task_id": task_id,
                "workflow_id": task.part.id,
                "agent": agent,
                "context": context,
                "status": standing(task, situation.now),
            }
        )
    return listed
