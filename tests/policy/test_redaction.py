"""Marks for values and values for marks, whatever a value looks like and wherever it turns up."""

from __future__ import annotations

import base64
import html
import json
import subprocess
from dataclasses import dataclass
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workflows_mcp.policy.redact import PART, Redactor, filled, form_of, forms_of, split_at_marks
from workflows_mcp.values import disarmed, from_json_in_run, secret_mark

VALUE = 's3cr3t/value+x\'y "z"\\é$'
PLAIN = "plain-0123456789-value"
KEY = (
    "-----BEGIN KEY-----\n" + "\n".join(f"line{number:060d}" for number in range(4)) + "\n-----END KEY-----\n"
)


def base64_of(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def back(text: str, **values: str) -> str:
    """The text with values in place of marks again."""
    return filled(text, lambda name, label: form_of(values[name], label) or "")


@pytest.mark.parametrize(
    "text",
    [
        VALUE,
        f"before {VALUE} after {VALUE}{VALUE}",
        json.dumps({"key": VALUE}),
        json.dumps({"key": VALUE}, ensure_ascii=False),
        repr([VALUE]),
        ascii([VALUE]),
        f"https://host/?q={quote(VALUE, safe='')}&path={quote(VALUE)}&form={quote_plus(VALUE)}",
        quote(VALUE, safe="").replace("%2F", "%2f").replace("%2B", "%2b").lower(),
        json.dumps(json.dumps({"key": VALUE})),
        json.dumps(json.dumps({"key": VALUE}, ensure_ascii=False), ensure_ascii=False),
        str(VALUE.encode()),
        html.escape(VALUE),
        html.escape(VALUE, quote=False),
        html.escape(VALUE).replace("&#x27;", "&#39;").replace("&quot;", "&#34;"),
        VALUE.upper(),
        VALUE.lower(),
        base64_of(VALUE),
        base64_of(VALUE + "\n"),
        base64_of(f"user:{VALUE}"),
        base64_of(f"us:{VALUE}:and more"),
        base64_of(f"u:{VALUE}"),
        base64.urlsafe_b64encode(f"a{VALUE}".encode()).decode(),
        base64_of(VALUE).rstrip("="),
        f"-> '{VALUE}'".replace("'y", "'\\''y"),
    ],
)
def test_a_value_is_found_in_every_form_and_can_be_put_back_exactly(text: str) -> None:
    hidden = Redactor({VALUE: "NAME"}).text(text)
    assert "⟦secret:NAME" in hidden
    for part in ("s3cr3t", "S3CR3T", "czNjcjN0", "value%2B"):
        assert part not in hidden
    assert back(hidden, NAME=VALUE) == text


@pytest.mark.parametrize("text", ["HUNTER-TWENTY-TWO", "hunter-twenty-two"])
def test_a_value_in_other_case_is_found(text: str) -> None:
    hidden = Redactor({"Hunter-Twenty-Two": "NAME"}).text(f"it is {text}.")
    assert hidden.startswith("it is ⟦secret:NAME:")
    assert back(hidden, NAME="Hunter-Twenty-Two") == f"it is {text}."


def test_what_a_shell_traces_is_found() -> None:
    script = 'set -x; : "$SECRET"'
    for shell in ("sh", "bash"):
        done = subprocess.run(
            [shell, "-c", script], env={"SECRET": "it's a secret"}, capture_output=True, text=True, check=True
        )
        assert "secret:NAME" in Redactor({"it's a secret": "NAME"}).text(done.stderr)


def test_base64_that_was_broken_into_lines_is_found() -> None:
    long = "x1y2z3-" * 20
    for text in (base64_of(long), base64_of("user:" + long)):
        lines = "\n".join(text[start : start + 76] for start in range(0, len(text), 76)) + "\n"
        hidden = Redactor({long: "LONG"}).text(lines)
        assert "⟦secret:LONG:base64" in hidden
        assert len(hidden) < 60
        assert back(hidden, LONG=long).replace("\n", "") == text


def test_every_line_of_a_value_of_several_lines_is_found() -> None:
    redactor = Redactor({KEY: "KEY"})
    assert redactor.text(f"<{KEY}>") == "<⟦secret:KEY⟧>"
    words = " ".join(KEY.split("\n"))
    hidden = redactor.text(words)
    assert "line0" not in hidden
    assert "⟦secret:KEY:line2⟧" in hidden
    assert back(hidden, KEY=KEY) == words


def test_a_value_with_white_space_around_it_is_found_without_it() -> None:
    hidden = Redactor({"\thunter2\n": "PASSWORD"}).text("it is hunter2, yes")
    assert hidden == "it is ⟦secret:PASSWORD:trimmed⟧, yes"


def test_the_longest_value_wins_where_one_is_part_of_another() -> None:
    redactor = Redactor({"abcd": "SHORT", "abcd-efgh": "LONG"})
    assert redactor.text("abcd-efgh abcd-efg") == "⟦secret:LONG⟧ ⟦secret:SHORT⟧-efg"


def test_keys_lists_and_numbers_are_looked_into_and_what_is_clean_is_shared() -> None:
    redactor = Redactor({"hunter22": "P", "12345678": "PIN"})
    value = {"a": ["x", {"hunter22": 12345678}], "clean": {"n": 1, "f": 1.5, "b": True, "z": None}}
    assert redactor.value(value) == {
        "a": ["x", {"⟦secret:P⟧": "⟦secret:PIN⟧"}],
        "clean": {"n": 1, "f": 1.5, "b": True, "z": None},
    }
    assert redactor.value(value)["clean"] is value["clean"]
    assert redactor.value(value["clean"]) is value["clean"]


def test_values_that_are_not_json_themselves_but_become_it_are_looked_into() -> None:
    @dataclass
    class Found:
        text: str

    redactor = Redactor({"hunter22": "P"})
    assert redactor.value(("hunter22",)) == ["⟦secret:P⟧"]
    assert redactor.value({"a": Found("hunter22")}) == {"a": {"text": "⟦secret:P⟧"}}
    assert redactor.value({"a": {"hunter22"}}) == {"a": ["⟦secret:P⟧"]}


# Marks from outside


@pytest.mark.parametrize(
    "text",
    ["⟦secret:A⟧", "x ⟦secret:A:base64⟧ y", "⟦⟦secret:A⟧⟧", "⟦secret:⟦secret:A⟧⟧", "⟦secret:", "⟦sec", "⟦"],
)
def test_nothing_from_outside_is_a_mark_or_becomes_one_by_what_follows_it(text: str) -> None:
    clean = disarmed(text)
    assert clean != text
    for ending in ("", "secret:A⟧", "ret:A⟧", "A⟧", "⟧"):
        assert back(clean + ending, A="value") == clean + ending


@given(
    st.lists(st.sampled_from(["⟦", "secret:", "sec", "ret:", "A", ":", "base64", "⟧", "[", "x"]), max_size=12)
)
def test_texts_from_outside_never_hold_a_mark_however_they_are_joined(parts: list[str]) -> None:
    joined = "".join(disarmed("".join(parts[start : start + 3])) for start in range(0, len(parts), 3))
    assert back(joined, A="value") == joined


def test_other_brackets_are_left_alone() -> None:
    assert disarmed("⟦e⟧ρ and ⟦secrets⟧ and ⟦ secret:A⟧") == "⟦e⟧ρ and ⟦secrets⟧ and ⟦ secret:A⟧"


def test_a_mark_from_outside_is_disarmed_before_values_are_replaced() -> None:
    value = Redactor({"hunter22": "P"}).value("⟦secret:P⟧ hunter22")
    assert value == "[secret:P⟧ ⟦secret:P⟧"


@pytest.mark.parametrize(
    "text",
    [r'["\u27e6secret:A\u27e7"]', '["⟦\\u0073ecret:A⟧"]', '["⟦", "secret:A⟧"]', r'{"\u27E6secret:A⟧": 1}'],
)
def test_json_text_cannot_spell_a_mark(text: str) -> None:
    value = from_json_in_run(disarmed(text))
    joined = "".join(value)
    assert back(joined, A="value") == joined


def test_a_genuine_mark_in_json_text_stays_one() -> None:
    text = f'["{secret_mark("A")} \\u00e9", "\\u27e6secret:B\\u27e7"]'
    assert from_json_in_run(text) == ["⟦secret:A⟧ é", "[secret:B⟧"]


def test_a_text_can_be_taken_apart_at_its_marks() -> None:
    found = split_at_marks("a ⟦secret:A⟧ b ⟦secret:B:json⟧", lambda name, label: f"<{name} {label}>")
    assert found == (("a ", " b ", ""), ("<A >", "<B json>"))
    assert split_at_marks("nothing", lambda *_: "") == (("nothing",), ())


# Cuts


@pytest.mark.parametrize("length", range(1, len(PLAIN)))
def test_no_part_of_a_value_is_left_at_a_cut(length: int) -> None:
    redactor = Redactor({PLAIN: "NAME", base64_of(PLAIN)[::-1]: "OTHER"})
    assert redactor.end_of_cut("before " + PLAIN[:length]) == "before "


def test_a_whole_value_at_a_cut_is_left_for_the_mark_or_goes_as_a_whole() -> None:
    redactor = Redactor({"abcdeXab": "NAME"})  # its end could be the beginning of another one
    assert redactor.end_of_cut("1 abcdeXab") == "1 "
    assert Redactor({PLAIN: "NAME"}).end_of_cut(PLAIN) == PLAIN


def test_of_one_character_many_times_at_a_cut_only_a_part_of_one_value_goes() -> None:
    redactor = Redactor({"xxxxxxxxy": "NAME"})
    assert redactor.end_of_cut("x" * 1_000_000) == "x" * (1_000_000 - 8)


def test_parts_of_so_few_characters_can_be_left() -> None:
    redactor = Redactor({"secret-value": "NAME"})
    assert redactor.end_of_cut("progress", 4) == "progress"
    assert redactor.end_of_cut("progress secr", 4) == "progress "


@pytest.mark.parametrize("cut", ["…", "..."])
def test_where_a_text_says_that_it_was_cut_no_part_of_a_value_is_left(cut: str) -> None:
    redactor = Redactor({PLAIN: "NAME"})
    assert redactor.text(f"the value {PLAIN[:9]}{cut} is wrong") == f"the value {PART}{cut} is wrong"
    assert redactor.text(f"'{PLAIN[:9]}{cut}{PLAIN[-6:]}'") == f"'{PART}{cut}{PART}'"
    assert redactor.text(f"plaice{cut}") == f"plaice{cut}"


def test_labels_of_forms_are_what_they_say_also_for_another_value() -> None:
    for label, text in forms_of(VALUE):
        assert form_of(VALUE, label) == text
        assert label.startswith("line") or form_of("other-value", label) is not None
    assert form_of("one line", "line2") is None
    assert form_of("x", "nonsense") is None


@given(
    st.text(alphabet="abc/+ '\"\\\n%é", min_size=4, max_size=20).filter(lambda text: len(text.strip()) > 3),
    st.data(),
)
def test_what_was_taken_out_can_be_put_back_whatever_the_value(value: str, data: st.DataObject) -> None:
    around = data.draw(st.text(alphabet="xyz \n'", max_size=5))
    form = data.draw(st.sampled_from([text for _, text in forms_of(value)]))
    text = around + form + around
    hidden = Redactor({value: "V"}).text(text)
    assert "⟦secret:V" in hidden
    assert back(hidden, V=value) == text
