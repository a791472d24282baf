"""The list of runs: all that have not ended, each with what it waits for, then those that ended last.

    {"runs": [{"workflow_id": "wf_2", "workflow": "deploy", "status": "pending_action",
               "question": "Release 1.4?", "why": "waiting for your answer to 'approve' since 12:04:31Z",
               "next": "submit_result(workflow_id='wf_2', step_id='approve', result=…)",
               "started_at": …, "changed_at": …, "forked_from": "wf_1"},
              {"workflow_id": "wf_1", "workflow": "deploy", "status": "failed", "continued_as": "wf_2", …}],
     "more": true}

`more` says that runs which ended earlier are left out. A run that has not ended is never left out.
"""

from __future__ import annotations

from workflows_mcp.agent.actions import actions_of
from workflows_mcp.agent.following import next_call
from workflows_mcp.agent.previews import shortened
from workflows_mcp.agent.waiting import why
from workflows_mcp.driving import Driving
from workflows_mcp.engines.base import Engine, RunSummary
from workflows_mcp.errors import WorkflowsError
from workflows_mcp.machine.scope import iso
from workflows_mcp.steps.registry import StepRegistry
from workflows_mcp.values import Value

_WITH_DETAILS = 50
"""Of how many runs that have not ended the list says what they wait for."""
_QUESTION_CHARS = 200
_WHY_CHARS = 300
_FATAL = ("no_temporal", "no_worker")


class Listing:
    def __init__(self, engine: Engine, driving: Driving, registry: StepRegistry) -> None:
        self._engine = engine
        self._driving = driving
        self._registry = registry

    async def runs(self, limit: int) -> dict[str, Value]:
        """Every run that has not ended, and at most `limit` that have."""
        unfinished = await self._engine.unfinished()
        known = {run.run_id for run in unfinished}
        recent = await self._engine.recent(len(known) + limit + 1)
        ended = [run for run in recent if run.run_id not in known and run.status not in ("running", "idle")]
        continued = {
            run.forked_from: run.run_id for run in reversed([*unfinished, *ended]) if run.forked_from
        }
        listed: list[Value] = [
            await self._unfinished(run, details=number < _WITH_DETAILS)
            for number, run in enumerate(unfinished)
        ]
        for run in ended[:limit]:
            entry = _entry(run, run.status)
            if run.status != "completed" and run.run_id in continued:
                entry["continued_as"] = continued[run.run_id]
            listed.append(entry)
        return {"runs": listed, **({"more": True} if len(ended) > limit else {})}

    async def _unfinished(self, run: RunSummary, *, details: bool) -> dict[str, Value]:
        try:
            situation = await self._driving.situation(run.run_id)
        except WorkflowsError as error:
            if error.code in _FATAL:
                raise
            return _entry(run, "waiting") | {"why": f"it cannot be read: {error.message}"}
        entry = _entry(run, situation.status)
        if situation.has_ended or not details:
            return entry
        actions = actions_of(situation, self._registry)
        if actions:
            given = actions[0]["parameters"]
            text = next(
                (given[it] for it in ("prompt", "message") if it in given), actions[0]["instructions"]
            )
            entry["question"] = shortened(" ".join(str(text).split()), _QUESTION_CHARS)
        return entry | {
            "why": shortened(why(situation), _WHY_CHARS),
            "next": next_call(situation, actions),
        }


def _entry(run: RunSummary, status: str) -> dict[str, Value]:
    entry: dict[str, Value] = {
        "workflow_id": run.run_id,
        "workflow": run.workflow,
        "status": status,
        "started_at": iso(run.started_at),
        "changed_at": iso(run.changed_at),
    }
    if run.forked_from:
        entry["forked_from"] = run.forked_from
    if run.workspace:
        entry["workspace"] = run.workspace
    return entry
