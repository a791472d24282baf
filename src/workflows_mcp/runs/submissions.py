"""What an agent submits for a step: a result, a failure, or that it has written the result to the state.

submission = Submission(registry, redacted, "approve", {"response": "yes"}, now)
submission.event(machine, target, now)      # Answered, or raises NotExpected or InvalidResult
submission.is_harmless(machine, target)     # it was submitted before
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from workflows_mcp.answers import (
    Redact,
    RunView,
    Visited,
    WrittenState,
    already_answered,
    check_result,
    failed_outputs,
    is_harmless,
    question_address,
)
from workflows_mcp.errors import InvalidResult
from workflows_mcp.machine import Answered, Machine
from workflows_mcp.steps import StepRegistry, reported_tokens
from workflows_mcp.values import Value, to_json

FAILED = "the agent reports that it failed"


@dataclass(frozen=True, slots=True)
class StepFailure:
    """The agent reports that it could not do a step."""

    message: str


@dataclass(frozen=True)
class Submission:
    """The result of a step, as the agent gives it."""

    registry: StepRegistry
    redacted: Callable[[Machine], Redact]
    step_id: str | None
    result: Any

    @property
    def content(self) -> Value:
        """What makes two submissions the same."""
        return self.result

    def event(self, view: RunView, now: float) -> Answered:
        """Return the event. Raises NotExpected or InvalidResult if the run does not accept it."""
        return self._checked(view, now, self.result)

    def is_harmless(self, view: RunView) -> bool:
        """Whether a submission that is not expected changes nothing: the step has this result already."""
        clean, step_id, result = self.redacted(view.machine), self.step_id, self.result
        if already_answered(view, self.registry, step_id, result, clean):
            return True
        return is_harmless(view, step_id, result)

    def token(self, machine: Machine, workflow_id: str) -> str:
        """Return the idempotency token; empty if it names no step.

        Secrets are redacted first: a hash of a secret could be brute-forced. A submission without a step
        could be for the next step, so it has no token.
        """
        if self.step_id is None:
            return ""
        text = to_json([workflow_id, self.step_id, self.redacted(machine)(self.content)])
        return hashlib.blake2b(text.encode(), digest_size=9).hexdigest()

    def _checked(self, view: RunView, now: float, result: Any) -> Answered:
        clean = self.redacted(view.machine)
        address, found = check_result(view, self.registry, self.step_id, result, clean)
        tokens = reported_tokens(result)
        return Answered(now, address, found.outputs, found.ok, found.message, tokens=tokens)

    def _asked(self, view: RunView) -> Visited:
        visited = view.block_at(question_address(view, self.step_id))
        assert visited is not None
        return visited

    def _follows_interruption(self, view: RunView, visited: Visited) -> bool:
        frame = view.frame_at(visited.address)
        return frame is not None and frame.after_interruption


class Failure(Submission):
    """A report that a step failed."""

    @property
    def content(self) -> Value:
        return ["failed", self.result.message]

    def event(self, view: RunView, now: float) -> Answered:
        visited = self._asked(view)
        if self._follows_interruption(view, visited):
            return Answered(now, visited.address, {"decision": "fail"})
        outputs, message = failed_outputs(visited), self._message(view)
        return Answered(now, visited.address, outputs, ok=False, message=message)

    def is_harmless(self, view: RunView) -> bool:
        visited = view.block_named(self.step_id or "")
        return visited is not None and visited.record.message == self._message(view)

    def _message(self, view: RunView) -> Value:
        return self.redacted(view.machine)(self.result.message) or FAILED


@dataclass(frozen=True)
class Completion(Submission):
    """A report that a step is done, without a result: the agent has written it to the state."""

    written: WrittenState

    @property
    def content(self) -> Value:
        return ["completed"]

    def event(self, view: RunView, now: float) -> Answered:
        visited = self._asked(view)
        scope, _ = view.machine.locate(visited.address)
        if scope.reactive is None or self._follows_interruption(view, visited):
            return self._checked(view, now, {})
        if missing := self.written.missing(visited):
            raise InvalidResult(
                f"'{self.step_id}' needs a result: nothing was written to {' and '.join(missing)} since it "
                "was asked",
                hint=f"call workflow_step_complete(step_id='{self.step_id}', result=…) with its result, as "
                "its instructions say, and the server stores it; or write it yourself with "
                "workflow_state_update first. If the step failed, pass status='failed' and error. "
                "Nothing has changed.",
            )
        return Answered(now, visited.address, failed_outputs(visited), written_by_agent=True)

    def is_harmless(self, view: RunView) -> bool:
        visited = view.block_named(self.step_id or "")
        if visited is not None and visited.record.written_by_agent:
            return True
        return is_harmless(view, self.step_id, {})
