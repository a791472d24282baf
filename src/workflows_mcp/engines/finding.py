"""Finding the workflow that a call names by an expression, while the run is under way."""

from __future__ import annotations

import os

from workflows_mcp.engines.base import FindBundle
from workflows_mcp.errors import WorkflowsError
from workflows_mcp.machine.commands import LoadPlan
from workflows_mcp.machine.events import PlanLoaded


def found_plan(command: LoadPlan, find_bundle: FindBundle, workspace: str, now: float) -> PlanLoaded:
    """What was found: the workflow with all that it calls, or why there is none."""
    name = command.name
    beside = os.path.join(workspace, command.beside) if command.beside else ""
    try:
        bundle = find_bundle(name, beside)
    except WorkflowsError as error:
        return PlanLoaded(now, command.key, name, error=str(error))
    plans = {**bundle.plans, name: bundle.plans[bundle.main]}
    return PlanLoaded(now, command.key, name, plans, bundle.sources)
