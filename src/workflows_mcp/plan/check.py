"""Whether a plan makes sense: all problems at once, each with its path in the document. Pure.

`check_plan` looks at one plan alone; `check_calls` at plans that call each other.
"""

from __future__ import annotations

from collections.abc import Iterable

from workflows_mcp.errors import Problem
from workflows_mcp.plan.calls import (
    circular_calls,
    problems_of_call,
    problems_of_items,
    questions_of_sub_agents,
)
from workflows_mcp.plan.model import Bundle, Call, Graph, Plan
from workflows_mcp.plan.references import LANGUAGES, ReferenceReader
from workflows_mcp.plan.resolution import check_references
from workflows_mcp.plan.types import Types


def check_plan(plan: Plan) -> list[Problem]:
    """Everything that is wrong with the templates, conditions and references of `plan`."""
    reader = ReferenceReader(LANGUAGES[plan.dialect])
    uses = reader.in_plan(plan)
    return reader.problems + check_references(plan, uses)


def check_calls(bundle: Bundle, known: Iterable[str] = ()) -> dict[str, list[Problem]]:
    """What is wrong with the calls of all plans of a bundle, by the name of the plan that calls.

    `known` are the names of all workflows there are, for the nearest spelling of an unknown one.
    """
    names = {*known, *bundle.plans}
    found: dict[str, list[Problem]] = {}
    plans = bundle.every_plan
    for name, plan in plans.items():
        calls = [node for node in plan.body.nodes if isinstance(node.do, Call)]
        if not calls:
            continue
        types = Types(plan, plans.get(name.partition("#")[0]) if plan.shares_state else None)
        problems: list[Problem] = []
        for node in calls:
            problems += problems_of_call(node, plans, names, types)
            problems += problems_of_items(node, plans, types)
        if isinstance(plan.body, Graph):
            uses = ReferenceReader(types.language).in_plan(plan)
            problems += check_references(plan, uses, plans=plans)
        if problems:
            found.setdefault(name.partition("#")[0], []).extend(problems)
    for name, problem in (*questions_of_sub_agents(plans), *circular_calls(bundle)):
        found.setdefault(name, []).append(problem)
    return found
