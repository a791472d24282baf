"""A workflow with all that it calls by a fixed name: what a run is pinned to.

A run keeps the plans that it started with, so that editing a file never disturbs it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from workflows_mcp.dialects import Definition, check_bundle
from workflows_mcp.errors import DefinitionError, Problem, UnknownWorkflow
from workflows_mcp.plan.calls import called_workflows
from workflows_mcp.plan.model import Bundle, Plan

Find = Callable[[str], Definition]
"""The definition of the workflow with this name; raises UnknownWorkflow or DefinitionError."""


def assemble(main: Definition, find: Find, known: Iterable[str] = ()) -> Bundle:
    """Raises DefinitionError with all that is wrong in the workflows that `main` calls, and with the calls.

    `known` are the names of all workflows there are, for the nearest spelling of an unknown one.
    """
    plans: dict[str, Plan] = {main.plan.name: main.plan}
    sources: dict[str, str] = {main.plan.name: main.text}
    problems: list[Problem] = []
    waiting = called_workflows(main.plan)
    seen = set(plans)
    while waiting:
        name = waiting.pop(0)
        if name in seen:
            continue
        seen.add(name)
        try:
            called = find(name)
        except UnknownWorkflow:
            continue  # the call is reported where it stands
        except DefinitionError as error:
            problems += error.problems
            continue
        plan = called.plan
        plans[name] = plan if plan.name == name else msgspec.structs.replace(plan, name=name)
        sources[name] = called.text
        waiting += called_workflows(plan)
    bundle = Bundle(main.plan.name, plans, sources)
    if problems:
        raise DefinitionError(problems, name=main.plan.name)
    check_bundle(bundle, sources, known)
    return bundle
