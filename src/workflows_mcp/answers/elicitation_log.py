"""Logs the forms of a question: how often the user saw one, and with which outcome.

The log consists of notes beside the run, like heartbeats (`LastSeen`), so every process can read it, also
after a restart. A note starts with `?`, unlike the id of a task:

    ?deploy#2            a call showed the second form of the question `deploy`
    ?deploy/1            the first form of a client task was answered
    ?deploy=declined     the user declined to answer
    ?deploy=unshown      the client could not show it

After one of the last two, or after `MOST_FORMS` forms, the question goes to the agent, with the reason.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from workflows_mcp.answers.tasks import LastSeen

MOST_FORMS = 3

Outcome = Literal["declined", "unshown"]


class FormOutcome(NamedTuple):
    question: str
    calls: int = 0
    """The number of forms shown by calls."""
    tasks: int = 0
    """The number of answered forms of a client task."""
    outcome: Outcome | None = None

    @property
    def is_over(self) -> bool:
        return self.outcome is not None or self.calls + self.tasks >= MOST_FORMS

    @property
    def form_of_task(self) -> str:
        """The key of the current form of a client task; an answered form is not shown again."""
        return f"{self.question}#{self.tasks + 1}"

    # Notes to write

    @property
    def shown_note(self) -> str:
        return f"?{self.question}#{self.calls + 1}"

    @property
    def answered_note(self) -> str:
        return f"?{self.question}/{self.tasks + 1}"

    def outcome_note(self, outcome: Outcome) -> str:
        return f"?{self.question}={outcome}"

    def instructions(self, instructions: str, *, decided: str) -> str:
        """Return the instructions for the question, given its forms so far.

        `decided` says how to submit what the user decides after declining.
        """
        if self.outcome == "declined":
            return (
                "The user was shown this question and declined to answer it. Do not answer it for the user: "
                f"ask what to do, and submit only the user's own reply, or cancel the run. {decided}"
            )
        if self.is_over:
            before = "The user was asked this directly, without an answer that fits: ask the user yourself."
            return f"{before} {instructions}"
        return instructions


def form_outcome(last_seen: LastSeen, question: str) -> FormOutcome:
    nothing = FormOutcome(question)
    if not last_seen:
        return nothing
    calls = tasks = 0
    while f"?{question}#{calls + 1}" in last_seen:
        calls += 1
    while f"?{question}/{tasks + 1}" in last_seen:
        tasks += 1
    outcomes: tuple[Outcome, ...] = ("declined", "unshown")
    outcome = next((it for it in outcomes if nothing.outcome_note(it) in last_seen), None)
    return FormOutcome(question, calls, tasks, outcome)
