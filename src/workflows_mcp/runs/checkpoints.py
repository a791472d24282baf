"""`Histories` finds and lists the checkpoints of runs.

    history, checkpoint = await histories.find("pause_wf_7f3a_12")
    found, more = await histories.latest(workflow="deploy", run_id=None, limit=50)

It reads journals and changes nothing. The last few running runs are cached, so polling one does not read its
journal from the start each time.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from workflows_mcp.answers import Checkpoint, CheckpointId, History, clock, parse_checkpoint_id
from workflows_mcp.errors import NotExpected, RequestError, StoreError, UnknownRun
from workflows_mcp.limits import Limits
from workflows_mcp.machine import Event, Machine
from workflows_mcp.plan import Bundle
from workflows_mcp.steps import StepRegistry

logger = logging.getLogger(__name__)

_KEPT = 8
_RUNS_READ = 200
"""How many runs a list of checkpoints reads at most."""
_PAGE = 100
_SLICE = 256
"""After this many events, the event loop gets a turn."""
_NAMED = 12
_DAY = 86_400.0
_HOW_TO_LIST = "list_checkpoints (on a terminal: workflows-mcp checkpoints) lists what there is"

Found = tuple[History, Checkpoint]


class Run(Protocol):
    @property
    def run_id(self) -> str: ...
    @property
    def status(self) -> str: ...
    @property
    def changed_at(self) -> float: ...


class Journals(Protocol):
    """The store of runs: an engine."""

    async def journal(self, run_id: str, after: int = 0) -> tuple[Bundle, list[Event]]: ...
    async def deleted_checkpoints(self, run_id: str) -> set[int]: ...
    async def recent(self, limit: int, workflow: str | None = None) -> Sequence[Run]: ...


class Histories:
    def __init__(self, journals: Journals, registry: StepRegistry, limits: Limits) -> None:
        self._journals = journals
        self._registry = registry
        self._limits = limits
        self._kept: OrderedDict[str, History] = OrderedDict()
        self._reading = asyncio.Lock()

    async def of(self, run_id: str) -> History:
        """Return the history of a run up to its last event.

        The next call updates the same object, so read it before the next `await`.
        """
        async with self._reading:
            known = self._kept.pop(run_id, None)
            bundle, events = await self._journals.journal(run_id, known.position if known else 0)
            history = known or History(Machine(bundle), self._registry)
            for event in events:
                history.take(event)
                if not history.position % _SLICE:
                    await asyncio.sleep(0)
            if history.status == "running":
                self._kept[run_id] = history
                if len(self._kept) > _KEPT:
                    self._kept.popitem(last=False)
            return history

    async def state_at(self, checkpoint: CheckpointId) -> Machine:
        """Return the run as it was at a checkpoint."""
        bundle, events = await self._journals.journal(checkpoint.run_id)
        machine = Machine(bundle)
        for event in events[: checkpoint.position]:
            machine.apply(event)
            if not machine.state.events % _SLICE:
                await asyncio.sleep(0)
        return machine

    async def open_questions(self, run_id: str) -> tuple[Machine, dict[str, str]]:
        """Return the checkpoints of the open questions by address, and the run at that moment.

        Questions whose checkpoint was deleted are left out.
        """
        forgotten = await self._journals.deleted_checkpoints(run_id)
        history = await self.of(run_id)
        asked = history.open_questions()
        return history.machine, {it.address: str(it.id) for it in asked if it.id.mark not in forgotten}

    async def only_question(self, run_id: str) -> str:
        """Return the checkpoint of the only open question; raise RequestError if there is not exactly one."""
        ids = list((await self.open_questions(run_id))[1].values())
        if len(ids) == 1:
            return ids[0]
        if ids:
            hint = f"answer one of them by its checkpoint: {', '.join(ids)}"
            raise NotExpected(f"the run {run_id} asks {len(ids)} questions", hint=hint)
        hint = f"without a response, resume_workflow(checkpoint_id='{run_id}') waits for it"
        raise NotExpected(f"the run {run_id} asks nothing now, so it takes no response", hint=hint)

    async def find(self, checkpoint_id: str, *, even_deleted: bool = False) -> Found:
        """Return a checkpoint; raise RequestError, which lists those that exist, if it does not."""
        wanted = parse_checkpoint_id(checkpoint_id)
        if wanted is None:
            raise _unknown(
                f"'{checkpoint_id}' is not the id of a checkpoint",
                f"ids look like pause_wf_7f3a19c2b4d0_12 or chk_wf_7f3a19c2b4d0_12; {_HOW_TO_LIST}",
            )
        try:
            history = await self.of(wanted.run_id)
        except UnknownRun:
            what = f"{_not_found(wanted)}: there is no run '{wanted.run_id}'"
            raise _unknown(what, _HOW_TO_LIST) from None
        forgotten = await self._journals.deleted_checkpoints(wanted.run_id)
        checkpoint = history.find(wanted)
        if checkpoint is None:
            raise _unknown(_not_found(wanted), self._what_exists(history, forgotten))
        if even_deleted:
            return history, checkpoint
        if wanted.mark in forgotten:
            raise _unknown(f"the checkpoint '{wanted}' was deleted", self._what_exists(history, forgotten))
        now, days = time.time(), self._limits.checkpoint_days
        if checkpoint.expired(now, days):
            raise _unknown(
                f"{_not_found(wanted)}: it is from {clock(checkpoint.created_at, now)}, and checkpoints are "
                f"kept for {days:g} days",
                f"{self._limits.setting('checkpoint_days')} keeps them longer; {_HOW_TO_LIST}",
            )
        return history, checkpoint

    async def latest(
        self, *, workflow: str | None, run_id: str | None, limit: int
    ) -> tuple[Sequence[Found], bool]:
        """Return the latest checkpoints, newest first, and whether there are more."""
        now, days = time.time(), self._limits.checkpoint_days
        if run_id is not None:
            found = await self._of_run(run_id, now)
            return found[:limit], len(found) > limit
        found, read, more = [], 0, False
        async for run in self._runs(workflow):
            # A run has no checkpoint that is later than its last change.
            if sum(it.created_at >= run.changed_at for _, it in found) > limit or read == _RUNS_READ:
                more = True
                break
            if run.status in ("running", "idle") or now - run.changed_at <= days * _DAY:
                read += 1
                try:
                    found += await self._of_run(run.run_id, now)
                except StoreError as error:  # an unreadable run must not hide the others
                    logger.warning("the checkpoints of the run %s are left out: %s", run.run_id, error)
        found.sort(key=lambda item: item[1].created_at, reverse=True)
        return found[:limit], more or len(found) > limit

    async def _of_run(self, run_id: str, now: float) -> list[Found]:
        forgotten = await self._journals.deleted_checkpoints(run_id)
        history = await self.of(run_id)
        return [(history, it) for it in self._left(history, forgotten, now)]

    def _left(self, history: History, forgotten: set[int], now: float) -> list[Checkpoint]:
        days = self._limits.checkpoint_days
        return [it for it in history.listed() if it.id.mark not in forgotten and not it.expired(now, days)]

    def _what_exists(self, history: History, forgotten: set[int]) -> str:
        left = self._left(history, forgotten, time.time())
        if not left:
            return f"the run {history.run_id} has no checkpoints; {_HOW_TO_LIST}"
        more = f", … ({len(left)} in all)" if len(left) > _NAMED else ""
        return f"the run {history.run_id} has: {', '.join(str(it.id) for it in left[:_NAMED])}{more}"

    async def _runs(self, workflow: str | None) -> AsyncIterator[Run]:
        """Yield the runs that changed last, newest first."""
        seen: set[str] = set()
        limit = _PAGE
        while True:
            runs = await self._journals.recent(limit, workflow)
            for run in runs:
                if run.run_id not in seen:
                    seen.add(run.run_id)
                    yield run
            if len(runs) < limit:
                return
            limit += _PAGE


def _not_found(wanted: CheckpointId) -> str:
    return f"the checkpoint '{wanted}' was not found or has expired"


def _unknown(message: str, hint: str) -> RequestError:
    return RequestError(message, hint=hint, code="unknown_checkpoint")
