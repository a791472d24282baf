"""Rows of the stateful dialect that no complete example shows, each through the service: from YAML to answer."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from support.rendered import Service
from support.sessions import Serve, serving, steps
from workflows_mcp.errors import DefinitionError, InvalidResult
from workflows_mcp.settings.model import Settings


@pytest.fixture
def serve(settings: Settings) -> Serve:
    return serving(settings)


async def state_of(service: Service, run_id: str) -> Any:
    return (await service.state(run_id, paths=["state"]))["values"]["state"]


WHO = steps(
    "{id: look, type: shell, needs_state: [], command: ls}",
    "{id: list, type: shell, needs_state: [], command: ls, run_on: server}",
    "{id: ask, type: prompt, needs_state: [], prompt_type: info, message: Done}",
    "{id: done, type: return, needs_state: [], value: 1}",
)


@pytest.mark.rows("S8")
def test_the_description_of_a_workflow_says_who_runs_each_step(settings: Settings, workspace: Path) -> None:
    (workspace / ".workflows" / "who.yaml").write_text(WHO, encoding="utf-8")
    service = Service.open(settings)
    [name] = [it.name for it in service.list_workflows() if it.source != "built-in"]
    described = service.workflow_info(name)["steps"]
    assert [step.get("by") for step in described] == ["agent", "server", "agent", None]
    explained = asyncio.run(service.debugger.explain_plan(name, None))["steps"]
    assert [step.get("by") for step in explained] == ["agent", "server", "agent", None]


# State


@pytest.mark.rows("S2")
def test_a_field_that_is_not_declared_is_not_there_when_its_name_is_computed(serve: Any) -> None:
    text = steps(
        "{id: first, type: set_state, needs_state: [], updates: {done: true}}",
        '{id: read, type: set_state, needs_state: [open], updates: {copy: "{{ state[inputs.field] }}"}}',
        "{id: after, type: set_state, needs_state: [], updates: {after: true}}",
        state="{open: 1, hidden: 2}",
        rest="inputs: {field: {type: string, required: true}}\n",
    )

    async def work(service: Service) -> None:
        assert (await service.start(text=text, inputs={"field": "open"}))["state"]["copy"] == 1
        answer = await service.start(text=text, inputs={"field": "hidden"})
        assert (answer["status"], answer["error"]["block"]) == ("failed", "read")
        assert "'state' has no 'hidden'" in answer["error"]["message"]
        assert "needs_state" in answer["error"]["hint"]
        assert await state_of(service, answer["workflow_id"]) == {"open": 1, "hidden": 2, "done": True}

    serve(work)


@pytest.mark.rows("S2")
def test_the_state_as_a_whole_is_what_the_step_declares(serve: Any) -> None:
    text = steps(
        '{id: some, type: set_state, needs_state: [a, b], updates: {seen: "{{ state | tojson }}"}}',
        '{id: every, type: return, needs_state: ["*"], value: "{{ state | list | sort }}"}',
        state="{a: 1, b: 2, c: 3}",
    )

    async def work(service: Service) -> None:
        answer = await service.start(text=text)
        assert answer["state"]["seen"] == '{"a":1,"b":2}'
        assert answer["result"] == ["a", "b", "c", "seen"]

    serve(work)


@pytest.mark.rows("S4")
def test_updates_see_those_above_them_and_all_of_them_apply_or_none(serve: Any) -> None:
    good = '{one: "{{ state.n + 1 }}", two: "{{ one * 2 }}", n: "{{ two + state.n }}"}'
    bad = '{n: 100, fresh: 1, broken: "{{ state.n / 0 }}"}'
    text = steps(
        f"{{id: good, type: set_state, needs_state: [n], updates: {good}}}",
        f"{{id: bad, type: set_state, needs_state: [n], on_error: continue, updates: {bad}}}",
        '{id: end, type: return, needs_state: [n], value: "{{ state.n }}"}',
        state="{n: 10}",
    )

    async def work(service: Service) -> None:
        answer = await service.start(text=text)
        assert (answer["status"], answer["result"]) == ("completed", 32)
        assert answer["state"] == {"n": 32, "one": 11, "two": 22}

    serve(work)


NESTED = """\
name: nested
version: "1.0.0"
inputs: {a: {type: boolean, default: false}, b: {type: boolean, default: false}, early: {type: boolean, default: false}}
initial_state: {path: []}
steps:
  - id: outer
    type: condition
    needs_state: []
    if: "{{ inputs.a }}"
    then:
      - {id: in-a, type: set_state, needs_state: [path], updates: {path: "{{ state.path + ['a'] }}"}}
      - id: inner
        type: condition
        needs_state: [path]
        if: "{{ inputs.b and state.path == ['a'] }}"
        then:
          - {id: in-b, type: set_state, needs_state: [path], updates: {path: "{{ state.path + ['b'] }}"}}
          - id: leave
            type: condition
            needs_state: []
            if: "{{ inputs.early }}"
            then:
              - {id: early, type: return, needs_state: [path], value: {left: "{{ state.path }}"}}
        else:
          - {id: in-not-b, type: set_state, needs_state: [path], updates: {path: "{{ state.path + ['not b'] }}"}}
      - {id: after-inner, type: set_state, needs_state: [path], updates: {path: "{{ state.path + ['after b'] }}"}}
    else:
      - {id: in-not-a, type: set_state, needs_state: [path], updates: {path: "{{ state.path + ['not a'] }}"}}
  - {id: last, type: set_state, needs_state: [path], updates: {path: "{{ state.path + ['end'] }}"}}
"""


@pytest.mark.rows("S4")
@pytest.mark.parametrize(
    ("inputs", "path", "result"),
    [
        ({}, ["not a", "end"], None),
        ({"b": True, "early": True}, ["not a", "end"], None),
        ({"a": True}, ["a", "not b", "after b", "end"], None),
        ({"a": True, "b": True}, ["a", "b", "after b", "end"], None),
        ({"a": True, "b": True, "early": True}, ["a", "b"], {"left": ["a", "b"]}),
    ],
)
def test_conditions_inside_of_conditions_lead_where_they_should_and_a_return_ends_all(
    serve: Any, inputs: dict[str, bool], path: list[str], result: Any
) -> None:
    async def work(service: Service) -> None:
        answer = await service.start(text=NESTED, inputs=inputs)
        assert answer["status"] == "completed"
        assert (answer["state"]["path"], answer["result"]) == (path, result)

    serve(work)


@pytest.mark.rows("S3")
def test_a_step_that_is_skipped_leaves_its_field_as_it_was(serve: Any) -> None:
    text = steps(
        '{id: skipped, type: shell, needs_state: [n], when: "{{ state.n > 1 }}", command: "x", output_to: out}',
        '{id: asked, type: shell, needs_state: [n], when: "state.n == 1", command: "y", timeout: 7, output_to: out2}',
        state="{n: 1, out: as it was}",
    )

    async def work(service: Service) -> None:
        answer = await service.start(text=text)
        assert answer["action"]["step_id"] == "asked"
        assert answer["action"]["parameters"] == {"command": "y", "timeout": 7}
        answer = await service.submit(answer["workflow_id"], {"exit_code": 3, "stderr": "no"})
        assert answer["status"] == "completed"  # another exit code than 0 is a result
        assert answer["state"]["out"] == "as it was"
        assert (answer["state"]["out2"]["exit_code"], answer["state"]["out2"]["stderr"]) == (3, "no")

    serve(work)


# Items


DIVIDE = """\
name: divide
version: "1.0.0"
initial_state: {{divisors: [1, 0, 2, 0]}}
steps:
  - {{id: each, type: foreach, needs_state: [divisors], items: "{{{{ state.divisors }}}}", task: one,
      output_to: results{keys}}}
  - {{id: after, type: set_state, needs_state: [results], updates: {{count: "{{{{ state.results | length }}}}"}}}}
tasks:
  one:
    inputs: {{by: {{type: number, required: true}}}}
    initial_state: {{own: 1}}
    steps:
      - {{id: early, type: condition, needs_state: [], if: "{{{{ inputs.by == 2 }}}}", then: [
          {{id: enough, type: return, needs_state: [own], value: "early {{{{ state.own }}}}"}}]}}
      - {{id: divide, type: set_state, needs_state: [own], updates: {{own: "{{{{ state.own / inputs.by }}}}"}}}}
      - {{id: back, type: return, needs_state: [own],
          value: [ "{{{{ state.own }}}}", "{{{{ index }}}}", "{{{{ total }}}}", "{{{{ is_first }}}}", "{{{{ item }}}}" ]}}
"""


@pytest.mark.rows("S4", "S5")
def test_a_child_that_fails_leaves_its_error_in_its_place_and_the_step_fails_when_all_are_done(
    serve: Any,
) -> None:
    async def work(service: Service) -> None:
        answer = await service.start(text=DIVIDE.format(keys=""))
        error = answer["error"]
        assert (answer["status"], error["block"]) == ("failed", "each/1/divide")
        assert "2 of 4 items failed: '1': step 'divide' failed" in error["message"]
        assert "(and '3')" in error["message"]
        state = await state_of(service, answer["workflow_id"])
        assert "count" not in state
        first, second, third, fourth = state["results"]
        assert first == [1, 0, 4, True, 1]
        assert third == "early 1"
        for failed in (second, fourth):
            assert list(failed) == ["error"]
            assert "step 'divide' failed" in failed["error"]

    serve(work)


@pytest.mark.rows("S5")
def test_with_on_error_continue_the_workflow_goes_on_with_what_there_is(serve: Any) -> None:
    async def work(service: Service) -> None:
        for keys in (", on_error: continue", ", on_error: continue, sequential: true"):
            answer = await service.start(text=DIVIDE.format(keys=keys))
            assert (answer["status"], answer["state"]["count"]) == ("completed", 4)
            kinds = [list(it) if isinstance(it, dict) else it for it in answer["state"]["results"]]
            assert kinds == [[1, 0, 4, True, 1], ["error"], "early 1", ["error"]]

    serve(work)


NESTED_EACH = """\
name: matrix
version: "1.0.0"
initial_state: {hidden: 1}
steps:
  - {id: rows, type: foreach, needs_state: [], items: [[1, 2], [], [3]], task: row, output_to: table}
  - {id: none, type: foreach, needs_state: [], items: [], task: row, output_to: nothing}
tasks:
  row:
    inputs: {cells: {type: array, required: true}}
    steps:
      - {id: cells, type: foreach, needs_state: [], items: "{{ inputs.cells }}", task: cell, output_to: got,
         sequential: true}
      - {id: back, type: return, needs_state: [got], value: {row: "{{ index }}", got: "{{ state.got }}"}}
  cell:
    inputs: {value: {type: number, required: true}}
    steps:
      - {id: ask, type: delegate, needs_state: [], instructions: "double {{ inputs.value }}", output_to: said}
      - {id: back, type: return, needs_state: [said], value: "{{ state.said.response | int }}"}
"""


@pytest.mark.rows("S5")
def test_tasks_hand_out_tasks_and_every_result_finds_its_place(serve: Any) -> None:
    async def work(service: Service) -> None:
        answer = await service.start(text=NESTED_EACH)
        run_id = answer["workflow_id"]
        asked = []
        while answer["status"] == "pending_action":
            action = [answer["action"], *answer.get("more_actions", [])][-1]  # the last one first
            asked.append(action["workflow_id"].removeprefix(f"{run_id}."))
            number = int(action["parameters"]["instructions"].split()[1])
            await service.submit(action["workflow_id"], f"{number * 2}")
            answer = await service.status(run_id)
        assert sorted(asked) == ["rows.0.cells.0", "rows.0.cells.1", "rows.2.cells.0"]
        assert asked.index("rows.0.cells.0") < asked.index("rows.0.cells.1")
        assert answer["status"] == "completed"
        assert answer["state"] == {
            "hidden": 1,
            "table": [{"row": 0, "got": [2, 4]}, {"row": 1, "got": []}, {"row": 2, "got": [6]}],
            "nothing": [],
        }

    serve(work)


# Questions


def question(kind: str, more: str = "") -> str:
    return steps(
        f"{{id: ask, type: prompt, needs_state: [], message: 'Well?', type: {kind}, output_to: said{more}}}",
        '{id: end, type: return, needs_state: [said], value: "{{ state.said }}"}',
    )


@pytest.mark.rows("S9")
@pytest.mark.parametrize(
    ("text", "refused", "words", "given", "result"),
    [
        (question("info"), {"acknowledged": False}, "acknowledged", True, {"acknowledged": True}),
        (question("confirm"), "maybe", "confirmed", False, {"confirmed": False}),
        (question("confirm"), {}, "confirmed", {"confirmed": True}, {"confirmed": True}),
        (question("text"), {"text": "x"}, "input", "hello", {"input": "hello"}),
        (
            question("text", ", validation: {pattern: '^v[0-9]+$', max_length: 4}"),
            "version 1",
            "input",
            "v12",
            {"input": "v12"},
        ),
        (
            question("text", ", validation: {min_length: 3}"),
            "ab",
            "input",
            {"input": "abc"},
            {"input": "abc"},
        ),
        (
            question("choice", ", options: [red, green]"),
            "blue",
            "selected",
            "green",
            {"selected": "green"},
        ),
    ],
)
def test_an_answer_fits_its_question_or_is_refused_and_can_be_given_again(
    serve: Any, text: str, refused: Any, words: str, given: Any, result: Any
) -> None:
    async def work(service: Service) -> None:
        run = await service.start(text=text)
        assert run["action"]["parameters"]["message"] == "Well?"
        with pytest.raises(InvalidResult, match="does not fit what 'ask' asks for") as wrong:
            await service.submit(run["workflow_id"], refused, step_id="ask")
        assert words in wrong.value.message
        assert (await service.status(run["workflow_id"]))["action"] == run["action"]
        answer = await service.submit(run["workflow_id"], given, step_id="ask")
        assert (answer["status"], answer["result"]) == ("completed", result)

    serve(work)


@pytest.mark.rows("S9")
def test_a_choice_shows_its_options(serve: Any) -> None:
    async def work(service: Service) -> None:
        run = await service.start(text=question("choice", ", options: [red, green]"))
        assert run["action"]["parameters"] == {
            "message": "Well?",
            "type": "choice",
            "choices": ["red", "green"],
        }

    serve(work)


@pytest.mark.rows("S10")
@pytest.mark.parametrize("agent", ["@Data_Analyst", "@agent.name", "reviewer", "@", "@a b", "@ünited"])
@pytest.mark.parametrize("of", ["delegate", "foreach"])
def test_a_name_that_no_agent_can_have_is_refused_before_the_run(serve: Any, agent: str, of: str) -> None:
    delegate = f'{{id: it, type: delegate, needs_state: [], instructions: x, agent: "{agent}"}}'
    each = (
        f'{{id: it, type: foreach, needs_state: [], items: [1], task: one, output_to: out, agent: "{agent}"}}'
    )
    task = "tasks: {one: {inputs: {n: number}, steps: [{id: x, type: return, needs_state: [], value: 1}]}}\n"

    async def work(service: Service) -> None:
        text = steps(delegate) if of == "delegate" else steps(each, rest=task)
        with pytest.raises(DefinitionError) as refused:
            await service.start(text=text)
        assert f'"{agent}" cannot be the name of an agent' in str(refused.value)
        assert "lower-case letters, digits and '-'" in str(refused.value)
        assert str(refused.value).count("<yaml>:5:") == 1
        answer = await service.start(text=text.replace(agent, "@data-analyst-v2"))
        assert answer["action" if of == "delegate" else "state"]

    serve(work)


@pytest.mark.rows("S17")
def test_a_question_to_the_user_in_a_task_of_sub_agents_is_refused_and_otherwise_is_not(serve: Any) -> None:
    task = (
        "tasks:\n  one:\n    inputs: {n: number}\n    steps:\n"
        "      - {id: ask, type: prompt, needs_state: [], message: 'n?', prompt_type: confirm, output_to: said}\n"
    )
    each = "{id: each, type: foreach, needs_state: [], items: [1, 2], task: one, output_to: out%s}"

    async def work(service: Service) -> None:
        with pytest.raises(DefinitionError) as refused:
            await service.start(text=steps(each % ", agent: '@task'", rest=task))
        assert "step 'ask' asks the user" in str(refused.value)
        assert "runs in sub-agents of foreach 'each'" in str(refused.value)
        assert "put the prompt before step 'each'" in str(refused.value)
        answer = await service.start(text=steps(each % "", rest=task))
        assert answer["action"]["type"] == "prompt"  # the main agent has a user

    serve(work)


@pytest.mark.rows("S8")
@pytest.mark.parametrize("said", ["1.10", "123", "true", "null"])
def test_a_text_that_a_tool_returned_stays_a_text(serve: Any, said: str) -> None:
    text = """
name: tool
version: "1"
steps:
  - {id: call, type: mcp_call, needs_state: [], tool: files.read, parameters: {}, output_to: got}
  - {id: end, type: return, needs_state: [got], value: "{{ state.got }}"}
"""

    async def work(service: Service) -> None:
        run = await service.start(text=text)
        assert (await service.submit(run["workflow_id"], said))["result"] == said

    serve(work)
