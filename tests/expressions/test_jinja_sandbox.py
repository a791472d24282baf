"""Templates reach nothing but their variables, and cannot eat up memory or time."""

from __future__ import annotations

import time
from typing import Any

import pytest

from workflows_mcp.errors import ExpressionError
from workflows_mcp.expressions.jinja.templates import render

DOUBLED = "{% for i in range(60) %}{% set n.s = NEW %}{% endfor %}{{ n.s ~ 'x' }}"
VARIABLES: dict[str, Any] = {"text": "abc", "items": [1, 2], "state": {"a": {"b": 1}}, "number": 5}


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ ''['__class__'] }}",
        "{{ items.__init__.__globals__ }}",
        "{{ text | attr('__class__') }}",
        "{{ items | map(attribute='__class__') | list }}",
        "{{ cycler.__init__.__globals__.os }}",
        "{{ joiner.__init__ }}",
        "{{ namespace.__init__.__globals__ }}",
        "{{ self.__init__ }}",
        "{{ self._TemplateReference__context }}",
        "{{ range.__class__ }}",
        "{{ dict.fromkeys }}",
        "{{ dict.mro() }}",
        "{% macro f() %}{% endmacro %}{{ f.__globals__ }}{{ f._func }}",
        "{% for x in items %}{{ loop._iterable }}{% endfor %}",
        "{{ (items | map('string')).gi_frame }}",
        "{{ items.append(3) }}",
        "{{ items.pop() }}",
        "{{ items.sort() }}",
        "{{ state.update({'x': 1}) }}",
        "{{ state.setdefault('x', 1) }}",
        "{{ state.clear() }}",
        "{{ text.format(1) }}",
        "{{ '{0.__class__}'.format(1) }}",
        "{{ text.format_map({}) }}",
        "{{ text | attr('format') }}",
        "{{ text | format(1) }}",
        "{{ '%s' % text }}",
        "{{ text.encode() }}",
        "{{ text.translate({97: 'x'}) }}",
        "{{ number.to_bytes(2, 'big') }}",
        "{{ number.real }}",
        "{{ lipsum() }}",
        "{{ items | random }}",
        "{{ items | pprint }}",
        "{% import 'os' as os %}",
        "{% extends '/etc/passwd' %}",
    ],
)
def test_there_is_no_way_out(template: str) -> None:
    before = {"text": "abc", "items": [1, 2], "state": {"a": {"b": 1}}, "number": 5}
    with pytest.raises(ExpressionError):
        render(template, VARIABLES)
    assert before == VARIABLES


@pytest.mark.alone
@pytest.mark.parametrize(
    "template",
    [
        "{{ 'a' * 10 ** 10 }}",
        "{{ 10 ** 10 * 'a' }}",
        "{{ [1] * 10 ** 10 }}",
        "{{ 2 ** (10 ** 9) }}",
        "{{ (10 ** 1000) * (10 ** 1000) }}",
        "{{ '%9999999999d' % 1 }}",
        "{{ 'x'.ljust(10 ** 10) }}{{ 'x'.rjust(10 ** 10) }}",
        "{{ 'x'.center(10 ** 10) }}",
        "{{ 'x'.zfill(10 ** 10) }}",
        "{{ '\t'.expandtabs(10 ** 10) }}",
        "{{ 'x' | center(10 ** 10) }}",
        "{{ 'x\ny' | indent(10 ** 10) }}",
        "{{ ('x' * 1000).replace('', 'y' * 100000) }}",
        "{{ ('x' * 1000) | replace('x', 'y' * 100000) }}",
        "{{ ('x' * 100000).join(range(1000)) }}",
        "{{ range(1000) | join('x' * 100000) }}",
        "{{ [1] | batch(10 ** 10, 0) | list }}",
        "{{ [1] | slice(10 ** 10) | list }}",
        "{{ 1 | round(10 ** 9, 'ceil') }}",
        "{{ ('a ' * 10000) | wordwrap(1, wrapstring='x' * 100000) }}",
        "{{ ([range(90000) | list] * 1000) | sum(start=[]) }}",
        "{{ range(10 ** 9) }}",
        "{% set n = namespace(s='xx') %}" + DOUBLED.replace("NEW", "n.s ~ n.s"),
        "{% set n = namespace(s='xx') %}" + DOUBLED.replace("NEW", "n.s + n.s"),
        "{% set n = namespace(s=[1]) %}" + DOUBLED.replace("NEW", "n.s + n.s"),
        "{% macro f() %}{% for i in range(90000) %}{{ 'x' * 10000 }}{% endfor %}{% endmacro %}{{ f() }}",
        "{% set s %}{% for i in range(90000) %}{{ 'x' * 10000 }}{% endfor %}{% endset %}{{ s | length }}",
        "{% for i in range(90000) %}{{ 'x' * 10000 }}{% endfor %}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    ],
)
def test_bombs_are_refused_before_they_go_off(template: str) -> None:
    started = time.process_time()
    with pytest.raises(ExpressionError):
        render(template, VARIABLES, seconds=5, max_chars=200_000)
    assert time.process_time() - started < 2


@pytest.mark.alone
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # a stop that got lost
@pytest.mark.parametrize(
    "template",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% set n = namespace(s=[1]) %}" + DOUBLED.replace("NEW", "[n.s, n.s]"),
        "{% set n = namespace(s=[1]) %}" + DOUBLED.replace("NEW", "[n.s, n.s]") + "{{ n.s | tojson }}",
        "{% set n = namespace(s=[1]) %}" + DOUBLED.replace("NEW", "[n.s, n.s]") + "{{ n.s | string }}",
    ],
)
def test_what_never_ends_is_stopped(template: str) -> None:
    started = time.process_time()
    with pytest.raises(ExpressionError, match=r"0\.1 seconds"):
        render(template, VARIABLES, seconds=0.1)
    assert time.process_time() - started < 2


def test_a_result_as_long_as_allowed_is_fine() -> None:
    assert len(render("{{ 'x' * 1000 }}", {}, max_chars=1000)) == 1000
    with pytest.raises(ExpressionError, match="at most 999 are allowed"):
        render("{{ 'x' * 1000 }}", {}, max_chars=999)
