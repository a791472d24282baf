"""The documented examples of the graph dialect: workflows that call workflows."""

from __future__ import annotations

from typing import Any

import pytest

from support.programs import Programs
from workflows_mcp.errors import DefinitionError

COMPOSITION = """
# Child workflow (run-tests.yaml)
outputs:
  test_passed: "${blocks.pytest.outputs.success}"
  coverage: "${blocks.coverage.outputs.percent}"

# Parent workflow
blocks:
  - id: run_tests
    type: ExecuteWorkflow
    inputs:
      workflow: "run-tests"
      inputs:
        project_path: "${inputs.project_path}"

  - id: deploy
    type: Shell
    inputs:
      command: "deploy.sh"
    condition: "${blocks.run_tests.outputs.test_passed}"
    depends_on: [run_tests]
"""
CHILD_OUTPUTS, PARENT_BLOCKS = COMPOSITION.split("# Parent workflow\n")
RUN_TESTS = f"""
name: run-tests
inputs: {{project_path: string}}
blocks:
  - {{id: pytest, type: Shell, inputs: {{command: pytest, working_dir: "${{inputs.project_path}}"}}}}
  - id: coverage
    type: Shell
    inputs: {{command: echo 85.5 > $SCRATCH/percent}}
    outputs: {{percent: {{type: float, path: $SCRATCH/percent}}}}
{CHILD_OUTPUTS}
"""
RELEASE = f"name: release\ninputs: {{project_path: string}}\n{PARENT_BLOCKS}"


@pytest.mark.rows("G16", "G17")
@pytest.mark.parametrize("exit_code", [0, 1])
def test_the_outputs_of_a_called_workflow_decide_what_its_caller_does(
    run: Any, programs: Programs, exit_code: int
) -> None:
    programs.add("pytest", f"pwd; exit {exit_code}")
    programs.add("deploy.sh")
    ran = run(RELEASE, {"project_path": "."}, library={"run-tests": RUN_TESTS})
    assert ran.answer["status"] == ("failed" if exit_code else "completed"), "an output handles no failure"
    called = ran.blocks["run_tests"]
    assert called["outputs"] == {"test_passed": exit_code == 0, "coverage": 85.5}
    assert called["inputs"] == {"workflow": "run-tests", "inputs": {"project_path": "."}}
    assert called["blocks"]["pytest"]["outputs"]["exit_code"] == exit_code
    assert ran.blocks["deploy"]["metadata"]["skipped"] == (exit_code != 0)
    assert programs.calls == ["pytest", "deploy.sh"][: 2 - exit_code]


CI_PIPELINE = """
  - id: ci_pipeline
    type: ExecuteWorkflow
    inputs:
      workflow: "python-ci-pipeline"
      inputs:
        project_path: "${inputs.workspace}"
        python_path: "${blocks.setup.outputs.python_path}"
"""
AROUND_CI_PIPELINE = """
name: around
inputs: {workspace: string}
blocks:
  - id: setup
    type: Shell
    inputs: {command: command -v python3 > $SCRATCH/python}
    outputs: {python_path: {type: string, path: $SCRATCH/python}}
"""
PIPELINE = """
name: python-ci-pipeline
inputs: {project_path: string, python_path: string}
blocks:
  - {id: version, type: Shell, inputs: {command: '"${inputs.python_path}" -c "print(6 * 7)"',
     working_dir: "${inputs.project_path}"}}
outputs: {said: "${blocks.version.stdout}"}
"""


@pytest.mark.rows("G3", "G16")
def test_a_called_workflow_gets_values_of_inputs_and_of_blocks_before_it(run: Any) -> None:
    ran = run(
        AROUND_CI_PIPELINE + CI_PIPELINE + "    depends_on: [setup]\n",
        {"workspace": "."},
        library={"python-ci-pipeline": PIPELINE},
    )
    assert ran.answer["status"] == "completed", ran.answer
    assert ran.blocks["ci_pipeline"]["outputs"] == {"said": "42\n"}


@pytest.mark.rows("G1", "G24")
def test_a_block_that_reads_another_must_depend_on_it(run: Any) -> None:
    with pytest.raises(DefinitionError) as refused:
        run(AROUND_CI_PIPELINE + CI_PIPELINE, {"workspace": "."}, library={"python-ci-pipeline": PIPELINE})
    (problem,) = refused.value.problems
    assert "block 'ci_pipeline' does not wait for block 'setup'" in problem.message
    assert problem.hint == "add 'setup' to depends_on of block 'ci_pipeline'"


# What a called workflow sees

PARENT = """
name: parent-workflow
inputs: {username: string, environment: string}
blocks:
  - id: setup
    type: Shell
    inputs: {command: printf /usr/bin/python3 > $SCRATCH/python}
    outputs: {python_path: {type: string, path: $SCRATCH/python}}
  - id: run_tests
    type: ExecuteWorkflow
    depends_on: [setup]
    inputs:
      workflow: pytest-workflow
      inputs:
        python_path: "${blocks.setup.outputs.python_path}"
        test_dir: "tests/"
        env: "${inputs.environment}"
"""
PYTEST_WORKFLOW = """
name: pytest-workflow
inputs: {python_path: string, test_dir: string, env: string}
blocks:
  - id: tests
    type: Shell
    inputs: {command: 'echo 42 > $SCRATCH/passed; echo 85.5 > $SCRATCH/coverage'}
    outputs:
      passed: {type: int, path: $SCRATCH/passed}
      coverage: {type: float, path: $SCRATCH/coverage}
  - id: seen
    type: WriteJSONState
    inputs: {path: seen.json, data: {inputs: "${inputs}", name: "${metadata.workflow_name}"}}
outputs:
  exit_code: "${blocks.tests.exit_code}"
  coverage: "${blocks.tests.coverage}"
  passed: "${blocks.tests.passed}"
"""
GIVEN = {"python_path": "/usr/bin/python3", "test_dir": "tests/", "env": "production"}


@pytest.mark.rows("G8", "G16")
def test_a_called_workflow_sees_only_what_it_is_given_and_its_outputs_are_those_of_the_block(
    run: Any,
) -> None:
    ran = run(
        PARENT,
        {"username": "alice", "environment": "production"},
        library={"pytest-workflow": PYTEST_WORKFLOW},
    )
    called = ran.blocks["run_tests"]
    assert called["inputs"] == {"workflow": "pytest-workflow", "inputs": GIVEN}
    assert called["outputs"] == {"exit_code": 0, "coverage": 85.5, "passed": 42}
    assert called["metadata"]["wave"] == 1
    assert called["metadata"]["execution_time_ms"] > 0
    written = called["blocks"]["seen"]["inputs"]["data"]
    assert written == {"inputs": GIVEN, "name": "pytest-workflow"}


@pytest.mark.rows("G16", "G24")
@pytest.mark.parametrize(
    ("reference", "said"),
    [
        ("inputs.username", "the workflow has no input 'username'"),
        ("blocks.setup.outputs.python_path", "there is no block 'setup'"),
    ],
)
def test_what_a_caller_has_is_out_of_reach_for_the_called(run: Any, reference: str, said: str) -> None:
    curious = PYTEST_WORKFLOW + f'  more: "${{{reference}}}"\n'
    ran = run(
        PARENT,
        {"username": "alice", "environment": "production"},
        library={"pytest-workflow": curious},
    )
    assert ran.answer["status"] == "failed"
    assert said in ran.answer["error"]["message"]


# Workflows that call each other


@pytest.mark.rows("G16")
def test_a_circular_call_is_refused_with_its_path_before_anything_runs(run: Any, workspace: Any) -> None:
    def calling(name: str, other: str) -> str:
        return (
            f"name: {name}\nblocks:\n  - {{id: ran, type: Shell, inputs: {{command: touch {name}.ran}}}}\n"
            f"  - {{id: call, type: ExecuteWorkflow, inputs: {{workflow: {other}}}}}\n"
        )

    with pytest.raises(DefinitionError) as refused:
        run(
            calling("parent-workflow", "child-workflow"),
            library={
                "child-workflow": calling("child-workflow", "grandchild"),
                "grandchild": calling("grandchild", "parent-workflow"),
                "parent-workflow": calling("parent-workflow", "child-workflow"),
            },
        )
    (problem,) = refused.value.problems
    assert problem.code == "circular_call"
    assert "parent-workflow → child-workflow → grandchild → parent-workflow" in problem.message
    assert list(workspace.glob("*.ran")) == []


# Blocks inside of blocks

DEEP = {
    "level-1": """
name: level-1
blocks:
  - {id: down, type: ExecuteWorkflow, inputs: {workflow: level-2}}
outputs: {from_below: "${blocks.down.blocks.pytest.outputs.exit_code}"}
""",
    "level-2": """
name: level-2
blocks:
  - {id: pytest, type: Shell, inputs: {command: 'echo deep; exit 0'}}
""",
}


@pytest.mark.rows("G3", "G8")
def test_references_reach_into_the_blocks_of_called_workflows_at_any_depth(run: Any) -> None:
    ran = run(
        """
name: top
blocks:
  - {id: run_tests, type: ExecuteWorkflow, inputs: {workflow: level-1}}
  - id: use
    type: Shell
    depends_on: [run_tests]
    condition: ${blocks.run_tests.blocks.down.blocks.pytest.succeeded}
    inputs: {command: 'echo "used ${blocks.run_tests.blocks.down.blocks.pytest.outputs.stdout}"'}
outputs:
  one: ${blocks.run_tests.outputs.from_below}
  two: ${blocks.run_tests.blocks.down.blocks.pytest.stdout}
  three: ${blocks.run_tests.blocks.down.blocks.pytest.metadata.status}
  used: ${blocks.use.stdout}
""",
        library=DEEP,
    )
    assert ran.answer["outputs"] == {"one": 0, "two": "deep\n", "three": "completed", "used": "used deep\n\n"}
    inner = ran.blocks["run_tests"]["blocks"]["down"]["blocks"]["pytest"]
    assert set(inner) >= {"inputs", "outputs", "metadata"}
    assert set(inner["metadata"]) == set(ran.blocks["use"]["metadata"]), "the same shape at every depth"


@pytest.mark.rows("G8")
@pytest.mark.parametrize("called", ["crashes", "no-such-workflow"])
def test_a_call_that_failed_keeps_its_shape_so_that_references_into_it_still_work(
    run: Any, called: str
) -> None:
    ran = run(
        """
name: careful
inputs: {called: string}
blocks:
  - id: call
    type: ExecuteWorkflow
    on_failure: continue
    inputs: {workflow: "${inputs.called}", inputs: {}}
  - {id: after, type: Shell, depends_on: [call], inputs: {command: 'true'}}
outputs:
  failed: ${blocks.call.failed}
  outputs: ${blocks.call.outputs}
  message: ${blocks.call.metadata.message}
  given: ${blocks.call.inputs.workflow}
  inside: ${blocks.call.blocks}
""",
        {"called": called},
        library={
            "crashes": "name: crashes\nblocks:\n  - {id: read, type: ReadFile, inputs: {path: nowhere}}\n"
        },
    )
    assert ran.answer["status"] == "completed"
    found = ran.answer["outputs"]
    assert found["failed"] is True
    assert found["outputs"] == {}
    assert found["given"] == called
    if called == "crashes":
        assert "block 'read' failed" in found["message"]
        assert found["inside"]["read"]["metadata"]["status"] == "failed"
        assert found["inside"]["read"]["outputs"]["content"] == ""
    else:
        assert "there is no workflow 'no-such-workflow'" in found["message"]
        assert found["inside"] == {}
    assert ran.blocks["after"]["metadata"]["status"] == "skipped"
    assert set(ran.blocks["call"]) >= {"inputs", "outputs", "metadata"}
