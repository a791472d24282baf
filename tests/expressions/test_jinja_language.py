"""The language of the stateful dialect: what its expressions give, and what they read."""

from __future__ import annotations

import subprocess
import sys
from hashlib import sha256
from typing import Any

import pytest

from workflows_mcp.errors import ExpressionError
from workflows_mcp.expressions.jinja.language import Jinja
from workflows_mcp.expressions.language import Code
from workflows_mcp.limits import Limits
from workflows_mcp.plan.references import LANGUAGES

LANGUAGE = Jinja()
NOW = 1755613800.0  # 2025-08-19 14:30:00 UTC


def value(source: str, **scope: Any) -> Any:
    return LANGUAGE.template(source).evaluate({"__now__": NOW, **scope})


def state(source: str, **fields: Any) -> Any:
    return value(source, state=fields, inputs={})


def inputs(source: str, **fields: Any) -> Any:
    return value(source, state={}, inputs=fields)


def hashed(text: str) -> str:
    return sha256(text.encode()).hexdigest()


# Every template of the workflows that the dialect was made for

OF_STATE: list[tuple[str, dict[str, Any], Any]] = [
    ("{{ state.approval_status == 'approved' and state.approver_count >= 2 }}", {"approval_status": "approved", "approver_count": 2}, True),
    ("{{ state.approval_status == 'approved' and state.approver_count >= 2 }}", {"approval_status": "approved", "approver_count": 1}, False),
    ("Need {{ 2 - state.approver_count }} more approvals", {"approver_count": 1}, "Need 1 more approvals"),
    ("{{ state.test_results | length }}", {"test_results": [1, 2]}, 2),
    ("{{ state.test_results | selectattr('status', 'equalto', 'pass') | list | length }}", {"test_results": [{"status": "pass"}, {"status": "fail"}]}, 1),
    ("{{ 100 - (state.build_time / 60) | int }}", {"build_time": 150}, 98),
    ("{{ state.file_list }}", {"file_list": ["a", "b"]}, ["a", "b"]),
    ("{{ state.research_topics }}", {"research_topics": []}, []),
    ("{{ state.source_files }}", {"source_files": ["x.py"]}, ["x.py"]),
    ("{{ state.files_to_copy }}", {"files_to_copy": [{"from": "a", "to": "b"}]}, [{"from": "a", "to": "b"}]),
    ("Context:\n{{ state.codebase_summary }}\n", {"codebase_summary": "small"}, "Context:\nsmall\n"),
    ("{{ state.requirements | join('\\n') }}", {"requirements": ["a", "b"]}, "a\nb"),
    ("{{ state.processed_items }}", {"processed_items": 7}, 7),
    ("{{ state.error_count }}", {"error_count": 0}, 0),
    ("{{ state.quality_score < 90 }}", {"quality_score": 89.5}, True),
    ("cd {{ state.test_directory }} && npm test --coverage", {"test_directory": "t"}, "cd t && npm test --coverage"),
    ("{{ state.test_directory is defined }}", {"test_directory": None}, True),
    ("{{ state.test_directory is defined }}", {}, False),
    ("{{ state.repository }}", {"repository": "org/app"}, "org/app"),
    ("Build failed: {{ state.error_details.message }}", {"error_details": {"message": "no"}}, "Build failed: no"),
    ("Error occurred at: {{ state.error_details.timestamp }}", {"error_details": {"timestamp": 5}}, "Error occurred at: 5"),
    ("Exit code: {{ state.error_details.exit_code }}", {"error_details": {"exit_code": 2}}, "Exit code: 2"),
    ("Deploy version {{ state.version }} to {{ state.environment }}?", {"version": "1.2", "environment": "live"}, "Deploy version 1.2 to live?"),
    ("{{ state.enabled }}", {"enabled": True}, True),
    ("{{ state.approved.confirmed }}", {"approved": {"confirmed": False}}, False),
    ("{{ state.build_output.exit_code == 0 }}", {"build_output": {"exit_code": 0}}, True),
    ("{{ state.file_list_raw.stdout.strip().split('\\n') }}", {"file_list_raw": {"stdout": "a\nb\n"}}, ["a", "b"]),
    ("{{ state.files }}", {"files": []}, []),
    ("Analysis results: {{ state.analysis_results | tojson }}", {"analysis_results": [{"a": "<b>"}]}, 'Analysis results: [{"a":"<b>"}]'),
    ("{{ state.content.stdout }}", {"content": {"stdout": "text\n"}}, "text\n"),
    ("{{ state.analysis.issues }}", {"analysis": {"issues": [1]}}, [1]),
    ("{{ state.analysis.score }}", {"analysis": {"score": 9.5}}, 9.5),
    ("The user wants to: {{ state.user_request.input }}\n", {"user_request": {"input": "fly"}}, "The user wants to: fly\n"),
    ("{{ state.research_task_list.response | parse_json }}", {"research_task_list": {"response": '```json\n["a", "b"]\n```'}}, ["a", "b"]),
    ("{{ state.research_task_list.response | parse_json | length }}", {"research_task_list": {"response": '["a", "b"]'}}, 2),
    ("{{ state.research_tasks }}", {"research_tasks": ["q"]}, ["q"]),
    (
        "{% for result in state.research_results %}\nTask: {{ result.task }}\nKey findings: {{ result.findings }}\n{% endfor %}",
        {"research_results": [{"task": "t", "findings": ["f"]}]},
        '\nTask: t\nKey findings: ["f"]\n',
    ),
    ("Original request: {{ state.user_request.input }}\n\n{{ state.initial_plan.response }}", {"user_request": {"input": "a"}, "initial_plan": {"response": "p"}}, "Original request: a\n\np"),
    ("{{ state.review.response }}", {"review": {"response": "good"}}, "good"),
    ("{{ state.final_plan.response }}", {"final_plan": {"response": "{{ not code }}"}}, "{{ not code }}"),
    ("{{ state.user_approval.confirmed }}", {"user_approval": {"confirmed": True}}, True),
    ("plan_{{ state.user_request.input | hash }}", {"user_request": {"input": "fly"}}, f"plan_{hashed('fly')}"),
    ("{{ state.search_results | tojson }}", {"search_results": {"urls": []}}, '{"urls":[]}'),
    ("{{ state.search_results.urls | default([]) }}", {"search_results": {}}, []),
    ("{{ state.search_results.urls | default([]) }}", {"search_results": {"urls": ["u"]}}, ["u"]),
    ("{{ state.analysis.result }}", {"analysis": {"result": None}}, None),
    ("{{ state.search_results.urls | length | default(0) }}", {"search_results": {"urls": ["u", "v"]}}, 2),
    ("{{ state.search_results.urls | length | default(0) }}", {"search_results": {}}, 0),
    ("{{ state.pr_data.files_changed > 50 }}", {"pr_data": {"files_changed": 50}}, False),
    ("{{ state.pr_data.files_changed }} files", {"pr_data": {"files_changed": 51}}, "51 files"),
    ("{{ state.test_results.exit_code == 0 }}", {"test_results": {"exit_code": 1}}, False),
    ("{{ state.quality_results.stdout | regex_search('Score: (\\d+)') | first | int }}", {"quality_results": {"stdout": "Score: 93\n"}}, 93),
    ("- Tests: {{ 'Passed ✅' if state.test_passed else 'Failed ❌' }}", {"test_passed": True}, "- Tests: Passed ✅"),
    ("- Tests: {{ 'Passed ✅' if state.test_passed else 'Failed ❌' }}", {"test_passed": False}, "- Tests: Failed ❌"),
    ("- Quality Score: {{ state.quality_score }}/100", {"quality_score": 80}, "- Quality Score: 80/100"),
    ("{{ state.output | regex_search('([0-9]+)% reduction') }}", {"output": "45% reduction"}, ["45"]),
    ("{{ state.text | regex_findall(r'\\d+') }}", {"text": "10 and 20, 30"}, ["10", "20", "30"]),
    ("{{ state.path | regex_replace(r'\\.txt$', '.bak') }}", {"path": "a.txt.txt"}, "a.txt.bak"),
    ("{{ state.response | parse_json }}", {"response": '{"key": "value"}'}, {"key": "value"}),
    ("{{ state.data | tojson(indent=2) }}", {"data": {"a": [1]}}, '{\n  "a": [\n    1\n  ]\n}'),
    ("{{ state.key | hash }}", {"key": "k"}, hashed("k")),
]  # fmt: skip
OF_INPUTS: list[tuple[str, dict[str, Any], Any]] = [
    ("docker build -t {{ inputs.service_name }}:latest .", {"service_name": "api"}, "docker build -t api:latest ."),
    ("docker run {{ inputs.service_name }}:latest npm test", {"service_name": "api"}, "docker run api:latest npm test"),
    ("docker push {{ inputs.service_name }}:latest", {"service_name": "api"}, "docker push api:latest"),
    ("k8s/{{ inputs.environment }}/{{ inputs.service_name }}.yaml", {"environment": "live", "service_name": "api"}, "k8s/live/api.yaml"),
    ("Deployment complete for {{ inputs.service_name }}", {"service_name": "api"}, "Deployment complete for api"),
    (
        'find {{ inputs.repository }} \\\n  {% for pattern in inputs.file_patterns %} \\\n  -name "{{ pattern }}" {% if not loop.last %} -o {% endif %} \\\n  {% endfor %} \\\n  | head -50\n',
        {"repository": "src", "file_patterns": ["*.py", "*.js"]},
        'find src \\\n   \\\n  -name "*.py"  -o  \\\n   \\\n  -name "*.js"  \\\n   \\\n  | head -50\n',
    ),
    ("cat {{ inputs.file_path }}", {"file_path": "a.py"}, "cat a.py"),
    ("{{ inputs.file_path }}", {"file_path": "a.py"}, "a.py"),
    ("Generate up to {{ inputs.max_research_tasks }} focused research questions.", {"max_research_tasks": 3}, "Generate up to 3 focused research questions."),
    ("{{ inputs.research_task }}", {"research_task": "q"}, "q"),
    ("research_{{ inputs.research_task | hash }}", {"research_task": "q"}, f"research_{hashed('q')}"),
    ("{{ inputs.pr_number }}", {"pr_number": 12}, 12),
]  # fmt: skip


@pytest.mark.rows("S11")
@pytest.mark.parametrize(("source", "fields", "expected"), OF_STATE)
def test_templates_over_the_state(source: str, fields: dict[str, Any], expected: Any) -> None:
    found = state(source, **fields)
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.rows("S11")
@pytest.mark.parametrize(("source", "fields", "expected"), OF_INPUTS)
def test_templates_over_the_inputs(source: str, fields: dict[str, Any], expected: Any) -> None:
    found = inputs(source, **fields)
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.rows("S11")
def test_templates_over_both_and_over_the_updates_before() -> None:
    both = "{{ state.test_passed and state.quality_score >= inputs.auto_merge_threshold }}"
    scope: dict[str, Any] = {
        "state": {"test_passed": True, "quality_score": 95, "pr_data": {"files_changed": 60}},
        "inputs": {"auto_merge_threshold": 95, "pr_number": 12},
    }
    assert value(both, **scope) is True
    large = "Large PR #{{ inputs.pr_number }} needs review ({{ state.pr_data.files_changed }} files)"
    assert value(large, **scope) == "Large PR #12 needs review (60 files)"
    assert (
        value("{{ (passed_tests / total_tests * 100) | round(2) }}", passed_tests=2, total_tests=3) == 66.67
    )
    assert value("{{ item.id }} {{ index + 1 }}/{{ total }}", item={"id": "a"}, index=0, total=2) == "a 1/2"


@pytest.mark.rows("S11")
@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ now() }}", "2025-08-19T14:30:00+00:00"),
        ("At {{ now() }}", "At 2025-08-19T14:30:00+00:00"),
        ("{{ now().isoformat() }}", "2025-08-19T14:30:00+00:00"),
        ("{{ now().strftime('%Y%m%d-%H%M%S') }}", "20250819-143000"),
        ("{{ now().timestamp() }}", NOW),
        ("{{ now().date() }}", "2025-08-19"),
        ("{{ now().date().strftime('%d.%m.') }}", "19.08."),
        ("{{ {'at': now(), 'on': [now().date()]} }}", {"at": "2025-08-19T14:30:00+00:00", "on": ["2025-08-19"]}),
    ],
)  # fmt: skip
def test_now_is_the_time_of_the_step_in_utc(source: str, expected: Any) -> None:
    assert value(source) == expected


# Types


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ 1 }}\n", 1),
        ("  {{ 1 }}\n", "  1\n"),
        ("{{- 1 -}}", 1),
        ("{# why #}{{ 1 }}", 1),
        ("{{ 1 }}{{ 2 }}", "12"),
        ("{{ true }}", True),
        ("{{ none }}", None),
        ("{{ null }}", None),
        ("{{ 1.5 * 2 }}", 3.0),
        ("{{ '1' }}", "1"),
        ("{{ (1, (2, 3)) }}", [1, [2, 3]]),
        ("{{ range(3) }}", [0, 1, 2]),
        ("{{ [1, 2] | map('string') }}", ["1", "2"]),
        ("{{ {'a': 1}.items() }}", [["a", 1]]),
        ("{{ {1: 'a'} }}", {"1": "a"}),
        ("{{ [3, 1] | select('greaterthan', 1) }}", [3]),
        ("{{ [{'k': 'a', 'v': 1}, {'k': 'a', 'v': 2}] | groupby('k') }}", [["a", [{"k": "a", "v": 1}, {"k": "a", "v": 2}]]]),
        ("{{ '<b>' | safe }}", "<b>"),
        ("[{{ none }}] {{ true }} {{ [1, none] }} {{ {'a': 'ü'} }}", '[] true [1,null] {"a":"ü"}'),
        ("{{ 'a' if false }}", None),
        ("[{{ 'a' if false }}]", "[]"),
        ("{% if true %}{{ 1 }}{% endif %}", "1"),
        ("{% raw %}{{ x }}{% endraw %}", "{{ x }}"),
        ("one line\n", "one line\n"),
        ("{{ 'one' }} line\n", "one line\n"),
        ("no template: {x} } %}", "no template: {x} } %}"),
    ],
)  # fmt: skip
def test_one_expression_keeps_the_type_of_its_value_and_all_else_is_text(source: str, expected: Any) -> None:
    found = value(source)
    assert found == expected
    assert type(found) is type(expected)


def test_a_field_goes_before_a_method_and_a_method_is_called() -> None:
    fields = {"items": [1], "keys": "k", "deep": {"get": 2, "a": 1}}
    assert state("{{ state.items }}", **fields) == [1]
    assert state("{{ state.items[0] + state.deep.get }}", **fields) == 3
    assert state("{{ state.deep.items() | list }}", **fields) == [["get", 2], ["a", 1]]
    assert state("{{ state.deep.get('a') }} {{ state.get('zero', 0) }}", **fields) == "1 0"


def test_positions_and_computed_keys() -> None:
    fields = {"list": [1, 2, 3], "by_name": {"a b": 1, "7": "seven"}, "name": "a b"}
    assert state("{{ state.list[0] }} {{ state.list[-1] }} {{ state.list.1 }} {{ state.list[1:] }}", **fields) == "1 3 2 [2,3]"  # fmt: skip
    assert state("{{ state['by_name'][state.name] }} {{ state.by_name[7] }}", **fields) == "1 seven"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ 'ab12' | regex_search('b(\\d)(\\d)') }}", ["1", "2"]),
        ("{{ 'ab12' | regex_search('\\d+') }}", ["12"]),
        ("{{ 'ab' | regex_search('\\d+') }}", []),
        ("{{ 'b' | regex_search('(a)|(b)') }}", [None, "b"]),
        ("{{ regex_search('\\d+', 'ab12') }}", ["12"]),
        ("{{ regex_findall('[a-z]', 'a1b') }}", ["a", "b"]),
        ("{{ 'k=v;l=w' | regex_findall('(\\w)=(\\w)') }}", [["k", "v"], ["l", "w"]]),
        ("{{ regex_replace(r'(\\w)-(\\w)', r'\\2-\\1', 'a-b') }}", "b-a"),
        ("{{ 'a  b' | regex_replace('\\s+', ' ') }}", "a b"),
        ("{{ 'a.b' | regex_replace('\\.') }}", "ab"),
        ('{{ "x" | regex_search(r"\\w") }}', ["x"]),
        ("{{ 'ÄB' | regex_search('(?i)äb') }}", ["ÄB"]),
        ("{{ parse_json('[1]') }}", [1]),
        ("{{ [1] | parse_json }}", [1]),
        ("{{ 'Here it is:\n```json\n{\"a\": 1}\n```\nDone.' | parse_json }}", {"a": 1}),
        ("{{ '~~~\n1\n~~~' | parse_json }}", 1),
        ("{{ '```json [1] ```' | parse_json }}", [1]),
        ("{{ tojson([1, '<'], indent=1) }}", '[\n 1,\n "<"\n]'),
        ("{{ hash('k') }}", hashed("k")),
        ("{{ 5 | hash }}", hashed("5")),
        ("{{ 'a, b' | split(', ') }} {{ ' a  b ' | split }}", '["a","b"] ["a","b"]'),
        ("{{ ' a ' | strip }}{{ 'xax' | strip('x') }}", "aa"),
        ("{{ 'aB' | upper }} {{ 'aB' | lower }} {{ 'aB' | replace('a', 'c') }}", "AB ab cB"),
        ("{{ 'yes' | bool }} {{ 'false' | bool }} {{ 0 | bool }} {{ [1] | bool }}", "true false false true"),
        ("{{ 3 is greaterthan 2 }} {{ 3 is lessthan 2 }} {{ 3 is equalto 3 }}", "true false true"),
        ("{{ 3 | greaterthan(2) }} {{ 3 | lessthan(2) }} {{ 3 | equalto(3) }}", "true false true"),
        ("{{ [1, 2, 3] | last }} {{ [[1], [2]] | map('first') | list }} {{ '2.5' | float }}", "3 [1,2] 2.5"),
        ("{{ [{'a': {'b': 1}}] | map(attribute='a.b') | list }} {{ {'a': 1} | attr('a') }}", "[1] 1"),
        ("{% for g in [{'k': 1}] | groupby('k') %}{{ g.grouper }}{{ g.list | length }}{% endfor %}", "11"),
    ],
)  # fmt: skip
def test_functions_and_filters(source: str, expected: Any) -> None:
    assert value(source) == expected


# Conditions


@pytest.mark.parametrize("braces", ["{{ %s }}", "%s", " %s\n"])
@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("state.n > 2 and not state.off", True),
        ("-1 < state.n", True),
        ("state.list", False),
        ("state.text", True),
        ("state.missing is defined", False),
        ("state.list | select('greaterthan', 5)", False),
        ("'a' in {'a': {}}", True),
        ("state.text == '{{'", False),
        ("true", True),
    ],
)
def test_conditions_with_and_without_braces(braces: str, source: str, expected: bool) -> None:
    condition = LANGUAGE.condition(braces.replace("%s", source))
    scope = {"state": {"n": 3, "off": False, "list": [], "text": "x"}}
    assert condition.evaluate(scope) is expected


@pytest.mark.parametrize(
    "source",
    ["{{ state.a }} == 1", "{{ state.a }} and {{ state.b }}", "state.a and {{ state.b }}", "{% if state.a %}true{% endif %}", "state.a }} {{ 1"],
)  # fmt: skip
def test_a_condition_that_is_text_is_refused(source: str) -> None:
    with pytest.raises(ExpressionError, match="would always be true") as caught:
        LANGUAGE.condition(source)
    assert caught.value.code == "syntax"


def test_places_in_a_condition_without_braces_are_places_in_its_own_text() -> None:
    [one, other] = LANGUAGE.condition("state.a == inputs.b").references
    assert (one.offset, other.offset) == (0, 11)
    with pytest.raises(ExpressionError) as caught:
        LANGUAGE.condition("state.a = 1")
    assert caught.value.offset == 8
    assert "==" in caught.value.hint
    with pytest.raises(ExpressionError) as caught:
        LANGUAGE.condition("1 / state.zero").evaluate({"state": {"zero": 0}})
    assert "division by zero" in caught.value.message


# Mistakes


@pytest.mark.rows("S11")
@pytest.mark.parametrize(
    ("source", "offset", "message", "hint"),
    [
        ("Hi {{ state.nmae }}", 6, "'state.nmae' does not exist: 'state' has no 'nmae'", "did you mean 'name'?"),
        ("{{ state['nmae'] | upper }}", 3, "'state.nmae' does not exist", "did you mean 'name'?"),
        ("{{ state.nmae.first.second }}", 3, "'state.nmae.first.second' does not exist: 'state' has no 'nmae'", "name"),
        ("{{ state.deep.why + 1 }}", 3, "'state.deep.why' does not exist: 'state.deep' has no 'why'", "'state.deep' has: x"),
        ("{{ state.list[9] }}", 3, "'state.list' has no position 9: it has 2 items", "count from 0"),
        ("{{ state.name.x }}", 3, "'state.name' is text, it has no 'x'", ""),
        ("{{ state.name.upper }}", 3, "'state.name' is text, it has no 'upper'", ""),
        ("{{ 1 }} {{ name }}", 11, "there is no 'name'", "did you mean 'state.name'?"),
        ("{{ stat.name }}", 3, "'stat.name' does not exist: there is no 'stat'", "did you mean 'state'?"),
        ("{% for r in state.list %}\n{{ r.task }}{% endfor %}", 30, "the integer has no 'task'", ""),
        ("{% for r in [state.deep] %}{{ r.y }}{% endfor %}", 31, "the object has no 'y'", "the object has: x"),
        ("a\n{{ state.name if state.nope else 1 }}", 19, "'state.nope' does not exist", ""),
        ("{{ state.nope == 1 }}", 3, "'state.nope' does not exist", ""),
        ("{{ [state.nope] }}", 4, "'state.nope' does not exist", ""),
        ("{{ state.nope | length }}", 3, "'state.nope' does not exist", ""),
        ("{{ state.nope.strip() }}", 3, "'state.nope' does not exist", ""),
        ("{{ state.list[state.nope] }}", 14, "'state.nope' does not exist", ""),
        ("{{ state.deep | attr('nope') }}", 16, "the object has no 'nope'", "x"),
    ],
)  # fmt: skip
def test_what_does_not_exist_is_named_with_what_exists_and_the_nearest_spelling(
    source: str, offset: int, message: str, hint: str
) -> None:
    with pytest.raises(ExpressionError) as caught:
        state(source, name="Ada", deep={"x": 1}, list=[1, 2])
    error = caught.value
    assert message in error.message
    assert hint in error.hint
    assert (error.code, error.offset) == ("undefined", offset)


@pytest.mark.parametrize(
    ("source", "offset", "message", "hint"),
    [
        ("line\n{{ 1 + }}", 12, "cannot be read", ""),
        ("line\n{{ state.a $ }}", 16, "unexpected char '$'", "without $"),
        ("{{ a && b }}", 5, "unexpected char '&'", "write: and"),
        ("{{ a || b }}", 6, "cannot be read", "write: or"),
        ("{{ !a }}", 3, "unexpected char '!'", ""),
        ("{{ a", 3, "unexpected end of template", ""),
        ("{% if a %}x", 10, "'endif'", ""),
        ("a {% nope %}", 5, "unknown tag 'nope'", ""),
        ("docker ps --format '{{.Names}}'", 22, "unexpected '.'", "{% raw %}"),
        ("{{ a | uper }}", 7, "there is no filter 'uper'", "did you mean 'upper'?"),
        ("{% if x %}{{ a | uper }}{% endif %}", 17, "there is no filter 'uper'", "did you mean 'upper'?"),
        ("{{ a is evn }}", 5, "there is no test 'evn'", "did you mean 'even'?"),
        ("{{ nwo() }}", 3, "there is no function 'nwo'", "did you mean 'now'?"),
        ("{{ a.strp() }}", 4, "there is no 'strp()'", "did you mean 'strip()'?"),
        ("{{ a | regex_search('(') }}", 20, "the pattern \"(\" cannot be read: missing )", "backslash"),
        ("{{ regex_findall('[', a) }}", 17, "cannot be read", "backslash"),
        ("{{ '\\ud83d' }}", 3, "half a character", ""),
        ("{% include 'x' %}", 3, "{% include %} is not supported", ""),
        ("{% extends 'x' %}", 3, "is not supported", ""),
        ("{% block a %}{% endblock %}", 3, "is not supported", ""),
        ("{% autoescape true %}{% endautoescape %}", 0, "is not supported", ""),
        ("{{ " + "(" * 500 + "1" + ")" * 500 + " }}", 0, "nested too deeply", ""),
        ("{{ 1" + " + 1" * 300 + " }}", 961, "nested more than 60 levels deep", "simplify"),
        ("{% if 1 %}" * 30 + "{% endif %}" * 30, 183, "nested more than 18 levels deep", "simplify"),
    ],
)  # fmt: skip
def test_what_is_malformed_is_refused_when_it_is_read(
    source: str, offset: int, message: str, hint: str
) -> None:
    for read in (LANGUAGE.template, LANGUAGE.code, LANGUAGE.output):
        with pytest.raises(ExpressionError) as caught:
            read(source)
        assert message in caught.value.message
        assert hint in caught.value.hint
        assert (caught.value.code, caught.value.offset) == ("syntax", offset)


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("{{ 1 / 0 }}", "`{{ 1 / 0 }}`: division by zero"),
        ("{{ 'a' + 1 }}", "text (not integer)"),
        ("{{ 1 + 'a' }}", "integer and text"),
        ("{{ none | length }}", "null has no length"),
        ("{{ 'x' | parse_json }}", "is not JSON"),
        ("{{ 'maybe' | bool }}", "neither true nor false"),
        ("{{ 'a' | regex_replace('a', '\\\\2') }}", "no such group"),
        ("{{ 2 ** 64 }}", "64 bits"),
        ("{{ 'nan' | float }}", "JSON has no such number"),
        ("{{ cycler(1) }}", "cannot be used as a value"),
        ("{{ range }}", "cannot be used as a value"),
        ("{{ [1].strip() }}", "the list has no 'strip'"),
        ("{{ now().year }}", "the time has no 'year'"),
        ("a\nb {{ 1 }} {{ 2 ** 65 // 0 }}", "`{{ 2 ** 65 // 0 }}`: integer division or modulo by zero"),
    ],
)
def test_what_goes_wrong_is_told(source: str, says: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        value(source)
    assert says in caught.value.message
    assert source[caught.value.offset] != "\n"


def test_now_without_a_time_is_an_error_and_not_the_time_of_the_server() -> None:
    with pytest.raises(ExpressionError, match="the time of a step"):
        LANGUAGE.template("{{ now() }}").evaluate({})


# References


@pytest.mark.rows("S2")
@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("{{ state.a.b[0].c }}", ["3 state.a.b[0].c"]),
        ("{{ state['a b']['c'] }}", ["3 state.a b.c"]),
        ("x {{ inputs.a }} {{ item.b }}\n{{ index }}", ["5 inputs.a", "20 item.b", "33 index"]),
        ("{{ state.a.strip().split(state.b) }}", ["3 state.a", "25 state.b"]),
        ("{{ state.a.items() }}{{ state.items }}", ["3 state.a", "24 state.items"]),
        ("{{ state }}", ["3 state"]),
        ("{{ state | tojson }}", ["3 state"]),
        ("{{ state[inputs.key].x }}", ["3 state", "9 inputs.key"]),
        ("{{ state.a[inputs.key].x }}", ["3 state.a", "11 inputs.key"]),
        ("{{ state.list[-1] }}{{ state.list[1:state.n] }}", ["3 state.list", "23 state.list", "36 state.n"]),
        ("{{ state.a | join(state.b) | default(state.c) }}", ["3 state.a?", "18 state.b", "37 state.c"]),
        ("{{ state.a | selectattr('x', 'equalto', inputs.x) | list }}", ["3 state.a", "40 inputs.x"]),
        ("{{ 1 if state.a else state.b }}", ["8 state.a", "21 state.b"]),
        ("{{ {'k': state.a, state.b: [1, (state.c,)]} }}", ["9 state.a", "18 state.b", "32 state.c"]),
        ("{{ not state.a and 1 < state.b <= state.c ~ state.d }}", ["7 state.a", "23 state.b", "34 state.c", "44 state.d"]),
        ("{{ now().isoformat() }}{{ range(3) }}{{ dict(a=state.b) }}", ["47 state.b"]),
        ("{{ 'state.a' }}{# {{ state.b }} #}{% raw %}{{ state.c }}{% endraw %}", []),
        ("{% set a = state.x %}{{ a.y }}{{ b }}", ["11 state.x", "33 b"]),
        ("{{ a }}{% set a = 1 %}{{ a }}", ["3 a"]),
        ("{% set a %}{{ state.x }}{% set b = 1 %}{{ b }}{% endset %}{{ a }}{{ b }}", ["14 state.x", "68 b"]),
        ("{% set a, b = state.x %}{{ a }}{{ b }}", ["14 state.x"]),
        ("{% set n = namespace(x=state.a) %}{% set n.x = state.b %}{{ n.x }}", ["23 state.a", "47 state.b"]),
        ("{% for x in state.l if x.ok and inputs.y %}{{ x.a }}{{ loop.index }}{% else %}{{ x }}{% endfor %}{{ x }}", ["12 state.l", "32 inputs.y", "81 x", "100 x"]),
        ("{% for k, v in state.d.items() %}{{ k }}{{ v.x }}{{ w }}{% endfor %}", ["15 state.d", "52 w"]),
        ("{% macro f(x, y=state.d) %}{{ x }}{{ state.e }}{% endmacro %}{{ f(state.g, y=state.h) }}", ["16 state.d", "37 state.e", "66 state.g", "77 state.h"]),
        ("{% macro f() %}{{ caller(1) }}{% endmacro %}{% call(c) f() %}{{ c }}{{ state.a }}{% endcall %}", ["71 state.a"]),
        ("{% with a = state.x %}{{ a }}{% endwith %}{{ a }}", ["12 state.x", "45 a"]),
        ("{% filter replace('a', state.x) %}{{ state.y }}{% endfilter %}", ["23 state.x", "37 state.y"]),
        ("{% if state.a %}{% elif state.b %}{% else %}{{ state.c }}{% endif %}", ["6 state.a", "24 state.b", "47 state.c"]),
        ("{% set state = {} %}{{ state.x }}", []),
        ("  {{- state.a -}}  \n {%- if state.b -%} x {%- endif -%} {{ state.c }}", ["6 state.a", "28 state.b", "59 state.c"]),
        ("{{ 'ä€😀' }} {{ state.ö }}", ["15 state.ö"]),
    ],
)  # fmt: skip
def test_references_are_found_with_their_places(source: str, found: list[str]) -> None:
    for read in (LANGUAGE.template, LANGUAGE.code):
        references = read(source).references
        assert [f"{it.offset} {it}{'?' if it.optional else ''}" for it in references] == found
        for reference in references:
            assert source.startswith(str(reference.path[0]), reference.offset)


@pytest.mark.rows("S2")
@pytest.mark.parametrize(
    ("source", "optional", "needed"),
    [
        ("{{ state.a is defined }}", ["state.a"], []),
        ("{{ state.a is not defined or state.b is undefined }}", ["state.a", "state.b"], []),
        ("{{ state.a | default(0) }}{{ state.a }}", ["state.a"], ["state.a"]),
        ("{{ state.a.b | d(0) }}", ["state.a.b"], []),
        ("{{ state.a | length | default(0) }}", ["state.a"], []),
        ("{{ state.a.strip().split()[0] | upper | default('') }}", ["state.a"], []),
        ("{{ (state.a + 1) | default(0) }}", [], ["state.a"]),
        ("{{ state.a if state.a is defined else state.b }}", ["state.a", "state.a"], ["state.b"]),
        ("{% if state.a is defined %}{{ state.a.x }}{{ state.ab }}{% endif %}", ["state.a", "state.a.x"], ["state.ab"]),
        ("{% if 'a' in state and 'b' not in inputs %}{{ state.a }}{% endif %}", ["state.a", "inputs.b", "state.a"], []),
        ("{{ 'a' in state.tags }}", [], ["state.tags"]),
        ("{{ state.get('a', state.b) }}{{ state.a }}", ["state.a"], ["state.b", "state.a"]),
        ("{{ state.cfg.get('a') }}", [], ["state.cfg"]),
    ],
)  # fmt: skip
def test_what_may_be_absent_is_marked(source: str, optional: list[str], needed: list[str]) -> None:
    expression: Any = LANGUAGE.template(source)
    assert [str(it) for it in expression.references if it.optional] == optional
    assert [str(it) for it in expression.references if not it.optional] == needed


def test_what_may_be_absent_is_absent_without_an_error() -> None:
    for source in (
        "{{ state.a.b is defined or 'a' in state }}",
        "{{ state.a.strip().split()[0] | upper | default(false) }}",
        "{{ state.get('a', false) }}",
        "{{ state.a.b[0].c | default(false) }}",
    ):
        assert state(source) is False


# Code


@pytest.mark.rows("S11")
@pytest.mark.parametrize(
    ("source", "texts", "values"),
    [
        ("ls -l", ("ls -l",), ()),
        ("{{ inputs.a }}", ("", ""), ("x; y",)),
        ("cat {{ inputs.a }}\n", ("cat ", "\n"), ("x; y",)),
        ("a {{ inputs.a }}{{ inputs.n }} b", ("a ", "", " b"), ("x; y", 5)),
        ("{{ inputs.list }} {{ inputs.list | join(' ') }}", ("", " ", ""), (["a", "$(b)"], "a $(b)")),
        ("find{% for x in inputs.list %} -name '{{ x }}'{% endfor %} | head", ("find -name '", "' -name '", "' | head"), ("a", "$(b)")),
        ("rm{% if inputs.n > 3 %} -f {{ inputs.n }}{% endif %} .", ("rm -f ", " ."), (5,)),
        ("rm{% if inputs.n > 9 %} -f {{ inputs.n }}{% endif %} .", ("rm .",), ()),
        ("rm {{ '-f' if inputs.n else '' }}", ("rm ", ""), ("-f",)),
        ("{% set c = 'x ' ~ inputs.a %}{{ c }}", ("", ""), ("x x; y",)),
        ("{% set c %}ls {{ inputs.a }}{% endset %}{{ c }}", ("", ""), ("ls x; y",)),
        ("{% macro f(x) %}ls {{ x }}{% endmacro %}{{ f(inputs.a) }}!", ("", "!"), ("ls x; y",)),
        ("{% macro f() %}<{{ caller() }}>{% endmacro %}{% call f() %}{{ inputs.a }}{% endcall %}!", ("", "!"), ("<x; y>",)),
        ("{% filter upper %}ls {{ inputs.a }}{% endfilter %}!", ("", "!"), ("LS X; Y",)),
        ("{% for x in [[inputs.a]] recursive %}{{ loop(x) if x is not string else x }}{% endfor %}!", ("", "!"), ("x; y",)),
        ("{% raw %}{{ x }}{% endraw %} {{ inputs.n }}", ("{{ x }} ", ""), (5,)),
    ],
)  # fmt: skip
def test_values_in_code_stay_values(source: str, texts: tuple[str, ...], values: tuple[Any, ...]) -> None:
    code = LANGUAGE.code(source).evaluate({"inputs": {"a": "x; y", "n": 5, "list": ["a", "$(b)"]}})
    assert code == Code(texts, values)


# Secrets are marks until a step is carried out


class Secrets:
    def lookup(self, name: str | int) -> str:
        return f"⟦secret:{name}⟧"

    def names(self) -> list[str]:
        return []

    def plain(self) -> dict[str, Any]:
        return {}


def test_a_mark_that_the_scope_has_is_kept_and_one_that_was_put_together_is_none() -> None:
    scope = {
        "secrets": Secrets(),
        "state": {"kept": "⟦secret:A⟧", "one": "⟦secret", "backwards": "⟧B:terces⟦"},
    }
    assert value("x {{ secrets.A }}", **scope) == "x ⟦secret:A⟧"
    assert value("{{ [secrets.A] }}", **scope) == ["⟦secret:A⟧"]
    assert value("{{ state.kept ~ '!' }}", **scope) == "⟦secret:A⟧!"
    for source in (
        "{{ state.backwards | reverse }}",
        "{{ state.backwards[::-1] }}",
        "{{ state.one ~ ':B⟧' }}",
        "{{ '\"\\\\u27e6secret:B\\\\u27e7\"' | parse_json }}",
        "{{ state.kept | replace('A', 'B') }}",
        "{{ secrets['B' | upper] }}",
    ):
        assert value(source, **scope) == "[secret:B⟧", source
        assert value(f"{{{{ [{source[2:-2]}] }}}}", **scope) == ["[secret:B⟧"], source
        assert LANGUAGE.code(source).evaluate(scope).values == ("[secret:B⟧",), source


# Around it


def test_the_limits_of_the_server_come_with_the_scope() -> None:
    scope: dict[str, Any] = {"__limits__": Limits(expression_chars=10)}
    assert value("{{ 'x' * 10 }}", **scope) == "x" * 10
    with pytest.raises(ExpressionError, match="at most 10 are allowed") as caught:
        value("{{ 'x' * 11 }}", **scope)
    assert "WORKFLOWS_LIMIT_EXPRESSION_CHARS" in caught.value.hint


def test_evaluating_leaves_the_scope_as_it_was() -> None:
    scope: dict[str, Any] = {"state": {"a": [1]}, "inputs": {}, "__now__": NOW}
    LANGUAGE.template("{% set state = 1 %}{% set x = 2 %}{{ x }}").evaluate(scope)
    assert scope == {"state": {"a": [1]}, "inputs": {}, "__now__": NOW}


def test_the_same_source_is_read_once() -> None:
    assert LANGUAGE.template("{{ state.once }}") is LANGUAGE.template("{{ state.once }}")
    assert LANGUAGE.code("{{ state.once }}") is LANGUAGE.code("{{ state.once }}")


def test_the_dialect_has_this_language_and_nothing_else_imports_jinja() -> None:
    script = (
        "import sys\nimport workflows_mcp.runs.service\nfrom workflows_mcp.plan.references import LANGUAGES\n"
        "LANGUAGES['dollar'].template('${inputs.x}')\n"
        "heavy = {'jinja2', 'regex'} & set(sys.modules)\nassert not heavy, heavy\n"
        "LANGUAGES['jinja'].template('{{ inputs.x }}')\nassert 'jinja2' in sys.modules\n"
        "assert 'regex' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert isinstance(LANGUAGES["jinja"], Jinja)
    assert LANGUAGES["jinja"] is LANGUAGES["jinja"]
    assert set(LANGUAGES) >= {"dollar", "jinja"}


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{{ x | parse_json }}", ["a"]),
        ("{{ x | from_json }}", ["a"]),
        ("{{ lists | sum(start=[]) }}", [1, 2, [3]]),
        ("{{ objects | sum(attribute='l', start=[]) }}", [1, 2]),
        ("{{ lists | flatten }}", [1, 2, 3]),
        ("{{ lists | flatten(1) }}", [1, 2, [3]]),
        ("{{ 'a\n\nb' | lines }}", ["a", "b"]),
        ("{{ 'src/a.py' | basename }}", "a.py"),
    ],
)
def test_data_in_prose_and_lists_of_lists_are_read(template: str, expected: Any) -> None:
    scope = {
        "x": 'Sure [see below]! ["a"] hope it helps',
        "lists": [[1], [2, [3]]],
        "objects": [{"l": [1]}, {"l": [2]}],
    }
    assert Jinja().template(template).evaluate(scope) == expected


@pytest.mark.parametrize(
    ("template", "message", "hint"),
    [
        ("{{ x | loads }}", "no filter 'loads'", "parse_json"),
        ("{{ x | json }}", "no filter 'json'", "parse_json to parse JSON text, tojson"),
        ("{{ x | nonsense }}", "no filter 'nonsense'", "xmlattr"),
        ("{{ x | sum(start='') }}", "sum adds numbers", "join"),
    ],
)
def test_filters_that_cannot_work_are_refused_when_they_are_read(
    template: str, message: str, hint: str
) -> None:
    with pytest.raises(ExpressionError) as caught:
        Jinja().template(template)
    assert message in caught.value.message
    assert hint in caught.value.hint
