"""What somebody would write who has only Temporal and one workflow in mind: the same work with the same
guarantees.

Steps are activities that say that they are alive and are tried once; an answer is an update, which is given
back the next question; the state is in the workflow, and a long history goes on as a new one.
"""

from __future__ import annotations

from datetime import timedelta

from temporalio import activity, workflow
from temporalio.common import RetryPolicy

MOST_UPDATES = 1500


@activity.defn
async def tick(number: int) -> int:
    activity.heartbeat()
    return number + 1


@workflow.defn
class Steps:
    """So many steps of the server, one after the other."""

    @workflow.run
    async def run(self, steps: int) -> int:
        number = 0
        for _ in range(steps):
            number = await workflow.execute_activity(
                tick,
                number,
                start_to_close_timeout=timedelta(days=3650),
                heartbeat_timeout=timedelta(seconds=10),
                retry_policy=RetryPolicy(maximum_attempts=1),
            )
        return number


@workflow.defn
class Questions:
    """So many questions to an agent, one after the other."""

    def __init__(self) -> None:
        self._answers: dict[str, str] = {}
        self._updates = 0
        self._questions = 0

    @workflow.run
    async def run(self, questions: int, answers: dict[str, str]) -> dict[str, str]:
        self._answers = {**answers, **self._answers}
        self._questions = questions
        await workflow.wait_condition(
            lambda: len(self._answers) >= questions or self._updates >= MOST_UPDATES
        )
        await workflow.wait_condition(workflow.all_handlers_finished)
        if len(self._answers) < questions:
            workflow.continue_as_new(args=[questions, self._answers])
        return self._answers

    @workflow.update
    async def next_action(self) -> dict[str, str]:
        return self._question()

    @workflow.update
    async def answer(self, step_id: str, response: str) -> dict[str, str]:
        self._updates += 1
        await workflow.wait_condition(lambda: bool(self._questions))
        if step_id != f"b{len(self._answers)}":
            return {"status": "refused"}
        self._answers[step_id] = response
        if len(self._answers) == self._questions:
            return {"status": "completed"}
        return self._question()

    def _question(self) -> dict[str, str]:
        number = len(self._answers)
        return {"status": "pending_action", "step_id": f"b{number}", "prompt": f"about x, {number}?"}
