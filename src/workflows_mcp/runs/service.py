"""`Service` is the API that MCP and the command line use to start and drive runs.

`start` is the main path: it finds the definition (`library`), compiles it to a plan (`dialects`), checks the
inputs (`plan`), starts the run on an engine (`engines`), which feeds the interpreter (`machine`), and builds
the answer (`answers`).

    async with Service.open(load_settings()) as service:
        answer = await service.start(workflow="deploy", inputs={"environment": "staging"})
        while answer.actions:
            answer = await service.submit(answer.workflow_id, {"response": "yes"})
"""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from workflows_mcp.answers import (
    Answer,
    CheckpointId,
    OpenDecision,
    Redact,
    Report,
    checkpoint_details,
    deleted_checkpoint,
    joined,
    listed_checkpoint,
    note,
    parse_checkpoint_id,
    report_of,
    run_of,
    workflow_info,
)
from workflows_mcp.dialects import locate, read_document
from workflows_mcp.engines import Engine, Line, LiveOutput, PermittedSteps, check_bundle, forbidden_blocks
from workflows_mcp.errors import (
    DefinitionError,
    InvalidInputs,
    NotExpected,
    Place,
    Problem,
    RequestError,
    WorkflowsError,
)
from workflows_mcp.library import BUILT_IN, Catalog, WorkflowSummary
from workflows_mcp.limits import DEFAULT_WAIT, Limits
from workflows_mcp.machine import EVERY, AgentsAssigned, Audit, Fault, Identity, Machine, events, iso
from workflows_mcp.plan import Bundle, bundle_key, check_inputs
from workflows_mcp.policy import (
    Killed,
    Secrets,
    ToolServers,
    hidden_in_logs,
    policy_of,
    run_process,
    secrets_of,
    servers_of,
)
from workflows_mcp.runs.agent_protocol import AgentProtocol, ExplainRefusal
from workflows_mcp.runs.callers import caller, calling_as
from workflows_mcp.runs.checkpoints import Histories
from workflows_mcp.runs.client_sessions import ClientSessions
from workflows_mcp.runs.conversations import Conversations
from workflows_mcp.runs.decisions import Decisions, kept_decisions
from workflows_mcp.runs.definitions import Definitions
from workflows_mcp.runs.inspection import (
    Debugger,
    Inspector,
    RunList,
)
from workflows_mcp.runs.progress import ProgressTracker, asks
from workflows_mcp.runs.redo import CheckpointResume, ConversationResume, RaisedBudgets, Reruns, unpark
from workflows_mcp.runs.user_questions import Elicitation
from workflows_mcp.settings import PRESETS, Settings, find_agent
from workflows_mcp.steps import StepRegistry, default_registry
from workflows_mcp.values import LEFT_OUT, Value, beginning, did_you_mean, to_json, to_text, unfit

__all__ = ["CommandRunner", "Line", "Service", "WorkflowSummary", "read_yaml"]

CHECKPOINTS_LISTED = 50
RUNS_LISTED = 20
_SEARCHED = 1000
"""How many recent runs are searched for an id by its first characters."""
SHELL = "/bin/sh"
TIMED_OUT = 124
"""The exit code of a command that ran out of time, as for `timeout`."""


class Service:
    def __init__(
        self,
        settings: Settings,
        engine: Engine,
        catalog: Catalog,
        registry: StepRegistry,
        secrets: Secrets | None = None,
        now: Callable[[], float] = time.time,
        tools: ToolServers | None = None,
    ) -> None:
        self.settings = settings
        self._now = now
        self._engine = engine
        self._catalog = catalog
        self._registry = registry
        self._policy = policy_of(settings)
        self._secrets = secrets or secrets_of(settings)
        self._tools = tools
        self._askable = PermittedSteps(registry, self._policy)
        self._histories = Histories(engine, self._askable, settings.limits)
        self._reruns = Reruns(engine)
        self.decisions = Decisions(
            engine, self._askable, settings.approvers, redacted=self._redacted, now=now
        )
        self._agents = AgentProtocol(
            engine, self._histories, self._askable, settings.limits, redacted=self._redacted, place=_place,
            now=now, redo=self._reruns.options, refused=self.decisions.refused,
        )  # fmt: skip
        self._checkpoint_resume = CheckpointResume(
            engine, self._histories, self._askable, submit=self._agents.submit, redacted=self._redacted
        )
        self._run_list = RunList(engine, self._agents)
        self.commands = CommandRunner(settings)
        self.elicitation = Elicitation(engine, self._agents, self._askable, settings.elicitation, now)
        self.definitions = Definitions(catalog, settings.workspace, settings.limits)
        self.conversations = Conversations(
            engine, self._agents, self._histories, plan_of=self.definitions.plan_of, redacted=self._redacted,
            now=now,
        )  # fmt: skip
        self.debugger = Debugger(engine, self._agents, registry, settings.limits, bundle_of=catalog.bundle)
        self.inspector = Inspector(engine, self._agents, catalog, settings.limits)
        self.client_sessions = ClientSessions(settings, self._agents, self.decisions.refused)
        self._open = ExitStack()

    @classmethod
    def open(
        cls,
        settings: Settings,
        *,
        registry: StepRegistry | None = None,
        recovers: bool = True,
        now: Callable[[], float] = time.time,
    ) -> Self:
        """Build a service from settings; with `recovers`, it recovers the runs of dead processes."""
        from workflows_mcp.engines import Executor, HeadlessAgents, SystemClock, engine_of

        registry = registry or default_registry()
        catalog = Catalog.of(settings, registry)
        clock = SystemClock()
        secrets = secrets_of(settings)
        tools = ToolServers(servers_of(settings.mcp_servers), trusts=settings.trusts)
        agents = HeadlessAgents(
            settings.agents, {"WORKFLOWS_HOME": str(settings.home), "WORKFLOWS_ENGINE": settings.engine}
        )
        executor = Executor(registry, policy_of(settings), settings.scratch, clock, secrets, tools, agents)
        engine = engine_of(settings, executor, catalog.bundle, clock, recovers=recovers)
        return cls(settings, engine, catalog, registry, secrets, now, tools)

    async def __aenter__(self) -> Self:
        self._open.enter_context(hidden_in_logs(self._secrets))
        await self._engine.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._engine.close()
        finally:
            try:
                if self._tools is not None:
                    await self._tools.close()
            finally:
                self._open.close()

    @property
    def live(self) -> LiveOutput:
        """The output of running steps, line by line."""
        return self._engine.live

    # Definitions

    def list_workflows(self, *, tags: Sequence[str] = (), query: str = "") -> list[WorkflowSummary]:
        return self._catalog.list(tags=tags, query=query)

    def workflow_info(self, workflow: str) -> dict[str, Any]:
        return self._info(self._catalog.bundle(workflow), self._catalog.source_of(workflow))

    def definition(self, workflow: str) -> dict[str, Any]:
        """Return the text of a definition, even an invalid one, and its file."""
        text, entry = self._catalog.text_of(workflow), self._catalog.find(workflow)
        about = {"workflow": workflow, "source": BUILT_IN if entry.source == BUILT_IN else str(entry.path)}
        end = note(len(text), "characters", f"read the file {entry.path}")
        room = self.settings.limits.answer_chars - len(to_json({**about, "definition": end}))
        if len(to_json(text)) > room:
            text = beginning(text, room) + end
        return {**about, "definition": text}

    def file_info(self, file: str) -> dict[str, Any]:
        return self._info(self._catalog.bundle_of_file(Path(file)), file)

    def _info(self, bundle: Bundle, source: str) -> dict[str, Any]:
        forbidden = forbidden_blocks(bundle, self._registry, self._policy)
        return workflow_info(
            bundle,
            self._registry,
            source=source,
            missing_secrets=self._secrets.missing(bundle.secrets),
            forbidden=[str(block) for block in forbidden],
        )

    def validate(self, text: str, *, file: str = "<yaml>") -> list[Problem]:
        """Return all problems and warnings of a definition, with those of the workflows that it calls."""
        try:
            return self._catalog.check_text(text, file=file, missing_secrets=self._secrets.missing)
        except DefinitionError as error:
            return error.problems

    def workflow_schema(self) -> dict[str, Any]:
        """Return the JSON Schema of definitions."""
        from workflows_mcp.dialects import workflow_schema

        return workflow_schema(self._registry)

    def schema_part(self, dialect: str | None = None, step_type: str | None = None) -> dict[str, Any]:
        """Return the schema of a dialect or of a step type; without either, list them."""
        from workflows_mcp.dialects import schema_overview, schema_part

        if dialect is None and step_type is None:
            return schema_overview(self._registry)
        return schema_part(self._registry, dialect, step_type)

    # Runs, and tasks of runs, which have ids of their own

    def progress(self, run_id: str) -> ProgressTracker:
        """Return a tracker of the steps of a run; it has reported none yet."""
        return ProgressTracker(self._engine, run_id)

    async def start(
        self,
        *,
        workflow: str | None = None,
        text: str | None = None,
        file: str | None = None,
        inputs: dict[str, Value] | None = None,
        request_id: str | None = None,
        wait_seconds: float = DEFAULT_WAIT,
    ) -> Answer:
        run_id = await self.begin(workflow, text, file, inputs, request_id)
        return await self._agents.answer(run_id, wait_seconds)

    async def submit(
        self,
        workflow_id: str,
        result: Any,
        *,
        step_id: str | None = None,
        wait_seconds: float = DEFAULT_WAIT,
        explain_refusal: ExplainRefusal | None = None,
    ) -> Answer:
        """Submit the result of the current step, a `StepFailure`, or LEFT_OUT if the agent has written it.

        With a `step_id`, submitting it twice is harmless; a different result is refused with the current
        question, which `explain_refusal` can put into the words of a toolset.
        """
        self._refuse_unfit(result)
        workflow_id = await self._agents.full_id(workflow_id)
        await self._agents.submit(workflow_id, result, step_id, explain_refusal)
        next_id = await self._agents.next_target(workflow_id)
        return await self._agents.answer(next_id, wait_seconds)

    async def full_id(self, workflow_id: str) -> str:
        """Return the full id of a task that is named in short; an id of no task is returned as it is."""
        return await self._agents.full_id(workflow_id)

    async def next_step(
        self,
        workflow_id: str,
        *,
        task_id: str | None = None,
        wait_seconds: float = 0.0,
        at_work: bool = True,
        patient: bool = False,
    ) -> Answer:
        """Return the current step again; safe to repeat. A task is driven by its own id."""
        target_id = await self._agents.full_id(joined(workflow_id, task_id))
        return await self._agents.next_step(target_id, wait_seconds, at_work=at_work, patient=patient)

    async def status(
        self,
        workflow_id: str,
        *,
        wait_seconds: float = 0.0,
        alone: bool = False,
        at_work: bool = False,
        patient: bool = False,
        with_checkpoints: bool = False,
    ) -> Answer:
        """Return the status. `alone`: the caller has no sub-agents and gets the questions of all tasks.
        `patient`: wait for the decisions of people too."""
        return await self._agents.answer(
            workflow_id,
            wait_seconds,
            alone=alone,
            at_work=at_work,
            patient=patient,
            with_checkpoints=with_checkpoints,
        )

    async def decide(
        self,
        workflow_id: str,
        choice: str,
        *,
        by: Identity,
        step_id: str | None = None,
        comment: str = "",
        shown: OpenDecision | None = None,
        wait_seconds: float = DEFAULT_WAIT,
    ) -> Answer:
        """Take the decision of a person at a gate. No tool of an agent calls this.

        `shown`: what the person has seen."""
        workflow_id = await self._agents.full_id(workflow_id)
        await self.decisions.decide(workflow_id, step_id, choice, by=by, comment=comment, shown=shown)
        return await self._agents.answer(workflow_id, wait_seconds)

    async def raise_budget(
        self, run_id: str, limits: Mapping[str, float], *, by: Identity, owner: str = ""
    ) -> str:
        """Allow agents to do more, as a person has decided; return the run that continues.

        That is a new run if a budget has made this one fail."""
        await self.decisions.check_limits(run_id, limits, by)
        if (await self._engine.view(run_id)).state.status == "failed":
            run_id, existed = await self._reruns.retry(run_id, raised=RaisedBudgets(dict(limits), by, owner))
            if not existed:
                return run_id
        await self._engine.ensure_driven(run_id)
        await self.decisions.raise_budget(run_id, limits, by=by, owner=owner)
        return run_id

    async def answer_form(
        self, run_id: str, step_id: str, content: dict[str, Value], *, by: Identity
    ) -> None:
        """Take what a person has filled in for a question or a gate."""
        machine = await self._engine.view(run_id)
        frame = machine.state.frames.get(step_id.partition("@")[0])
        if frame is not None and frame.kind in ("gate", "budget"):
            shown = next((it for it in await self.decisions.open(run_id) if it.step_id == step_id), None)
            if shown is None:
                raise NotExpected(f"'{step_id}' was decided, or is asked again since")
            choice, comment = to_text(content.get("decision")), to_text(content.get("comment") or "")
            await self.decisions.decide(run_id, step_id, choice, by=by, comment=comment, shown=shown)
            return
        with calling_as(by):
            await self.submit(run_id, content, step_id=step_id, wait_seconds=0)

    async def cancel(self, run_id: str, *, reason: str = "") -> Answer:
        """Cancel a run and everything in it. Cancelling twice is harmless."""
        if run_of(run_id) != run_id:
            raise RequestError(
                f"'{run_id}' is a task, and a task cannot be cancelled alone",
                hint=f"to cancel the whole run, cancel '{run_of(run_id)}'",
            )
        try:
            by = caller()
            await self._engine.send(
                run_id,
                lambda machine, now: events.CancelRequested(now, self._redacted(machine)(reason), by=by),
            )
        except NotExpected:
            machine = await self._engine.view(run_id)
            if machine.state.status != "cancelled":
                raise
        return await self._agents.answer(run_id)

    async def park(self, run_id: str, *, if_driven_here: bool = False) -> bool:
        """Park a run until the user resumes it.

        Returns False if the run has ended or, with `if_driven_here`, if another process drives it.
        """
        if if_driven_here and not await self._engine.is_driven_here(run_id):
            return False
        try:
            await self._engine.send(run_id, lambda machine, now: events.Parked(now))
        except NotExpected:
            return False
        return True

    async def context_full(self, run_id: str, *, reason: str = "") -> Answer:
        """Run the steps for a full context of the agent, then park the run."""
        await self.conversations.mark(run_id, reason or "context nearly full", None, park=True)
        return await self._agents.answer(run_of(run_id))

    async def assign_agent(self, run_id: str, agent: str) -> None:
        """Let a command of the settings perform all steps of agents of a run from now on."""
        agents, by = self._agents_for(agent), caller()
        state = (await self._engine.view(run_id)).state
        if state.status == "running" and state.agents != agents:
            await self._engine.send(run_id, lambda machine, now: AgentsAssigned(now, agents, by))

    async def is_parked(self, run_id: str) -> bool:
        return (await self._engine.view(run_id)).state.parked is not None

    async def resume_run(self, run_id: str, *, wait_seconds: float = DEFAULT_WAIT) -> Answer:
        """Continue a run that was parked, or whose server has ended."""
        await unpark(self._engine, run_of(run_id))
        return await self._agents.answer(run_id, wait_seconds)

    async def retry(
        self,
        run_id: str,
        *,
        workflow: str | None = None,
        text: str | None = None,
        file: str | None = None,
        agent: str | None = None,
        wait_seconds: float = DEFAULT_WAIT,
    ) -> Answer:
        """Re-run only the failed steps, in a new run; continue a cancelled run where it was.

        Retrying twice returns the same new run. A task in progress is delegated again, in the same run. The
        new run can have a changed definition: a workflow by its name, its text or its file. `agent` is a
        command of the settings that performs all steps of agents from now on.
        """
        new = await self._changed_bundle(run_of(run_id), workflow, text, file)
        first = [AgentsAssigned(0.0, self._agents_for(agent), caller())] if agent is not None else []
        if run_of(run_id) != run_id:
            if new is not None:
                raise RequestError("a task keeps the definition of its run", hint="retry the run instead")
            return await self._agents.retry_task(run_id)
        made, before = await self._reruns.retry(run_id, new, first=first)
        if before and agent is not None:
            await self.assign_agent(made, agent)
        answer = await self._fork_answer(made, wait_seconds)
        if before:
            message = f"The run {run_id} was continued before, as {made}: this is that run."
            answer.messages = [message, *answer.messages]
        return answer

    async def fork(
        self,
        workflow_id: str,
        step_id: str,
        *,
        request_id: str | None = None,
        keep: bool = False,
        workflow: str | None = None,
        text: str | None = None,
        file: str | None = None,
        wait_seconds: float = DEFAULT_WAIT,
    ) -> Answer:
        """Re-run a step and what depends on it, in a new run, which can have a changed definition.

        A run that waits for an agent or is parked is cancelled as superseded, unless `keep` is set.
        """
        run_id = run_of(workflow_id)
        new = await self._changed_bundle(run_id, workflow, text, file)
        old = (await self._engine.view(run_id)).state
        waits = old.status == "running" and (asks(old) or old.parked is not None)
        made = await self._reruns.fork(workflow_id, step_id, new, request_id=request_id)
        if waits and not keep:
            with suppress(NotExpected):  # it has ended meanwhile
                await self._engine.send(
                    run_id, lambda machine, now: events.CancelRequested(now, f"superseded by {made}", made)
                )
        answer = await self._fork_answer(made, wait_seconds)
        if kept := kept_decisions((await self._engine.view(made)).state):
            message = f"These decisions of people are kept, and hold for what runs again: {', '.join(kept)}."
            answer.messages = [message, *answer.messages]
        if waits and keep:
            end = f"control_workflow(workflow_id='{run_id}', action='cancel')"
            message = f"The run {run_id} waits as before; to end it: {end}."
            answer.messages = [message, *answer.messages]
        return answer

    async def _fork_answer(self, run_id: str, wait_seconds: float) -> Answer:
        await self._engine.ensure_driven(run_id)
        answer = await self._agents.answer(run_id, wait_seconds)
        answer.forked_from = await self.inspector.origin_of(run_id)
        return answer

    async def report(self, run_id: str, *, expected: str = "") -> Report:
        """Return what happened in a run, who did it, and whether its journal was changed.

        `expected`: a hash that the caller has from elsewhere, such as the `proof` of an answer.
        """
        audit = await self._engine.audit(run_of(run_id))
        loaded = [
            plan for it in audit.events if isinstance(it, events.PlanLoaded) for plan in it.plans.values()
        ]
        self._secrets.learn((*audit.bundle.secrets, *(name for plan in loaded for name in plan.secrets)))
        origin = await self._definition_of_origin(audit)
        return await asyncio.to_thread(
            report_of, audit, self._secrets.redact, expected=expected, origin=origin
        )

    async def _definition_of_origin(self, audit: Audit) -> str:
        """Return the hash of the definition of the run that was forked; empty if it is not known."""
        first = audit.events[0] if audit.events else None
        if not isinstance(first, events.Started) or not first.forked_from:
            return ""
        try:
            bundle, _ = await self._engine.journal(first.forked_from.partition("@")[0])
        except WorkflowsError:
            return ""
        return bundle_key(bundle)

    async def note(self, workflow_id: str, note: str) -> None:
        """Store a note beside a run, or the run of a task, for its clients."""
        await self._engine.heartbeat(run_of(workflow_id), note, self._now())

    async def noted(self, workflow_id: str, note: str) -> bool:
        return note in await self._engine.last_seen(run_of(workflow_id))

    async def prune(self, limits: Limits | None = None, *, dry_run: bool = False) -> dict[str, Any]:
        """Delete ended runs beyond the limits: those given, or those of the settings."""
        limits = limits or self.settings.limits
        pruned = await self._engine.prune(limits, dry_run=dry_run)
        return {
            "dry_run": dry_run,
            "deleted": [
                {
                    "workflow_id": run.run_id,
                    "workflow": run.workflow,
                    "status": run.status,
                    "ended_at": iso(run.changed_at),
                    "bytes": run.size,
                }
                for run in pruned.runs
            ],
            "bytes": sum(run.size for run in pruned.runs),
            "file_bytes_returned": pruned.returned,
        }

    async def runs(self, *, limit: int = RUNS_LISTED) -> dict[str, Any]:
        """List every unfinished run, with what it waits for, and at most `limit` ended ones."""
        return await self._run_list.runs(limit)

    async def recent(self, *, limit: int = RUNS_LISTED) -> list[dict[str, Value]]:
        found: list[dict[str, Value]] = (await self.runs(limit=limit))["runs"]
        return found

    async def run_ids(self, prefix: str) -> list[str]:
        """Return the recent runs whose ids start with a prefix, with or without `wf_`."""
        prefix = prefix.removeprefix("wf_")
        recent = await self._engine.recent(_SEARCHED)
        return [run.run_id for run in recent if run.run_id.removeprefix("wf_").startswith(prefix)]

    async def state(
        self, workflow_id: str, *, paths: Sequence[str] = (), offset: int = 0, limit: int | None = None
    ) -> dict[str, Any]:
        return await self._agents.state(workflow_id, paths=paths, offset=offset, limit=limit)

    # Checkpoints

    async def resume(self, checkpoint_id: str, response: Any = LEFT_OUT) -> tuple[str, CheckpointId | None]:
        """Resume from a checkpoint: answer its question, or fork the run if it has moved on since.

        With the id of a run instead of a checkpoint, resume that run as it is now. Return the run that
        continues and, if it is a fork, the checkpoint that it was made from.
        """
        try:
            run_id, fork_of = await self._checkpoint_resume.resume(checkpoint_id, response)
        except NotExpected as refusal:
            if response is not LEFT_OUT and response is not None:
                await self._record_response(checkpoint_id, refusal)
            raise
        await self._engine.ensure_driven(run_id)
        return run_id, fork_of

    async def _record_response(self, checkpoint_id: str, refusal: NotExpected) -> None:
        """Record a response that a run did not ask for, if only people can continue it."""
        checkpoint = parse_checkpoint_id(checkpoint_id)
        run_id = checkpoint.run_id if checkpoint is not None else checkpoint_id
        with suppress(RequestError):
            if await self.decisions.open(run_id):
                await self.decisions.refused(run_id, "gate", refusal.message)

    async def resume_in_conversation(self, workflow_id: str) -> str:
        """Continue a run, or from a checkpoint, in a new conversation; return the run that continues."""
        if parse_checkpoint_id(workflow_id) is not None:
            run_id, _ = await self._checkpoint_resume.resume(workflow_id)
            await self._engine.ensure_driven(run_id)
            return run_id
        return await ConversationResume(self._engine).resume(run_of(workflow_id))

    async def checkpoints(
        self, *, workflow: str | None = None, run_id: str | None = None, limit: int = CHECKPOINTS_LISTED
    ) -> dict[str, Any]:
        """List checkpoints, newest first."""
        found, more = await self._histories.latest(workflow=workflow, run_id=run_id, limit=max(limit, 1))
        if not found and workflow is not None and not await self._engine.recent(1, workflow):
            self._catalog.bundle(workflow)
        listed = [listed_checkpoint(history, checkpoint) for history, checkpoint in found]
        return {"checkpoints": listed, **({"more": True} if more else {})}

    async def checkpoint_info(self, checkpoint_id: str) -> dict[str, Any]:
        history, checkpoint = await self._histories.find(checkpoint_id)
        then = await self._histories.state_at(checkpoint.id)
        last_seen = await self._engine.last_seen(checkpoint.id.run_id)
        return checkpoint_details(history, checkpoint, then, self.settings.limits, last_seen)

    async def delete_checkpoint(self, checkpoint_id: str) -> dict[str, Any]:
        """Hide a checkpoint for good; the run is unchanged. Deleting twice is harmless."""
        history, checkpoint = await self._histories.find(checkpoint_id, even_deleted=True)
        await self._engine.delete_checkpoint(checkpoint.id.run_id, checkpoint.id.mark)
        return deleted_checkpoint(history, checkpoint)

    # Memory: values that outlive runs

    async def save_memory(self, key: str, value: Value) -> None:
        """Store a value under a key, with secrets redacted; null deletes the key."""
        await self._engine.remember(self._secrets.redact(key), self._secrets.redact(value))

    async def load_memory(self, key: str) -> Value:
        """Return the value of a key, or null."""
        return self._secrets.redact(await self._engine.recall(self._secrets.redact(key)))

    async def list_memory(self, prefix: str = "") -> list[str]:
        """List the keys that start with a prefix."""
        return await self._engine.remembered(prefix)

    # Inside

    async def begin(
        self,
        workflow: str | None = None,
        text: str | None = None,
        file: str | None = None,
        inputs: dict[str, Value] | None = None,
        request_id: str | None = None,
        agent: str | None = None,
    ) -> str:
        """Start a run, and return its id without an answer about it.

        A command of the settings performs the steps of each agent that has one there, or, with `agent`, this
        one the steps of all agents.
        """
        agents = self._agents_for(agent)
        for name, value in (inputs or {}).items():
            if (found := unfit(value, depth=self.settings.limits.value_depth)) is not None:
                raise InvalidInputs(f"the input '{name}{found.place}' is not accepted: {found.why}")
        bundle = self._checked_bundle(workflow, text, file)
        complete = self._secrets.redact(check_inputs(bundle.plans[bundle.main], inputs or {}))
        by = caller()
        return await self._engine.start(bundle, complete, request_id=request_id, agents=agents, by=by)

    def _agents_for(self, agent: str | None) -> dict[str, str]:
        """Return the agents of a run that commands perform. Raises RequestError."""
        known = self.settings.agents
        if agent is None:
            return {f"@{name}": name for name in known}
        if find_agent(agent, known) is None:
            raise RequestError(
                f"there is no agent '{agent}'",
                hint=did_you_mean(agent, {**known, **PRESETS})
                + "; claude and codex must be on the PATH, others need a command: agents.NAME.command in "
                "workflows.toml",
            )
        return {EVERY: agent}

    def _refuse_unfit(self, result: Any) -> None:
        """Raise RequestError if a result could not be stored and read back unchanged."""
        if (found := unfit(result, depth=self.settings.limits.value_depth)) is not None:
            raise RequestError(f"the result{found.place} is not accepted: {found.why}")

    def _redacted(self, machine: Machine) -> Redact:
        """Return the function that redacts the secrets of a run in values from outside."""
        plans = machine.state.plans.values()
        self._secrets.learn((*machine.bundle.secrets, *(name for plan in plans for name in plan.secrets)))
        return self._secrets.redact

    async def _changed_bundle(
        self, run_id: str, workflow: str | None, text: str | None, file: str | None
    ) -> Bundle | None:
        """Return the definition with which a run continues, if it is given another one.

        Only a person can change the definition of a run with gates, checks or budgets: it could leave
        them out."""
        if all(it is None for it in (workflow, text, file)):
            return None
        by = caller()
        bundle = (await self._engine.view(run_id)).bundle
        if bundle.is_guarded and (by is None or not by.human):
            message = (
                f"the run {run_id} has gates, checks or budgets, so only a person can change its definition"
            )
            await self.decisions.refused(run_id, "gate", message)
            hint = f"tell the user: workflows-mcp retry {run_id} --definition FILE, in a terminal"
            raise RequestError(message, hint=hint, code="only_people")
        return self._checked_bundle(workflow, text, file)

    def _checked_bundle(self, workflow: str | None, text: str | None, file: str | None) -> Bundle:
        """Return a workflow that the settings allow, and whose secrets exist."""
        bundle = self._bundle(workflow, text, file)
        check_bundle(bundle, self._registry, self._policy)
        if bundle.plans[bundle.main].secrets_required:
            self._secrets.check(bundle.secrets)
        return bundle

    def _bundle(self, workflow: str | None, text: str | None, file: str | None) -> Bundle:
        if workflow is not None and text is None and file is None:
            return self._catalog.bundle(workflow)
        if text is not None and workflow is None and file is None:
            return self._catalog.bundle_of_text(text)
        if file is not None and workflow is None and text is None:
            return self._catalog.bundle_of_file(Path(file))
        raise RequestError(
            "say which workflow to start, by exactly one of `workflow` (its name), `yaml` or its file",
            hint="list_workflows has the names",
        )


class CommandRunner:
    def __init__(self, settings: Settings) -> None:
        self._workspace = settings.workspace
        self._limits = settings.limits

    async def run_command(
        self, command: str, *, seconds: float | None, directory: str, variables: Mapping[str, str]
    ) -> dict[str, Value]:
        """Run a command for an agent; return its output, exit code and duration.

        On a timeout or a cancellation, all processes that it has started are killed first.
        """
        running = asyncio.create_task(
            run_process(
                [SHELL, "-c", command],
                directory=self._workspace / directory,
                environment={**os.environ, **variables},
                key=f"command:{uuid.uuid4().hex}",
                capture=True,
                limits=self._limits,
            )
        )
        try:
            await asyncio.wait([running], timeout=seconds)
        except asyncio.CancelledError:
            running.cancel()
            await asyncio.wait([running])
            raise
        running.cancel()
        try:
            finished = await running
            code, stderr = finished.exit_code, finished.stderr
        except Killed as killed:
            finished, code = killed.finished, TIMED_OUT
            note = f"[killed after {seconds:g} s, its timeout]"
            stderr = f"{finished.stderr}\n{note}" if finished.stderr else note
        return {
            "stdout": finished.stdout,
            "stderr": stderr,
            "exit_code": code,
            "duration": round(finished.seconds, 3),
        }


def read_yaml(text: str, file: str) -> Value:
    """Read YAML values as definitions are read. Raises DefinitionError."""
    document = read_document(text, file)
    if document.problems:
        raise DefinitionError(document.problems)
    return document.value


def _place(machine: Machine, fault: Fault) -> Place | None:
    source = machine.source_of(fault.workflow) if fault.workflow and fault.path else ""
    if not source:
        return None
    return locate(source, machine.plan_named(fault.workflow).file, fault.path, fault.offset)
