"""Random reactive workflows: loops, tasks side by side, included workflows, questions, waits, failures, changes from
outside, in any order. Every run ends, does nothing twice, and goes the same way with a crash after every event."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.reactive import CRASHES, Crash, Outcome, Play, Sluggish, World, documents, say, survives
from workflows_mcp.errors import DefinitionError
from workflows_mcp.machine import program
from workflows_mcp.machine.events import Event, StateUpdated
from workflows_mcp.machine.reopening import Reopening
from workflows_mcp.plan.references import LANGUAGES
from workflows_mcp.values import Value

pytestmark = pytest.mark.rows("X1", "R13", "R14", "R15", "R18")

Step = dict[str, Any]
STATE: dict[str, Any] = {"raw": {"n": 0, "list": ["x"], "items": [{"id": "a"}, {"id": "b"}, {"id": "c"}]}}
COMPUTED = {
    "total": {"from": "raw.list", "transform": "input.length"},
    "even": {"from": "raw.n", "transform": "input % 2 === 0"},
    "strict": {"from": "raw.n", "transform": "input.toFixed(0)", "on_error": "propagate"},
    "both": {"from": ["computed.total", "computed.even"], "transform": "`${input[0]} ${input[1]} ${n}`"},
}
CHANGES: list[Step] = [
    {"path": "raw.n", "operation": "increment"},
    {"path": "raw.list", "operation": "append", "value": "{{ n }}"},
    {"path": "raw.seen.{{ total }}", "value": "{{ both }}"},
    {"path": "raw.note", "value": "{{ uuid() + now() }}"},
    {"path": "raw.n", "value": "{{ n > 3 ? 'broken' : n }}"},
    {"path": "raw.list", "operation": "merge", "value": {}},
]
CONDITIONS = ["even", "total > 1", "{{ n < 2 }}", "strict == '1'", "{{ both.no.such }}"]
FROM_OUTSIDE: list[tuple[list[str | int], Any, Value]] = [
    (["raw", "n"], "increment", 1),
    (["raw", "list"], "append", "outside"),
    (["raw", "n"], "set", "broken"),
    (["raw", "items"], "set", []),
]
HANDLING: list[Step | None] = [
    None,
    None,
    {"on_error": "continue", "error_collection": True},
    {"on_error": "retry_workflow", "max_retries": 1},
    {
        "on_failure": [
            {"type": "user_message", "message": "{{ error.message }}"},
            {"id": "clean", "type": "Ask", "prompt": "x"},
        ]
    },
    {
        "on_error": "retry_workflow",
        "on_failure": [{"id": "clean", "type": "Note", "text": "clean"}],
        "error_collection": True,
    },
]


@st.composite
def carried_out(draw: st.DrawFn) -> Step:
    """A step that somebody carries out."""
    asked = draw(st.booleans())
    step: Step = (
        {"type": "Ask", "prompt": "{{ both }}"} if asked else {"type": "Note", "text": "{{ n }} {{ total }}"}
    )
    if draw(st.booleans()):
        step["state_update"] = draw(st.sampled_from(CHANGES))
    how = draw(st.sampled_from(["", "", "continue", "retry", "fallback"]))
    if how == "continue":
        step |= {"on_error": "continue", "error_state_update": draw(st.sampled_from(CHANGES))}
    elif how == "retry":
        step |= {"on_error": "retry", "retry_count": 1, "retry_delay": 0}
    elif how == "fallback":
        step |= {"on_error": "continue", "fallback_value": {"text": "spare"}}
    return step


@st.composite
def lists(draw: st.DrawFn, depth: int, *, in_loop: bool = False, in_task: bool = False) -> list[Step]:
    kinds = ["do", "do", "update", "message", "wait"]
    kinds += ["if", "foreach", "while"] if depth else []
    kinds += ["tasks", "include"] if not in_task else []
    kinds += ["break", "continue"] if in_loop else ["exit"]
    steps: list[Step] = []
    step: Step
    for kind in draw(st.lists(st.sampled_from(kinds), min_size=1 + 2 * depth, max_size=3 + 2 * depth)):
        inside = lists(depth - 1, in_loop=in_loop, in_task=in_task)
        body = lists(depth - 1, in_loop=True, in_task=in_task)
        match kind:
            case "do":
                steps.append(draw(carried_out()))
            case "update":
                updates = draw(st.lists(st.sampled_from(CHANGES), min_size=1, max_size=2))
                steps.append({"type": "state_update", "updates": updates, **draw(putting_up())})
            case "message":
                steps.append({"type": "user_message", "message": "{{ both }}"})
            case "wait":
                steps.append({"type": "wait", "duration_seconds": 1})
            case "if":
                step = {
                    "type": "conditional",
                    "condition": draw(st.sampled_from(CONDITIONS)),
                    "then": draw(inside),
                }
                steps.append(
                    {**step, **({"else": draw(inside)} if draw(st.booleans()) else {}), **draw(putting_up())}
                )
            case "foreach":
                items: Any = draw(st.sampled_from([[1, 2], "{{ list }}", "{{ items }}", "{{ n }}"]))
                steps.append({"type": "foreach", "items": items, "steps": draw(body), **draw(putting_up())})
            case "while":
                condition = draw(st.sampled_from(CONDITIONS))
                step = {"type": "while", "condition": condition, "max_iterations": 2, "body": draw(body)}
                steps.append({**step, **draw(putting_up())})
            case "tasks":
                steps.append(draw(tasks(in_loop)))
            case "include":
                steps.append({"type": "include_workflow", "workflow": "inner", **draw(putting_up())})
            case _:
                steps.append({"type": "conditional", "condition": "even", "then": [{"type": kind}]})
    return steps


def putting_up() -> st.SearchStrategy[Step]:
    return st.sampled_from([{}, {"on_error": "continue"}])


@st.composite
def tasks(draw: st.DrawFn, in_loop: bool) -> Step:
    step: Step = {"type": "parallel_foreach", "sub_agent_task": draw(st.sampled_from(["shared", "own"]))}
    step["items"] = draw(st.sampled_from(["{{ items }}", "{{ list }}", [], "{{ n }}"]))
    if draw(st.booleans()):
        step["max_parallel"] = draw(st.sampled_from([1, 2, "{{ n + 1 }}"]))
    strategy = draw(st.sampled_from([None, "continue", "fail_all", "retry_failed"]))
    if strategy:
        step["on_sub_agent_error"] = {"strategy": strategy, "collect_errors": draw(st.booleans())}
    if not in_loop:
        step["wait_for_all"] = draw(st.booleans())
    return step


@st.composite
def workflows(draw: st.DrawFn) -> tuple[str, str]:
    shared: Step = {"inputs": {"me": "{{ uuid() }}"}, "steps": draw(lists(1, in_task=True))}
    if draw(st.booleans()):
        shared["error_handling"] = {
            "cleanup_on_error": [{"type": "user_message", "message": "{{ error.type }}"}]
        }
    state = {"default_state": STATE, "state_schema": {"computed": COMPUTED}}
    own: Step = {**state, "steps": draw(lists(1, in_task=True))}
    main: Step = {
        "name": "main",
        **state,
        "steps": draw(lists(2)),
        "sub_agent_tasks": {"shared": shared, "own": own},
    }
    handling = draw(st.sampled_from(HANDLING))
    if handling is not None:
        main["error_handling"] = handling
    inner: Step = {"name": "inner", **state, "steps": draw(lists(1, in_task=True))}
    return yaml.safe_dump(main, sort_keys=False), yaml.safe_dump(inner, sort_keys=False)


def any_outcome(seed: int) -> Play:
    """How a step goes is settled by where it is and how often it came, not by when."""

    def play(address: str, inputs: Mapping[str, Value], times: int) -> Outcome:
        if "prompt" not in inputs:
            chance = random.Random(f"{seed}:{address}:{times}").random()
            if chance < 0.15:
                return f"{address} crashed"
            if chance < 0.25:
                return {"text": "not well", "ok": False}
        return say(address, inputs, times)

    return play


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
@given(
    workflows(),
    st.integers(0, 1000),
    st.one_of(st.none(), st.integers(0, 1000)),
    st.dictionaries(st.integers(1, 6), st.sampled_from(FROM_OUTSIDE), max_size=2),
)
def test_any_reactive_workflow_ends_and_goes_the_same_way_whatever_happens(
    texts: tuple[str, str], seed: int, order: int | None, outside: dict[int, Any]
) -> None:
    try:
        bundle = documents(*texts)
    except DefinitionError as error:
        raise AssertionError(f"{error}\n{texts[0]}") from None
    between: dict[int, Event] = {at: StateUpdated(at + 0.5, [change]) for at, change in outside.items()}
    story = survives(bundle, any_outcome(seed), between=between, seed=order)
    assert story.state.status in ("completed", "failed"), "nothing is under way, and it has not ended"
    assert story.state.frames == {}
    keys = [command.key for command in story.performed]
    assert len(keys) == len(set(keys)), "nothing is done twice"
    assert story.state.status == "completed" or story.state.fault is not None


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
@given(workflows(), st.integers(0, 1000), st.sampled_from(CRASHES))
def test_a_run_in_which_any_expressions_were_stopped_comes_back_the_same_on_a_fast_machine(
    texts: tuple[str, str], seed: int, crash: Crash
) -> None:
    language = Sluggish(LANGUAGES["javascript"], seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            program, "language_of", lambda plan: {**LANGUAGES, "javascript": language}[plan.language]
        )
        world = World(documents(*texts), any_outcome(seed), crash=crash, seed=seed, elsewhere=language.fast)
        story = world.run()
    assert story.state.status in ("completed", "failed")
    assert story.state.frames == {}


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
@given(
    workflows(), st.integers(0, 1000), st.integers(1, 30), st.randoms(use_true_random=False),
    st.sampled_from(CRASHES),
)  # fmt: skip
def test_any_step_of_a_reactive_run_can_be_reopened_in_the_run_twice_and_the_run_ends(
    texts: tuple[str, str], seed: int, events: int, chance: random.Random, crash: Crash
) -> None:
    bundle = documents(*texts)
    world = World(bundle, any_outcome(seed), crash=crash, seed=seed)
    story = world.run(events=events)
    for _ in range(2):
        steps = list(dict.fromkeys(event.address for event in story.events if event.of_step))
        reopening = Reopening(bundle, story.events, [chance.choice(steps)] if steps else [])
        if not reopening.ran:  # it was reached again in a later round, and is not there now
            return
        world.send(reopening.event(same_run=True))
        world.go_on(events=len(story.events) + events)
    world.go_on()
    assert story.state.status in ("completed", "failed")
    assert story.state.frames == {}
    keys = [command.key for command in story.performed]
    assert len(keys) == len(set(keys)), "nothing is done twice"
