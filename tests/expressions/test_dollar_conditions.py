"""Conditions: what the language has, what it refuses when it is read, and what it never confuses."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workflows_mcp.errors import ExpressionError
from workflows_mcp.expressions.dollar import Dollar
from workflows_mcp.values import Value

LANGUAGE = Dollar()
SCOPE = {
    "inputs": {
        "env": "production",
        "n": 5,
        "ratio": 0.5,
        "on": True,
        "off": False,
        "none": None,
        "truth": "True",
        "list": ["a", 2, True],
        "object": {"key": 1},
        "attack": "x' or 'a' == 'a",
        "é": "ü",
    },
    "blocks": {"test": {"succeeded": True, "status": "completed", "outputs": {"exit_code": 0}}},
    "metadata": {},
}


def holds(text: str) -> Value:
    return LANGUAGE.condition(text).evaluate(SCOPE)


@pytest.mark.rows("G6")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("${inputs.on}", True),
        ("not ${inputs.on}", False),
        ("${inputs.truth}", True),
        ("${blocks.test.succeeded} and ${inputs.env} == 'production'", True),
        ("${inputs.off} or ${inputs.n} >= 5", True),
        ("${inputs.n} == 5", True),
        ("${inputs.n} == 5.0", True),
        ("${inputs.n} != 5", False),
        ("${inputs.n} > -1 and ${inputs.ratio} < 1", True),
        ("1 < ${inputs.n} <= 5", True),
        ("'b' > 'a'", True),
        ("${inputs.env} in ['staging', 'production']", True),
        ("${inputs.env} not in ('a', 'b')", True),
        ("'prod' in ${inputs.env}", True),
        ("'key' in ${inputs.object}", True),
        ("true in ${inputs.list}", True),
        ("1 in ${inputs.list}", False),
        ("${inputs.none} == null", True),
        ("${inputs.none} is None", True),
        ("${inputs.n} is not null", True),
        ("TRUE and True and true and not FALSE", True),
        ("(${inputs.off} or ${inputs.on}) and not (${inputs.n} == 4)", True),
        ("${inputs.list} == ['a', 2, true]", True),
        ("\n  ${inputs.on}\n  and\n  ${inputs.on}\n", True),
        ('"quo\'te" == "quo\'te"', True),
        ("${inputs['env']} == \"production\"", True),
        ("${inputs.é} == 'ü'", True),
    ],
)
def test_the_language_has_what_conditions_need(text: str, expected: bool) -> None:
    assert holds(text) is expected


@pytest.mark.rows("G6")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1 == true", False),
        ("0 == false", False),
        ("${inputs.on} == 'True'", True),
        ("${inputs.on} == 'true'", True),
        ("${inputs.off} != 'False'", False),
        ("${inputs.on} == 1", False),
        ("'true' == 'True'", False),
        ("'${inputs.on}' == 'True'", True),
        ("'${inputs.on}' == 'true'", True),
        ("'${inputs.n}' == '5'", True),
        ("'n is ${inputs.n}' == 'n is 5'", True),
        ("${inputs.none} == ''", False),
    ],
)
def test_truth_numbers_and_text_are_not_confused(text: str, expected: bool) -> None:
    assert holds(text) is expected


@pytest.mark.parametrize(
    "text",
    [
        "${inputs.env} == 5",
        "5 != ${inputs.env}",
        "${inputs.n} < '6'",
        "5 in 'x5'",
        "5 in 7",
        "[1] < [2]",
        "null < 1",
    ],
)
def test_what_cannot_be_compared_is_an_error_and_not_false(text: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        holds(text)
    assert caught.value.code == "type_mismatch"


@pytest.mark.rows("G6")
@pytest.mark.parametrize("text", ["${inputs.n}", "${inputs.env}", "'yes'", "${inputs.list}", "1", "null"])
def test_a_condition_must_give_true_or_false(text: str) -> None:
    with pytest.raises(ExpressionError, match="must give true or false"):
        holds(text)


def test_what_need_not_be_known_is_not_looked_up() -> None:
    assert holds("${inputs.on} or ${inputs.missing} == 1") is True
    assert holds("${inputs.off} and ${inputs.missing} == 1") is False
    with pytest.raises(ExpressionError, match="does not exist"):
        holds("${inputs.on} and ${inputs.missing} == 1")


def test_a_value_is_data_and_never_part_of_the_condition() -> None:
    assert holds("${inputs.attack} == 'a'") is False
    assert holds("'${inputs.attack}' == 'a'") is False


@pytest.mark.parametrize(
    ("text", "at", "message"),
    [
        ("${inputs.env} = 'x'", "=", "cannot be read"),
        ("${inputs.on} && true", "& true", "cannot be read"),
        ("!${inputs.on}", "!", "cannot be read"),
        ("len(${inputs.env}) > 1", "len", "a function call is not part"),
        ("${inputs.env}.upper() == 'X'", "${", "a function call is not part"),
        ("${inputs.n} + 1 == 6", "${", "arithmetic is not part"),
        ("'é' == 'é' and ${inputs.env} == production", "production", "unknown word 'production'"),
        ("'é' == 'é' and __import__('os')", "__import__", "a function call"),
        ("true if ${inputs.on} else false", "true if", "IfExp is not part"),
        ("[x for x in [1]] == [1]", "[x", "ListComp is not part"),
        ("(lambda: true)()", "(lambda", "a function call"),
        ("{'a': 1} == 1", "{", "Dict is not part"),
        ("f'{1}' == '1'", "f'", "JoinedStr is not part"),
        ("b'x' == 'x'", "b'", "is not part"),
        ("1j == 2", "1j", "is not part"),
        ("_v0 == 1", "_v0", "unknown word '_v0'"),
        ("_ == ${inputs.n}", "_", "unknown word '_'"),
        ("${inputs.x == 1", "${", "malformed reference"),
        ("${inputs.on} and ${inputs.x", "${inputs.x", "malformed reference"),
        ("'a ${inputs.x' == 1", "${", "malformed reference"),
        ("${HOME} == 'x'", "${HOME}", "is not a reference"),
        ("'x ${inputs._y}' == 'z'", "${", "is private"),
        ("(true", "(", "never closed"),
        ("not " * 200 + "true", "not", "nested more than"),
    ],
)
def test_anything_else_is_refused_when_it_is_read_and_where_it_stands(
    text: str, at: str, message: str
) -> None:
    with pytest.raises(ExpressionError, match=message.replace("(", r"\(")) as caught:
        LANGUAGE.condition(text)
    assert text[caught.value.offset :].startswith(at)
    assert caught.value.hint


@pytest.mark.parametrize(
    "text", ["", "  ", "${inputs.n} ==", "(" * 300, "9" * 5000, "'" + "a" * 20_000 + "'"]
)
def test_what_is_empty_cut_off_or_without_end_is_refused(text: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        LANGUAGE.condition(text)
    assert 0 <= caught.value.offset <= len(text)
    assert caught.value.code == "syntax"


@pytest.mark.filterwarnings("error")
def test_nothing_is_said_about_the_style_of_a_condition() -> None:
    assert holds(r"'\d' != 'x' and 1 == 1or false") is True


def test_references_are_listed_in_quotes_too_with_where_they_stand() -> None:
    text = "'é' != '${inputs.env}' and ${blocks.test.status} in ['x${inputs.n}']"
    found = [(str(reference), reference.offset) for reference in LANGUAGE.condition(text).references]
    assert found == [
        ("inputs.env", text.index("${inputs.env")),
        ("blocks.test.status", text.index("${blocks")),
        ("inputs.n", text.index("${inputs.n}")),
    ]


@settings(deadline=None)
@given(st.text(alphabet="abnotrue_v01 ()[]{}'\"$.=<>!&|,+-\\\né", max_size=40))
def test_any_text_gives_an_answer_or_an_expression_error(text: str) -> None:
    with suppress(ExpressionError):
        assert LANGUAGE.condition(text).evaluate(SCOPE) in (True, False)
