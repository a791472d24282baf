"""What references, filters and keys of mappings become in a run."""

from __future__ import annotations

import pytest

from features.conftest import Run


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
