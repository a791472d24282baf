"""Changes of the state of a reactive workflow: what each operation does and refuses, all or nothing, of the declared
types, and at a cost that has nothing to do with what is not touched."""

from __future__ import annotations

import copy
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.reactive import documents, run, survives
from support.reactive_state import State, field
from workflows_mcp.expressions.javascript import engine
from workflows_mcp.limits import Limits
from workflows_mcp.machine import changes
from workflows_mcp.machine.changes import Path, WrongChange, changed, path_text, size_of
from workflows_mcp.machine.events import Started
from workflows_mcp.machine.machine import Machine
from workflows_mcp.plan.model import ChangeOperation
from workflows_mcp.values import Value

START: dict[str, Value] = {
    "raw": {"n": 1, "text": "word", "list": [1, {"a": 1}], "object": {"a": {"b": 1}}, "nothing": None},
    "state": {},
}


def after(path: Path, operation: ChangeOperation, value: Value) -> dict[str, Value]:
    before = copy.deepcopy(START)
    state, _ = changed(START, path, operation, value)
    assert before == START, "a state is never changed in place"
    return state


# What operations do


@pytest.mark.rows("R8")
@pytest.mark.parametrize(
    ("operation", "path", "value", "expected"),
    [
        ("set", ("raw", "n"), 5, 5),
        ("set", ("raw", "new"), [1], [1]),
        ("set", ("raw", "object", "a", "c", "d"), 1, 1),
        ("set", ("raw", "nothing", "x"), 1, 1),
        ("set", ("raw", "list", 0), 9, 9),
        ("set", ("raw", "list", "1", "a"), 9, 9),
        ("set", ("raw", "list", 2), "one more", "one more"),
        ("set", ("raw", "object", "a.b/c"), 1, 1),
        ("set", ("state", "version"), "1.0", "1.0"),
        ("append", ("raw", "list"), 3, [1, {"a": 1}, 3]),
        ("append", ("raw", "list"), [3], [1, {"a": 1}, [3]]),
        ("append", ("raw", "new"), 3, [3]),
        ("append", ("raw", "nothing"), 3, [3]),
        ("append", ("raw", "new", "deep"), None, [None]),
        ("increment", ("raw", "n"), 2, 3),
        ("increment", ("raw", "n"), -0.5, 0.5),
        ("increment", ("raw", "new"), 1, 1),
        ("increment", ("raw", "nothing"), 1, 1),
        ("increment", ("raw", "list", 0), 1, 2),
        ("merge", ("raw", "object"), {"a": 1, "z": 2}, {"a": 1, "z": 2}),
        ("merge", ("raw", "object", "a"), {"c": 2}, {"b": 1, "c": 2}),
        ("merge", ("raw", "new"), {"c": 2}, {"c": 2}),
        ("merge", ("raw", "nothing"), {}, {}),
    ],
)
def test_what_an_operation_does(
    operation: ChangeOperation, path: Path, value: Value, expected: Value
) -> None:
    state: Any = after(path, operation, value)
    for key in path:
        state = state[int(key)] if isinstance(state, list) else state[key]
    assert state == expected


@pytest.mark.rows("R7", "R8")
@pytest.mark.parametrize(
    ("operation", "path", "value", "message"),
    [
        ("set", ("computed", "x"), 1, "'computed.x' cannot be written: it is a computed field"),
        ("set", ("inputs", "x"), 1, "'inputs.x' cannot be written"),
        ("set", ("n",), 1, "'n' cannot be written"),
        ("set", (), 1, "cannot be written"),
        ("set", ("raw",), 1, "'raw' as a whole must be an object, not integer"),
        (
            "set",
            ("raw", "text", "x"),
            1,
            "'raw.text' is text \"word\": nothing can be written at 'raw.text.x'",
        ),
        ("set", ("raw", "n", "x", "y"), 1, "'raw.n' is integer 1"),
        ("set", ("raw", "list", 5), 1, "'raw.list' is a list of 2 items: it has none at 5"),
        ("set", ("raw", "list", "x"), 1, "'raw.list' is a list of 2 items: it has none at \"x\""),
        ("set", ("raw", "list", -1), 1, "it has none at -1"),
        ("append", ("raw", "text"), 1, "'raw.text' is text \"word\", and nothing can be appended to it"),
        ("append", ("raw", "object"), 1, "'raw.object' is object"),
        ("increment", ("raw", "text"), 1, "'raw.text' cannot be incremented: it is text"),
        ("increment", ("raw", "n"), "1", "'raw.n' cannot be incremented: the value is text"),
        ("increment", ("raw", "n"), True, "the value is boolean"),
        ("increment", ("raw", "n"), None, "the value is null"),
        ("increment", ("raw", "n"), 2**63, "the sum is too large for a number"),
        ("increment", ("raw", "n"), float("inf"), "the sum is too large for a number"),
        ("merge", ("raw", "list"), {}, "'raw.list' cannot be merged: it is list"),
        ("merge", ("raw", "object"), [1], "'raw.object' cannot be merged: the value is list"),
        ("merge", ("raw", "n"), {}, "'raw.n' cannot be merged: it is integer 1"),
    ],
)
def test_what_an_operation_refuses(
    operation: ChangeOperation, path: Path, value: Value, message: str
) -> None:
    with pytest.raises(WrongChange) as caught:
        after(path, operation, value)
    assert message in str(caught.value)
    assert caught.value.hint


def test_a_path_is_spelt_as_it_is_written() -> None:
    assert path_text(("raw", "results", "src/a.ts", 0, "errors")) == 'raw.results["src/a.ts"][0].errors'
    assert path_text(("raw", "list", "1", "x")) == "raw.list.1.x"


# Types


@pytest.mark.rows("R4")
@pytest.mark.parametrize(
    ("declared", "good", "bad"),
    [
        ("string", ["", "x"], [1, True, [], {}]),
        ("number", [1, 1.5, -1], ["1", True, []]),
        ("integer", [1, 2.0], [1.5, "1", True]),
        ("boolean", [True, False], [0, 1, "true"]),
        ("array", [[], [1]], ["", {}, 0]),
        ("object", [{}, {"a": 1}], [[], "x"]),
        ("any", [1, "x", [], {}], []),
        ("timestamp", ["2026-01-01T00:00:00Z", 5], []),
    ],
)
def test_a_raw_field_is_what_it_is_declared_to_be(declared: str, good: list[Value], bad: list[Value]) -> None:
    state = State({}, {"n": None}, raw_types={"n": declared})
    for value in (*good, None):
        state.set("n", value)
    for value in bad:
        before = state.raw
        with pytest.raises(WrongChange, match=f"'raw.n' is declared as {declared}, and cannot be"):
            state.set("n", value)
        assert state.raw is before
    state.set("other", 1)
    state.set(("state", "n"), "what is declared of raw says nothing of state")


@pytest.mark.rows("R4")
def test_types_are_looked_at_after_the_operation() -> None:
    state = State({}, {"items": [], "count": 1}, raw_types={"items": "array", "count": "integer"})
    state.change("items", "append", "x")
    state.change("count", "increment", 1)
    with pytest.raises(WrongChange, match=r"'raw.count' is declared as integer, and cannot be number 2.5"):
        state.change("count", "increment", 0.5)
    assert state.raw == {"items": ["x"], "count": 2}


@pytest.mark.rows("R4")
def test_a_field_is_looked_at_also_where_more_or_less_than_it_is_written() -> None:
    state = State({}, {}, raw_types={"items": "array", "count": "number"})
    with pytest.raises(WrongChange, match=r"'raw\.items' is declared as array, and cannot be object"):
        state.set("items.first", 1)
    with pytest.raises(WrongChange, match=r"'raw\.count' is declared as number, and cannot be text"):
        state.change(("raw",), "merge", {"other": 1, "count": "many"})
    assert state.raw == {}
    state.change(("raw",), "set", {"count": 1, "items": []})
    state.set("items.0", "first")
    assert state.raw == {"count": 1, "items": ["first"]}


# All or nothing


@pytest.mark.rows("R8")
def test_several_changes_are_made_together_or_not_at_all() -> None:
    state = State({"sum": field(("raw.a", "raw.b"), "input[0] + input[1]")}, {"a": 1, "b": 2})
    state.home.change(
        [(("raw", "a"), "increment", 1), (("raw", "a"), "increment", 1), (("raw", "b"), "set", 5)]
    )
    assert (state.raw, state["sum"]) == ({"a": 3, "b": 5}, 8)
    before = state.raw
    with pytest.raises(WrongChange):
        state.home.change([(("raw", "a"), "set", 100), (("raw", "b"), "append", 1)])
    assert state.raw is before
    assert state["sum"] == 8


@pytest.mark.rows("R8", "R14")
def test_updates_of_one_step_see_the_state_before_it_and_all_apply_or_none() -> None:
    text = """
name: together
default_state: {raw: {a: 1, b: 2}}
steps:
  - {type: state_update, updates: [{path: raw.a, value: "{{ b }}"}, {path: raw.b, value: "{{ a }}"}, {path: raw.log, operation: append, value: "{{ a + b }}"}]}
  - {id: swapped, type: Note, text: "{{ a }} {{ b }} {{ log }}"}
  - {id: bad, type: state_update, on_error: continue, updates: [{path: raw.a, value: 7}, {path: raw.b, operation: append, value: 1}]}
  - {id: same, type: Note, text: "{{ a }} {{ b }}"}
"""
    story = survives(documents(text))
    assert story.said == ["2 1 [3]", "2 1"]
    bad = story.state.root.records["bad"]
    assert bad.fault is not None
    assert bad.fault.code == "state_update"
    assert bad.fault.path == ("steps", 2, "updates", 1, "path")


@pytest.mark.rows("R8", "R14")
def test_what_a_result_changes_is_changed_together_or_the_step_fails() -> None:
    text = """
name: result
default_state: {raw: {n: 1, seen: []}}
state_schema: {raw: {n: number}}
steps:
  - id: say
    type: Note
    text: word
    state_update: [{path: raw.seen, operation: append, value: "{{ text }}"}, {path: raw.n, value: "{{ result.text }}"}]
"""
    story = survives(documents(text))
    assert (story.state.status, story.raw) == ("failed", {"n": 1, "seen": []})
    assert story.state.fault is not None
    assert "'raw.n' is declared as number, and cannot be text \"word\"" in story.state.fault.message


# How large


KEYS = st.sampled_from(["a", "b", "a rather long key of the state", "é"])
LEAVES = st.one_of(st.integers(-(2**40), 2**40), st.floats(allow_nan=False), st.text(max_size=40), st.none())
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=18) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=20,
)
CHANGES = st.tuples(
    st.sampled_from(["set", "append", "increment", "merge"]),
    st.lists(st.one_of(KEYS, st.integers(0, 17)), min_size=1, max_size=4),
    VALUES,
)


@settings(max_examples=150, deadline=None)
@given(st.lists(CHANGES, max_size=12))
def test_the_size_is_counted_as_it_would_be_measured(
    wanted: list[tuple[ChangeOperation, list[str | int], Value]],
) -> None:
    """After a restart it is measured: it must not decide otherwise then."""
    state: dict[str, Value] = {"raw": {}, "state": {}}
    size = size_of(state)
    for operation, path, value in wanted:
        try:
            state, grown = changed(state, ("raw", *path), operation, value)
        except WrongChange:
            continue
        size += grown
        assert size == size_of(state)


def test_a_state_that_would_get_too_large_stays_as_it_was_and_the_largest_field_is_named() -> None:
    state = State({}, {"small": 1, "big": "x" * 900}, limits=Limits(state_bytes=1000))
    with pytest.raises(WrongChange, match="at most 1000 are allowed") as caught:
        state.change("list", "append", "y" * 200)
    assert "WORKFLOWS_LIMIT_STATE_BYTES" in str(caught.value)
    assert "the largest field is 'raw.big'" in str(caught.value)
    state.set("big", "")
    state.change("list", "append", "y" * 200)


def nested(depth: int) -> Value:
    value: Value = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize("value", [2**64, -(2**63) - 1, nested(201), {"deep": nested(5000)}, "\ud800"])
def test_what_could_not_be_written_down_is_not_taken(value: Value) -> None:
    state = State({}, {"n": 1})
    changes: list[tuple[ChangeOperation, Value]] = [
        ("set", value),
        ("append", value),
        ("merge", {"x": value}),
    ]
    for operation, it in changes:
        with pytest.raises(WrongChange, match=r"the value for 'raw\.m' cannot be kept"):
            state.change("m", operation, it)
    assert state.raw == {"n": 1}


def test_a_value_that_gets_deeper_and_deeper_ends_the_run_before_it_cannot_be_kept() -> None:
    text = """
name: deeper
default_state: {raw: {n: 0, x: 1}}
steps:
  - id: loop
    type: while
    condition: "{{ true }}"
    max_iterations: 2000
    body: [{type: state_update, path: raw.x, value: "{{ [x] }}"}, {type: state_update, path: raw.n, operation: increment}]
"""
    bundle = documents(text)
    story = run(bundle)
    assert story.state.status == "failed"
    assert story.raw["n"] == 198, "the keys that lead to it count too"
    assert Machine(bundle, story.machine.snapshot()).state.root.state["raw"]["n"] == story.raw["n"]


def test_a_loop_that_fills_the_state_ends_in_the_same_round_whether_it_crashed_or_not() -> None:
    text = """
name: growing
default_state: {raw: {n: 0, results: {}, names: []}}
steps:
  - id: loop
    type: while
    condition: "{{ true }}"
    body:
      - {type: state_update, path: raw.n, operation: increment}
      - {id: say, type: Note, text: "{{ n }}", state_update: [{path: "raw.results.{{ 'file_number_' + n }}.status", value: ok}, {path: raw.names, operation: append, value: "{{ String(n) }}"}]}
"""
    story = survives(documents(text), limits=Limits(state_bytes=700))
    assert story.state.status == "failed"
    assert story.state.fault is not None
    assert "700 are allowed" in story.state.fault.message
    assert story.raw["n"] == len(story.raw["names"]) + 1


# What a change costs


class Work:
    """What was done, counted: bytes that were written as MessagePack or JSON, and containers that were made."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.encoded = self.sent = 0
        encode, send = changes._encode, engine._encode

        def counted(value: Value) -> bytes:
            body = encode(value)
            self.encoded += len(body)
            return body

        def sent(value: Value) -> bytes:
            body = send(value)
            self.sent += len(body)
            return body

        monkeypatch.setattr(changes, "_encode", counted)
        monkeypatch.setattr(engine, "_encode", sent)


def containers(value: Value) -> dict[int, Value]:
    found: dict[int, Value] = {}
    if isinstance(value, dict | list):
        found[id(value)] = value
        for item in value.values() if isinstance(value, dict) else value:
            found |= containers(item)
    return found


def unrelated(kilobytes: int) -> dict[str, Value]:
    """As much of it as is said, of all kinds."""
    lines = [{"line": number, "text": "x" * 40} for number in range(kilobytes * 8)]
    return {
        "lines": lines,
        "text": "y" * (kilobytes * 500),
        "by_name": {f"k{n}": [n] for n in range(kilobytes)},
    }


UPDATES: list[tuple[str, ChangeOperation, Value]] = [
    ("n", "increment", 1),
    ("note", "set", "new"),
    ("list", "append", 1),
    ("object", "merge", {"b": 2}),
    ("deep.a.b", "set", 1),
]


@pytest.mark.rows("R8")
@pytest.mark.parametrize(("path", "operation", "value"), UPDATES)
def test_a_change_costs_the_same_whatever_else_is_in_the_state(
    path: str, operation: ChangeOperation, value: Value, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = Work(monkeypatch)
    costs = []
    for kilobytes in (1, 500):
        computed = {"next": field("raw.n", "input + note.length"), "first": field("raw.list", "input[0]")}
        raw = {"n": 0, "note": "", "list": [], "object": {"a": 1}, "deep": {"a": {}}, **unrelated(kilobytes)}
        state = State(computed, raw)
        state.home._bytes()  # it is measured once
        before = containers(state.home.scope.state)
        work.encoded = work.sent = 0
        state.change(path, operation, value)
        assert (state["next"], state["first"]) is not None
        new = [it for it in containers(state.home.scope.state) if it not in before]
        costs.append((work.encoded, work.sent, len(new)))
    assert costs[0] == costs[1]
    assert costs[0][0] < 100
    assert costs[0][1] < 100
    assert costs[0][2] <= 4, "the state, its part, and what is on the way"


@pytest.mark.rows("R8")
def test_a_step_of_a_run_costs_the_same_whatever_else_is_in_the_state(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = """
name: costs
inputs: {filling: object}
default_state: {raw: {n: 0, note: "x"}}
state_schema: {computed: {next: {from: raw.n, transform: input + 1}, big: {from: raw.filling, transform: input.lines.length}}}
steps:
  - id: loop
    type: while
    condition: "{{ n < 5 && raw.note && this.note && state !== null }}"
    body:
      - {type: state_update, path: raw.n, value: "{{ next }}"}
      - {type: user_message, message: "{{ raw.n }} {{ computed.next }} {{ inputs.filling.lines.length }}"}
"""
    work = Work(monkeypatch)
    sent = []
    for kilobytes in (1, 500):
        machine = Machine(documents(text))
        inputs = {"filling": unrelated(kilobytes)}
        work.encoded = work.sent = 0
        machine.apply(Started(0.0, "wf_1", inputs))
        assert machine.state.status == "completed", machine.state.fault
        measured = len(msgspec.msgpack.encode({"raw": {"n": 0, "note": "x", **inputs}, "state": {}}))
        sent.append((work.sent, work.encoded - measured))
    assert abs(sent[0][0] - sent[1][0]) < 100, "digits of a length apart"
    assert sent[0][1] == sent[1][1]


def test_a_run_with_inputs_has_them_in_raw_over_its_first_values() -> None:
    text = """
name: inputs
inputs: {who: {type: string, default: me}, none: {type: string, required: false}}
default_state: {raw: {who: nobody, none: kept, n: "{{ inputs.who }}!"}}
steps: [{type: state_update, path: raw.who, value: "{{ who }} {{ inputs.who }}"}]
"""
    assert run(documents(text), inputs={"who": "you"}).raw == {"who": "you you", "none": "kept", "n": "you!"}
