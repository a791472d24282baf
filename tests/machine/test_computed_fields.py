"""Computed fields: computed when they are read, again only when something that they come from has changed, and always
what they would be if they were computed anew."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.reactive import documents, run, survives
from support.reactive_state import State, field
from workflows_mcp.expressions.language import MISSING
from workflows_mcp.machine.program import EvaluationError
from workflows_mcp.plan.model import Computed
from workflows_mcp.values import Value

TWENTY = {f"f{n}": field(f"raw.r{n}", "input * 10") for n in range(20)}
CHAIN = {"f0": field("raw.root", "input + 1")} | {
    f"f{n}": field(f"computed.f{n - 1}", "input + 1") for n in range(1, 20)
}
DIAMOND = {
    "top": field("raw.n", "[input]"),
    "left": field("computed.top", "[input[0] + 1]"),
    "right": field("computed.top", "[input[0] + 2]"),
    "bottom": field(("computed.left", "computed.right"), "input[0][0] * input[1][0]"),
}


def twenty() -> State:
    state = State(TWENTY, {**{f"r{n}": n for n in range(20)}, "other": 0})
    assert [state[name] for name in TWENTY] == [n * 10 for n in range(20)]
    assert state.computed == list(TWENTY)
    return state


# What is computed


@pytest.mark.rows("R8")
def test_a_change_that_touches_none_of_their_inputs_computes_nothing() -> None:
    state = twenty()
    state.set("other", 1)
    state.change("list", "append", 1)
    state.change(("state", "note"), "set", "x")
    assert [state[name] for name in TWENTY] == [n * 10 for n in range(20)]
    assert state.home.flat()["f19"] == 190
    assert state.computed == []


@pytest.mark.rows("R8")
def test_a_change_computes_exactly_what_follows_from_it() -> None:
    state = twenty()
    state.set("r7", 70)
    assert [state[name] for name in TWENTY][7] == 700
    assert state.computed == ["f7"]


@pytest.mark.rows("R4", "R8")
def test_a_change_runs_down_a_chain_and_computes_every_field_once() -> None:
    state = State(CHAIN, {"root": 0, "other": 0})
    assert state["f19"] == 20
    assert state.computed == list(CHAIN)
    state.set("root", 100)
    assert (state["f19"], state["f0"], state["f10"]) == (120, 101, 111)
    assert state.computed == list(CHAIN)
    state.set("other", 1)
    assert state["f19"] == 120
    assert state.computed == []


@pytest.mark.rows("R8")
def test_in_a_diamond_every_field_is_computed_once() -> None:
    state = State(DIAMOND, {"n": 1})
    for n in (1, 5, 7):
        state.set("n", n)
        assert state["bottom"] == (n + 1) * (n + 2)
        assert state.computed == ["top", "left", "right", "bottom"]


@pytest.mark.rows("R8")
def test_what_is_never_read_is_never_computed() -> None:
    state = State({**CHAIN, "broken": field("raw.root", "input.no.such")}, {"root": 0})
    for n in range(50):
        state.set("root", n)
    assert state.computed == []
    assert state["f3"] == 49 + 4
    assert state.computed == ["f0", "f1", "f2", "f3"], "the rest of the chain is not read"


@pytest.mark.rows("R8")
def test_several_changes_before_a_read_are_one_computation() -> None:
    state = State(CHAIN, {"root": 0})
    for n in range(10):
        state.set("root", n)
    assert state["f0"] == 10
    assert state.computed == ["f0"]


def test_where_a_field_comes_out_the_same_what_follows_from_it_is_not_computed() -> None:
    computed = {
        "name": field("raw.words", "input.slice().sort().join()"),
        "shout": field("computed.name", "input.toUpperCase()"),
    }
    state = State(computed, {"words": ["some", "words"]})
    assert state["shout"] == "SOME,WORDS"
    assert state.computed == ["name", "shout"]
    state.set("words", ["words", "some"])
    assert state["shout"] == "SOME,WORDS"
    assert state.computed == ["name"]


def test_a_change_beside_what_a_field_comes_from_computes_nothing() -> None:
    computed = {
        "left": field("raw.tree.left.size", "input"),
        "whole": field("raw.tree", "Object.keys(input)"),
    }
    state = State(computed, {"tree": {"left": {"size": 1, "color": "red"}, "right": {"size": 2}}})
    assert (state["left"], state["whole"]) == (1, ["left", "right"])
    assert state.computed == ["left", "whole"]
    state.set("tree.right.size", 3)
    state.set("tree.left.color", "blue")
    assert (state["left"], state["whole"]) == (1, ["left", "right"])
    assert state.computed == ["whole"]


@pytest.mark.rows("R4")
@pytest.mark.parametrize(
    ("transform", "expected"),
    [
        ("input + extra", 11),
        ("input + raw.extra", 11),
        ("input + twice", 21),
        ("input + computed.twice", 21),
        ("(() => { const n = extra; return input + n; })()", 11),
        ("typeof extra === 'undefined' ? 0 : input + extra", 11),
        ("later ?? input + extra", 11),
        ("input + (unread => unread)(extra)", 11),
    ],
)
def test_what_a_transform_reads_by_name_is_what_it_comes_from_too(transform: str, expected: int) -> None:
    computed = {"twice": field("raw.extra", "input * 2"), "sum": field("raw.n", transform)}
    state = State(computed, {"n": 1, "extra": 10, "other": 0})
    assert state["sum"] == expected
    state.computed  # noqa: B018
    state.set("other", 1)
    assert state["sum"] == expected
    assert state.computed == []
    state.set("extra", 20)
    assert state["sum"] == (41 if "twice" in transform else 21)
    assert state.computed == (["twice", "sum"] if "twice" in transform else ["sum"])


def test_a_field_that_is_written_for_the_first_time_is_a_change() -> None:
    computed = {
        "seen": field("raw.later", "input === null ? 'nothing' : input"),
        "named": field("raw.n", "later ?? 0"),
    }
    state = State(computed, {"n": 1})
    assert (state["seen"], state["named"]) == ("nothing", 0)
    state.set("later", 5)
    assert (state["seen"], state["named"]) == (5, 5)


def test_names_are_found_in_the_order_in_which_expressions_find_them() -> None:
    computed = {
        "from_inputs": field("inputs.who", "input + who"),
        "from_config": field("raw.n", "input + limit + config.limit + only"),
        "hidden": field("raw.n", "n + both"),
    }
    state = State(
        computed,
        {"n": 1, "both": 100},
        inputs={"who": "a", "both": 7, "limit": 50},
        config={"limit": 10, "both": 8, "only": 1000},
    )
    assert (state["from_inputs"], state["from_config"], state["hidden"]) == ("aa", 1061, 101)


@pytest.mark.rows("R4")
def test_one_source_is_a_value_and_a_list_of_sources_a_list() -> None:
    state = State(
        {
            "one": field("raw.x", "input"),
            "one_of_a_list": field(("raw.x",), "input"),
            "two": field(("raw.x", "raw.y"), "input"),
            "none": Computed(transform="x + 1"),
            "fixed": Computed(static=True, value=[1]),
        },
        {"x": 1},
    )
    assert [state[name] for name in ("one", "one_of_a_list", "two", "none", "fixed")] == [
        1,
        [1],
        [1, None],
        2,
        [1],
    ]


STATES = st.dictionaries(st.sampled_from(["a", "b", "c"]), st.integers(0, 3), max_size=3)
WEB = {
    "sum": field(("raw.a", "raw.b"), "(input[0] || 0) + (input[1] || 0)"),
    "rest": field("raw.c", "input === null ? null : input - (typeof a === 'undefined' ? 0 : a)"),
    "list": field("computed.sum", "Array.from({length: input}, (_, i) => i)"),
    "both": field(("computed.list", "computed.rest"), "({n: input[0].length, rest: input[1]})"),
    "fails": field("raw.a", "input === 2 ? input.no.such : b", on_error="use_fallback", fallback="lost"),
    "after": field("computed.fails", "typeof input", on_error="ignore"),
}


@settings(max_examples=60, deadline=None)
@given(
    STATES,
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3), st.sets(st.sampled_from(sorted(WEB))))),
)
@pytest.mark.rows("R8")
def test_what_was_kept_is_what_would_be_computed_anew(
    first: dict[str, int], changes: list[tuple[str, int, set[str]]]
) -> None:
    state = State(WEB, dict(first))
    for name, value, read in changes:
        state.set(name, value)
        for other in sorted(read):
            state[other]
    assert state.home.fields.all(state.home.around()) == state.afresh()


# Errors


def stopped(state: State, name: str) -> EvaluationError:
    with pytest.raises(EvaluationError) as caught:
        state[name]
    return caught.value


@pytest.mark.rows("R6")
def test_a_transform_that_fails_gives_null_or_what_on_error_says() -> None:
    state = State(
        {
            "plain": field("raw.text", "JSON.parse(input)"),
            "spare": field("raw.text", "JSON.parse(input)", on_error="use_fallback", fallback={"a": []}),
            "absent": field("raw.text", "JSON.parse(input)", on_error="ignore"),
        },
        {"text": "{"},
    )
    assert (state["plain"], state["spare"], state["absent"]) == (None, {"a": []}, MISSING)
    assert state.home.flat() == {"text": "{", "plain": None, "spare": {"a": []}}
    assert "JSON" in str(state.home.fields.error("plain"))
    assert [trace.error is not None for trace in state.traces] == [True] * 3
    state.computed  # noqa: B018
    state.home.flat()
    assert state.computed == [], "what has failed fails again only when something has changed"
    state.set("text", '{"b": 1}')
    assert [state[name] for name in ("plain", "spare", "absent")] == [{"b": 1}] * 3
    assert state.home.fields.error("plain") is None


@pytest.mark.rows("R6")
def test_a_field_that_is_absent_is_undefined_for_others_and_hides_nothing() -> None:
    state = State(
        {
            "gone": field("raw.n", "input.no.such", on_error="ignore"),
            "both": field("raw.n", "input.no.such", on_error="ignore"),
            "reads": field("raw.n", "[typeof gone, typeof computed.gone, both]"),
        },
        {"n": 1, "both": "raw"},
    )
    assert state["reads"] == ["undefined", "undefined", "raw"]
    assert state["both"] == "raw"


@pytest.mark.rows("R6")
def test_a_field_that_propagates_its_error_keeps_the_change_from_being_made() -> None:
    state = State({"strict": field("raw.n", "input.toFixed(1)", on_error="propagate")}, {"n": 1, "m": 1})
    assert state["strict"] == "1.0"
    with pytest.raises(EvaluationError, match="the computed field 'strict' cannot be computed") as caught:
        state.home.change([(("raw", "m"), "set", 2), (("raw", "n"), "set", "text")])
    assert caught.value.fault.path == ("state_schema", "computed", "strict", "transform")
    assert caught.value.fault.workflow == "main"
    assert (state.raw, state["strict"]) == ({"n": 1, "m": 1}, "1.0")
    assert state.home._bytes() == len(b"\x82\xa3raw\x82\xa1n\x01\xa1m\x01\xa5state\x80")


@pytest.mark.rows("R6")
def test_an_error_that_propagates_goes_through_what_comes_from_the_field() -> None:
    state = State(
        {
            "strict": field("raw.n", "input.no.such", on_error="propagate"),
            "after": field("computed.strict", "1", on_error="use_fallback", fallback=0),
        },
        {"n": 1},
    )
    for name in ("strict", "after", "strict"):
        assert "'strict' cannot be computed" in stopped(state, name).fault.message
    assert state.computed == ["strict"]


@pytest.mark.rows("R6")
@pytest.mark.parametrize(
    ("on_error", "expected"),
    [("null", None), ("use_fallback", 0), ("ignore", MISSING), ("propagate", None)],
)
def test_what_is_not_valid_is_an_error(on_error: str, expected: Value) -> None:
    spec = field(
        ("raw.a", "raw.b"),
        "input[0] / input[1]",
        validate="typeof output === 'number' && isFinite(output)",
        on_error=on_error,
        fallback=0,
    )
    state = State({"ratio": spec}, {"a": 1, "b": 4})
    assert state["ratio"] == 0.25
    if on_error == "propagate":
        with pytest.raises(EvaluationError, match="'ratio'"):
            state.set("b", "x")
        return
    state.set("b", "x")
    assert state["ratio"] is expected
    assert "validate" in str(state.home.fields.error("ratio")) or "valid" in str(
        state.home.fields.error("ratio")
    )


# In a run


RUN = """
name: computing
default_state: {raw: {items: [3, 1, 2], note: ""}}
state_schema:
  computed:
    sorted: {from: raw.items, transform: "input.slice().sort((a, b) => a - b)"}
    largest: {from: computed.sorted, transform: "input[input.length - 1]"}
    report: {from: [computed.sorted, computed.largest], transform: "`${input[0].join()} ≤ ${input[1]} ${note}`"}
    never: {from: raw.items, transform: "input.no.such.thing"}
steps:
  - {id: ask, type: Ask, prompt: "{{ report }}", state_update: {path: raw.note, value: "{{ response }}"}}
  - {type: state_update, path: raw.items, operation: append, value: "{{ largest * 2 }}"}
  - {id: say, type: Note, text: "{{ report }}"}
  - {id: again, type: Ask, prompt: "{{ computed.largest }} {{ this.largest }} {{ never === null }}"}
"""


@pytest.mark.rows("R4", "R8")
def test_after_a_restart_everything_follows_from_the_state_again() -> None:
    story = survives(documents(RUN))
    assert story.asked[0][1]["prompt"] == "1,2,3 ≤ 3 "
    assert story.said == ["1,2,3,6 ≤ 6 answer 1"]
    assert story.asked[1][1]["prompt"] == "6 6 true"


@pytest.mark.rows("R6")
def test_a_field_that_propagates_fails_the_step_that_breaks_it_and_names_its_place() -> None:
    text = """
name: strict
default_state: {raw: {n: 1}}
state_schema:
  computed:
    strict: {from: raw.n, transform: "input.toFixed(1)", on_error: propagate}
steps:
  - {id: first, type: Note, text: "{{ strict }}"}
  - {id: breaks, type: Note, text: word, state_update: {path: raw.n, value: "{{ text }}"}}
  - {id: never, type: Note, text: never}
"""
    story = survives(documents(text))
    assert (story.state.status, story.said, story.raw) == ("failed", ["1.0", "word"], {"n": 1})
    fault = story.state.fault
    assert fault is not None
    assert "step 'breaks' failed: the computed field 'strict' cannot be computed" in fault.message
    assert (fault.workflow, fault.path) == ("strict", ("state_schema", "computed", "strict", "transform"))


@pytest.mark.rows("R7")
def test_a_computed_field_goes_before_a_raw_one_of_the_same_name_and_is_never_written() -> None:
    text = """
name: same
default_state: {raw: {n: 1, both: raw}, state: {both: state, own: state}}
state_schema: {computed: {both: {from: raw.n, transform: "'computed'"}}}
steps:
  - {id: say, type: Note, text: "{{ both }} {{ raw.both }} {{ state.both }} {{ own }}"}
  - {type: state_update, path: raw.both, value: changed}
  - {id: again, type: Note, text: "{{ both }} {{ raw.both }} {{ computed.both }}"}
"""
    assert run(documents(text)).said == ["computed raw state state", "computed changed computed"]
