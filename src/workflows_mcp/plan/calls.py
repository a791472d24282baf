"""Checks calls between workflows: the called one exists, gets its inputs, and ends.

Only calls by a fixed name can be checked before a run; a name that is a template is checked when it is
known. A cycle of calls is fine where something on it can end it: a condition, or a block before the call
whose failure skips it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec.structs import replace

from workflows_mcp.errors import Problem
from workflows_mcp.expressions import Language
from workflows_mcp.plan.graph import arrange, cycles, topological
from workflows_mcp.plan.inputs import fitted, spec_of, takes
from workflows_mcp.plan.model import (
    OF_TASK,
    Bundle,
    Call,
    Checkpoint,
    Do,
    Expr,
    InputSpec,
    Node,
    Operation,
    Path,
    Plan,
    SetState,
    Steps,
    Tell,
    UpdateState,
    Wait,
    inputs_of_item,
    unbound_item,
)
from workflows_mcp.plan.types import Types, named, never_fits
from workflows_mcp.values import Value, did_you_mean, nearest

ASKS_THE_USER = ("UserInput", "UserPrompt")
"""Step types that only a user can answer."""
USER_DECIDES = ("confirm", "choices", "options", "enum")
"""Inputs of a `Prompt` with which the user decides, and the agent only relays the question."""
_ONE_INPUT = re.compile(r"\s*\{\{\s*inputs\.(\w+)\s*\}\}\s*")


def user_decides(step: str, inputs: Mapping[str, Value]) -> bool:
    """Whether only the user can answer a step."""
    return step in ASKS_THE_USER or (step == "Prompt" and any(inputs.get(name) for name in USER_DECIDES))


def fixed_name(operation: Operation) -> str | None:
    """The name of the called workflow, where it is no template."""
    name = operation.name if isinstance(operation, Call) else None
    if not isinstance(name, str):
        return None
    return None if any(opening in name for opening in ("${", "{{", "{%")) else name


def place_of_call(node: Node) -> Path:
    """The path of the name of the workflow that a node calls."""
    return node.do.workflow.at if isinstance(node.do, Call) and node.do.workflow else node.at


def calling(node: Node, name: str) -> Node:
    """The node of a call, which calls another workflow."""
    return replace(node, do=replace(node.do, workflow=Expr(name, place_of_call(node))))


def called_workflows(plan: Plan) -> list[str]:
    """The names of the workflows that `plan` calls by a fixed name, each once."""
    bodies = [plan.body, *(task.body for task in plan.tasks)]
    names = (fixed_name(node.do) for body in bodies for node in body.nodes)
    own = {task.name for task in plan.tasks}
    return list(dict.fromkeys(name for name in names if name is not None and name not in own))


def renamed(plan: Plan, names: Mapping[str, str]) -> Plan:
    """Renames workflows in a plan: itself, its tasks, and those that it calls."""
    own = names.get(plan.name, plan.name)
    names = {**names, **{task.name: own + task.name[len(plan.name) :] for task in plan.tasks}}

    def node_of(node: Node) -> Node:
        name = fixed_name(node.do)
        if name is None or name not in names:
            return node
        return calling(node, names[name])

    def one(it: Plan, **changes: Any) -> Plan:
        body = replace(it.body, nodes=tuple(map(node_of, it.body.nodes)))
        return replace(it, name=names.get(it.name, it.name), body=body, **changes)

    return one(plan, tasks=tuple(map(one, plan.tasks)))


def problems_of_call(
    node: Node, plans: Mapping[str, Plan], names: set[str], types: Types
) -> Iterator[Problem]:
    """Reports problems of a call; `types` are the types of the values that the caller reads."""
    call = node.do
    name = fixed_name(call)
    if name is None or not isinstance(call, Call) or call.of_item:
        return  # the inputs are known only with the item
    called = plans.get(name)
    if called is None and name in names:
        return  # it exists, but cannot run, which is reported elsewhere
    if called is None:
        yield Problem(
            "unknown_workflow",
            f"there is no workflow '{name}'",
            did_you_mean(name, names, what="workflows"),
            place_of_call(node),
        )
        return
    inputs, at = call.inputs.source, call.inputs.at
    if not isinstance(inputs, dict):
        found = types.of(inputs, node)
        if found and "object" not in found:
            message = f"the inputs of a call must be an object, not {named(found)}"
            yield Problem("wrong_type", message, takes(called), at)
        return
    own = {alias: it for it, spec in called.inputs.items() for alias in spec.aliases}
    known = {own.get(given, given) for given in inputs}
    missing = [
        given
        for given, spec in called.inputs.items()
        if spec.required and not spec.has_default and given not in known
    ]
    for given in inputs:
        close = nearest(given, missing) if given not in called.inputs and given not in own else None
        if close is not None:
            missing.remove(close)  # one mistake, one problem
    if missing:
        needs = ", ".join(f"'{it}' ({called.inputs[it].type})" for it in missing)
        yield Problem(
            "missing_input",
            f"workflow '{name}' also needs {needs}",
            takes(called),
            at,
            on_key=True,
        )
    for given, value in inputs.items():
        path = (*at, given)
        spec = spec_of(called, str(own.get(given, given)))
        if spec is None:
            others = [it for it in called.inputs if it not in inputs]
            if called.open_inputs and nearest(given, others) is None:
                continue
            hint = did_you_mean(given, called.inputs, what="it takes") if called.inputs else takes(called)
            yield Problem(
                "unknown_input", f"workflow '{name}' has no input '{given}'", hint, path, on_key=True
            )
        elif spec.type == "string" and isinstance(value, float):
            hint = "put quotes around it: 1.10 as a number is 1.1"
            yield Problem("wrong_type", f"input '{given}' of workflow '{name}' must be text", hint, path)
        else:
            yield from _unfit(value, given, spec, called, types, node, path)


def _unfit(
    value: Value, name: str, spec: InputSpec, called: Plan, types: Types, node: Node, path: Path
) -> Iterator[Problem]:
    """Reports a value that an input never accepts: a constant, or a template of known types."""
    whose = f"of workflow '{called.name}'"
    if "#" in called.name:
        whose = f"of the task '{called.name.partition('#')[2]}'"
    if is_dynamic(value, types.language):
        found = types.of(value, node)
        if found is not None and never_fits(found, spec):
            message = f"input '{name}' {whose} takes {named(frozenset({spec.type}))}, not {named(found)}"
            yield Problem("wrong_type", message, takes(called), path)
    elif value is not None or spec.required:
        for at, message in fitted(value, spec.type, spec.rules, name)[1]:
            yield Problem("wrong_type", f"input '{at}' {whose} {message}", takes(called), path)


def problems_of_items(node: Node, plans: Mapping[str, Plan], types: Types) -> Iterator[Problem]:
    """Reports constant items that do not provide the inputs of their task."""
    plan = types.plan
    called = plans.get(fixed_name(node.do) or "")
    if called is None or node.for_each is None or not isinstance(node.do, Call) or not node.do.of_item:
        return
    items, where = node.for_each.items.source, node.for_each.items.at
    if isinstance(items, list):
        for index, item in enumerate(items):
            unbound = None if is_dynamic(item, types.language) else unbound_item(called, item)
            if unbound is not None:
                yield Problem("missing_input", *unbound, (*where, index))
                return
            if is_dynamic(list(item) if isinstance(item, dict) else item, types.language):
                continue  # its keys are not known yet
            known = (
                {key: it for key, it in item.items() if key not in OF_TASK} if isinstance(item, dict) else {}
            )
            for name, value in inputs_of_item(called, item, known).items():
                inside = (name,) if value is known.get(name) else ()
                yield from _unfit(
                    value, name, called.inputs[name], called, types, node, (*where, index, *inside)
                )
    elif isinstance(items, str) and (match := _ONE_INPUT.fullmatch(items)):
        spec = plan.inputs.get(match[1])
        of_texts = spec is not None and spec.rules.get("item_type") == "string"
        unbound = unbound_item(called, "…") if of_texts else None
        if unbound is not None:
            yield Problem("missing_input", *unbound, where)


def questions_of_sub_agents(plans: Mapping[str, Plan]) -> Iterator[tuple[str, Problem]]:
    """Reports workflows that ask the user, but are called by tasks of sub-agents.

    Steps of the tasks themselves are checked when their file is read.
    """
    delegated: dict[str, Node] = {}
    for plan in plans.values():
        for node in plan.body.nodes:
            if node.for_each is not None and node.for_each.agent:
                delegated.setdefault(fixed_name(node.do) or "", node)
    waiting = [name for name in delegated if name in plans]
    while waiting:
        task = waiting.pop()
        for node in plans[task].body.nodes:
            called = fixed_name(node.do)
            if called is None or called not in plans:
                continue
            if "#" in called:
                if called not in delegated:
                    delegated[called] = delegated[task]
                    waiting.append(called)
            elif (asking := _asks_the_user(called, plans)) is not None:
                message, hint = question_in_task(f"step '{asking[1]}' of workflow '{asking[0]}'", task)
                hint = hint.replace("the step that starts the task", f"step '{delegated[task].id}'")
                yield task.partition("#")[0], Problem("prompt_in_task", message, hint, place_of_call(node))


def question_in_task(step: str, task: str) -> tuple[str, str]:
    """The message and the hint for a step that asks the user in a sub-agent."""
    name = task.partition("#")[2] or task
    return (
        f"{step} asks the user, but the task '{name}' runs in sub-agents, and sub-agents cannot ask the user",
        "ask before the step that starts the task, keep the answer in the state, and pass it in the items",
    )


def _asks_the_user(name: str, plans: Mapping[str, Plan]) -> tuple[str, str] | None:
    """The first workflow and step that asks the user, among a workflow and all that it calls."""
    seen, waiting = {name}, [name]
    while waiting:
        current = waiting.pop()
        for node in plans[current].body.nodes:
            if isinstance(node.do, Do) and node.do.step in ASKS_THE_USER:
                return current, node.id
            called = fixed_name(node.do)
            if called is not None and called in plans and called not in seen:
                seen.add(called)
                waiting.append(called)
    return None


def is_dynamic(value: Value, language: Language) -> bool:
    """Whether there is an expression anywhere in `value`."""
    if isinstance(value, str):
        return language.is_dynamic(value)
    if isinstance(value, dict):
        value = list(value.values())
    return isinstance(value, list) and any(is_dynamic(item, language) for item in value)


def circular_calls(bundle: Bundle) -> Iterator[tuple[str, Problem]]:
    """Reports cycles of unguarded calls, each at one of its calls."""
    names = sorted(bundle.plans, key=lambda name: name != bundle.main)
    position = {name: index for index, name in enumerate(names)}
    unguarded = [_unguarded_calls(bundle.plans[name]) for name in names]
    needs = [[position[name] for name in calls if name in position] for calls in unguarded]
    for cycle in cycles(needs, arrange(needs).waves):
        path = [names[index] for index in cycle]
        node = unguarded[cycle[0]][path[1] if len(path) > 1 else path[0]]
        problem = Problem(
            "circular_call",
            f"the workflows call each other endlessly: {' → '.join([*path, path[0]])}",
            "give one of the calls a condition that ends the recursion",
            place_of_call(node),
        )
        yield path[0], problem


def _unguarded_calls(plan: Plan) -> dict[str, Node]:
    """The first call of each workflow that is always reached."""
    nodes = plan.body.nodes
    if isinstance(plan.body, Steps):
        return _unguarded_in_sequence(plan.body)
    guards = [False] * len(nodes)
    """Whether a block, or one that it needs, can prevent the next blocks from starting."""
    calls: dict[str, Node] = {}
    for index in topological([node.order for node in nodes]):
        node = nodes[index]
        guarded = node.condition is not None or node.for_each is not None
        guarded = guarded or any(guards[need.node] for need in node.needs if need.required)
        guards[index] = guarded or isinstance(node.do, Call) or (isinstance(node.do, Do) and node.do.may_fail)
        name = fixed_name(node.do)
        if name is not None and not guarded:
            calls.setdefault(name, node)
    return calls


def _unguarded_in_sequence(steps: Steps) -> dict[str, Node]:
    """The first call, if nothing before it can end the sequence or branch."""
    for node in steps.nodes:
        name = fixed_name(node.do)
        if node.condition is not None or node.for_each is not None:
            continue
        if name is not None:
            return {name: node}
        if not isinstance(node.do, SetState | Wait | UpdateState | Tell | Checkpoint):
            break
    return {}
