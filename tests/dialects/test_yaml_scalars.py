"""Unquoted words are read as YAML 1.2 says, not as 1.1 did."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workflows_mcp.dialects.yaml.source import core_value, read_document
from workflows_mcp.values import Value


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("on", "on"),
        ("off", "off"),
        ("yes", "yes"),
        ("no", "no"),
        ("y", "y"),
        ("12:30", "12:30"),
        ("12:30:45", "12:30:45"),
        ("2026-07-28", "2026-07-28"),
        ("1_000", "1_000"),
        ("0b101", "0b101"),
        ("012", 12),
        ("0o14", 12),
        ("0x1F", 31),
        ("-7", -7),
        ("+7", 7),
        ("0x", "0x"),
        ("--", "--"),
        (".", "."),
        ("1.", 1.0),
        (".5", 0.5),
        ("1.10", 1.1),
        ("1e3", 1000.0),
        ("1.2.3", "1.2.3"),
        ("v1", "v1"),
        ("true", True),
        ("True", True),
        ("TRUE", True),
        ("tRUE", "tRUE"),
        ("false", False),
        ("null", None),
        ("~", None),
        ("", None),
        ("None", "None"),
        ("18446744073709551615", 2**64 - 1),
        ("-9223372036854775808", -(2**63)),
    ],
)
def test_words_without_quotes_mean_what_yaml_1_2_says(written: str, value: Value) -> None:
    found = read_document(f"key: {written}\n", "f.yaml").value["key"]
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize("written", ['"12"', "'true'", '"null"', "'~'", "|-\n  42", ">-\n  false"])
def test_quoted_and_block_text_stays_text(written: str) -> None:
    assert isinstance(read_document(f"key: {written}\n", "f.yaml").value["key"], str)


@pytest.mark.parametrize(
    "written", [".inf", "-.INF", ".nan", "1e999", "18446744073709551616", "-9223372036854775809", "9" * 5000]
)
def test_numbers_that_a_run_cannot_hold_are_problems(written: str) -> None:
    document = read_document(f"key: [1, {written}]\n", "f.yaml")
    [problem] = document.problems
    assert problem.code == "yaml"
    assert problem.place is not None
    assert (problem.place.line, problem.place.column) == (1, 10)
    assert document.value == {"key": [1, written]}


@settings(deadline=None)
@given(st.integers(min_value=-(2**63), max_value=2**64 - 1))
def test_every_whole_number_that_fits_is_read_as_itself(number: int) -> None:
    assert core_value(str(number)) == number


@settings(deadline=None)
@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_decimal_number_is_read_as_itself(number: float) -> None:
    assert core_value(repr(number)) == number
