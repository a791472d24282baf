"""Random workflows with gates, checks and budgets, driven in an order of chance: a journal is the whole run.

Agents answer well or badly, people approve, reject or send back, checks pass or fail, budgets are raised.
"""

from __future__ import annotations

import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.plans import Do, block, bundle, expr, plan
from workflows_mcp.errors import NotExpected
from workflows_mcp.machine import (
    Answered,
    BudgetRaised,
    Decided,
    Event,
    Identity,
    Machine,
    Refused,
    Reopening,
    RunStep,
    Started,
    StepDone,
    StepFailed,
)
from workflows_mcp.plan import Budget, Bundle, Check
from workflows_mcp.plan.model import OnExceeded

pytestmark = pytest.mark.rows("P1", "P2", "P5", "P6")
ADA = Identity("ada", "terminal", human=True)
HOLDS = Check("result.text == good", test=expr("${result.text} == 'good'", "condition"))
RUNS = Check("check", command=Do("Shell", {"command": "check"}, may_fail=True))
KINDS = ("server", "agent", "checked", "gate", "back")


@st.composite
def bundles(draw: st.DrawFn) -> Bundle:
    blocks = []
    for index in range(draw(st.integers(2, 7))):
        kind = draw(st.sampled_from(KINDS))
        needs = [f"b{it}" for it in range(index) if draw(st.booleans())]
        if kind == "back" and not needs:
            kind = "gate"
        by = {"server": "server", "agent": "agent", "checked": "agent"}.get(kind, "human")
        node, wanted = block(f"b{index}", Do("Step", {}, by=by, defaults={"text": ""}), needs)
        more: dict[str, object] = {}
        if kind == "checked":
            more = {
                "verify": draw(st.sampled_from([(HOLDS,), (RUNS,), (HOLDS, RUNS), (RUNS, RUNS)])),
                "attempts": draw(st.integers(1, 3)),
            }
        elif kind == "back":
            more = {"back_to": draw(st.sampled_from(needs))}
        elif kind == "gate":
            more = {"on_reject": draw(st.sampled_from(["fail", "continue"]))}
        blocks.append((msgspec.structs.replace(node, **more), wanted))
    limit = draw(st.one_of(st.none(), st.integers(0, 3)))
    main = plan(*blocks, name="main")
    if limit is not None:
        rule: OnExceeded = draw(st.sampled_from(["ask", "fail"]))
        main = msgspec.structs.replace(main, budget=Budget(agent_steps=limit, on_exceeded=rule))
    return bundle(main)


class Play:
    """A run and its journal; what is under way is chosen from by chance."""

    def __init__(self, pinned: Bundle, seed: int) -> None:
        self.pinned = pinned
        self.choose = random.Random(seed)
        self.machine, self.restored = Machine(pinned), Machine(pinned)
        self.journal: list[Event] = []
        self.steps: list[RunStep] = []
        self.take(Started(0.0, "wf_1", {}))

    def take(self, event: Event) -> None:
        self.machine.refuse_unexpected(event)
        self.journal.append(event)
        commands = self.machine.apply(event)
        assert self.restored.apply(event) == commands
        self.restored = Machine(self.pinned, self.restored.snapshot())
        assert self.restored.state == self.machine.state
        self.steps += [it for it in commands if isinstance(it, RunStep)]

    def moves(self) -> list[tuple[str, str]]:
        frames = self.machine.state.frames.items()
        kinds = ("agent", "gate", "budget", "step", "verify")
        return [(frame.kind, address) for address, frame in frames if frame.kind in kinds]

    def move(self) -> None:
        kind, address = self.choose.choice(self.moves())
        if kind in ("step", "verify"):
            key = f"{address}#{self.machine.state.frames[address].attempt}"
            (step,) = [it for it in self.steps if it.key == key]
            self.steps.remove(step)
            good = self.choose.random() < 0.7
            failed = StepFailed(0.0, key, "x", "it crashed")
            done = StepDone(0.0, key, {"text": "good", "exit_code": 0 if good else 1}, ok=good)
            self.take(done if good or self.choose.random() < 0.5 else failed)
        elif kind == "agent":
            text = self.choose.choice(["good", "good", "bad"])
            self.take(Answered(0.0, address, {"text": text}, tokens=self.choose.randrange(9)))
        elif kind == "budget":
            spent = self.machine.state.spent[""]
            self.take(
                BudgetRaised(0.0, {"agent_steps": spent.agent_steps + self.choose.randrange(1, 4)}, ADA)
            )
        else:
            self.decide(address)

    def decide(self, address: str) -> None:
        with pytest.raises(NotExpected):
            self.machine.refuse_unexpected(Answered(0.0, address, {"decision": "approve"}))
        self.take(Refused(0.0, "gate", "an agent tried", address=address))
        choice = self.choose.choice(["approve", "approve", "reject"])
        decided = Decided(0.0, address, choice, ADA, "because")
        node = self.machine.plan_named("main").body.nodes[int(address[1:])]
        if choice == "reject" and node.back_to:
            reopening = Reopening(self.pinned, self.journal, [node.back_to])
            if node.back_to in reopening.ran:
                event = reopening.event(same_run=True)
                self.take(msgspec.structs.replace(event, decision=decided))
                under_way = [f"{at}#{it.attempt}" for at, it in self.machine.state.frames.items()]
                self.steps = [it for it in self.steps if it.key in under_way]
                return
        self.take(decided)


@settings(max_examples=150, deadline=None)
@given(bundles(), st.integers())
def test_a_replay_gives_the_run_as_it_is_whatever_agents_and_people_do(pinned: Bundle, seed: int) -> None:
    play = Play(pinned, seed)
    for _ in range(80):
        if play.machine.state.status != "running":
            break
        assert play.moves(), "a run that has not ended waits for something"
        play.move()
    again = Machine(pinned)
    for event in play.journal:
        again.apply(event)
    assert again.state == play.machine.state
    nodes = play.machine.plan_named("main").body.nodes
    for node in nodes:
        record = play.machine.state.root.records.get(node.id)
        if record is None or record.status != "completed" or record.outcome != "success":
            continue
        if node.do.by == "human":  # type: ignore[union-attr]
            assert record.by == ADA
        if node.verify:
            last = [it for it in record.checks if it.round == record.checks[-1].round]
            assert all(it.passed for it in last)
            assert len(last) == len(node.verify)
