"""Rows of the reactive dialect that no documented fragment shows, each through the service: from YAML to answer."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import Any

import pytest

from support.fragments import workflow
from support.programs import Programs
from support.reactive_agents import MESSAGE, played
from support.rendered import Service
from workflows_mcp.errors import DefinitionError, Problem
from workflows_mcp.limits import Limits
from workflows_mcp.settings.model import Settings

NOTHING = '- {type: user_message, message: "done"}\n'


def problems(settings: Settings, text: str) -> list[Problem]:
    """What there is to say of a definition before it runs."""

    async def go() -> list[Problem]:
        async with Service.open(settings) as service:
            return service.validate(text)

    return asyncio.run(go())


def field(transform: str, more: str = "") -> str:
    """A state with a list and a field that follows from it."""
    return f"""
default_state: {{raw: {{numbers: [3, 1, 2]}}}}
state_schema:
  computed:
    made:
      from: raw.numbers
{more}
      transform: |
        {transform}
"""


# Transforms are JavaScript, and nothing more


@pytest.mark.rows("R5")
@pytest.mark.parametrize(
    ("transform", "made"),
    [
        ("input.map(n => n * 2)", [6, 2, 4]),
        ("[...input].sort((a, b) => a - b).join('-')", "1-2-3"),
        ("`${input.length} numbers`", "3 numbers"),
        ("({ first: input[0], ...{ rest: input.slice(1) } })", {"first": 3, "rest": [1, 2]}),
        (
            "{ sum: input.reduce((sum, n) => sum + n, 0), none: input.nothing?.deeper ?? 'no' }",
            {"sum": 6, "none": "no"},
        ),
        ("const [first, ...rest] = input; return { first, rest: rest.length };", {"first": 3, "rest": 2}),
        ("if (input.length > 2) { return 'many'; } return 'few';", "many"),
        ("const most = Math.max(...input);\n        most + 1", 4),
        ("try { return JSON.parse('{'); } catch (error) { return error.name; }", "SyntaxError"),
        ("Object.fromEntries(input.map((n, i) => [`n${i}`, n]))", {"n0": 3, "n1": 1, "n2": 2}),
    ],
)
def test_a_transform_is_an_expression_or_a_body_or_statements(
    transform: str, made: Any, settings: Settings
) -> None:
    run = played(settings, yaml=workflow(NOTHING, field(transform)))
    assert (run.state["made"], run.errors) == (made, {})


@pytest.mark.rows("R5")
@pytest.mark.parametrize(
    "transform",
    [
        "Math.random()",
        "Date.now()",
        "new Date().getTime()",
        "typeof require + typeof process + typeof fetch + typeof std + typeof os",
        "Function('return 1')()",
        "(() => {}).constructor('return this')()",
    ],
)
def test_a_transform_reaches_no_clock_no_chance_and_no_host(transform: str, settings: Settings) -> None:
    run = played(settings, yaml=workflow(NOTHING, field(transform)))
    assert run.state["made"] in (None, "undefined" * 5)


@pytest.mark.rows("R5")
@pytest.mark.parametrize(
    ("transform", "seconds", "said"),
    [
        ("while (true) {}", 0.3, "expression_seconds"),
        ("const all = []; while (true) { all.push(new Array(100000).fill(1)); }", 30.0, "javascript_bytes"),
    ],
)
def test_a_transform_is_limited_in_time_and_memory(
    transform: str, seconds: float, said: str, settings: Settings
) -> None:
    limited = replace(settings, limits=Limits(expression_seconds=seconds))
    begun = time.monotonic()
    steps = '- {type: user_message, message: "{{ made }}"}\n'
    run = played(limited, yaml=workflow(steps, field(transform)))
    assert time.monotonic() - begun < 10
    assert run.answer["status"] == "failed"
    error = run.answer["error"]
    assert "made" in error["message"]
    assert said.upper() in f"{error['message']} {error.get('hint', '')}".upper()


@pytest.mark.rows("R5")
@pytest.mark.parametrize("transform", ["input.map(n =>", "eval('1')", "import('fs')"])
def test_a_transform_that_is_no_javascript_or_more_than_that_is_found_before_the_run(
    transform: str, settings: Settings
) -> None:
    (problem,) = problems(settings, workflow(NOTHING, field(transform)))
    assert problem.path == ("state_schema", "computed", "made", "transform")
    assert not problem.warning


@pytest.mark.rows("R4")
def test_fields_that_follow_from_each_other_are_found_before_the_run(settings: Settings) -> None:
    schema = """
state_schema:
  computed:
    a: {from: computed.b, transform: input}
    b: {from: computed.a, transform: input}
"""
    said = problems(settings, workflow(NOTHING, schema))
    assert any("a" in it.message and "b" in it.message and not it.warning for it in said)


# Reading and writing


@pytest.mark.rows("R7")
def test_the_same_name_in_two_parts_is_warned_of_and_computed_goes_before_raw_and_state(
    settings: Settings,
) -> None:
    state = """
default_state: {raw: {made: raw, other: raw, numbers: []}, state: {made: state, other: state, own: state}}
state_schema: {computed: {made: {from: raw.numbers, transform: "'computed'"}}}
"""
    steps = '- {type: user_message, message: "{{ made }} {{ other }} {{ own }} {{ raw.made }} {{ state.made }}"}\n'
    text = workflow(steps, state)
    run = played(settings, yaml=text)
    assert run.messages == ["computed raw state raw state"]
    assert run.state == {"made": "computed", "other": "raw", "own": "state", "numbers": []}
    warned = [it for it in problems(settings, text) if it.warning]
    assert any("'made'" in it.message for it in warned)
    assert any("'other'" in it.message for it in warned)


@pytest.mark.rows("R7", "R13")
def test_loop_variables_go_before_the_state_and_inputs_come_after_it(settings: Settings) -> None:
    text = workflow(
        "- {type: foreach, items: [loop], steps: [{type: user_message, message: '{{ item }} {{ given }}'}]}\n",
        "inputs: {given: {type: string}, item: {type: string}}",
        "default_state: {raw: {given: raw}}",
    )
    run = played(settings, yaml=text, inputs={"given": "input", "item": "input"})
    assert run.messages == ["loop input"], "inputs are put over first values of the same name"


@pytest.mark.rows("R8", "R14")
def test_the_four_ways_to_change_a_place(settings: Settings) -> None:
    steps = """\
- type: state_update
  updates:
    - {path: raw.list, operation: append, value: {n: 1}}
    - {path: raw.list, operation: append, value: "{{ list.length }}"}
    - {path: raw.count, operation: increment}
    - {path: raw.count, operation: increment, value: 2.5}
    - {path: raw.object, operation: merge, value: {b: 2}}
    - {path: raw.object.c.d, value: deep}
    - {path: "raw.list[0].n", operation: set, value: 5}
    - {path: "raw.keys.{{ key }}", value: true}
    - {path: state.own, value: [1]}
"""
    state = 'default_state: {raw: {list: [], count: 1, object: {a: 1}, key: "a.b/c"}}'
    run = played(settings, yaml=workflow(steps, state))
    assert run.state == {
        "list": [{"n": 5}, 0],  # all values are made of the state before the step
        "count": 4.5,
        "object": {"a": 1, "b": 2, "c": {"d": "deep"}},
        "key": "a.b/c",
        "keys": {"a.b/c": True},
        "own": [1],
    }


@pytest.mark.rows("R14")
def test_the_result_of_a_step_is_written_to_several_places_and_worked_with(settings: Settings) -> None:
    steps = """\
- type: mcp_call
  method: check
  state_update:
    - {path: raw.all}
    - {path: raw.count, value: "{{ errors.length }}"}
    - {path: raw.first, transform: "result.errors[0].toUpperCase()"}
    - {path: raw.seen, operation: append, value: "{{ result.errors }}"}
"""
    run = played(
        settings, [{"errors": ["e1", "e2"]}], yaml=workflow(steps, "default_state: {raw: {seen: []}}")
    )
    assert run.state == {
        "all": {"errors": ["e1", "e2"]},
        "count": 2,
        "first": "E1",
        "seen": [["e1", "e2"]],
    }


@pytest.mark.rows("R7", "R17")
def test_a_name_that_does_not_exist_is_found_before_the_run_with_the_nearest(settings: Settings) -> None:
    steps = '- {type: user_message, message: "{{ file_cuont }} files"}\n'
    (problem,) = problems(settings, workflow(steps, "default_state: {raw: {file_count: 1}}"))
    assert "file_cuont" in problem.message
    assert "file_count" in problem.hint


# Commands


@pytest.mark.rows("R9")
@pytest.mark.parametrize(
    ("output_format", "value"),
    [
        ("text", "a=1\nb=two words\n\n"),
        ("lines", ["a=1", "b=two words"]),
        ("key_value", {"a": "1", "b": "two words"}),
    ],
)
def test_output_is_text_or_lines_or_keys_and_values(
    output_format: str, value: Any, settings: Settings
) -> None:
    steps = f"""\
- type: shell_command
  command: printf 'a=1\\nb=two words\\n\\n'
  output_format: {output_format}
  state_update: {{path: raw.out}}
"""
    assert played(settings, yaml=workflow(steps)).state == {"out": value}


@pytest.mark.rows("R9")
def test_output_is_json(settings: Settings) -> None:
    steps = """\
- {type: shell_command, command: "echo '[1, {\\"a\\": null}]'", output_format: json, state_update: {path: raw.out}}
"""
    assert played(settings, yaml=workflow(steps)).state == {"out": [1, {"a": None}]}


@pytest.mark.rows("R9")
@pytest.mark.parametrize(
    "value", ["a; touch hacked", "$(touch hacked)", "' ; touch hacked '", "`touch hacked`"]
)
def test_a_value_in_a_command_is_never_syntax(value: str, settings: Settings) -> None:
    steps = """\
- {type: shell_command, command: "printf '%s\\n' \\"{{ value }}\\"; ls", output_format: lines, state_update: {path: raw.out}}
"""
    run = played(settings, yaml=workflow(steps, "inputs: {value: {type: string}}"), inputs={"value": value})
    assert run.state["out"] == [value]


@pytest.mark.rows("R9")
@pytest.mark.parametrize(("on_error", "status"), [("continue", "completed"), ("fail", "failed")])
def test_a_command_that_fails_can_be_passed_over(
    on_error: str, status: str, settings: Settings, programs: Programs
) -> None:
    programs.add("lint", "echo broken >&2; exit 3")
    steps = f"""\
- type: shell_command
  command: lint
  on_error: {on_error}
  state_update: {{path: raw.out}}
  error_state_update: {{path: raw.wrong, value: "{{{{ error.message }}}}"}}
"""
    run = played(settings, yaml=workflow(steps + NOTHING))
    assert run.answer["status"] == status
    assert "out" not in run.state
    assert "broken" in run.state["wrong"]


# Messages


@pytest.mark.rows("R12")
def test_messages_ride_with_the_next_step_once_and_in_their_place(settings: Settings) -> None:
    steps = """\
- {type: user_message, message: one}
- {type: user_message, message: two}
- {id: a, type: user_input, prompt: a?}
- {type: shell_command, command: "true"}
- {type: user_message, message: three}
- {id: b, type: user_input, prompt: b?}
- {id: c, type: user_input, prompt: c?}
- {type: user_message, message: four}
"""
    run = played(settings, ["x", "y", "z"], yaml=workflow(steps))
    told = [it.definition["message"] if it.type == MESSAGE else it.step for it in run.handed]
    assert told == ["one", "two", "a", "three", "b", "c", "four"]


# Loops


@pytest.mark.rows("R13")
def test_loops_in_loops_are_left_and_gone_on_with_one_at_a_time(settings: Settings) -> None:
    steps = """\
- type: foreach
  items: [a, b]
  variable_name: letter
  index_name: row
  steps:
    - type: foreach
      items: "{{ [1, 2, 3, 4] }}"
      steps:
        - {type: conditional, condition: "item === 2", then: [{type: continue}]}
        - {type: conditional, condition: "{{ item === 4 }}", then: [{type: break}]}
        - {type: state_update, path: raw.seen, operation: append, value: "{{ letter }}{{ row }}{{ item }}{{ index }}"}
    - {type: state_update, path: raw.seen, operation: append, value: "end of {{ letter }}, {{ loop.is_last }}"}
- {type: user_message, message: "{{ seen.length }}"}
"""
    run = played(settings, yaml=workflow(steps, "default_state: {raw: {seen: []}}"))
    assert run.state["seen"] == [
        "a010",
        "a032",
        "end of a, false",
        "b110",
        "b132",
        "end of b, true",
    ]
    assert run.messages == ["6"]


@pytest.mark.rows("R13")
def test_that_a_loop_has_reached_its_limit_is_recorded(settings: Settings) -> None:
    steps = """\
- id: again
  type: while
  condition: "{{ true }}"
  max_iterations: 3
  on_limit: continue
  body: [{type: state_update, path: raw.n, operation: increment}]
"""

    async def go() -> None:
        async with Service.open(settings) as service:
            answer = await service.start(text=workflow(steps))
            assert (answer["status"], answer["state"]) == ("completed", {"n": 3})
            block = (await service.state(answer["workflow_id"]))["blocks"]["again"]
            assert "after 3 rounds, which is its max_iterations" in block["message"]

    asyncio.run(asyncio.wait_for(go(), 30))


@pytest.mark.rows("R13")
@pytest.mark.parametrize("step", ["break", "continue"])
def test_a_loop_can_be_left_only_from_inside(step: str, settings: Settings) -> None:
    async def go() -> None:
        async with Service.open(settings) as service:
            with pytest.raises(DefinitionError, match="loop"):
                await service.start(text=workflow(f"- {{type: {step}}}\n" + NOTHING))

    asyncio.run(asyncio.wait_for(go(), 30))


@pytest.mark.rows("R14")
def test_exit_ends_the_whole_workflow_from_inside_of_loops(settings: Settings) -> None:
    steps = """\
- type: while
  condition: "{{ n < 10 }}"
  body:
    - {type: state_update, path: raw.n, operation: increment}
    - {type: conditional, condition: "{{ n === 2 }}", then: [{type: exit}]}
"""
    run = played(settings, yaml=workflow(steps + NOTHING, "default_state: {raw: {n: 0}}"))
    assert (run.answer["status"], run.state, run.messages) == ("completed", {"n": 2}, [])
