"""Every value, and every character of a text, can be found again in the file."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from workflows_mcp.dialects.yaml.source import Document, locate, read_document

TEXT = """\
name: places
blocks:
  - id: first
    inputs:
      command: echo ${plain} and more
      quoted: "tab\\t\\"x\\" \\u00e9 ${double}"
      single: 'it''s ${single}'
      literal: |
        one
          two ${literal}

        three
      folded: >-
        one
        two

        ${folded}
      long: some words
        go on ${continued}
      number: 1.10
      empty:
    depends_on: [a, b]
  - &anchor
    id: second
    inputs: {command: &c "x ${anchored}"}
  - <<: *anchor
    id: third
"""
INPUTS = ("blocks", 0, "inputs")


@pytest.fixture(scope="module")
def document() -> Document:
    return read_document(TEXT, "places.yaml")


@pytest.mark.parametrize(
    ("key", "marker"),
    [
        ("command", "${plain}"),
        ("quoted", "${double}"),
        ("single", "${single}"),
        ("literal", "${literal}"),
        ("folded", "${folded}"),
        ("long", "${continued}"),
    ],
)
def test_an_offset_in_a_text_is_found_in_every_style(document: Document, key: str, marker: str) -> None:
    offset = document.value["blocks"][0]["inputs"][key].index(marker)
    place = document.place((*INPUTS, key), offset)
    index = TEXT.index(marker)
    assert place.line == TEXT.count("\n", 0, index) + 1
    assert place.text[place.column - 1 :].startswith(marker)
    assert place.file == "places.yaml"


@pytest.mark.parametrize(
    ("path", "on_key", "line", "column"),
    [
        ((), False, 1, 1),
        (("name",), False, 1, 7),
        (("name",), True, 1, 1),
        (("blocks",), False, 3, 3),
        (("blocks", 0), False, 3, 5),
        ((*INPUTS, "literal"), True, 8, 7),
        ((*INPUTS, "literal"), False, 9, 9),
        ((*INPUTS, "number"), False, 20, 15),
        ((*INPUTS, "empty"), False, 21, 7),
        (("blocks", 0, "depends_on", 1), False, 22, 21),
        (("blocks", 1, "inputs", "command"), False, 25, 27),
        (("blocks", 2, "id"), False, 27, 9),
        (("blocks", 2, "inputs", "command"), False, 25, 27),
    ],
)
def test_a_path_leads_to_its_value_or_to_its_key(
    document: Document, path: tuple[str | int, ...], on_key: bool, line: int, column: int
) -> None:
    place = document.place(path, on_key=on_key)
    assert (place.line, place.column) == (line, column)


@pytest.mark.parametrize(
    ("path", "line"),
    [((*INPUTS, "missing"), 5), (("blocks", 0, "nothing", "there"), 3), (("blocks", 9), 3), (("name", 0), 1)],
)
def test_what_does_not_exist_is_shown_where_it_would_stand(
    document: Document, path: tuple[str | int, ...], line: int
) -> None:
    assert document.place(path).line == line


def test_an_offset_behind_the_end_or_in_white_space_stays_in_the_text(document: Document) -> None:
    assert document.place((*INPUTS, "number"), 99).line == 20
    end = document.value["blocks"][0]["inputs"]["command"]
    place = document.place((*INPUTS, "command"), len(end))
    assert (place.line, place.column) == (5, len(place.text) + 1)


def test_a_scalar_is_given_back_as_it_is_written(document: Document) -> None:
    assert document.written((*INPUTS, "number")) == "1.10"
    assert document.written(("blocks",)) is None
    assert document.written(("nothing",)) is None


def test_a_place_can_be_found_in_a_source_that_is_read_again() -> None:
    place = locate(TEXT.replace("\n", "\r\n"), "again.yaml", (*INPUTS, "literal"), 10)
    assert str(place) == "again.yaml:10:15"
    assert locate("a: [", "f.yaml", ("a",)) is None
    assert str(locate("", "f.yaml", ("a",))) == "f.yaml:1:1"


WORDS = st.sampled_from(
    ["word", "it's", '"said"', "a: b", "# no", "\\", "\n", "\n\n", "  ", "\t", "é", "日本", "- x", "{", "$"]
)


@settings(max_examples=200, deadline=None)
@given(
    before=st.lists(WORDS, max_size=12),
    after=st.lists(WORDS, max_size=6),
    style=st.sampled_from([None, "'", '"', "|", ">"]),
    width=st.sampled_from([10, 30, 1000]),
    nested=st.booleans(),
)
def test_any_text_in_any_style_leads_back_to_its_source(
    before: list[str], after: list[str], style: str | None, width: int, nested: bool
) -> None:
    value = " ".join([*before, "${here}", *after])
    source = {"outer": {"key": value}} if nested else {"key": value}
    text = yaml.dump(source, default_style=style, width=width, allow_unicode=True)
    path = ("outer", "key") if nested else ("key",)
    document = read_document(text, "f.yaml")
    place = document.place(path, value.index("${here}"))
    assert place.text[place.column - 1 :].startswith("${here}")
