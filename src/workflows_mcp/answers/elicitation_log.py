"""What has been heard of the user to whom a question was put directly, in a form: how often, and what came
of it.

It is kept as when agents of tasks were last heard of (`LastSeen`): in notes beside the run, so that every
process knows it, also after a restart. A note is a name, and begins as no id of a task does:

    ?deploy#2            the second form of the question `deploy` was put up by a call
    ?deploy/1            the first form that a task showed was answered
    ?deploy=declined     the user does not want to answer it
    ?deploy=unshown      the client failed at showing it

A question is over for the user as soon as one of the last two is noted, or it was put up `MOST_FORMS` times;
then it is for the agent, who is told why.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from workflows_mcp.answers.tasks import LastSeen

MOST_FORMS = 3

Outcome = Literal["declined", "unshown"]


class FormOutcome(NamedTuple):
    question: str
    calls: int = 0
    """How many forms were put up by calls."""
    tasks: int = 0
    """How many that a task showed were answered."""
    outcome: Outcome | None = None

    @property
    def is_over(self) -> bool:
        return self.outcome is not None or self.calls + self.tasks >= MOST_FORMS

    @property
    def form_of_task(self) -> str:
        """The key of the form that a task shows now: one that was answered does not come again."""
        return f"{self.question}#{self.tasks + 1}"

    # The notes of what happens next

    @property
    def put_up(self) -> str:
        return f"?{self.question}#{self.calls + 1}"

    @property
    def answered(self) -> str:
        return f"?{self.question}/{self.tasks + 1}"

    def ended(self, outcome: Outcome) -> str:
        return f"?{self.question}={outcome}"


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
    outcome = next((it for it in outcomes if nothing.ended(it) in last_seen), None)
    return FormOutcome(question, calls, tasks, outcome)


def instructions_after_forms(last_seen: LastSeen, question: str, instructions: str, *, decided: str) -> str:
    """What an agent is to do about a question, where the user has been asked it directly before. `decided`:
    how to hand in what the user decides after having declined."""
    known = form_outcome(last_seen, question)
    if known.outcome == "declined":
        return (
            "The user was shown this question and declined to answer it. Do not answer it for the user: ask "
            f"what to do, and hand in only what the user then says, or cancel the run. {decided}"
        )
    if known.is_over:
        before = "The user was asked this directly, without an answer that fits: ask the user yourself."
        return f"{before} {instructions}"
    return instructions
