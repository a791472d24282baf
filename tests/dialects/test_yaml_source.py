"""Files become data; what is wrong with them as YAML is reported without losing the rest."""

from __future__ import annotations

import gc

import pytest

from workflows_mcp.dialects.yaml.source import read_document
from workflows_mcp.errors import DefinitionError, Problem
from workflows_mcp.limits import Limits
from workflows_mcp.values import Value


def refused(text: str, limits: Limits | None = None) -> Problem:
    with pytest.raises(DefinitionError) as caught:
        read_document(text, "f.yaml", limits or Limits())
    [problem] = caught.value.problems
    return problem


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("# nothing\n", None),
        ("a: 1\nb: [x, {c: d}]\n", {"a": 1, "b": ["x", {"c": "d"}]}),
        ("\ufeffa: 1\r\nb: |\r\n  x\r\n  y\r\n", {"a": 1, "b": "x\ny\n"}),
        ("5: a\ntrue: b\n~: c\n1.10: d\n", {"5": "a", "true": "b", "~": "c", "1.10": "d"}),
        ("a: &x {b: 1}\nc: *x\n", {"a": {"b": 1}, "c": {"b": 1}}),
        ("base: &b {x: 1, y: 2}\nd:\n  <<: *b\n  y: 3\n", {"base": {"x": 1, "y": 2}, "d": {"y": 3, "x": 1}}),
        (
            "a: &a {x: 1}\nb: &b {x: 2, y: 2}\nc:\n  <<: [*a, *b]\n",
            {"a": {"x": 1}, "b": {"x": 2, "y": 2}, "c": {"x": 1, "y": 2}},
        ),
        ('"<<": text\n', {"<<": "text"}),
        ("when: 12:30\non: push\n", {"when": "12:30", "on": "push"}),
    ],
)
def test_a_document_is_read_as_data(text: str, value: Value) -> None:
    document = read_document(text, "f.yaml")
    assert document.problems == []
    assert document.value == value


def test_an_alias_gives_each_place_a_value_of_its_own() -> None:
    value = read_document("a: &x {b: [1]}\nc: *x\n", "f.yaml").value
    value["a"]["b"].append(2)
    assert value["c"] == {"b": [1]}


def test_a_duplicate_key_names_both_lines_and_the_first_value_counts() -> None:
    document = read_document("a: 1\nb:\n  c: 2\n  d: 3\n  c: 4\na: 5\n", "f.yaml")
    assert document.value == {"a": 1, "b": {"c": 2, "d": 3}}
    assert [problem.message for problem in document.problems] == [
        "the key 'c' is used twice: on line 3 and on line 5",
        "the key 'a' is used twice: on line 1 and on line 6",
    ]


@pytest.mark.parametrize("kind", ["prompt", "user_input"])
def test_a_second_type_of_a_prompt_is_the_type_of_what_is_asked_for(kind: str) -> None:
    text = f"- id: ask\n  type: {kind}\n  type: confirm\n"
    document = read_document(text, "f.yaml")
    assert document.problems == []
    assert document.value == [{"id": "ask", "type": kind, "prompt_type": "confirm"}]
    assert document.place((0, "prompt_type")).line == 3
    assert len(read_document(text + "  type: text\n", "f.yaml").problems) == 1


def test_a_second_type_of_anything_else_is_a_duplicate() -> None:
    [problem] = read_document("type: Prompt\ntype: confirm\n", "f.yaml").problems
    assert problem.code == "duplicate_key"


@pytest.mark.parametrize(
    "text", ["a: !!python/name:os.system x\n", "a: !secret b\n", "!x a: b\n", "- !!str 5\n"]
)
def test_tags_are_refused_wherever_they_stand(text: str) -> None:
    assert [problem.code for problem in read_document(text, "f.yaml").problems] == ["tag"]


@pytest.mark.parametrize("text", ["? [a, b]\n: c\n", "{[a]: b}\n"])
def test_a_key_that_is_no_word_is_refused(text: str) -> None:
    [problem] = read_document(text, "f.yaml").problems
    assert "a key must be text" in problem.message


@pytest.mark.parametrize("text", ["a: {<<: 5}\n", "a: {<<: [1]}\n"])
def test_only_mappings_can_be_merged(text: str) -> None:
    document = read_document(text, "f.yaml")
    assert document.value == {"a": {}}
    assert ["merges mappings only" in problem.message for problem in document.problems] == [True]


@pytest.mark.parametrize(
    ("text", "place", "hint"),
    [
        ("a:\n\t- b\n", "f.yaml:2:1", "use spaces"),
        ("a: [1, 2\n", "f.yaml:2:1", "check indentation, quotes and brackets"),
        ("a: @b\n", "f.yaml:1:4", "needs quotes"),
        ("a: *b\n", "f.yaml:1:4", "starts with '*'"),
        ('a: "\\q"\n', "f.yaml:1:5", "single quotes"),
        ("a: 1\n---\nb: 2\n", "f.yaml:2:1", "one workflow"),
        ("- a\nb: c\n", "f.yaml:2:1", "same column"),
        ("a: é\x01\n", "f.yaml:1:5", "remove the character"),
        ("a: \ud800\n", "f.yaml:1:4", "UTF-8"),
        ("a:\n  - b\n c: d\n", "f.yaml:3:2", "same column"),
    ],
)
def test_what_is_not_yaml_is_told_with_its_place_and_what_to_do(text: str, place: str, hint: str) -> None:
    problem = refused(text)
    assert problem.code == "yaml"
    assert str(problem.place) == place
    assert hint in problem.hint


def test_a_file_that_is_too_large_is_not_parsed_and_the_setting_is_named() -> None:
    problem = refused("ä" * 60, Limits(document_bytes=100))
    assert "120 bytes" in problem.message
    assert "WORKFLOWS_LIMIT_DOCUMENT_BYTES" in problem.hint


@pytest.mark.parametrize("opening", ["[", "- ", "{a: ", "? "])
def test_nesting_without_end_is_refused_before_the_stack_is_used_up(opening: str) -> None:
    problem = refused("a: 1\nb:\n  " + opening * 300_000)
    assert problem.code == "too_deep"
    assert problem.place is not None
    assert problem.place.line == 3


def test_as_many_levels_as_the_limit_says_are_fine() -> None:
    limits = Limits(document_depth=10)
    assert read_document("[" * 10 + "]" * 10, "f.yaml", limits).problems == []
    assert refused("[" * 11 + "]" * 11, limits).code == "too_deep"


def test_aliases_are_counted_each_time_they_are_followed() -> None:
    text = "a: &a [1, 2, 3, 4]\nb: [*a, *a, *a]\n"
    assert read_document(text, "f.yaml", Limits(document_nodes=25)).problems == []
    assert refused(text, Limits(document_nodes=15)).code == "too_large"


def test_the_collector_is_left_as_it_was() -> None:
    assert gc.isenabled()
    read_document("a: 1\n", "f.yaml")
    refused("a: [\n")
    assert gc.isenabled()
    gc.disable()
    try:
        read_document("a: 1\n", "f.yaml")
        assert not gc.isenabled()
    finally:
        gc.enable()
