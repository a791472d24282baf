"""What references, filters and keys of mappings become in a run."""

from __future__ import annotations

from typing import Any

import pytest

from features.conftest import Run
from workflows_mcp.errors import DefinitionError


@pytest.mark.rows("G3")
def test_output_of_a_command_is_trimmed_split_and_read_where_it_is_used(run: Run) -> None:
    ran = run("""
blocks:
  - id: version
    type: Shell
    inputs: {command: "echo ' 1.2'; exit 0"}
  - id: files
    type: Shell
    inputs: {command: "printf 'a b.txt\\nc.txt\\n\\n'"}
  - id: each
    type: Shell
    depends_on: [version, files]
    for_each: ${blocks.files.outputs.stdout | lines}
    inputs: {command: 'echo "${each.value | upper}" v${blocks.version.outputs.stdout | trim}'}
outputs:
  tag: v${blocks.version.outputs.stdout | trim}
  said: ${blocks.each.outputs.results}
  names: ${blocks.files.outputs.stdout | lines | join(' and ')}
""")
    outputs = ran.answer["outputs"]
    assert outputs["tag"] == "v1.2"
    assert outputs["names"] == "a b.txt and c.txt"
    results = outputs["said"].values() if isinstance(outputs["said"], dict) else outputs["said"]
    assert [item["stdout"] for item in results] == ["A B.TXT v1.2\n", "C.TXT v1.2\n"]


@pytest.mark.rows("G3")
def test_default_stands_for_the_output_of_a_block_that_was_skipped(run: Run) -> None:
    ran = run("""
blocks:
  - id: skipped
    type: Shell
    condition: "false"
    inputs: {command: echo hello}
  - id: ran
    type: Shell
    inputs: {command: echo hello}
outputs:
  absent: ${blocks.skipped.outputs.stdout | default('nothing')}
  short: ${blocks.skipped.stdout | default('nothing') | upper}
  present: ${blocks.ran.outputs.stdout | default('nothing') | trim}
  status: ${blocks.skipped.status | default('none')}
""")
    assert ran.answer["outputs"] == {
        "absent": "nothing",
        "short": "NOTHING",
        "present": "hello",
        "status": "skipped",
    }


@pytest.mark.rows("G3")
def test_an_output_can_be_an_expression_in_braces_of_its_own_and_keys_can_be_references(run: Run) -> None:
    ran = run(
        """
inputs: {a: boolean, b: boolean, name: string}
blocks:
  - id: ok
    type: Shell
    inputs: {command: "true"}
outputs:
  both: ${(${inputs.a} or ${inputs.b}) and ${blocks.ok.succeeded}}
  named: {"${inputs.name}": 1, "x-${inputs.name}": "${inputs.a}"}
  text: "${inputs.a}\\n"
  block: |
    ${inputs.name}
""",
        {"a": False, "b": True, "name": "n"},
    )
    expected = {"both": True, "named": {"n": 1, "x-n": False}, "text": "false\n", "block": "n\n"}
    assert ran.answer["outputs"] == expected


@pytest.mark.rows("S1")
def test_white_space_around_an_expression_of_jinja_makes_it_text(run: Run) -> None:
    ran = run(
        """
dialect: stateful
inputs: {n: {type: integer}}
steps:
  - id: r
    type: return
    value:
      a: "{{ inputs.n }}"
      b: " {{ inputs.n }}"
      "{{ inputs.n }}": c
      block: |
        {{ inputs.n }}
""",
        {"n": 3},
    )
    assert ran.answer["result"] == {"a": 3, "b": " 3", "3": "c", "block": 3}


@pytest.mark.rows("G17")
def test_a_number_is_taken_for_a_text_input_also_through_a_call(run: Run) -> None:
    child = """
name: child
inputs: {version: string, dry: string}
blocks:
  - {id: a, type: Shell, inputs: {command: "echo ${inputs.version} ${inputs.dry}"}}
outputs: {version: "${inputs.version}", dry: "${inputs.dry}"}
"""
    ran = run(
        """
inputs: {n: integer, dry: boolean}
blocks:
  - {id: call, type: Workflow, inputs: {workflow: child, inputs: {version: "${inputs.n}", dry: "${inputs.dry}"}}}
  - {id: literal, type: Workflow, inputs: {workflow: child, inputs: {version: 3, dry: true}}}
outputs:
  called: ${blocks.call.outputs.version}
  dry: ${blocks.call.outputs.dry}
  literal: ${blocks.literal.outputs.version}
""",
        {"n": 3, "dry": False},
        library={"child": child},
    )
    assert ran.answer["outputs"] == {"called": "3", "dry": "false", "literal": "3"}


CALLED = """
name: called
inputs: {text: string, number: number}
blocks:
  - {id: a, type: Shell, inputs: {command: "true"}}
outputs: {text: "${inputs.text}", number: "${inputs.number}"}
"""
FROM_STATEFUL = """
initial_state: {n: 7, got: null, each: []}
steps:
  - {id: a, type: workflow, workflow: called, needs_state: [n], inputs: {text: "{{ state.n }}", number: "12"}, output_to: got}
  - {id: b, type: foreach, needs_state: [], items: [1, true, 2.5], task: same, output_to: each}
tasks:
  same:
    inputs: {text: string}
    steps: [{id: give, type: return, needs_state: [], value: "{{ inputs.text }}"}]
"""
FROM_REACTIVE = """
default_state: {raw: {n: 7}}
steps:
  - id: a
    type: include_workflow
    workflow: called
    inputs: {text: "{{ n }}", number: "12"}
    state_update: {path: raw.got, value: "{{ result }}"}
"""


@pytest.mark.rows("S1", "S5", "R2")
@pytest.mark.parametrize(
    ("text", "more"),
    [(FROM_STATEFUL, {"each": ["1", "true", "2.5"]}), (FROM_REACTIVE, {})],
    ids=["stateful", "reactive"],
)
def test_calls_and_tasks_of_steps_convert_what_loses_nothing_too(
    run: Run, text: str, more: dict[str, Any]
) -> None:
    state = run(text, library={"called": CALLED}).answer["state"]
    assert state == {"n": 7, "got": {"text": "7", "number": 12}, **more}


@pytest.mark.rows("G24")
def test_what_cannot_fit_an_input_of_a_called_workflow_is_said_at_load(run: Run) -> None:
    child = "name: child\ninputs: {v: string}\nblocks:\n  - {id: a, type: Shell, inputs: {command: 'true'}}\n"
    with pytest.raises(DefinitionError, match="input 'v' of workflow 'child' takes text, not list"):
        run(
            "inputs: {files: list}\nblocks:\n"
            "  - {id: call, type: Workflow, inputs: {workflow: child, inputs: {v: '${inputs.files}'}}}\n",
            {"files": []},
            library={"child": child},
        )


@pytest.mark.rows("G26")
@pytest.mark.parametrize(
    ("retry", "tries"),
    [("{attempts: 2, delay: 0}", 2), ("{retries: 2, delay: 0}", 3), ("2", 2)],
)
def test_attempts_count_all_tries_and_retries_those_after_the_first(run: Run, retry: str, tries: int) -> None:
    ran = run(
        "blocks:\n  - {id: a, type: Shell, on_failure: continue, "
        f"retry: {retry}, inputs: {{command: exit 3}}}}\n"
        "outputs: {tries: '${blocks.a.metadata.attempts}'}\n"
    )
    assert ran.answer["outputs"] == {"tries": tries}


@pytest.mark.rows("X7")
@pytest.mark.parametrize(
    ("retry", "hint"),
    [
        ("[2]", "e.g. retry: 3, three tries in all"),
        ("{attempts: 0}", "it counts all tries: attempts: 3 is the first and two more"),
        ("{attempts: 2, retries: 1}", "attempts counts all tries, retries those after the first: keep one"),
    ],
)
def test_a_wrong_retry_says_what_is_counted(run: Run, retry: str, hint: str) -> None:
    text = f"blocks: [{{id: a, type: Shell, retry: {retry}, inputs: {{command: 'true'}}}}]\n"
    with pytest.raises(DefinitionError) as refused:
        run(text)
    assert hint in refused.value.problems[0].hint
