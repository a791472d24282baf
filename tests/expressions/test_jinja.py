"""Templates: what they give, and how their mistakes are told."""

from __future__ import annotations

from typing import Any

import pytest

from workflows_mcp.errors import ExpressionError
from workflows_mcp.expressions.jinja import templates
from workflows_mcp.expressions.jinja.sandbox import Sandbox
from workflows_mcp.expressions.jinja.templates import render

VARIABLES: dict[str, Any] = {
    "name": "Ada",
    "items": [1, 2, 3],
    "state": {"items": "the field", "get": "also a field", "deep": {"x": 1}},
    "yes": True,
    "nothing": None,
    "ratio": 1.5,
}


@pytest.mark.rows("G12")
@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("Hello {{ name }}", "Hello Ada"),
        ("{% for i in items %}{{ loop.index }}:{{ i }} {% endfor %}", "1:1 2:2 3:3 "),
        ("{{ yes }} [{{ nothing }}] {{ ratio }}", "true [] 1.5"),
        ("{{ items }} {{ state.deep }}", '[1,2,3] {"x":1}'),
        ("{{ name ~ items ~ yes }}", "Ada[1,2,3]true"),
        ("{{ items | map('string') | join(', ') }}", "1, 2, 3"),
        ("{{ items | map('string') }}", '["1","2","3"]'),
        ("{{ state.deep.items() }}", '[["x",1]]'),
        ("{{ state.items }} {{ state.get }}", "the field also a field"),
        ("{{ state | tojson }}", '{"items":"the field","get":"also a field","deep":{"x":1}}'),
        ("{{ '<b>' | tojson }}", '"<b>"'),
        ("{{ [1] | tojson(indent=2) }}", "[\n  1\n]"),
        ("{{ 'a-b'.replace('-', '+').upper() }}", "A+B"),
        ("{{ '-'.join(['a', 1]) }}", "a-1"),
        ("{{ missing | default('d') }} {{ missing is defined }}", "d false"),
        ("{{ r'\\d+\\n' }} {{ '\\d' }}", "\\d+\\n \\d"),
        ("{% raw %}{{ r'\\d' }}{% endraw %}", "{{ r'\\d' }}"),
        (
            "{% set n = namespace(s='') %}{% for i in items %}{% set n.s = n.s ~ i %}{% endfor %}{{ n.s }}",
            "123",
        ),
        ("{% macro f(x) %}<{{ x }}>{% endmacro %}{{ f(1) }}", "<1>"),
        ("{{ items | sum }} {{ items | batch(2) | list }} {{ 2.567 | round(1) }}", "6 [[1,2],[3]] 2.6"),
        ("{{ 'x' | center(5) }}|{{ 'a\nb' | indent(2) }}", "  x  |a\n  b"),
        ("one\n\n", "one\n"),
        ("{% if yes %}\nx\n{% endif %}\n", "\nx\n"),
        ("{{ 10 % 3 }} {{ 2 ** 10 }} {{ 'ab' * 3 }}", "1 1024 ababab"),
    ],
)
def test_templates_give_text(template: str, text: str) -> None:
    assert render(template, VARIABLES) == text


def test_what_does_not_exist_is_an_error_with_its_line_and_the_nearest_name() -> None:
    with pytest.raises(ExpressionError) as caught:
        render("one\ntwo {{ nmae }}", VARIABLES)
    assert "line 2" in caught.value.message
    assert "two {{ nmae }}" in caught.value.message
    assert "'nmae' does not exist" in caught.value.message
    assert "did you mean 'name'?" in caught.value.hint
    assert caught.value.offset == len("one\n")


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("{{ state.deep.y }}", "there is: x"),
        ("{{ state['dep'] }}", "did you mean 'deep'?"),
        ("{{ name.x }}", "its parent is text"),
        ("{{ state.deep.x.y }}", "its parent is integer"),
        ("\n{% for x in nothng %}{% endfor %}", "did you mean 'nothing'?"),
        ("{{ unknown() }}", "'unknown' does not exist"),
        ("{% if %}", "cannot be read"),
        ("a\n{{ name", "line 2"),
        ("{{ name | uper }}", "No filter named 'uper'"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{{ items + name }}", "TypeError"),
        ("{% include 'x' %}", "line 1"),
    ],
)
def test_mistakes_say_what_and_where(template: str, says: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        render(template, VARIABLES)
    assert says in str(caught.value)
    assert "line" in str(caught.value)


def test_not_strict_makes_what_is_missing_empty() -> None:
    assert render("[{{ a }}][{{ a.b.c }}][{{ state.x.y }}]", VARIABLES, strict=False) == "[][][]"


def test_strict_and_not_strict_are_kept_apart() -> None:
    template = "{{ only_here }}"
    assert render(template, {}, strict=False) == ""
    with pytest.raises(ExpressionError):
        render(template, {}, strict=True)


def test_templates_leave_the_variables_as_they_were() -> None:
    variables = {"items": [1], "state": {"a": 1}}
    render("{% set items = [2] %}{% set x = 1 %}{{ items }}", variables)
    assert variables == {"items": [1], "state": {"a": 1}}


def test_the_same_template_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    render("cached {{ name }}", VARIABLES)

    def compile_again(*_: object, **__: object) -> None:
        raise AssertionError("compiled again")

    monkeypatch.setattr(Sandbox, "from_string", compile_again)
    assert render("cached {{ name }}", {"name": "B"}) == "cached B"


def test_compiled_templates_do_not_pile_up() -> None:
    for number in range(20):
        render(f"{number}{{{{ 1 }}}}" + "x" * 400_000, {})
    assert sum(len(source) for source, _ in templates._templates) <= templates.MAX_CHARS
