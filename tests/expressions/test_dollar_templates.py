"""`${…}` in text: what is a reference, what is left alone, and what becomes of the values."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workflows_mcp.errors import ExpressionError
from workflows_mcp.expressions.dollar import Dollar, OldDollar
from workflows_mcp.expressions.language import MISSING, Code
from workflows_mcp.values import Value

LANGUAGE = Dollar()


class Blocks:
    """A namespace as a run has it: looked up, never stored."""

    def lookup(self, name: str) -> object:
        return {"outputs": {"files": ["a", "b"], "n": 3}, "succeeded": True} if name == "build" else MISSING

    def names(self) -> list[str]:
        return ["build"]

    def plain(self) -> Value:
        return {"build": "everything"}


SCOPE = {
    "inputs": {
        "name": "Ada",
        "n": 42,
        "ratio": 1.5,
        "yes": True,
        "no": False,
        "nothing": None,
        "list": [1, {"a": "b"}],
        "object": {"k": [True]},
        "dashed-name": "d",
        "with space": "s",
        "sneaky": "${inputs.n}",
        "padded": " 1.2\n",
        "lines": "a\n\nb c\n",
        "json": '{"k": [1]}',
        "path": "src/main.py",
    },
    "metadata": {"workflow_name": "w"},
    "blocks": Blocks(),
}


def value(text: str) -> Value:
    return LANGUAGE.template(text).evaluate(SCOPE)


@pytest.mark.rows("G3")
@pytest.mark.parametrize("name", ["n", "ratio", "yes", "nothing", "list", "object", "name"])
def test_a_text_that_is_exactly_one_reference_gives_the_value_itself(name: str) -> None:
    assert value(f"${{inputs.{name}}}") is SCOPE["inputs"][name]  # type: ignore[index]
    assert value(f"${{ inputs.{name} }}") is SCOPE["inputs"][name]  # type: ignore[index]


@pytest.mark.rows("G3")
@pytest.mark.parametrize(("around", "text"), [("{} ", "42 "), ("\n{}\n", "\n42\n"), ("{}\n", "42\n")])
def test_white_space_around_a_reference_makes_it_text(around: str, text: str) -> None:
    assert value(around.format("${inputs.n}")) == text
    assert OldDollar().template(around.format("${inputs.n}")).evaluate(SCOPE) == 42


@pytest.mark.rows("G3")
@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("v${inputs.padded | trim}", "v1.2"),
        ("${inputs.padded|trim|upper}", "1.2"),
        ("${inputs.lines | lines}", ["a", "b c"]),
        ("${inputs.json | json}", {"k": [1]}),
        ("${inputs.list | tojson}", '[1,{"a":"b"}]'),
        ("${inputs.list | length}", 2),
        ("${inputs.lines | lines | join(' + ')}", "a + b c"),
        ("${inputs.lines | lines | join}", "a,b c"),
        ("${inputs.name | lower}-${inputs.name | upper}", "ada-ADA"),
        ("${inputs.path | basename}", "main.py"),
        ("${inputs.nothing | default('none (yet)')}", "none (yet)"),
        ("${inputs.object.missing | default([1, true])}", [1, True]),
        ("${inputs.no | default(true)}", False),
        ("${inputs.nothing | default('}') | upper} ${inputs.n}", "} 42"),
    ],
)
def test_a_value_goes_through_filters(template: str, expected: Value) -> None:
    assert value(template) == expected


def test_filters_are_applied_before_a_value_goes_into_a_command() -> None:
    code = LANGUAGE.code('echo "v${inputs.padded | trim}" ${inputs.lines | lines}').evaluate(SCOPE)
    assert code == Code(('echo "v', '" ', ""), ("1.2", ["a", "b c"]))


def test_filters_work_in_conditions() -> None:
    condition = LANGUAGE.condition(
        "${inputs.padded | trim} == '1.2' and ${inputs.lines | lines | length} == 2"
    )
    assert condition.evaluate(SCOPE) is True


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("${inputs.x | fromjson}", "no filter 'fromjson'", "write: json"),
        ("${inputs.x | trm}", "no filter 'trm'", "did you mean 'trim'?"),
        ("${inputs.x | default}", "takes 1 argument", "default('latest')"),
        ("${inputs.x | trim(1)}", "takes no arguments, not 1", ""),
        ("${inputs.x | default(latest)}", "arguments of the filter 'default'", "in quotes"),
        ("${inputs.x |}", "malformed reference", "${inputs.name | trim}"),
    ],
)
def test_a_wrong_filter_is_found_when_the_text_is_read(text: str, message: str, hint: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        LANGUAGE.template(text)
    assert message in caught.value.message
    assert hint in caught.value.hint


def test_a_filter_refuses_what_it_cannot_be_applied_to() -> None:
    with pytest.raises(ExpressionError, match=r"cannot be applied to list"):
        value("${inputs.list | trim}")
    with pytest.raises(ExpressionError) as caught:
        value("${inputs.nothing | trim}")
    assert "default" in caught.value.hint


def test_an_expression_in_braces_of_its_own_is_evaluated() -> None:
    assert value("${(${inputs.yes} or ${inputs.no}) and ${inputs.n} == 42}") is True
    assert LANGUAGE.output("${not ${inputs.yes}}").evaluate(SCOPE) is False
    assert LANGUAGE.condition("${${inputs.yes} and ${inputs.no}}").evaluate(SCOPE) is False
    with pytest.raises(ExpressionError, match="can only stand alone"):
        LANGUAGE.template("is ${(${inputs.yes})}")


@pytest.mark.rows("G3")
@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("Hello ${inputs.name}!", "Hello Ada!"),
        ("${inputs.n}${inputs.ratio}", "421.5"),
        ("${inputs.yes}/${inputs.no}", "true/false"),
        ("[${inputs.nothing}]", "[]"),
        ("x ${inputs.list}", 'x [1,{"a":"b"}]'),
        ("x ${inputs.object}", 'x {"k":[true]}'),
        ("${ inputs.name } ok", "Ada ok"),
        ("${inputs.list[1].a} ${inputs['with space']} ${inputs.dashed-name}", "b s d"),
        ('${blocks["build"].outputs.files[1]}.', "b."),
        ("plain", "plain"),
        ("", ""),
    ],
)
def test_anything_else_is_text(template: str, text: str) -> None:
    assert value(template) == text


@pytest.mark.parametrize(
    "text",
    [
        "${HOME}/bin",
        "${HOME:-x} ${#list} ${file%.txt} ${array[0]} ${array[@]}",
        "$HOME $1 $$ $(date) ${",
        "${inputs_dir} ${inputs-dir}",
        "${{ matrix.os }}",
        "cost: $5",
    ],
)
def test_names_of_the_shell_are_left_alone_in_commands(text: str) -> None:
    assert LANGUAGE.code(text).evaluate(SCOPE) == Code((text,), ())


def test_a_backslash_makes_a_reference_the_text_itself() -> None:
    assert value(r"\${inputs.name} is ${inputs.name}") == "${inputs.name} is Ada"
    assert value(r"\${inputs.name}") == "${inputs.name}"
    # In code the backslash stays: the shell takes it for the same purpose.
    assert LANGUAGE.code(r"echo \${inputs.name}").evaluate(SCOPE) == Code((r"echo \${inputs.name}",), ())


def test_text_that_comes_out_of_a_value_is_not_looked_at_again() -> None:
    assert value("x ${inputs.sneaky}") == "x ${inputs.n}"
    assert value("${inputs.sneaky}") == "${inputs.n}"


def test_values_in_code_stay_apart_from_its_text() -> None:
    code = LANGUAGE.code('echo "${inputs.name}" ${inputs.list[0]};')
    assert [str(reference) for reference in code.references] == ["inputs.name", "inputs.list[0]"]
    assert code.evaluate(SCOPE) == Code(('echo "', '" ', ";"), ("Ada", 1))


@pytest.mark.parametrize(
    ("text", "path", "offset"),
    [
        ("ab ${inputs.x}", ("inputs", "x"), 3),
        ("${blocks.b.outputs.f[0].g}", ("blocks", "b", "outputs", "f", 0, "g"), 0),
        ("${blocks['b-1']['x.y']}", ("blocks", "b-1", "x.y"), 0),
        ("${other.thing}", ("other", "thing"), 0),
    ],
)
def test_references_are_listed_with_where_they_stand(
    text: str, path: tuple[str | int, ...], offset: int
) -> None:
    [reference] = LANGUAGE.template(text).references
    assert (reference.path, reference.offset) == (path, offset)


@pytest.mark.parametrize(
    ("text", "offset"),
    [
        ("a ${inputs.x", 2),
        ("${inputs.}", 0),
        ("ok ${inputs.name} ${inputs.a b}", 18),
        ("${blocks.a.outputs[x]}", 0),
        ("${inputs.x:-default}", 0),
        ("${metadata", 0),
    ],
)
def test_what_starts_as_a_reference_and_is_none_is_an_error(text: str, offset: int) -> None:
    for read in (LANGUAGE.template, LANGUAGE.code, LANGUAGE.output):
        with pytest.raises(ExpressionError, match="malformed reference") as caught:
            read(text)
        assert (caught.value.offset, caught.value.code) == (offset, "syntax")


@pytest.mark.rows("G5")
@pytest.mark.parametrize(
    "text", ["${__internal__.x}", "${inputs._x}", "${blocks.a.__class__}", "x ${metadata['_secret']}"]
)
def test_private_names_cannot_be_reached(text: str) -> None:
    for read in (LANGUAGE.template, LANGUAGE.code, LANGUAGE.output, LANGUAGE.condition):
        with pytest.raises(ExpressionError, match="is private") as caught:
            read(text if read != LANGUAGE.condition else text.removeprefix("x "))
        assert caught.value.code == "private"
        assert "blocks, inputs, metadata" in caught.value.hint


@pytest.mark.rows("G3", "G24")
@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("${inputs.nmae}", "'inputs' has no 'nmae'", "did you mean 'name'?"),
        ("x ${inputs.object.q}", "'inputs.object' has no 'q'", "'inputs.object' has: k"),
        ("${inputs.list[7]}", "'inputs.list' is a list of 2", "count from 0"),
        ("${inputs.n.real}", "'inputs.n' is integer, which has no fields", ""),
        ("${inputs.name.upper}", "'inputs.name' is text, which has no fields", ""),
        ("${blocks.biuld.x}", "'blocks' has no 'biuld'", "did you mean 'build'?"),
        ("${input.name}", "there is no 'input'", "a reference starts with one of: blocks, inputs, metadata"),
    ],
)
def test_an_undefined_reference_says_what_exists_there(text: str, message: str, hint: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        value(text)
    assert message in caught.value.message
    assert hint in caught.value.hint
    assert caught.value.code == "undefined"
    assert caught.value.offset == text.index("$")


def test_a_namespace_that_is_used_as_a_value_is_given_as_data() -> None:
    assert value("${blocks}") == {"build": "everything"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("${inputs.yes} and ${inputs.n} == 42", True),
        ("not ${inputs.yes}", False),
        ("${inputs.n} > 50 or ${inputs.no}", False),
        ("${inputs.yes} and\n${blocks.build.succeeded}\n", True),
        ("${inputs.n}", 42),
        ("${inputs.n} and counting", "42 and counting"),
        ("${inputs.name} is in", "Ada is in"),
        ("${inputs.n} + 1", "42 + 1"),
        ("true and false", "true and false"),
        ("1 < 2", "1 < 2"),
    ],
)
def test_an_output_is_evaluated_if_it_is_an_expression_and_text_if_not(text: str, expected: Value) -> None:
    found = LANGUAGE.output(text).evaluate(SCOPE)
    assert found == expected
    assert type(found) is type(expected)


PIECES = st.sampled_from(
    ["${inputs.n}", "${HOME}", "${inputs.", "${", "}", "$", "text ", "\n", "é", "x.y", "[0]"]
)


@settings(deadline=None)
@given(st.lists(PIECES).map("".join))
def test_any_text_is_malformed_or_keeps_all_that_is_no_reference(text: str) -> None:
    with suppress(ExpressionError):
        code = LANGUAGE.code(text).evaluate(SCOPE)
        assert "${inputs.n}".join(code.texts) == text
        assert code.values == (42,) * text.count("${inputs.n}")
