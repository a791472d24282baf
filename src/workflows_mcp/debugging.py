"""Looking into runs and workflows to find out why they do what they do: the part of the service behind the
toolset `debug`. Nothing here changes a run; whatever evaluates expressions does so beside the event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from workflows_mcp.agent.debug_answers import check_field, debug_answer, look_at, traces_answer
from workflows_mcp.agent.parts import run_of
from workflows_mcp.agent.plan_explained import explained
from workflows_mcp.agent.previews import Cut, cut, within
from workflows_mcp.agent.tracing import replayed
from workflows_mcp.driving import Driving
from workflows_mcp.engines.base import Engine
from workflows_mcp.errors import ExpressionError, InvalidInputs
from workflows_mcp.limits import Limits
from workflows_mcp.machine.computed import transform_of
from workflows_mcp.plan.inputs import check_inputs
from workflows_mcp.plan.model import Bundle, Computed
from workflows_mcp.plan.references import LANGUAGES
from workflows_mcp.steps.registry import StepRegistry
from workflows_mcp.values import Value

Answer = dict[str, Any]
_PARTS = ("state", "raw", "computed")
"""Parts of a state whose fields are known by their bare names too, the strongest last."""


class Debugging:
    def __init__(
        self,
        engine: Engine,
        driving: Driving,
        registry: StepRegistry,
        limits: Limits,
        *,
        bundle_of: Callable[[str], Bundle],
    ) -> None:
        self._engine = engine
        self._driving = driving
        self._registry = registry
        self._limits = limits
        self._bundle_of = bundle_of

    async def trace_transformations(
        self, workflow_id: str, field: str | None, *, include_timing: bool = False
    ) -> Answer:
        """What was computed in a run, the last of it: when, because of what, from what, and what came out."""
        run_id = run_of(workflow_id)
        only = check_field(await self._engine.view(run_id), field) if field else None
        bundle, events = await self._engine.journal(run_id)
        traced = await asyncio.to_thread(replayed, bundle, events, every_field=True, only=only)
        return traces_answer(traced, self._limits, main=bundle.main, include_timing=include_timing)

    async def debug_info(self, workflow_id: str) -> Answer:
        """Where a run is, how its steps went, how large its state is, and what computing it takes."""
        run_id = run_of(workflow_id)
        bundle, events = await self._engine.journal(run_id)
        traced = await asyncio.to_thread(replayed, bundle, events)
        looked = look_at(await self._driving.situation(run_id))
        return await asyncio.to_thread(debug_answer, looked, traced, self._registry, self._limits)

    async def test_transformation(
        self, transform: str, given: Value, context: dict[str, Value] | None, validate: str
    ) -> Answer:
        """What a transform makes of an input; nothing else happens."""
        return await asyncio.to_thread(self._tested, transform, given, context or {}, validate)

    def _tested(self, transform: str, given: Value, context: dict[str, Value], validate: str) -> Answer:
        names: dict[str, Any] = {}
        for part in _PARTS:
            fields = context.get(part)
            names |= fields if isinstance(fields, dict) else {}
        names |= {**context, "input": given, "__limits__": self._limits}
        spec = Computed(transform=transform, validate=validate)
        begun = time.perf_counter()
        answer: Answer = {"success": True}
        try:
            output = transform_of(spec, LANGUAGES["reactive"]).evaluate(names)
            answer["output"] = output
        except ExpressionError as error:
            answer = {"success": False, "error": str(error)}
        answer["execution_time_ms"] = round((time.perf_counter() - begun) * 1000, 3)
        return within(self._limits, lambda how: _cut(answer, how))

    async def explain_plan(self, workflow: str, inputs: dict[str, Value] | None) -> Answer:
        """What a workflow will do with these inputs. Raises InvalidInputs where they do not fit."""
        bundle = self._bundle_of(workflow)
        complete: dict[str, Value] | None
        try:
            complete = check_inputs(bundle.plans[bundle.main], inputs or {})
        except InvalidInputs:
            if inputs:
                raise
            complete = None
        return await asyncio.to_thread(explained, bundle, self._registry, self._limits, complete)


def _cut(answer: Answer, how: Cut) -> Answer:
    return {name: cut(it, (), how, lambda *_: "nothing: it was not kept") for name, it in answer.items()}
