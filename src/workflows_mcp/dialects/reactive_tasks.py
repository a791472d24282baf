"""Tasks of a reactive document that are handed to sub-agents: is each used, and does none ask the user?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from workflows_mcp.dialects.reactive_drafts import ReactiveDraft
from workflows_mcp.errors import Problem

USER_INPUT = "user_input"
"""The step type that asks the user."""


def check_tasks(
    steps: Iterable[ReactiveDraft], tasks: Mapping[str, list[ReactiveDraft]], *, alone: bool
) -> Iterator[Problem]:
    """`alone`: the document has nothing but tasks, which are for other files."""
    users: dict[str, ReactiveDraft] = {}
    for step in (*steps, *(step for inside in tasks.values() for step in inside)):
        if step.task:
            users.setdefault(step.task, step)
    for task, inside in tasks.items():
        if task not in users and not alone:
            yield Problem(
                "unused_task",
                f"nothing hands out the task '{task}'",
                f"name it in a step of type parallel_foreach: sub_agent_task: {task}, or remove it",
                ("sub_agent_tasks", task),
                on_key=True,
                warning=True,
            )
        if task in users or alone:
            yield from _questions(task, inside, users.get(task))


def _questions(task: str, steps: Iterable[ReactiveDraft], by: ReactiveDraft | None) -> Iterator[Problem]:
    """A sub-agent has no user: what it carries out must not ask one."""
    where = f" by parallel_foreach '{by.id}'" if by is not None else ""
    before = f"step '{by.id}'" if by is not None else "the parallel_foreach"
    for step in steps:
        if step.kind == USER_INPUT:
            yield Problem(
                "prompt_in_task",
                f"step '{step.id}' asks the user, but the task '{task}' is handed to sub-agents{where}, and"
                " they have no user to ask",
                f"ask before that: put the user_input before {before}, with a state_update, and read in the"
                " task what it has written",
                step.at,
            )
