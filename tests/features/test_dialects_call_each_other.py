"""Workflows of the three dialects call each other: what goes in, what comes back, what is asked inside, what fails
inside, and that nothing of it is lost with the server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from support.killed import called
from support.rendered import Service
from workflows_mcp.settings.model import Settings

pytestmark = pytest.mark.rows("R2")

# Each takes a word and a number, asks a question, and gives {said, sum}. It cannot be done with the word `bad`.
CALLED = {
    "graph": """\
name: of-graph
inputs:
  word: {type: string}
  number: {type: integer, default: 1}
blocks:
  - {id: check, type: Shell, inputs: {command: "case ${inputs.word} in bad) exit 3;; esac"}}
  - {id: ask, type: Prompt, depends_on: [check], inputs: {prompt: "what of ${inputs.word}?"}}
  - id: add
    type: Shell
    depends_on: [ask]
    inputs: {command: 'printf "%s is %s" "${inputs.word}" "${blocks.ask.response}"; echo run >> log'}
outputs:
  said: ${blocks.add.stdout}
  sum: ${inputs.number}
""",
    "stateful": """\
name: of-stateful
inputs: {word: string, number: {type: integer, default: 1}}
initial_state: {answer: null, checked: 0, said: ""}
steps:
  - id: check
    type: set_state
    needs_state: []
    updates: {checked: "{{ 1 / (0 if inputs.word == 'bad' else 1) }}"}
  - {id: ask, type: prompt, needs_state: [], message: "what of {{ inputs.word }}?", prompt_type: text, output_to: answer}
  - {id: add, type: shell, needs_state: [], run_on: server, command: "echo run >> log"}
  - id: give
    type: return
    needs_state: [answer]
    value: {said: "{{ inputs.word }} is {{ state.answer.input }}", sum: "{{ inputs.number }}"}
""",
    "reactive": """\
name: of-reactive
inputs: {word: {type: string, required: true}, number: {type: integer, default: 1}}
default_state: {raw: {checked: 0, answer: ""}}
state_schema:
  raw: {checked: number}
  computed:
    said: {from: raw.answer, transform: "`${word} is ${input}`"}
    sum: {from: inputs.number, transform: input}
steps:
  - id: check
    type: state_update
    path: raw.checked
    value: "{{ word === 'bad' ? 'no number' : 1 }}"
  - {id: ask, type: user_input, prompt: "what of {{ word }}?", state_update: {path: raw.answer}}
  - {id: add, type: shell_command, command: "echo run >> log"}
""",
}
FAILS_AT = {"graph": 6, "stateful": 8, "reactive": 12}
"""The line of what cannot be done with the word `bad`."""
CALLERS = {
    "graph": """\
name: caller
inputs: {{word: {{type: string}}}}
blocks:
  - {{id: before, type: Shell, inputs: {{command: echo 41}}}}
  - id: call
    type: Workflow
    depends_on: [before]
    inputs: {{workflow: {called}, inputs: {{word: "${{inputs.word}}", number: "${{blocks.before.stdout}}"}}}}
  - id: use
    type: Shell
    depends_on: [call]
    inputs: {{command: 'printf "%s, and %s" "${{blocks.call.{result}said}}" "${{blocks.call.{result}sum}}"'}}
outputs: {{used: "${{blocks.use.stdout}}"}}
""",
    "stateful": """\
name: caller
inputs: {{word: string}}
initial_state: {{got: null, n: 41}}
steps:
  - id: call
    type: workflow
    needs_state: [n]
    workflow: {called}
    inputs: {{word: "{{{{ inputs.word }}}}", number: "{{{{ state.n }}}}"}}
    output_to: got
  - {{id: give, type: return, needs_state: [got], value: {{used: "{{{{ state.got.said }}}}, and {{{{ state.got.sum }}}}"}}}}
""",
    "reactive": """\
name: caller
inputs: {{word: string}}
default_state: {{raw: {{n: 41, got: {{}}}}}}
state_schema:
  computed:
    used: {{from: raw.got, transform: "`${{input.said}}, and ${{input.sum}}`"}}
steps:
  - id: call
    type: include_workflow
    workflow: {called}
    inputs: {{word: "{{{{ word }}}}", number: "{{{{ n }}}}"}}
    state_update: {{path: raw.got}}
  - {{type: user_message, message: "{{{{ said }}}} by its bare name"}}
""",
}
SIX = [(caller, called) for caller in CALLERS for called in CALLED if caller != called]
each_direction = pytest.mark.parametrize(("caller", "called"), SIX, ids=[" to ".join(pair) for pair in SIX])


class Files(NamedTuple):
    workspace: Path
    settings: Settings


@pytest.fixture
def files(workspace: Path, settings: Settings) -> Callable[[str, str], Files]:
    """Write down a workflow that calls another one."""

    def write(caller: str, called: str) -> Files:
        result = "" if called == "graph" else "result."
        text = CALLERS[caller].format(called=f"of-{called}", result=result)
        for name, content in ((f"of-{called}", CALLED[called]), ("caller", text)):
            (workspace / ".workflows" / f"{name}.yaml").write_text(content)
        return Files(workspace, settings)

    return write


Write = Callable[[str, str], Files]


def used(answer: dict[str, Any], caller: str) -> Any:
    """What the caller has made of what it got."""
    assert answer["status"] == "completed", answer
    where = {"graph": "outputs", "stateful": "result", "reactive": "state"}[caller]
    return answer[where]["used"]


@each_direction
def test_inputs_go_in_a_question_inside_pauses_the_run_and_results_come_back(
    files: Write, caller: str, called: str
) -> None:
    workspace, settings = files(caller, called)

    async def go() -> tuple[dict[str, Any], dict[str, Any]]:
        async with Service.open(settings) as service:
            asked = await service.start(workflow="caller", inputs={"word": "rain"})
            return asked, await service.submit(asked["workflow_id"], "wet")

    asked, answer = asyncio.run(go())
    assert asked["status"] == "pending_action"
    assert asked["action"]["step_id"] == "call/ask"
    assert "what of rain?" in str(asked["action"]["parameters"])
    assert used(answer, caller) == "rain is wet, and 41"
    if caller == "reactive":
        assert answer["messages"] == ["rain is wet by its bare name"]
    assert (workspace / "log").read_text() == "run\n"


@each_direction
def test_a_failure_inside_is_told_with_the_file_and_the_line_of_the_called_workflow(
    files: Write, caller: str, called: str
) -> None:
    workspace, settings = files(caller, called)

    async def go() -> dict[str, Any]:
        async with Service.open(settings) as service:
            return await service.start(workflow="caller", inputs={"word": "bad"})

    answer = asyncio.run(go())
    assert answer["status"] == "failed"
    error = answer["error"]
    assert error["block"] == "call/check"
    assert error["place"].startswith(f"{workspace}/.workflows/of-{called}.yaml:{FAILS_AT[called]}:")
    assert "'check'" in error["message"]
    assert not (workspace / "log").exists()


@each_direction
def test_another_server_goes_on_where_one_was_stopped(files: Write, caller: str, called: str) -> None:
    workspace, settings = files(caller, called)

    async def go() -> dict[str, Any]:
        async with Service.open(settings) as service:
            asked = await service.start(workflow="caller", inputs={"word": "rain"})
        for name in ("caller", f"of-{called}"):  # the run keeps what it was started with
            (workspace / ".workflows" / f"{name}.yaml").write_text("name: something else\n")
        async with Service.open(settings) as service:
            again = await service.next_step(asked["workflow_id"])
            assert again["action"] == asked["action"]
            return await service.submit(asked["workflow_id"], "wet")

    assert used(asyncio.run(go()), caller) == "rain is wet, and 41"
    assert (workspace / "log").read_text() == "run\n"


@pytest.mark.parametrize(
    ("caller", "called", "message"),
    [
        ("graph", "reactive", "input 'number' must be a whole number"),
        ("reactive", "graph", "input 'number' must be a whole number"),
        ("stateful", "reactive", "input 'number' must be a whole number"),
    ],
)
def test_what_goes_in_is_checked_by_the_rules_of_the_called_workflow(
    files: Write, caller: str, called: str, message: str
) -> None:
    workspace, settings = files(caller, called)
    file = workspace / ".workflows" / "caller.yaml"
    file.write_text(file.read_text().replace("echo 41", "echo many").replace("n: 41", "n: many"))

    async def go() -> dict[str, Any]:
        async with Service.open(settings) as service:
            return await service.start(workflow="caller", inputs={"word": "rain"})

    answer = asyncio.run(go())
    assert answer["status"] == "failed"
    assert message in answer["error"]["message"]
    assert answer["error"]["place"].startswith(f"{file}:")


WRONG_BEFORE_IT_RUNS = [
    ("graph", "reactive", 'word: "${inputs.word}", ', "", "also needs 'word'"),
    ("graph", "reactive", "call.result.said", "call.result_of.said", "has no output 'result_of'"),
    ("reactive", "graph", 'word: "{{ word }}", ', "", "also needs 'word'"),
    ("reactive", "graph", "number:", "numbre:", "has no input 'numbre'"),
    ("stateful", "reactive", 'word: "{{ inputs.word }}", ', "", "also needs 'word'"),
    ("reactive", "stateful", "of-stateful", "of-statefull", "there is no workflow 'of-statefull'"),
]


@pytest.mark.parametrize(("caller", "called", "right", "wrong", "message"), WRONG_BEFORE_IT_RUNS)
def test_a_call_that_cannot_work_is_refused_before_anything_runs(
    files: Write, caller: str, called: str, right: str, wrong: str, message: str
) -> None:
    workspace, settings = files(caller, called)
    file = workspace / ".workflows" / "caller.yaml"
    text = file.read_text()
    assert right in text

    async def go() -> list[str]:
        async with Service.open(settings) as service:
            problems = service.validate(text.replace(right, wrong), file=str(file))
            return [problem.message for problem in problems if not problem.warning]

    assert any(message in problem for problem in asyncio.run(go()))


@pytest.mark.rows("R6")
@pytest.mark.parametrize("caller", ["graph", "stateful"])
def test_a_computed_field_that_cannot_be_left_behind_is_told_with_its_line(files: Write, caller: str) -> None:
    workspace, settings = files(caller, "reactive")
    file = workspace / ".workflows" / "of-reactive.yaml"
    strict = (
        "    left: {from: raw.answer, transform: input.no.such, on_error: propagate}\nsteps:\n  - id: check"
    )
    file.write_text(CALLED["reactive"].replace("steps:\n  - id: check", strict))

    async def go() -> dict[str, Any]:
        async with Service.open(settings) as service:
            asked = await service.start(workflow="caller", inputs={"word": "rain"})
            return asked if "action" not in asked else await service.submit(asked["workflow_id"], "wet")

    answer = asyncio.run(go())
    assert answer["status"] == "failed"
    assert "the computed field 'left' cannot be computed" in answer["error"]["message"]
    assert answer["error"]["place"].startswith(f"{file}:9:")


def test_all_three_in_one_run(workspace: Path, settings: Settings) -> None:
    """A graph calls a reactive workflow in a loop over a stateful one, which calls a graph."""
    texts = {
        "leaf": 'name: leaf\ninputs: {n: {type: integer}}\nblocks: [{id: e, type: Shell, inputs: {command: "echo $(( ${inputs.n} * 10 ))"}}]\noutputs: {ten: "${blocks.e.stdout}"}\n',
        "middle": 'name: middle\ninputs: {n: integer}\ninitial_state: {got: null}\nsteps:\n  - {id: call, type: workflow, needs_state: [], workflow: leaf, inputs: {n: "{{ inputs.n }}"}, output_to: got}\n  - {id: r, type: return, needs_state: [got], value: "{{ state.got.ten | int }}"}\n',
        "loop": 'name: loop\ninputs: {most: integer}\ndefault_state: {raw: {tens: []}}\nstate_schema: {computed: {sum: {from: raw.tens, transform: "input.reduce((a, b) => a + b, 0)"}}}\nsteps:\n  - {id: each, type: foreach, items: "{{ Array.from({length: most}, (_, i) => i + 1) }}", steps: [{id: call, type: include_workflow, workflow: middle, inputs: {n: "{{ item }}"}, state_update: {path: raw.tens, operation: append, value: "{{ result }}"}}]}\n',
        "top": 'name: top\nblocks: [{id: call, type: Workflow, inputs: {workflow: loop, inputs: {most: 4}}}]\noutputs: {sum: "${blocks.call.result.sum}", tens: "${blocks.call.result.tens}"}\n',
    }
    for name, text in texts.items():
        (workspace / ".workflows" / f"{name}.yaml").write_text(text)

    async def go() -> dict[str, Any]:
        async with Service.open(settings) as service:
            return await service.start(workflow="top")

    answer = asyncio.run(go())
    assert answer["outputs"] == {"sum": 100, "tens": [10, 20, 30, 40]}


@pytest.mark.slow
@pytest.mark.rows("X1")
def test_a_question_inside_survives_the_kill_of_the_server_that_asked_it(tmp_path: Path) -> None:
    workspace = tmp_path / "workspace"
    (workspace / ".workflows").mkdir(parents=True)
    (workspace / ".workflows" / "of-reactive.yaml").write_text(CALLED["reactive"])
    text = CALLERS["stateful"].format(called="of-reactive")
    (workspace / ".workflows" / "caller.yaml").write_text(text)

    asked = called(tmp_path, "start_workflow", workflow="caller", inputs={"word": "rain"})
    again = called(tmp_path, "get_next_step", workflow_id=asked["workflow_id"])
    assert again["action"] == asked["action"]
    answer = called(
        tmp_path, "submit_result", workflow_id=asked["workflow_id"], result="wet", step_id="call/ask"
    )
    while answer["status"] == "running":
        answer = called(tmp_path, "get_workflow_status", workflow_id=asked["workflow_id"], wait_seconds=5)
    assert answer["result"] == {"used": "rain is wet, and 41"}
    assert (workspace / "log").read_text() == "run\n"
