"""Tasks side by side that share the state of their workflow, or have one of their own: in whatever order they go on,
and with a crash after every event, nothing is lost and nothing is done twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import pytest
from msgspec.structs import replace

from support.reactive import Outcome, Story, World, documents, run, say, survives
from workflows_mcp.limits import Limits
from workflows_mcp.machine.events import StateUpdated
from workflows_mcp.values import Value

pytestmark = pytest.mark.rows("R15", "R16", "X1")
ORDERS = (None, 1, 2, 3)

SHARED = """
name: shared
default_state: {raw: {files: [{id: a, size: 2}, {id: b, size: 1}, {id: c, size: 3}], lines: 0, log: [], done: {}}}
state_schema:
  computed:
    done_count: {from: raw.done, transform: Object.keys(input).length}
    all_done: {from: [computed.done_count, raw.files], transform: "input[0] === input[1].length"}
steps:
  - {id: each, type: parallel_foreach, items: "{{ files }}", max_parallel: 2, sub_agent_task: read}
  - {id: end, type: Note, text: "{{ all_done }} {{ lines }} {{ log.length }} {{ log.slice().sort().join() }}"}
sub_agent_tasks:
  read:
    inputs: {token: "{{ uuid() }}"}
    steps:
      - id: loop
        type: while
        condition: (done[id] || 0) < size
        body:
          - {type: state_update, path: "raw.done.{{ id }}", operation: increment}
          - {id: line, type: Note, text: "{{ id }}{{ done[id] }}", state_update: [{path: raw.log, operation: append, value: "{{ text }}"}, {path: raw.lines, operation: increment}]}
      - {type: user_message, message: "{{ id }} has {{ done[id] }}"}
      - {id: judge, type: Ask, prompt: "{{ id }} {{ token }}"}
      - {type: user_message, message: "bye {{ id }}"}
"""


@pytest.mark.parametrize("order", ORDERS)
def test_tasks_that_share_a_state_lose_no_update_in_any_order(order: int | None) -> None:
    story = survives(documents(SHARED), seed=order)
    assert story.state.status == "completed", story.state.fault
    assert story.said[-1] == "true 6 6 a1,a2,b1,c1,c2,c3"
    assert story.raw["done"] == {"a": 2, "b": 1, "c": 3}
    judged = {at: asked["prompt"].split() for at, asked in story.asked}
    assert {at: name for at, (name, _) in judged.items()} == {f"each/{it}/judge": it for it in "abc"}
    assert len({token for _, token in judged.values()}) == 3, "each task has a chance of its own"


def test_what_chance_gives_a_task_does_not_depend_on_when_it_began() -> None:
    tokens = [dict(run(documents(SHARED), seed=order).asked) for order in ORDERS]
    assert all(asked == tokens[0] for asked in tokens)


@pytest.mark.parametrize("semantics", [2, 3])
def test_messages_of_tasks_go_to_the_main_agent_or_in_runs_of_before_to_their_own_first(
    semantics: int,
) -> None:
    bundle = documents(SHARED)
    for name, plan in bundle.plans.items():
        tasks = tuple(replace(task, semantics=semantics) for task in plan.tasks)
        bundle.plans[name] = replace(plan, semantics=semantics, tasks=tasks)
    seen: dict[str, list[str]] = {}

    def play(address: str, inputs: Mapping[str, Value], times: int) -> Outcome:
        if "prompt" not in inputs:
            return say(address, inputs, times)
        part = address.removesuffix("/judge")
        seen[part] = [message.text for message in world.story.state.messages if message.task == part]
        return say(address, inputs, times)

    world = World(bundle, play, seed=1)
    story = world.run()
    to_their_own = {"each/a": ["a has 2"], "each/b": ["b has 1"], "each/c": ["c has 3"]}
    assert seen == (to_their_own if semantics < 3 else {"each/a": [], "each/b": [], "each/c": []})
    rest = [] if semantics < 3 else ["a has 2", "b has 1", "c has 3"]
    assert sorted(story.told[-1]) == sorted([*rest, "bye a", "bye b", "bye c"])
    assert {message.task for message in story.state.messages} == {""}, "the tasks are over"


@pytest.mark.parametrize("order", ORDERS)
def test_what_an_agent_changes_while_tasks_are_under_way(order: int | None) -> None:
    between = {
        2: StateUpdated(2.5, [(["raw", "lines"], "increment", 100)]),
        4: StateUpdated(4.5, [(["raw", "log"], "append", "z"), (["raw", "files", "0", "size"], "set", 9)]),
        5: StateUpdated(5.5, [(["raw", "lines"], "append", 1)]),
    }
    story = survives(documents(SHARED), between=dict(between), seed=order)
    assert story.state.status == "completed"
    assert (story.raw["lines"], len(story.raw["log"])) == (106, 7), "what cannot be changed changes nothing"
    assert story.raw["files"][0]["size"] == 9
    assert story.raw["done"]["a"] == 2, "a task has its item as it was handed out"


OWN = """
name: own
default_state: {raw: {words: [x, y], n: 100}}
steps:
  - {id: each, type: parallel_foreach, items: "{{ words }}", sub_agent_task: count}
  - {id: end, type: Note, text: "{{ n }}"}
sub_agent_tasks:
  count:
    default_state: {raw: {n: 0}}
    state_schema: {computed: {tens: {from: raw.n, transform: input * 10}}}
    steps:
      - id: loop
        type: foreach
        items: [1, 2]
        variable_name: by
        steps:
          - {type: state_update, path: raw.n, operation: increment, value: "{{ by }}"}
          - {id: ask, type: Ask, prompt: "{{ item }} {{ n }} {{ tens }} {{ global.n }} {{ this.n }}"}
"""


@pytest.mark.parametrize("order", ORDERS)
def test_tasks_with_a_state_of_their_own_do_not_see_each_other(order: int | None) -> None:
    between = {1: StateUpdated(1.5, [(["raw", "n"], "set", 50)], "each/1")}
    story = survives(documents(OWN), between=between, seed=order)
    asked = {at: [it["prompt"] for where, it in story.asked if where == at] for at, _ in story.asked}
    assert asked["each/0/ask"] == ["x 1 10 100 1", "x 3 30 100 3"]
    assert asked["each/1/ask"] == ["y 1 10 100 1", "y 52 520 100 52"]
    assert story.said == [100]


def test_a_change_for_a_task_that_is_over_changes_nothing() -> None:
    between = {4: StateUpdated(4.5, [(["raw", "n"], "set", 50)], "each/0")}
    story = survives(documents(OWN), between=between)
    assert [it["prompt"] for where, it in story.asked if "each/0" in where][-1] == "x 3 30 100 3"
    assert story.raw["n"] == 100


CHANGING = """
name: changing
default_state: {raw: {width: 2, items: [1, 2, 3, 4], seen: []}}
steps:
  - {id: each, type: parallel_foreach, items: "{{ items }}", max_parallel: "{{ width }}", sub_agent_task: t}
  - {id: end, type: Note, text: "{{ seen.length }}"}
sub_agent_tasks:
  t:
    steps:
      - {id: say, type: Note, text: "{{ item }}", state_update: [{path: raw.seen, operation: append}, {path: raw.width, value: "%s"}, {path: raw.items, value: []}]}
"""


@pytest.mark.parametrize("width", ["4", "1", "nonsense"])
def test_how_many_are_under_way_at_once_was_settled_when_they_began(width: str) -> None:
    story = survives(documents(CHANGING % width))
    assert story.state.status == "completed"
    assert story.said == [1, 2, 3, 4, 4]


# Failures


def failing(*names: str) -> object:
    def play(address: str, inputs: Mapping[str, Value], times: int) -> Outcome:
        if inputs.get("text") in names:
            return f"{inputs['text']} crashed"
        return {"response": "yes"} if "prompt" in inputs else dict(inputs)

    return play


TROUBLED = """
name: troubled
default_state: {raw: {items: [a, b, c], seen: [], cleaned: []}}
steps:
  - {id: each, type: parallel_foreach, items: "{{ items }}", sub_agent_task: t, on_sub_agent_error: %s}
  - {id: end, type: Note, text: "{{ seen.slice().sort().join() }} {{ cleaned.join() }}"}
sub_agent_tasks:
  t:
    steps:
      - {id: say, type: Note, text: "{{ item }}", state_update: {path: raw.seen, operation: append, value: "{{ text }}"}}
      - {id: ask, type: Ask, prompt: "{{ item }}"}
    error_handling:
      cleanup_on_error: [{type: state_update, path: raw.cleaned, operation: append, value: "{{ item }}: {{ error.message }}"}]
"""


def troubled(how: str, order: int | None = None) -> Story:
    return survives(documents(TROUBLED % how), failing("b"), seed=order)  # type: ignore[arg-type]


@pytest.mark.parametrize("order", ORDERS)
def test_a_task_that_fails_cleans_up_and_the_others_go_on(order: int | None) -> None:
    story = troubled("{strategy: continue, error_state_path: raw.lost}", order)
    assert story.state.status == "completed"
    assert story.said[-1] == "a,c b: step 'say' failed: b crashed"
    assert story.raw["lost"] == [
        {"task_id": "t.item1", "status": "failed", "error": "step 'say' failed: b crashed", "type": "boom"}
    ]


def test_the_first_failure_can_end_all_others() -> None:
    story = troubled("fail_all")
    assert story.state.status == "failed"
    assert story.state.fault is not None
    assert "'t.item1'" in story.state.fault.message
    assert story.state.frames == {}
    assert "end" not in story.state.root.records


@pytest.mark.parametrize("failing", ["a", "b", "c"])
def test_a_failure_at_once_ends_tasks_that_have_only_just_begun(failing: str) -> None:
    text = f"""
name: at_once
steps:
  - {{id: each, type: parallel_foreach, items: [a, b, c], sub_agent_task: t, on_sub_agent_error: fail_all}}
sub_agent_tasks:
  t:
    steps:
      - {{type: conditional, condition: "item == '{failing}' && item.no.such", then: [{{type: exit}}]}}
      - {{id: ask, type: Ask, prompt: "{{{{ item }}}}"}}
"""
    story = survives(documents(text))
    assert (story.state.status, story.asked, story.state.frames) == ("failed", [], {})
    each = story.state.root.records["each"].scope
    assert each is not None
    assert {record.status for record in each.records.values()} == {"failed", "completed"}


@pytest.mark.parametrize("order", ORDERS)
def test_a_task_that_failed_is_tried_again_with_what_it_had_written(order: int | None) -> None:
    tried: Counter[str] = Counter()

    def play(address: str, inputs: Mapping[str, Value], times: int) -> Outcome:
        if inputs.get("text") == "b" and times == 1:
            return "b crashed"
        return {"response": "yes"} if "prompt" in inputs else dict(inputs)

    text = TROUBLED % "{strategy: retry_failed, max_retries: 1}"
    story = survives(documents(text), play, seed=order)
    assert story.state.status == "completed"
    assert story.said[-1] == "a,b,c b: step 'say' failed: b crashed"
    tried.update(command.key for command in story.performed)
    assert set(tried.values()) == {1}
    assert "each/1/say#2.1" in tried


# Tasks that nobody waits for


LOOSE = """
name: loose
default_state: {raw: {items: %s, flag: false, seen: []}}
steps:
  - {id: each, type: parallel_foreach, wait_for_all: false, items: "{{ %s }}", sub_agent_task: t%s}
  %s
sub_agent_tasks:
  t:
    steps: [{id: say, type: Note, text: "{{ item }}", state_update: {path: raw.seen, operation: append}}]
"""
AFTER = '- {id: after, type: Note, text: "after"}'


@pytest.mark.parametrize("after", [AFTER, ""])
@pytest.mark.parametrize("order", ORDERS)
def test_the_end_waits_for_tasks_that_nobody_waited_for(after: str, order: int | None) -> None:
    story = survives(documents(LOOSE % ("[1, 2]", "items", "", after)), seed=order)
    assert (story.state.status, len(story.raw["seen"])) == ("completed", 2)


@pytest.mark.parametrize("after", [AFTER, ""])
@pytest.mark.parametrize("how", ["skipped", "empty"])
def test_without_any_task_it_goes_on_at_once(how: str, after: str) -> None:
    parts = ("[1]", "items", ", when: flag", after) if how == "skipped" else ("[]", "items", "", after)
    story = survives(documents(LOOSE % parts))
    assert (story.state.status, story.said) == ("completed", ["after"] if after else [])


@pytest.mark.parametrize("after", [AFTER, ""])
def test_tasks_that_cannot_begin_fail_the_workflow(after: str) -> None:
    story = survives(documents(LOOSE % ("[1]", "items.x.y", "", after)))
    assert (story.state.status, story.said) == ("failed", [])
    many = survives(documents(LOOSE % ("[1, 2, 3]", "items", "", after)), limits=Limits(parallel_children=2))
    assert many.state.fault is not None
    assert many.state.fault.code == "parallel_children"


def test_a_failure_of_tasks_that_nobody_waited_for_is_the_workflow_s() -> None:
    text = LOOSE % ("[b]", "items", "", AFTER)
    story = survives(documents(text), failing("b"))  # type: ignore[arg-type]
    assert story.state.status == "failed"
    assert story.state.fault is not None
    assert "b crashed" in story.state.fault.message
    assert set(story.said) == {"b", "after"}
