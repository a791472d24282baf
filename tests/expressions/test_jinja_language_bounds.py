"""Expressions of the stateful dialect reach nothing but their scope, and cannot eat up memory or time."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from workflows_mcp.errors import ExpressionError
from workflows_mcp.expressions import patterns
from workflows_mcp.expressions.jinja.language import Jinja
from workflows_mcp.limits import Limits

LANGUAGE = Jinja()
DOUBLED = "{% for i in range(60) %}{% set n.s = NEW %}{% endfor %}{{ n.s ~ 'x' }}"


def scope() -> dict[str, Any]:
    return {
        "state": {"text": "abc", "items": [1, 2], "deep": {"a": 1}, "number": 5, "long": "a" * 100_000},
        "inputs": {"_hidden": 1},
        "__now__": 1755613800.0,
        "__limits__": Limits(expression_chars=200_000),
    }


@pytest.mark.rows("S11")
@pytest.mark.parametrize(
    "source",
    [
        "{{ __now__ }}",
        "{{ __limits__ }}",
        "{{ __limits__.expression_seconds }}",
        "{{ inputs._hidden }}",
        "{{ inputs['_hidden'] }}",
        "{{ _ }}",
        "{{ _x() }}",
        "{{ self }}",
        "{{ self.__init__ }}",
        "{{ self._TemplateReference__context }}",
        "{{ context }}",
        "{{ environment }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ ''['__class__'] }}",
        "{{ ''['__cla' ~ 'ss__'] }}",
        "{{ state['__cla' ~ 'ss__'] }}",
        "{{ state.items.__init__.__globals__ }}",
        "{{ state.text | attr('__class__') }}",
        "{{ state.text | attr('upper') }}",
        "{{ state.items | map(attribute='__class__') | list }}",
        "{{ [cycler] | map(attribute='__init__.__globals__') | list }}",
        "{{ cycler.__init__.__globals__.os }}",
        "{{ cycler['__init__'] }}",
        "{{ namespace.__init__.__globals__ }}",
        "{{ range['__class__'] }}",
        "{{ dict.fromkeys }}",
        "{{ dict.mro() }}",
        "{{ now.__globals__ }}",
        "{{ now['__globals__'] }}",
        "{{ now()._at }}",
        "{{ now()['_at'] }}",
        "{{ now() | attr('_at') }}",
        "{{ now().today() }}",
        "{{ now().fromtimestamp(0) }}",
        "{{ now().strftime.__self__ }}",
        "{{ now().tzinfo }}",
        "{{ hash.__globals__ }}",
        "{{ regex_search['__globals__'] }}",
        "{% macro f() %}{% endmacro %}{{ f.__globals__ }}",
        "{% macro f() %}{% endmacro %}{{ f['_func'] }}",
        "{% for x in [1] %}{{ loop['_iterable'] }}{% endfor %}",
        "{{ (state.items | map('string')).gi_frame }}",
        "{{ state.items.append(3) }}",
        "{{ state.items.pop() }}",
        "{{ state.items.sort() }}",
        "{{ state.update({'x': 1}) }}",
        "{{ state.deep.setdefault('x', 1) }}",
        "{{ state.deep.clear() }}",
        "{{ state.text.format(1) }}",
        "{{ '{0.__class__}'.format(1) }}",
        "{{ state.text | format(1) }}",
        "{{ '%s' % state.text }}",
        "{{ state.text.encode() }}",
        "{{ state.number.to_bytes(2, 'big') }}",
        "{{ state.number.real }}",
        "{{ lipsum() }}",
        "{{ state.items | random }}",
        "{{ state.items | pprint }}",
        "{{ state.items | map('attr', '__class__') | list }}",
        "{{ state.items | sort(attribute='__class__') }}",
        "{{ state.items | groupby('__class__') }}",
        "{{ [state.text] | selectattr('__class__') | list }}",
        "{% import 'os' as os %}",
        "{% from 'os' import path %}",
        "{% extends '/etc/passwd' %}",
        "{% set state.x = 1 %}",
        "{% set x = state %}{% set x.y = 1 %}",
    ],
)
def test_there_is_no_way_out(source: str) -> None:
    found = scope()
    for read in (LANGUAGE.template, LANGUAGE.code, LANGUAGE.condition):
        with pytest.raises(ExpressionError):
            read(source).evaluate(found)
    assert found == scope()


@pytest.mark.alone
@pytest.mark.rows("S14")
@pytest.mark.parametrize(
    "source",
    [
        "{{ 'a' * 10 ** 10 }}",
        "{{ [1] * 10 ** 10 }}",
        "{{ 2 ** (10 ** 9) }}",
        "{{ 'x'.ljust(10 ** 10) }}",
        "{{ 'x' | center(10 ** 10) }}",
        "{{ 'x\ny' | indent(10 ** 10) }}",
        "{{ ('x' * 1000) | replace('x', 'y' * 100000) }}",
        "{{ ('x' * 100000).join(range(1000)) }}",
        "{{ range(1000) | join('x' * 100000) }}",
        "{{ range(10 ** 9) }}",
        "{{ [1] | batch(10 ** 10, 0) | list }}",
        "{{ state.long | regex_replace('', 'y' * 1000) }}",
        "{{ state.long | regex_replace('a+', '\\\\g<0>' * 10000) }}",
        "{{ state.long | regex_replace('(a+)', '\\\\1' * 10000) }}",
        "{{ state.long | regex_findall('(?=(a*))') }}",
        "{{ state.long | regex_search('(?=(a*))' * 900) }}",
        "{{ 'a' | regex_search('a' * 20000) }}",
        "{{ now().strftime('%c' * 150000) }}",
        "{{ ('[' * 100000) | parse_json }}",
        "{% set n = namespace(s='xx') %}" + DOUBLED.replace("NEW", "n.s ~ n.s"),
        "{% set n = namespace(s=[1]) %}" + DOUBLED.replace("NEW", "n.s + n.s"),
        "{% macro f() %}{% for i in range(90000) %}{{ 'x' * 10000 }}{% endfor %}{% endmacro %}{{ f() }}",
        "{% set s %}{% for i in range(90000) %}{{ 'x' * 10000 }}{% endfor %}{% endset %}{{ s | length }}",
        "{% for i in range(90000) %}{{ 'x' * 10000 }}{% endfor %}",
        "{% for i in range(90000) %}" + "x" * 10000 + "{% endfor %}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    ],
)
def test_bombs_are_refused_before_they_go_off(source: str) -> None:
    started = time.process_time()
    for read in (LANGUAGE.template, LANGUAGE.code):
        with pytest.raises(ExpressionError):
            read(source).evaluate(scope())
    assert time.process_time() - started < 4


@pytest.mark.alone
@pytest.mark.rows("S14")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # a stop that got lost
@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% set n = namespace(s=[1]) %}" + DOUBLED.replace("NEW", "[n.s, n.s]"),
        "{% set n = namespace(s=[1]) %}" + DOUBLED.replace("NEW", "[n.s, n.s]") + "{{ n.s | tojson }}",
        "{{ range(99999) | map('string') | map('regex_search', '9') | map('join') | map('hash') | list }}",
    ],
)
def test_what_never_ends_is_stopped(source: str) -> None:
    limits = {"__limits__": Limits(expression_seconds=0.1)}
    started = time.process_time()
    for read in (LANGUAGE.template, LANGUAGE.code):
        with pytest.raises(ExpressionError, match=r"0\.1 seconds") as caught:
            read(source).evaluate(limits)
        assert "WORKFLOWS_LIMIT_EXPRESSION_SECONDS" in caught.value.hint
    assert time.process_time() - started < 4


CATASTROPHE = "(a|aa)+$"


@pytest.mark.alone
@pytest.mark.rows("S14")
@pytest.mark.parametrize(
    "source",
    [
        "{{ state.text | regex_search('(a|aa)+$') }}",
        "{{ regex_findall('(a|aa)+$', state.text) }}",
        "{{ state.text | regex_replace('(a|aa)+$', 'x') }}",
    ],
)
def test_a_pattern_that_never_ends_is_stopped_after_a_second(source: str) -> None:
    started = time.process_time()
    with pytest.raises(ExpressionError, match=r"the pattern .* took longer than 1 second"):
        LANGUAGE.template(source).evaluate({"state": {"text": "a" * 40 + "b"}})
    assert time.process_time() - started < 3


@pytest.mark.alone
def test_other_threads_run_while_a_pattern_is_tried() -> None:
    over = threading.Event()
    longest_wait = 0.0

    def look_at_the_clock() -> None:
        nonlocal longest_wait
        last = time.perf_counter()
        while not over.is_set():
            now = time.perf_counter()
            longest_wait, last = max(longest_wait, now - last), now

    other = threading.Thread(target=look_at_the_clock)
    other.start()
    with pytest.raises(ExpressionError, match="took longer than 1 second"):
        patterns.search(CATASTROPHE, "a" * 40 + "b")
    over.set()
    other.join()
    assert longest_wait < 0.7
