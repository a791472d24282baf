"""Typed results and timeouts of agents' steps on every engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from support.process import Office
from workflows_mcp.errors import InvalidResult, NotExpected
from workflows_mcp.machine import Answered, Refused

InOffice = Callable[..., None]
SCHEMA = (
    "{type: object, required: [files, count], properties: {files: {type: array, items: {type: string}},"
    " count: {type: integer, minimum: 1}, note: {type: string}}}"
)
STEPS = {
    "graph delegate": ("graph", "type: Delegate, inputs: {instructions: 'Do it'}"),
    "graph prompt": ("graph", "type: Prompt, inputs: {prompt: 'Do it'}"),
    "stateful delegate": ("stateful", "type: delegate, needs_state: [], instructions: 'Do it'"),
    "stateful shell": ("stateful", "type: shell, needs_state: [], command: 'ls'"),
    "stateful mcp_call": ("stateful", "type: mcp_call, needs_state: [], tool: find, parameters: {}"),
    "stateful prompt": ("stateful", "type: prompt, needs_state: [], message: 'Do it', prompt_type: text"),
    "reactive delegate": ("reactive", "type: delegate, instructions: 'Do it'"),
    "reactive agent_shell_command": ("reactive", "type: agent_shell_command, command: 'ls'"),
    "reactive mcp_call": ("reactive", "type: mcp_call, method: find"),
    "reactive user_input": ("reactive", "type: user_input, prompt: 'Do it'"),
}
TEXTS = {
    "graph": """
name: it
blocks:
  - {id: work, %s, result: %s}
outputs: {first: "${blocks.work.files[0]}", more: "${blocks.work.count}", note: "${blocks.work.note}"}
""",
    "stateful": """
name: it
initial_state: {}
steps:
  - {id: work, %s, result: %s, output_to: work}
  - {id: end, type: return, needs_state: [work], value: {first: "{{ state.work.files[0] }}", more: "{{ state.work.count }}", note: "{{ state.work.note }}"}}
""",
    "reactive": """
name: it
default_state: {raw: {work: null}}
steps:
  - {id: work, %s, result: %s, state_update: {path: raw.work, value: "{{ result }}"}}
  - {id: end, type: delegate, instructions: "{{ work.files[0] }}|{{ work.count }}|{{ work.note }}"}
""",
}


@pytest.mark.rows("P3")
@pytest.mark.parametrize("name", STEPS)
def test_the_result_of_any_step_of_an_agent_can_have_a_schema(in_office: InOffice, name: str) -> None:
    dialect, step = STEPS[name]

    async def scenario(office: Office) -> None:
        run = await office.start(TEXTS[dialect] % (step, SCHEMA))
        action = (await office.status(run))["action"]
        assert action["result_schema"]["required"] == ["files", "count"]
        wrong: Any
        for wrong in (
            {},
            {"files": ["a"]},
            {"files": ["a"], "count": 0},
            {"files": ["a"], "count": "1"},
            {"files": "a", "count": 1},
            "a text",
            ["a"],
            None,
            True,
            {"stdout": "a", "stderr": "", "exit_code": 0},
        ):
            with pytest.raises(InvalidResult):
                await office.submit(run, wrong, "work")
        assert len(await office.events(run, Refused)) == 10
        assert not await office.events(run, Answered)
        await office.submit(run, {"files": ["a", "b"], "count": 2, "tokens_used": 7}, "work")
        record = await office.record(run, "work")
        assert record.tokens == 7
        if dialect == "reactive":
            assert (await office.status(run))["action"]["parameters"]["instructions"] == "a|2|"
            return
        assert await office.ended(run) == "completed"
        state = await office.state(run)
        expected = {"first": "a", "more": 2, "note": ""}
        assert (state.outputs if dialect == "graph" else state.result) == expected

    in_office(scenario)


@pytest.mark.rows("P3")
def test_a_result_that_is_no_object_is_one_output(in_office: InOffice) -> None:
    text = """
    name: it
    blocks:
      - {id: work, type: Delegate, inputs: {instructions: "List"}, result: {type: array, items: {type: integer}, minItems: 1}}
      - {id: sum, type: Shell, depends_on: [work], inputs: {command: 'printf "%s" "${blocks.work.result[1]}"'}}
    outputs: {all: "${blocks.work.result}", said: "${blocks.sum.stdout}"}
    """

    async def scenario(office: Office) -> None:
        run = await office.start(text)
        for wrong in ([], ["a"], 1, {"result": [1]}, "x"):
            with pytest.raises(InvalidResult):
                await office.submit(run, wrong)
        await office.submit(run, "[1, 2]")
        assert await office.ended(run) == "completed"
        assert (await office.state(run)).outputs == {"all": [1, 2], "said": "2"}

    in_office(scenario)


@pytest.mark.rows("P3")
def test_the_result_of_a_task_must_fit_its_schema(in_office: InOffice) -> None:
    text = """
    name: it
    initial_state: {}
    steps:
      - {id: each, type: foreach, needs_state: [], items: [a, b], agent: "@task", task: one, output_to: found}
      - {id: end, type: return, needs_state: [found], value: "{{ state.found }}"}
    tasks:
      one:
        inputs: {name: {type: string, required: true}}
        result: {type: object, required: [n], properties: {n: {type: integer}}}
        steps:
          - {id: work, type: delegate, needs_state: [], instructions: "Do", result: {type: object, properties: {n: {}}}, output_to: done}
          - {id: back, type: return, needs_state: [done], value: "{{ state.done }}"}
    """

    async def scenario(office: Office) -> None:
        run = await office.start(text)
        await office.submit(f"{run}.each.0", {"n": 1}, "work")
        await office.submit(f"{run}.each.1", {"n": "many"}, "work")
        assert await office.ended(run) == "failed"
        record = await office.record(run, "each/1")
        assert record.fault.code == "wrong_result"
        assert '\'n\': "many" is not of type "integer"' in record.message

    in_office(scenario)


@pytest.mark.rows("P3")
def test_a_schema_with_a_pattern_that_takes_long_does_not_hold_up_the_server(in_office: InOffice) -> None:
    text = """
    name: it
    blocks:
      - {id: work, type: Delegate, inputs: {instructions: "x"}, result: {type: object, required: [t], properties: {t: {type: string, pattern: "^(a+)+$"}}}}
    """

    async def scenario(office: Office) -> None:
        run = await office.start(text)
        with pytest.raises(InvalidResult):
            await office.submit(run, {"t": "a" * 60 + "b"})
        await office.submit(run, {"t": "a" * 60})
        assert await office.ended(run) == "completed"

    in_office(scenario)


TIMED = """
name: it
blocks:
  - {id: work, type: Delegate, timeout: 30m%s, inputs: {instructions: "x"}, verify: ["${result.response} == 'good'"]}
  - {id: after, type: Shell, depends_on: [work], inputs: {command: "true"}}
"""


@pytest.mark.rows("P8")
@pytest.mark.parametrize(
    ("rule", "status"),
    [("", "failed"), (", on_timeout: fail", "failed"), (", on_timeout: continue", "completed")],
)
def test_a_step_that_its_agent_does_not_answer_in_time_ends(
    in_office: InOffice, rule: str, status: str
) -> None:
    async def scenario(office: Office) -> None:
        run = await office.start(TIMED % rule)
        await office.advance(1799)
        assert await office.asked(run) == ["work"]
        await office.restart()
        await office.advance(2)
        assert await office.ended(run) == status
        with pytest.raises(NotExpected):
            await office.submit(run, "good", "work")

    in_office(scenario)


@pytest.mark.rows("P8")
def test_a_step_that_timed_out_can_be_asked_again(in_office: InOffice) -> None:
    async def scenario(office: Office) -> None:
        run = await office.start(TIMED % ", on_timeout: retry, retry: {attempts: 2, delay: 1}")
        await office.submit(run, "bad", "work")
        await office.advance(1801)
        await office.advance(2)
        (question,) = await office.questions(run)
        with pytest.raises(NotExpected):
            await office.submit(run, "good", "work")
        await office.submit(run, "good", question)
        assert await office.ended(run) == "completed"

    in_office(scenario)


@pytest.mark.rows("P8")
def test_every_result_of_a_step_has_the_whole_time(in_office: InOffice) -> None:
    async def scenario(office: Office) -> None:
        run = await office.start(TIMED % "")
        await office.advance(1700)
        await office.submit(run, "bad", "work")
        await office.advance(1700)
        (question,) = await office.questions(run)
        assert question == "work@v2"
        await office.advance(200)
        assert await office.ended(run) == "failed"

    in_office(scenario)
