"""Going on from a checkpoint: the part of the service that decides whether the run itself goes on, or a fork.

| the checkpoint                       | what goes on                                                  |
| ------------------------------------ | ------------------------------------------------------------- |
| a question that is open              | the run, with the response                                    |
| a question that had this response    | the run, wherever it is                                       |
| a question that was closed otherwise | a fork with the response; the same one if it was made before  |
| automatic, the run has moved on      | a fork                                                        |
| automatic, it has not                | the run                                                       |

Knows runs and their checkpoints; how an answer is worded is not known here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from workflows_mcp.agent.actions import Clean, check_result
from workflows_mcp.agent.checkpoints import Checkpoint, CheckpointId, History
from workflows_mcp.agent.histories import Histories
from workflows_mcp.agent.parts import question_id, whole_run
from workflows_mcp.engines.base import Engine
from workflows_mcp.errors import NotExpected, RequestError, UnknownRun
from workflows_mcp.machine.events import Resumed
from workflows_mcp.machine.machine import Machine
from workflows_mcp.steps.registry import StepRegistry
from workflows_mcp.values import LEFT_OUT, to_json

Submit = Callable[[str, Any, str], Awaitable[None]]
"""Answers the question of a run at an address."""


async def unpark(engine: Engine, run_id: str) -> None:
    """Let a run continue that is parked, or that nobody drives any more; harmless where neither is so."""
    with suppress(NotExpected):
        await engine.send(run_id, lambda machine, now: Resumed(now))
    await engine.carry_on(run_id)


class Resuming:
    def __init__(
        self,
        engine: Engine,
        histories: Histories,
        registry: StepRegistry,
        *,
        submit: Submit,
        cleaned: Callable[[Machine], Clean],
    ) -> None:
        self._engine = engine
        self._histories = histories
        self._registry = registry
        self._submit = submit
        self._cleaned = cleaned

    async def go_on(self, checkpoint_id: str, response: Any = LEFT_OUT) -> tuple[str, CheckpointId | None]:
        """The run that goes on, and the checkpoint that it is a fork from, if it is one. With the id of a run
        instead of a checkpoint: that run, whose only question is answered if there is a response. Null is a
        response to a question, and none where nothing is asked."""
        if await self._is_run(checkpoint_id):
            await unpark(self._engine, checkpoint_id)
            if response is LEFT_OUT or (response is None and not await self._asks(checkpoint_id)):
                return checkpoint_id, None
            checkpoint_id = await self._histories.only_question(checkpoint_id)
        history, checkpoint = await self._histories.find(checkpoint_id)
        if checkpoint.id.type == "automatic":
            run_id = await self._from_position(history, checkpoint, response)
        else:
            run_id = await self._from_question(history, checkpoint, response)
        return run_id, checkpoint.id if run_id != checkpoint.id.run_id else None

    async def _from_position(self, history: History, checkpoint: Checkpoint, response: Any) -> str:
        if response is not LEFT_OUT and response is not None:
            raise RequestError(
                f"'{checkpoint.id}' asks nothing, so it takes no response",
                hint="leave the response out; where the run asks, it gives a checkpoint to answer",
            )
        if not history.moved_on(checkpoint):
            await unpark(self._engine, checkpoint.id.run_id)
            return checkpoint.id.run_id
        return await self._engine.fork(checkpoint.id.run_id, checkpoint.id.position)

    async def _from_question(self, history: History, checkpoint: Checkpoint, response: Any) -> str:
        run_id, address = checkpoint.id.run_id, checkpoint.address
        if response is LEFT_OUT:
            hint = f"it asks: {checkpoint.prompt}"
            raise RequestError(f"'{checkpoint.id}' is a question, so it needs a response", hint=hint)
        then = await self._histories.state_at(checkpoint.id)
        question = question_id(then.state, whole_run(run_id), address)
        if not history.moved_on(checkpoint):
            await unpark(self._engine, run_id)
            await self._submit(run_id, response, question)
            return run_id
        _, taken = check_result(then, self._registry, question, response, self._cleaned(then))
        if checkpoint.answer is not None and checkpoint.answer.outputs == taken.outputs:
            return run_id
        request = hashlib.blake2b(to_json([str(checkpoint.id), taken.outputs]).encode(), digest_size=12)
        made = await self._engine.fork(
            run_id, checkpoint.id.position, request_id=f"fork {request.hexdigest()}"
        )
        await self._submit(made, response, question)  # harmless where the same call has made it before
        return made

    async def _asks(self, run_id: str) -> bool:
        _, questions = await self._histories.questions(run_id)
        return bool(questions.open)

    async def _is_run(self, run_id: str) -> bool:
        try:
            await self._engine.view(run_id)
        except UnknownRun:
            return False
        return True
