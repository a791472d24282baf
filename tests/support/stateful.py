"""Sequences made by hand: a workflow that hands tasks to sub-agents, for tests that are not about YAML."""

from __future__ import annotations

from typing import Any

from support.plans import Call, Do, ForEach, Node, Plan, Return, SetState
from workflows_mcp.plan import model
from workflows_mcp.plan.model import Bundle, InputSpec, Operation, Steps


def ask(name: str, prompt: str = "go on?", **parts: Any) -> model.Node:
    """A question to the agent; its answer goes to the state under its name."""
    do = Do("Ask", {"prompt": prompt}, by="agent", defaults={"response": ""}, result_output="response")
    return Node(name, do, output_to=name, **parts)


def step(name: str, do: Operation, **parts: Any) -> model.Node:
    return Node(name, do, **parts)


def foreach(
    name: str, task: str, items: Any, *, agent: str = "@task", at_once: int | None = None, **parts: Any
) -> model.Node:
    each = ForEach(items, max_parallel=at_once, agent=agent)
    return Node(name, Call(task, of_item=True), for_each=each, output_to=name, **parts)


def sequence(name: str, *nodes: model.Node, **parts: Any) -> model.Plan:
    return Plan(name, "stateful", Steps(nodes), **parts)


def research(
    *, agent: str = "@task", at_once: int | None = None, items: Any = ("ants", "bees")
) -> model.Plan:
    """Asks for a name, has two things looked up by task, asks about what was found, and returns it."""
    look_up = sequence(
        "research#look_up",
        ask("read", "what of {{ inputs.topic }}?"),
        step("keep", SetState({"seen": "{{ state.read }}!"})),
        ask("judge", "is '{{ state.seen }}' right?"),
        step("back", Return({"topic": "{{ inputs.topic }}", "found": "{{ state.seen }}"})),
        inputs={"topic": InputSpec("string")},
        initial_state={"seen": ""},
    )
    return sequence(
        "research",
        foreach("each", "research#look_up", list(items), agent=agent, at_once=at_once),
        ask("review", "all right?"),
        step("end", Return("{{ state.each }}")),
        initial_state={"each": []},
        tasks=(look_up,),
    )


def bundle_of(plan: model.Plan) -> Bundle:
    return Bundle(plan.name, {plan.name: plan})
