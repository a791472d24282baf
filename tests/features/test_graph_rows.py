"""The graph dialect, row by row, from YAML to answer."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path
from typing import Any

import pytest

from support.rendered import Service
from workflows_mcp.errors import DefinitionError, InvalidInputs
from workflows_mcp.settings.model import Settings

DIAMOND = """
name: diamond
blocks:
  - {id: top, type: Shell, inputs: {command: echo top}}
  - {id: left, type: Shell, depends_on: [top], inputs: {command: echo left}}
  - {id: right, type: Shell, depends_on: [top], inputs: {command: echo right}}
  - {id: bottom, type: Shell, depends_on: [left, right], inputs: {command: echo bottom}}
outputs:
  wave: ${blocks.bottom.metadata.wave}
  order: ${blocks.bottom.metadata.execution_order}
"""


@pytest.mark.rows("G1", "G2", "G9")
def test_blocks_run_in_the_order_of_their_dependencies_and_know_wave_and_order(run: Any) -> None:
    ran = run(DIAMOND)
    assert ran.answer["outputs"] == {"wave": 2, "order": 3}
    metadata = {name: block["metadata"] for name, block in ran.blocks.items()}
    assert [metadata[name]["wave"] for name in ("top", "left", "right", "bottom")] == [0, 1, 1, 2]
    assert [metadata[name]["execution_order"] for name in ("top", "left", "right", "bottom")] == [0, 1, 2, 3]
    assert metadata["top"]["completed_at"] <= metadata["left"]["started_at"]
    for fields in metadata.values():
        assert fields["status"] == "completed"
        assert fields["outcome"] == "success"
        assert fields["execution_time_ms"] > 0
        assert fields["started_at"].endswith("Z")
        assert fields["message"] is None


@pytest.mark.rows("G3")
def test_every_form_of_reference_finds_its_value_and_types_survive(run: Any) -> None:
    ran = run(
        """
name: references
inputs:
  word: {type: string}
  items: {type: list}
blocks:
  - id: first
    type: RenderTemplate
    inputs: {template: "{{ a }}-{{ b[1] }}", variables: {a: "${inputs.word}", b: "${inputs.items}"}}
  - id: call
    type: ExecuteWorkflow
    depends_on: [first]
    inputs: {workflow: inner, inputs: {given: "${blocks.first.rendered}"}}
outputs:
  input: ${inputs.word}
  whole_list: ${inputs.items}
  item: ${inputs.items[0].key}
  mixed: "has ${inputs.items} and ${inputs.word}"
  name: ${metadata.workflow_name}
  explicit: ${blocks.first.outputs.rendered}
  shortcut: ${blocks.first.rendered}
  block_input: ${blocks.first.inputs.variables.a}
  block_metadata: ${blocks.first.metadata.status}
  nested: ${blocks.call.blocks.deep.outputs.rendered}
  inner_output: ${blocks.call.said}
  structure: {list: ["${inputs.word}", {deep: "${blocks.first.size_bytes}"}]}
""",
        {"word": "w", "items": [{"key": True}, 2]},
        library={
            "inner": """
name: inner
inputs: {given: {type: string}}
blocks:
  - {id: deep, type: RenderTemplate, inputs: {template: "deep ${inputs.given}"}}
outputs: {said: "${blocks.deep.rendered}"}
"""
        },
    )
    assert ran.answer["outputs"] == {
        "input": "w",
        "whole_list": [{"key": True}, 2],
        "item": True,
        "mixed": 'has [{"key":true},2] and w',
        "name": "references",
        "explicit": "w-2",
        "shortcut": "w-2",
        "block_input": "w",
        "block_metadata": "completed",
        "nested": "deep w-2",
        "inner_output": "deep w-2",
        "structure": {"list": ["w", {"deep": 3}]},
    }


@pytest.mark.rows("G4", "G6", "G7")
def test_the_three_tiers_of_status_work_in_conditions_inputs_and_outputs(run: Any) -> None:
    ran = run(
        """
name: tiers
blocks:
  - {id: good, type: Shell, inputs: {command: "true"}}
  - {id: bad, type: Shell, inputs: {command: "exit 7"}}
  - {id: crashed, type: ReadFile, on_failure: continue, inputs: {path: nowhere.txt}}
  - {id: skipped, type: Shell, condition: "false", inputs: {command: "true"}}
  - id: told
    type: RenderTemplate
    condition: >
      ${blocks.good.succeeded} and ${blocks.bad.failed} and ${blocks.skipped.skipped}
      and ${blocks.bad.status} == 'completed' and ${blocks.bad.outcome} == 'failure'
      and ${blocks.good.status} in ['completed', 'skipped'] and not ${blocks.good.failed}
    depends_on: [good, {block: bad, required: false}, {block: skipped, required: false}]
    inputs: {template: "${blocks.bad.status}/${blocks.bad.outcome}/${blocks.bad.exit_code}"}
outputs:
  told: ${blocks.told.rendered}
  crashed: ${blocks.crashed.status}/${blocks.crashed.outcome}
  crashed_failed: ${blocks.crashed.failed}
  skipped: ${blocks.skipped.status}/${blocks.skipped.outcome}
  both: ${blocks.good.succeeded} and ${blocks.bad.succeeded}
"""
    )
    assert ran.answer["status"] == "completed"
    assert ran.answer["outputs"] == {
        "told": "completed/failure/7",
        "crashed": "failed/n/a",
        "crashed_failed": True,
        "skipped": "skipped/n/a",
        "both": False,
    }


@pytest.mark.rows("G5")
@pytest.mark.parametrize("path", ["__internal__.executor", "inputs.__class__", "blocks.a._record"])
def test_private_names_are_unreachable(run: Any, path: str) -> None:
    with pytest.raises(DefinitionError, match="private"):
        run(
            f"name: p\nblocks:\n  - {{id: a, type: Shell, inputs: {{command: 'true'}}}}\noutputs: {{x: '${{{path}}}'}}"
        )


@pytest.mark.rows("G8", "G16")
def test_a_failed_call_keeps_its_shape_and_says_which_inner_block_failed(run: Any) -> None:
    inner = """
name: inner
blocks:
  - {id: good, type: Shell, inputs: {command: echo fine}}
  - {id: bad, type: Shell, depends_on: [good], inputs: {command: "echo oh no >&2; exit 4"}}
  - {id: after, type: Shell, depends_on: [bad], inputs: {command: echo never}}
outputs:
  good: ${blocks.good.stdout}
"""
    ran = run(
        """
name: outer
blocks:
  - {id: call, type: Workflow, inputs: {workflow: inner}}
  - {id: next, type: Shell, depends_on: [call], inputs: {command: echo next}}
""",
        library={"inner": inner},
    )
    assert ran.answer["status"] == "failed"
    assert ran.answer["error"]["block"] == "call/bad"
    assert (
        "block 'call' failed: block 'bad' failed: Command exited with code 4"
        in ran.answer["error"]["message"]
    )
    assert ran.answer["error"]["printed"].strip() == "oh no"
    call = ran.blocks["call"]
    assert (call["metadata"]["status"], call["metadata"]["outcome"]) == ("completed", "failure")
    assert call["outputs"] == {"good": "fine\n"}
    assert call["blocks"]["bad"]["outputs"]["exit_code"] == 4
    assert call["blocks"]["after"]["metadata"]["status"] == "skipped"
    assert call["blocks"]["after"]["outputs"]["stdout"] == ""
    assert ran.blocks["next"]["metadata"]["status"] == "skipped"


@pytest.mark.rows("G10")
def test_shell_takes_environment_directory_and_modes(run: Any, workspace: Path) -> None:
    (workspace / "sub").mkdir()
    ran = run(
        """
name: shell
inputs: {text: {type: string}}
blocks:
  - id: environment
    type: Shell
    inputs:
      command: printf '%s|%s|%s' "$WORD" "$COUNT" "$(basename "$PWD")"
      working_dir: sub
      env: {WORD: "${inputs.text}", COUNT: 3}
  - id: quiet
    type: Shell
    inputs: {command: "echo loud", capture_output: false}
  - id: direct
    type: Shell
    inputs: {command: "printf '%s' ${inputs.text}", shell: false}
  - id: forgiven
    type: Shell
    inputs: {command: "exit 3", continue-on-error: true}
  - id: after
    type: Shell
    depends_on: [forgiven]
    inputs: {command: "echo after ${blocks.forgiven.exit_code}"}
""",
        {"text": "two  words; $HOME"},
    )
    outputs = {name: block["outputs"] for name, block in ran.blocks.items()}
    assert outputs["environment"]["stdout"] == "two  words; $HOME|3|sub"
    assert outputs["quiet"]["stdout"] == ""
    assert outputs["direct"]["stdout"] == "two  words; $HOME"
    assert outputs["after"]["stdout"] == "after 3\n"
    assert outputs["direct"]["command_executed"] == "printf '%s' two  words; $HOME"
    assert ran.answer["status"] == "completed"


@pytest.mark.rows("G10")
def test_a_failing_command_fails_the_run_unless_the_workflow_looks_at_it(run: Any) -> None:
    alone = "name: a\nblocks:\n  - {id: b, type: Shell, inputs: {command: 'echo why; exit 2'}}\n"
    failed = run(alone)
    assert failed.answer["status"] == "failed"
    assert failed.answer["error"]["message"] == "block 'b' failed: Command exited with code 2: why"
    looked_at = run(alone + "outputs: {code: '${blocks.b.exit_code}'}\n")
    assert looked_at.answer["outputs"] == {"code": 2}
    insisted = run(
        alone.replace("type: Shell,", "type: Shell, on_failure: fail,")
        + "outputs: {x: '${blocks.b.failed}'}\n"
    )
    assert insisted.answer["status"] == "failed"


@pytest.mark.rows("G11")
def test_files_that_a_command_leaves_become_typed_outputs(run: Any, workspace: Path) -> None:
    ran = run(
        """
name: outputs
inputs: {file: {type: string, default: n}}
blocks:
  - id: make
    type: Shell
    inputs:
      command: |
        echo 41 > "$SCRATCH/n"; echo '{"a": [1, 2]}' > "$SCRATCH/data.json"; echo text > inside.txt
    outputs:
      number: {type: int, path: $SCRATCH/n}
      data: {type: json, path: "$SCRATCH/data.json"}
      text: {type: string, path: inside.txt}
      missing: {type: string, path: $SCRATCH/nothing, required: false}
      named: {type: int, path: "$SCRATCH/${inputs.file}"}
  - id: use
    type: Shell
    depends_on: [make]
    inputs: {command: 'ls "$SCRATCH"; echo ${blocks.make.data.a[1]}'}
outputs: {number: "${blocks.make.number}", list: "${blocks.make.outputs.data.a}", none: "${blocks.make.missing}",
  named: "${blocks.make.named}"}
"""
    )
    assert ran.answer["outputs"] == {"number": 41, "list": [1, 2], "none": None, "named": 41}
    assert ran.blocks["use"]["outputs"]["stdout"] == "2\n", "a directory of its own"
    assert list((workspace.parent / "home" / "scratch").glob("*")) == [], "scratch goes with its run"


@pytest.mark.rows("G12", "G13")
def test_files_templates_and_json_state(run: Any, workspace: Path) -> None:
    ran = run(
        """
name: files
blocks:
  - {id: write, type: CreateFile, inputs: {path: a/b/script.sh, content: "#!/bin/sh\\necho ü\\n", mode: "755"}}
  - {id: again, type: CreateFile, on_failure: continue, depends_on: [write],
     inputs: {path: a/b/script.sh, content: other, overwrite: false}}
  - {id: read, type: ReadFile, depends_on: [write], inputs: {path: a/b/script.sh}}
  - {id: binary, type: ReadFile, depends_on: [write], inputs: {path: a/b/script.sh, mode: binary}}
  - id: render
    type: RenderTemplate
    depends_on: [read]
    inputs:
      template: "{% for line in text.splitlines() %}{{ loop.index }}:{{ line }} {% endfor %}"
      variables: {text: "${blocks.read.content}"}
      output_path: out/rendered.txt
  - {id: state, type: WriteJSONState, inputs: {path: s.json, data: {a: {b: 1}, n: 1}}}
  - {id: merge, type: MergeJSONState, depends_on: [state], inputs: {path: s.json, updates: {a: {c: 2}, n: 3}}}
  - {id: back, type: ReadJSONState, depends_on: [merge], inputs: {path: s.json}}
outputs: {state: "${blocks.back.data}", again: "${blocks.again.metadata.message}"}
"""
    )
    assert ran.answer["status"] == "completed", ran.answer
    assert ran.answer["outputs"]["state"] == {"a": {"b": 1, "c": 2}, "n": 3}
    assert "exists" in ran.answer["outputs"]["again"]
    script = workspace / "a" / "b" / "script.sh"
    assert script.stat().st_mode & 0o777 == 0o755
    assert ran.blocks["read"]["outputs"]["content"] == script.read_text(encoding="utf-8")
    assert base64.b64decode(ran.blocks["binary"]["outputs"]["content"]) == script.read_bytes()
    assert (workspace / "out" / "rendered.txt").read_text(encoding="utf-8").startswith("1:#!/bin/sh 2:echo ü")


ASKING = {
    "level1": "name: level1\nblocks:\n  - {id: down, type: Workflow, inputs: {workflow: level2}}\noutputs: {said: '${blocks.down.said}'}",
    "level2": """
name: level2
blocks:
  - {id: ask, type: Prompt, inputs: {prompt: "How many?"}}
  - {id: use, type: Shell, depends_on: [ask], condition: "${blocks.ask.response} == 'three'",
     inputs: {command: "echo got ${blocks.ask.response}"}}
outputs: {said: "${blocks.use.stdout}"}
""",
}


@pytest.mark.rows("G15", "G16")
def test_a_question_in_a_called_workflow_pauses_the_caller_and_its_answer_reaches_conditions_and_commands(
    run: Any,
) -> None:
    text = "name: top\nblocks:\n  - {id: call, type: Workflow, inputs: {workflow: level1}}\noutputs: {said: '${blocks.call.said}'}"
    paused = run(text, library=ASKING)
    assert paused.answer["status"] == "pending_action"
    assert paused.answer["action"]["step_id"] == "call/down/ask"
    assert paused.answer["action"]["parameters"] == {"prompt": "How many?"}
    assert paused.blocks["call"]["metadata"]["status"] == "running"
    done = run(text, answers=["three"], library=ASKING)
    assert done.answer["outputs"] == {"said": "got three\n"}


@pytest.mark.rows("G16")
def test_an_unguarded_circular_call_is_refused_with_its_path(run: Any) -> None:
    calls = "name: {0}\nblocks:\n  - {{id: c, type: Workflow, inputs: {{workflow: {1}}}}}\n"
    with pytest.raises(DefinitionError, match="a → b → a"):
        run(calls.format("a", "b"), library={"a": calls.format("a", "b"), "b": calls.format("b", "a")})


@pytest.mark.rows("G17", "G24")
def test_inputs_are_checked_all_at_once_before_anything_runs(run: Any, workspace: Path) -> None:
    text = """
name: inputs
inputs:
  count: {type: integer}
  ratio: {type: float, default: 0.5}
  flag: {type: bool, required: true}
  names: {type: list, default: []}
blocks:
  - {id: touch, type: Shell, inputs: {command: touch ran}}
outputs: {count: "${inputs.count}", ratio: "${inputs.ratio}", flag: "${inputs.flag}", names: "${inputs.names}"}
"""
    with pytest.raises(InvalidInputs) as refused:
        run(text, {"count": "many", "falg": True, "names": 5})
    message = str(refused.value)
    for part in ("count", "many", "falg", "flag", "names"):
        assert part in message
    assert not (workspace / "ran").exists()
    ran = run(text, {"count": "42", "flag": "true", "names": '["a"]'})
    assert ran.answer["outputs"] == {"count": 42, "ratio": 0.5, "flag": True, "names": ["a"]}


@pytest.mark.rows("G19")
def test_the_answer_has_one_shape_and_leaves_out_what_is_absent(run: Any) -> None:
    ran = run(DIAMOND)
    assert set(ran.answer) == {"workflow_id", "workflow", "status", "progress", "outputs", "next", "proof"}
    assert ran.answer["workflow"] == "diamond"
    assert ran.answer["progress"] == {"done": 4, "total": 4}
    details = f"get_workflow_state(workflow_id='{ran.answer['workflow_id']}')"
    fork = f"control_workflow(workflow_id='{ran.answer['workflow_id']}', action='fork', step_id=…)"
    after = f"nothing; {details} has the details and step ids; {fork} redoes one of these steps"
    proof = (
        f"workflows-mcp report {ran.answer['workflow_id']} --expect {ran.answer['proof']} shows who did what"
    )
    assert ran.answer["next"] == f"{after} and what follows it: 'top', 'left', 'right', 'bottom'; {proof}"


@pytest.mark.rows("X2")
def test_a_run_keeps_the_definition_that_it_started_with(settings: Settings, workspace: Path) -> None:
    file = workspace / ".workflows" / "pinned.yaml"
    inner = workspace / ".workflows" / "inner.yaml"
    file.write_text(
        "name: pinned\nblocks:\n  - {id: ask, type: Prompt, inputs: {prompt: '?'}}\n"
        "  - {id: call, type: Workflow, depends_on: [ask], inputs: {workflow: inner}}\noutputs: {v: '${blocks.call.v}'}"
    )
    inner.write_text(
        "name: inner\nblocks:\n  - {id: a, type: RenderTemplate, inputs: {template: old}}\noutputs: {v: '${blocks.a.rendered}'}"
    )

    async def go() -> None:
        async with Service.open(settings) as service:
            answer = await service.start(workflow="pinned")
        inner.write_text("this: is no workflow any more")
        file.unlink()
        async with Service.open(settings) as service:
            answer = await service.submit(answer["workflow_id"], "go on")
            assert answer["outputs"] == {"v": "old"}

    asyncio.run(go())


def test_a_reference_that_leads_nowhere_at_run_time_names_the_line_and_what_exists(run: Any) -> None:
    ran = run(
        """
name: lost
blocks:
  - {id: state, type: ReadJSONState, inputs: {path: none.json}}
  - id: use
    type: Shell
    depends_on: [state]
    inputs:
      command: echo ${blocks.state.data.pahse}
"""
    )
    error = ran.answer["error"]
    assert ran.answer["status"] == "failed"
    assert error["block"] == "use"
    assert error["place"] == "<yaml>:9:21"
    assert "echo ${blocks.state.data.pahse}" in error["line"]
    assert "'blocks.state.data' has no 'pahse'" in error["message"]


@pytest.mark.rows("G10")
def test_a_command_that_timed_out_keeps_what_it_had_printed(run: Any) -> None:
    ran = run(
        "name: slow\nblocks:\n  - {id: s, type: Shell, inputs: {command: 'echo partial; sleep 30', timeout: 0.4}}\n"
    )
    assert ran.answer["status"] == "failed"
    assert ran.answer["error"]["message"] == "block 's' failed: timed out after 0.4 s"
    assert ran.answer["error"]["printed"].strip() == "partial"
    block = ran.blocks["s"]
    assert (block["metadata"]["status"], block["metadata"]["outcome"]) == ("failed", "n/a")
    assert block["outputs"]["stdout"] == "partial\n"
    assert block["outputs"]["exit_code"] == 137


@pytest.mark.rows("G2")
def test_the_waves_of_a_workflow_can_be_asked_for_before_it_runs(settings: Settings, workspace: Path) -> None:
    (workspace / ".workflows" / "diamond.yaml").write_text(DIAMOND)
    steps = Service.open(settings).workflow_info("diamond")["steps"]
    assert [(step["id"], step["wave"]) for step in steps] == [
        ("top", 0),
        ("left", 1),
        ("right", 1),
        ("bottom", 2),
    ]
