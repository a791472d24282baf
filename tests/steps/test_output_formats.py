"""What a command has printed, as text, lines, JSON or keys and values."""

from __future__ import annotations

import pytest

from workflows_mcp.errors import StepError
from workflows_mcp.steps.output_formats import FORMATS, formatted
from workflows_mcp.values import Value, secret_mark

pytestmark = pytest.mark.rows("R9")
MARK = secret_mark("TOKEN")


@pytest.mark.parametrize("text", ["", "a\nb\n\n", "  x ", "\r\n", '{"a": 1}'])
def test_text_is_what_was_printed(text: str) -> None:
    assert formatted(text, "text") == text


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("", []),
        ("\n", []),
        ("\n\n\n", []),
        ("a", ["a"]),
        ("a\nb\n", ["a", "b"]),
        ("a\r\nb\r\n", ["a", "b"]),
        ("a\n\n  b\n\n\n", ["a", "", "  b"]),
        ("a\x0bb\u2028c\n", ["a\x0bb\u2028c"]),
    ],
)
def test_lines_have_no_empty_ones_at_the_end(text: str, lines: list[str]) -> None:
    assert formatted(text, "lines") == lines


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": [1, 2.5, null]}\n', {"a": [1, 2.5, None]}),
        ("[]", []),
        ("  null  ", None),
        ("true", True),
        ('"x"', "x"),
    ],
)
def test_json_is_the_data_that_it_says(text: str, value: Value) -> None:
    assert formatted(text, "json") == value


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "the command printed nothing; JSON was expected"),
        (" \n", "the command printed nothing; JSON was expected"),
        (
            "npm ERR! missing",
            'is not JSON (JSON is malformed: invalid character (byte 4)); it begins: "npm ERR!',
        ),
        ('{"a": 1}\n{"a": 2}\n', "the output of the command is not JSON"),
        ("[" * 200_000, "nested too deep"),
        ("x" * 10_000, 'it begins: "xxxx'),
    ],
)
def test_what_is_no_json_is_refused_with_its_beginning(text: str, says: str) -> None:
    with pytest.raises(StepError) as refused:
        formatted(text, "json")
    assert says in refused.value.message
    assert len(refused.value.message) < 300


@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        ("", {}),
        ("# only\n\n  # comments\n", {}),
        ("NAME=x\nsize: 3\n", {"NAME": "x", "size": "3"}),
        (" NAME = x y \n", {"NAME": "x y"}),
        ("A=\"a b\"\nB='c'\nC=\"it's\nD=\"\n", {"A": "a b", "B": "c", "C": "\"it's", "D": '"'}),
        ('"quoted": "v"\n', {"quoted": "v"}),
        ("export PATH=/bin:/usr/bin\n", {"PATH": "/bin:/usr/bin"}),
        ("URL=http://h:80/?a=b\nlink: http://h?a=b\n", {"URL": "http://h:80/?a=b", "link": "http://h?a=b"}),
        ("EMPTY=\nnothing:\n", {"EMPTY": "", "nothing": ""}),
        ("Model name:\tx86\n", {"Model name": "x86"}),
        ("[core]\nat 12:30 it began\nA=1\r\nA=2\n=x\n", {"A": "2"}),
    ],
)  # fmt: skip
def test_keys_and_values_are_read_off_the_lines_that_have_them(text: str, pairs: dict[str, str]) -> None:
    assert formatted(text, "key_value") == pairs


def test_output_without_any_pair_is_refused() -> None:
    with pytest.raises(StepError, match=r"no line of the form KEY=value .* begins: \"Done at 12:30\""):
        formatted("# note\nDone at 12:30\n", "key_value")


def test_there_are_four_formats() -> None:
    assert FORMATS == ("text", "lines", "json", "key_value")
    with pytest.raises(StepError, match="no output format 'jsn'") as refused:
        formatted("x", "jsn")
    assert "did you mean 'json'?" in refused.value.hint


@pytest.mark.rows("X5")
@pytest.mark.parametrize(
    ("text", "output_format", "value"),
    [
        (f"a\n{MARK}\n", "lines", ["a", MARK]),
        ("a⟦secret:\nTOKEN⟧\n", "lines", ["a[secret:", "TOKEN⟧"]),
        (f'{{"a": "{MARK}"}}', "json", {"a": MARK}),
        ('{"a": "\\u27e6secret:TOKEN\\u27e7"}', "json", {"a": "[secret:TOKEN⟧"}),
        (f"A={MARK}\n", "key_value", {"A": MARK}),
        ("⟦secret: TOKEN⟧\n", "key_value", {"[secret": "TOKEN⟧"}),
    ],
)
def test_no_format_makes_a_mark_of_a_secret_that_was_not_there(
    text: str, output_format: str, value: Value
) -> None:
    assert formatted(text, output_format) == value
