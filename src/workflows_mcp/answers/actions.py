"""Builds the actions that a run or a task asks of its agent.

    actions_of(view, registry)     # [Action(step_id="approve", type="prompt", instructions="…", …)]

An action has everything that the agent needs: step, instructions, values, and the JSON Schema of the result.
One action delegates all tasks of a step, with one prompt for all sub-agents.
"""

from __future__ import annotations

from operator import itemgetter
from typing import Any, Literal, NamedTuple

import msgspec
from pydantic import ValidationError

from workflows_mcp.answers.previews import Cut, Reader, cut
from workflows_mcp.answers.progress import failed_for_good
from workflows_mcp.answers.run_view import RunView, Visited
from workflows_mcp.answers.tasks import (
    Count,
    Delegation,
    LastSeen,
    Standing,
    question_id,
    scope_around,
    whole_run,
)
from workflows_mcp.answers.why import standing, task_name
from workflows_mcp.machine import iso, path_text
from workflows_mcp.plan import (
    LANGUAGES,
    Call,
    Check,
    Do,
    ForEach,
    Node,
    Operation,
    kind_of_operation,
    names_of_items,
)
from workflows_mcp.steps import Asked, Question, Step, StepInputs, StepRegistry, StepResult, asked_of
from workflows_mcp.values import Value, to_json

# Forms of a question: how often the user saw one, and with which outcome
#
# The log consists of notes beside the run, like heartbeats (`LastSeen`), so every process can read it, also
# after a restart. A note starts with `?`, unlike the id of a task:
#
#     ?deploy#2            a call showed the second form of the question `deploy`
#     ?deploy/1            the first form of a client task was answered
#     ?deploy=declined     the user declined to answer
#     ?deploy=unshown      the client could not show it
#
# After one of the last two, or after `MOST_FORMS` forms, the question goes to the agent, with the reason.

MOST_FORMS = 3

Outcome = Literal["declined", "unshown"]


class FormOutcome(NamedTuple):
    question: str
    calls: int = 0
    """The number of forms shown by calls."""
    tasks: int = 0
    """The number of answered forms of a client task."""
    outcome: Outcome | None = None

    @property
    def is_over(self) -> bool:
        return self.outcome is not None or self.calls + self.tasks >= MOST_FORMS

    @property
    def form_of_task(self) -> str:
        """The key of the current form of a client task; an answered form is not shown again."""
        return f"{self.question}#{self.tasks + 1}"

    # Notes to write

    @property
    def shown_note(self) -> str:
        return f"?{self.question}#{self.calls + 1}"

    @property
    def answered_note(self) -> str:
        return f"?{self.question}/{self.tasks + 1}"

    def outcome_note(self, outcome: Outcome) -> str:
        return f"?{self.question}={outcome}"

    def instructions(self, instructions: str, *, decided: str) -> str:
        """Return the instructions for the question, given its forms so far.

        `decided` says how to submit what the user decides after declining.
        """
        if self.outcome == "declined":
            return (
                "The user was shown this question and declined to answer it. Do not answer it for the user: "
                f"ask what to do, and submit only the user's own reply, or cancel the run. {decided}"
            )
        if self.is_over:
            before = "The user was asked this directly, without an answer that fits: ask the user yourself."
            return f"{before} {instructions}"
        return instructions


def form_outcome(last_seen: LastSeen, question: str) -> FormOutcome:
    nothing = FormOutcome(question)
    if not last_seen:
        return nothing
    calls = tasks = 0
    while f"?{question}#{calls + 1}" in last_seen:
        calls += 1
    while f"?{question}/{tasks + 1}" in last_seen:
        tasks += 1
    outcomes: tuple[Outcome, ...] = ("declined", "unshown")
    outcome = next((it for it in outcomes if nothing.outcome_note(it) in last_seen), None)
    return FormOutcome(question, calls, tasks, outcome)


# What an agent is asked to do
#
#     {"step_id": "approve", "type": "prompt", "instructions": "…", "parameters": {…}, "result_schema": {…}}


class StateUpdate(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where the result of a step will be stored in a reactive state."""

    path: str
    operation: str = "set"
    value: Value | msgspec.UnsetType = msgspec.UNSET
    """The stored value, if it is not the result."""
    transform: str = ""


class DelegatedTask(msgspec.Struct, frozen=True, kw_only=True):
    """A task that a sub-agent performs."""

    task_id: Value
    """Its key among the tasks of its step, or its id relative to the agent that starts it."""
    name: str
    """Its key if the workflow waits for it and the key is unique in the run, else its id."""
    workflow_id: str
    context: Value
    standing: Standing
    status: str
    since: str | None
    last_contact: str | None
    is_retry: bool

    @property
    def is_at_work(self) -> bool:
        return self.standing == "at work"

    def rendered(self, *, brief: bool) -> dict[str, Value]:
        entry: dict[str, Value] = {"workflow_id": self.workflow_id, "context": self.context}
        if not brief or not self.workflow_id.endswith(f".{self.task_id}"):
            entry = {"task_id": self.task_id, **entry}
        if not brief or self.standing != "to start":
            entry["status"] = self.status
        if self.last_contact is not None:
            entry |= {"started_at": self.since, "last_contact": self.last_contact}
        return entry


class Delegated(msgspec.Struct, frozen=True, kw_only=True):
    """The tasks of a step that sub-agents perform: one action for all of them."""

    role: str
    task: str
    agent: str
    tasks: list[DelegatedTask]
    max_parallel: int | None
    """The limit, if several run at once."""
    to_come: int
    """How many tasks start when others end."""
    forecast: str
    """About how much work it is in all; empty if it is little."""
    begun: bool
    """Whether a task has ended or is at work."""
    waits: bool
    """Whether the workflow continues only when the tasks have ended."""
    items: str
    """The expression of the items, if they are computed."""

    def is_known(self) -> bool:
        """Whether the agent already has the prompt of the sub-agents."""
        return self.begun and not any(it.standing == "silent" or it.is_retry for it in self.tasks)

    def parameters(self, *, brief: bool) -> dict[str, Value]:
        parameters: dict[str, Value] = {"task": self.task}
        if self.agent != GENERAL or not brief:
            parameters["agent"] = self.agent
        if self.max_parallel is not None:
            parameters["max_parallel"] = self.max_parallel
        if self.to_come:
            parameters["to_come"] = self.to_come
        if self.forecast and not self.begun:
            parameters["forecast"] = self.forecast
        return {**parameters, "tasks": [task.rendered(brief=brief) for task in self.tasks]}


class Action(msgspec.Struct, frozen=True, kw_only=True):
    """What an agent is asked to do: one step, or tasks to delegate to sub-agents."""

    step_id: str
    type: str
    instructions: str
    parameters: dict[str, Value] = {}
    result_schema: dict[str, Value] = {}
    describes_result: bool = False
    """Whether the instructions describe the result in full."""
    address: str
    """The step in its run."""
    of_task: dict[str, str] = {}
    """Id and title of the task that the question belongs to, if the agent performs the task itself."""
    delegated: Delegated | None = None
    updates: list[StateUpdate] = []
    replaced: dict[str, Value] = {}
    """The evaluated expressions in the inputs of the step, and their values."""
    forms: FormOutcome
    """The forms of the question that the user was shown."""
    asks_user: bool = False
    """Whether it is a question to the user."""
    agent_may_answer: bool = True
    """Whether the agent may answer it without the user."""
    prompt: str = ""
    """The question as one text, for answers without instructions."""
    feedback: list[str] = []
    """Why the last result was rejected: what has to be fixed."""
    attempts_left: int = 0
    """How many results it may still submit, this one included."""
    sent_back: dict[str, Value] = {}
    """The decision of a person who has sent the step back."""
    checks: list[str] = []
    """What the server checks before it accepts the result."""
    allow_tools: list[str] | None = None
    """The tools that the agent may use meanwhile; None: all."""
    checkpoint_id: str = ""
    """The checkpoint of the question, if a caller has asked for checkpoints and it is not deleted."""

    def rendered(self, how: Cut, read: Reader, *, brief: bool = False) -> dict[str, Any]:
        """Return the action as the core shows it.

        `brief` leaves out a schema that the instructions describe, and a prompt that the agent has.
        """
        delegated, path = self.delegated, ("actions", self.step_id)
        known = brief and delegated is not None and delegated.is_known()
        parameters = delegated.parameters(brief=brief) if delegated is not None else self.parameters
        action: dict[str, Any] = {
            **self.of_task,
            "step_id": self.step_id,
            "type": self.type,
            "instructions": cut(
                _ONCE_MORE if known else self.instructions, (*path, "instructions"), how, read
            ),
            "parameters": cut(parameters, (*path, "parameters"), how, read),
        }
        if delegated is None and not (brief and self.describes_result):
            action["result_schema"] = self.result_schema
        if self.feedback:
            action |= cut({"rejected_because": self.feedback}, path, how, read)
        if self.sent_back:
            action["sent_back"] = self.sent_back
        if self.checks:
            action |= {"checks": self.checks, "results_left": self.attempts_left}
        if self.allow_tools is not None:
            action["allow_tools"] = self.allow_tools
        if delegated is not None and not known:
            action["sub_agent_prompt"] = SUB_AGENT_PROMPT % {"role": delegated.role, "task": delegated.task}
        return action


# Questions of steps, and two that no step type asks: about an interrupted step, and about invalid inputs


class _Interrupted(Step):
    """Asks what to do about an interrupted step; the machine acts on the decision."""

    name = "interrupted"
    performer = "agent"


def interrupted_question(visited: Visited) -> Asked:
    step = visited.node.do.step if isinstance(visited.node.do, Do) else "step"
    question = Question(
        type="interrupted",
        instructions=f"The server stopped while it was running this {step} step, so nobody knows how much of "
        "it was done. Find out, or ask the user, and then submit a decision: repeat runs it again, done "
        "marks it as done (with its outputs, if later steps need them), fail marks it as failed.",
        parameters={"step": step, "inputs": visited.record.inputs},
        result_schema={
            "type": "object",
            "properties": {
                "decision": {"type": "string", "enum": ["repeat", "done", "fail"]},
                "outputs": {"type": "object", "description": "The outputs of the step, for done"},
            },
            "required": ["decision"],
            "additionalProperties": False,
        },
        main_field="decision",
        describes_result=True,
    )
    return Asked(_Interrupted(), StepInputs(), question)


class _Unaskable(Step):
    """Replaces a step with invalid inputs: any answer fails the step.

    Without it the run would wait for an answer that nobody can give.
    """

    name = "unaskable"
    performer = "agent"

    def __init__(self, wrong: str, outputs: dict[str, Value]) -> None:
        self._wrong = wrong
        self._outputs = outputs

    def parse_result(self, inputs: Any, result: dict[str, Value]) -> StepResult:
        return StepResult(self._outputs, ok=False, message=f"its inputs do not fit: {self._wrong}")


def unaskable(visited: Visited, step: Step, error: ValidationError) -> Asked:
    wrong = "; ".join(f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors())
    do = visited.node.do
    question = Question(
        type=step.name.lower(),
        instructions=f"The inputs of this {step.name} step are invalid ({wrong}), so it cannot run. "
        "Submit {} to continue the run with this step as failed, or cancel the run.",
        parameters=dict(visited.record.inputs),
        result_schema={"type": "object"},
        describes_result=True,
    )
    defaults = dict(do.defaults) if isinstance(do, Do) else {}
    return Asked(_Unaskable(wrong, defaults), StepInputs(), question)


# Delegation: one action for the agent that starts the sub-agents, and one prompt with places for id and input
#
#     {"step_id": "analyze", "type": "parallel_tasks", "instructions": "…",
#      "parameters": {"agent": "@task", "task": "analyze_file", "tasks": [{"task_id": "analyze.0",
#                     "workflow_id": "wf_1.analyze.0", "context": "src/a.py"}, …]},
#      "sub_agent_prompt": "<workflow-server-rules>…{workflow_id}…{input}…</workflow-server-rules>…"}
#
# Nothing is submitted for it: the workflow continues by itself when all of its tasks are done.

GENERAL = "@task"
"""An agent without a special role."""
ROLE = "You do one task of a workflow."
"""The default role, which a prompt of the author replaces."""
_ONCE_MORE = "As before, with the same sub_agent_prompt (get_next_step shows it again)."

SUB_AGENT_PROMPT = """\
%(role)s

<workflow-server-rules>
Call get_next_step(workflow_id='{workflow_id}'), do what `action` says, make the call in `next`, and so on \
until nothing is left; reply with the status only. Submit what really happened. You cannot ask the user: if \
a step cannot be done, or is for the user, submit {"is_error": true, "error": "<why, or the question>"}.
Task: %(task)s
Input: {input}
</workflow-server-rules>"""


def delegated_action(view: RunView, delegation: Delegation) -> Action:
    """Return the action that delegates tasks."""
    block = view.block_at(delegation.address)
    assert block is not None
    each = block.node.for_each
    assert each is not None
    count = view.count_tasks(delegation.address)
    one_by_one, items = each.at_once == 1, each.items.source
    is_limited = isinstance(each.at_once, int) and not one_by_one
    language = LANGUAGES[view.plan.language]
    return Action(
        step_id=view.target.step_id(delegation.address),
        type="foreach" if one_by_one else "parallel_tasks",
        instructions=_instructions(each, delegation, count),
        address=delegation.address,
        forms=FormOutcome(""),
        delegated=Delegated(
            role=role_in(block),
            task=task_title(block.node.do),
            agent=each.agent,
            tasks=_tasks(view, delegation, block),
            max_parallel=each.at_once if is_limited else None,
            to_come=0 if one_by_one else count.to_come,
            forecast=_forecast(view, block, count.total),
            begun=count.done + count.failed > 0 or any(it.standing == "at work" for it in delegation.tasks),
            waits=each.wait,
            items=items if isinstance(items, str) and language.is_dynamic(items) else "",
        ),
    )


FORECAST_FROM = 10
"""From how many sub-agents on an answer says how much work they are."""


def _forecast(view: RunView, block: Visited, sub_agents: int) -> str:
    if sub_agents < FORECAST_FROM:
        return ""
    steps = agent_steps_of(view, block.node.do)
    return f"about {sub_agents} sub-agents" + (f", {sub_agents * steps} steps" if steps > 1 else "")


def agent_steps_of(view: RunView, do: Operation) -> int:
    """Return how many steps of agents an operation has, as far as that is known before it runs."""
    name = do.name if isinstance(do, Call) else None
    plan = view.machine.plans.get(name) if isinstance(name, str) else None
    nodes = plan.body.nodes if plan is not None else ()
    return sum(isinstance(node.do, Do) and node.do.by == "agent" for node in nodes)


def role_in(block: Visited) -> str:
    """Return the role of the sub-agents of a block: from the author, or the default."""
    scope = block.record.scope
    return (scope.prompt if scope is not None else "") or ROLE


def is_task(node: Node) -> bool:
    """Whether a node is an item that runs a task of the workflow."""
    return node.for_each is None and isinstance(node.do, Call) and node.do.of_item


def task_title(do: Operation) -> str:
    """Return the name of the operation that runs for an item."""
    called = do.name if isinstance(do, Call) and isinstance(do.name, str) else kind_of_operation(do)
    return called.partition("#")[2] or called


def context_of(variables: dict[str, Value]) -> Value:
    """Return the context of a task for its agent, each value once.

    It leaves out the ids that only expressions use, and the item if its fields are there.
    """
    context = variables["context"]
    if not isinstance(context, dict):
        return context
    item = context.get("item")
    own = item if isinstance(item, dict) else {}
    hidden = {"workflow_id", "task_id", *(("item",) if own else ())} - own.keys()
    return {name: value for name, value in context.items() if name not in hidden}


class TaskBrief(NamedTuple):
    """What the sub-agent of one task needs to know."""

    workflow_id: str
    role: str
    task: str
    context: Value

    def prompt(self, template: str = SUB_AGENT_PROMPT) -> str:
        text = template % {"role": self.role, "task": self.task}
        for place in ("{workflow_id}", "{task_id}"):
            text = text.replace(place, self.workflow_id)
        return text.replace("{input}", to_json(self.context))


def brief_of(view: RunView) -> TaskBrief:
    """Return what the sub-agent of a task needs to know."""
    target, scope = view.target, view.scope
    around = view.block_at(target.address.rpartition("/")[0])
    role = role_in(around) if around is not None else ROLE
    task = task_title(around.node.do) if around is not None else view.workflow
    context: Value = dict(scope.inputs) if scope is not None else {}
    if scope is not None and "context" in scope.variables:
        context = context_of(scope.variables)
    return TaskBrief(target.id, role, task, context)


def _instructions(each: ForEach, delegation: Delegation, count: Count) -> str:
    kind = "" if each.agent == GENERAL else f" of the kind {each.agent} (or a general one)"
    which = "the task" if len(delegation.tasks) == 1 else "each task, all at once"
    if each.at_once == 1 and count.total > 1:
        which = f"this task, one of {count.total} that run one after the other"
    if any(task.standing == "at work" for task in delegation.tasks):
        which = "each task that is not at work"
    return (
        f"Start one sub-agent{kind} for {which}: its prompt is sub_agent_prompt, with {{workflow_id}} and "
        "{input} replaced by its workflow_id and context. They submit their results themselves: submit "
        "nothing. "
        "Without sub-agents, follow the prompt yourself."
    )


def _tasks(view: RunView, delegation: Delegation, block: Visited) -> list[DelegatedTask]:
    """List the tasks that may be worked on now."""
    scope, each = block.record.scope, block.node.for_each
    assert scope is not None
    assert each is not None
    names = names_of_items(scope.each or [], scope.named)
    keys = dict(zip(names, scope.each or [], strict=True))
    items = dict(zip(names, scope.items, strict=True)) if scope.items is not None else None
    records = {node.id: record for node, record in view.blocks_in(scope, block.node)}
    listed: list[DelegatedTask] = []
    for task in delegation.tasks:
        name = task.target.address.rpartition("/")[2]
        record = records[name]
        given = record.inputs
        context = items[name] if items is not None else given.get("inputs") or given or name
        task_id: Value = task_name(view, task)
        if record.scope is not None and "context" in record.scope.variables:  # a task that has a name
            context, task_id = context_of(record.scope.variables), keys[name]
        listed.append(
            DelegatedTask(
                task_id=task_id,
                name=view.name_of_task(str(task_id), task.target) if each.wait else task.target.id,
                workflow_id=task.target.id,
                context=context,
                standing=task.standing,
                status=standing(task, view.now),
                since=iso(task.since),
                last_contact=iso(task.last_contact),
                is_retry=task.is_retry,
            )
        )
    return listed


# The actions of a run or a task

_DECIDED = "The result must fit result_schema."


def actions_of(view: RunView, registry: StepRegistry, *, at_work: bool = False) -> list[Action]:
    """Return the actions of the agent of a run or task, the oldest first.

    `at_work` includes tasks that sub-agents are working on.
    """
    if view.is_parked:
        return []
    doomed = failed_for_good(view)
    found = [(frame.since, _question(view, registry, it, doomed)) for it, frame in view.pending.questions]
    found += [
        (it.frame.since, delegated_action(view, it))
        for it in view.pending.delegations
        if at_work or it.needs_somebody
    ]
    return [action for _, action in sorted(found, key=itemgetter(0))]


def _question(view: RunView, registry: StepRegistry, address: str, doomed: str) -> Action:
    visited, question = view.block_at(address), question_at(view, registry, address)
    forms = form_outcome(view.last_seen, question_id(view.state, whole_run(view.target.run_id), address))
    instructions = forms.instructions(question.instructions, decided=_DECIDED)
    node, record = (visited.node, visited.record) if visited is not None else (None, None)
    if node is not None:
        instructions += _rules(view, node)
    if record is not None and record.feedback:
        instructions = f"{_FIX} {instructions}"
    sent_back = _sent_back(view, address)
    if sent_back:
        instructions = f"{_SENT_BACK} {instructions}"
    if doomed:
        instructions += f" Note: block {doomed} has failed, so the run will fail in any case."
    return Action(
        step_id=view.question_id(address),
        type=question.type,
        instructions=instructions,
        parameters=question.parameters,
        result_schema=question.result_schema,
        describes_result=question.describes_result,
        address=address,
        of_task=_of_task(view, address),
        updates=_updates(visited) if visited is not None else [],
        replaced=visited.record.replaced if visited is not None else {},
        forms=forms,
        asks_user=bool(question.for_user),
        agent_may_answer=not question.for_user or question.agent_may_answer,
        feedback=list(record.feedback) if record is not None else [],
        attempts_left=node.attempts - record.rejections if node is not None and record is not None else 0,
        sent_back=sent_back,
        checks=[_described(check) for check in node.verify] if node is not None else [],
        allow_tools=list(node.allow_tools) if node is not None and node.allow_tools is not None else None,
        prompt=prompt_at(view, registry, address),
        checkpoint_id=view.checkpoint_ids.get(address, ""),
    )


def _described(check: Check) -> str:
    """Return a check as its author has written it, with the message if that is known before it runs."""
    message = check.message.source if check.message is not None else None
    known = isinstance(message, str) and "{{" not in message and "${" not in message
    return f"{check.text}  # {message}" if known else check.text


def _rules(view: RunView, node: Node) -> str:
    """Say what holds for a step besides its own instructions."""
    rules = ""
    if node.verify:
        commands = any(check.command is not None for check in node.verify)
        where = f", in {view.state.workspace}" if commands and view.state.workspace else ""
        rules += f" The server checks the result before it accepts it{where}: see checks."
    if node.allow_tools is not None:
        rules += " Until then, use only the tools of allow_tools."
    return rules


_FIX = "The server has checked your last result and rejected it: fix what rejected_because says."
_SENT_BACK = "A person has sent this step back: sent_back says who and why."


def _sent_back(view: RunView, address: str) -> dict[str, Value]:
    """Return the decision of the person who has sent back the step at an address, if one has."""
    scope = scope_around(view.state, address)
    found = scope.variables.get("rejection") if scope is not None else None
    name = address.rpartition("/")[2]
    if not isinstance(found, dict) or found.get("step") != name:
        return {}
    return {key: found[key] for key in ("comment", "by", "gate", "count") if found.get(key)}


def _updates(visited: Visited) -> list[StateUpdate]:
    """Return where the result of a step will be stored, as far as that is known yet."""
    places = visited.record.places
    known = [places[it] if it < len(places) else None for it in range(len(visited.node.changes))]
    return [
        StateUpdate(
            path=path_text(tuple(place)) if place else ".".join(map(str, change.path.source)),
            operation=change.operation,
            value=change.value.source if change.value is not None else msgspec.UNSET,
            transform=change.transform.source if change.transform is not None else "",
        )
        for change, place in zip(visited.node.changes, known, strict=True)
    ]


# Steps and their questions


def question_at(view: RunView, registry: StepRegistry, address: str) -> Question:
    """Return the open question at an address."""
    return asked_at(view, registry, address).question


def prompt_at(view: RunView, registry: StepRegistry, address: str) -> str:
    """Return an open question as one text: the author's prompt, or instructions and parameters."""
    visited, frame = view.block_at(address), view.frame_at(address)
    prompt = visited.record.inputs.get("prompt") if visited is not None else None
    if isinstance(prompt, str) and frame is not None and not frame.after_interruption:
        return prompt
    question = question_at(view, registry, address)
    parameters = question.parameters
    if question.type == "prompt":
        prompt = parameters.get("prompt", parameters.get("message"))
        if isinstance(prompt, str):
            return "\n".join([prompt, *(f"- {option}" for option in parameters.get("choices", ()))])
    given = f"\n{to_json(parameters)}" if parameters else ""
    return f"{question.instructions}{given}"


def asked_at(view: RunView, registry: StepRegistry, address: str) -> Asked:
    """Return the step that asks at an address, with its question."""
    visited, frame = view.block_at(address), view.frame_at(address)
    assert visited is not None
    if frame is not None and frame.after_interruption:
        return interrupted_question(visited)
    return asked_by(visited, registry)


def asked_by(visited: Visited, registry: StepRegistry) -> Asked:
    do = visited.node.do
    assert isinstance(do, Do)
    step = registry.get(do.step)
    try:
        inputs = step.Inputs.model_validate(visited.record.inputs)
    except ValidationError as error:
        return unaskable(visited, step, error)
    return asked_of(step, inputs, step.ask(inputs), visited.node.result if do.by == "agent" else None)


def _of_task(view: RunView, address: str) -> dict[str, str]:
    """Return the task that a question belongs to, if this agent performs that task itself."""
    names = address.split("/")
    for end in reversed(range(2, len(names))):
        item = "/".join(names[:end])
        if item == view.target.address or not view.target.covers(item):
            break
        visited = view.block_at(item)
        if visited is not None and is_task(visited.node):
            return {"workflow_id": view.task_at(item).id, "task": task_title(visited.node.do)}
    return {}
