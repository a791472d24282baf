"""The documented examples of the graph dialect: conditions, and what a failed command means for the rest."""

from __future__ import annotations

from typing import Any

import pytest

from support.programs import Programs
from workflows_mcp.errors import DefinitionError

DEPLOY_ON_EXIT_CODE = """
blocks:
  - id: run_tests
    type: Shell
    inputs:
      command: "pytest tests/"

  - id: deploy
    type: Shell
    inputs:
      command: "kubectl apply -f k8s/"
    condition: "${blocks.run_tests.outputs.exit_code} == 0"
    depends_on: [run_tests]
"""


@pytest.mark.rows("G6", "G10")
def test_deploying_waits_for_an_exit_code_of_zero(run: Any, programs: Programs) -> None:
    programs.add("kubectl")
    programs.add("pytest")
    ran = run(DEPLOY_ON_EXIT_CODE)
    assert ran.answer["status"] == "completed"
    assert programs.calls == ["pytest tests/", "kubectl apply -f k8s/"]

    programs.add("pytest", "echo '1 failed'; exit 1")
    ran = run(DEPLOY_ON_EXIT_CODE)
    assert ran.answer["status"] == "completed", "the workflow looks at the exit code"
    assert ran.blocks["deploy"]["metadata"]["status"] == "skipped"
    assert programs.calls[2:] == ["pytest tests/"]


AROUND_EXPRESSIONS = """
name: expressions
inputs:
  environment: {type: string, default: staging}
  skip_deployment: {type: boolean, default: false}
  status: {type: string, default: running}
  exit_code: {type: integer, default: 0}
  said: {type: string, default: fine}
  count: {type: integer, default: 0}
  errors: {type: integer, default: 0}
  warnings: {type: integer, default: 0}
  lint: {type: integer, default: 0}
blocks:
  - {id: run_tests, type: Shell, inputs: {command: 'echo "${inputs.said}"; exit ${inputs.exit_code}'}}
  - {id: test, type: Shell, inputs: {command: 'exit ${inputs.exit_code}'}}
  - {id: lint, type: Shell, inputs: {command: 'exit ${inputs.lint}'}}
  - id: analyze
    type: Shell
    inputs:
      command: cd $SCRATCH; echo ${inputs.count} > c; echo ${inputs.errors} > e; echo ${inputs.warnings} > w
    outputs:
      count: {type: int, path: $SCRATCH/c}
      error_count: {type: int, path: $SCRATCH/e}
      warning_count: {type: int, path: $SCRATCH/w}
  - id: it
    type: RenderTemplate
    inputs: {template: ran}
    depends_on:
      - {block: run_tests, required: false}
      - {block: test, required: false}
      - {block: lint, required: false}
      - analyze
"""
EXPRESSIONS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("${blocks.run_tests.outputs.exit_code} == 0", {}, {"exit_code": 1}),
    ("${blocks.analyze.outputs.count} > 10", {"count": 11}, {"count": 10}),
    ("${inputs.environment} == 'production'", {"environment": "production"}, {}),
    ("${blocks.test.outputs.success} and ${blocks.lint.outputs.success}", {}, {"lint": 1}),
    (
        "${blocks.analyze.outputs.error_count} > 0 or ${blocks.analyze.outputs.warning_count} > 100",
        {"warnings": 101},
        {"warnings": 100},
    ),
    ("not ${inputs.skip_deployment}", {}, {"skip_deployment": True}),
    ("'error' in ${blocks.run_tests.outputs.stdout}", {"said": "an error"}, {}),
    ("${inputs.status} not in ['failed', 'cancelled']", {}, {"status": "cancelled"}),
    ("${blocks.run_tests.exit_code} == 0", {}, {"exit_code": 5}),
]


@pytest.mark.rows("G6")
@pytest.mark.parametrize(("expression", "true", "false"), EXPRESSIONS, ids=[item[0] for item in EXPRESSIONS])
def test_every_documented_expression_decides(
    run: Any, expression: str, true: dict[str, Any], false: dict[str, Any]
) -> None:
    text = AROUND_EXPRESSIONS + f'    condition: "{expression}"\noutputs:\n  it: "{expression}"\n'
    for inputs, holds in ((true, True), (false, False)):
        ran = run(text, inputs)
        assert ran.blocks["it"]["metadata"]["status"] == ("completed" if holds else "skipped")
        assert ran.answer["outputs"] == {"it": holds}


@pytest.mark.rows("G6")
@pytest.mark.parametrize("condition", ["${inputs.environment}", "${inputs.exit_code}"])
def test_a_condition_that_gives_no_boolean_is_an_error(run: Any, condition: str) -> None:
    error = run(AROUND_EXPRESSIONS + f'    condition: "{condition}"\n').answer["error"]
    assert (error["code"], error["block"]) == ("not_boolean", "it")


@pytest.mark.rows("G6")
@pytest.mark.parametrize("condition", ["__import__('os').getpid() > 0", "${inputs.said}.upper() == 'X'"])
def test_a_condition_is_no_program(run: Any, condition: str) -> None:
    with pytest.raises(DefinitionError) as refused:
        run(AROUND_EXPRESSIONS + f'    condition: "{condition}"\n')
    assert {problem.code for problem in refused.value.problems} == {"syntax"}


DEPLOY_PRODUCTION = """
  - id: deploy
    type: ExecuteWorkflow
    inputs:
      workflow: "deploy-production"
    condition: >
      ${blocks.run_tests.outputs.exit_code} == 0 and
      ${inputs.environment} == 'production'
    depends_on: [run_tests]
"""
AROUND_DEPLOY_PRODUCTION = """
name: release
inputs: {environment: string}
blocks:
  - {id: run_tests, type: Shell, inputs: {command: pytest tests/}}
"""


@pytest.mark.rows("G6", "G16")
@pytest.mark.parametrize(
    ("exit_code", "environment", "status"),
    [(0, "production", "completed"), (0, "staging", "skipped"), (1, "production", "skipped")],
)
def test_a_workflow_is_called_when_both_parts_of_a_condition_hold(
    run: Any, programs: Programs, exit_code: int, environment: str, status: str
) -> None:
    programs.add("pytest", f"exit {exit_code}")
    programs.add("ship")
    shipping = "name: deploy-production\nblocks:\n  - {id: ship, type: Shell, inputs: {command: ship}}\n"
    ran = run(
        AROUND_DEPLOY_PRODUCTION + DEPLOY_PRODUCTION,
        {"environment": environment},
        library={"deploy-production": shipping},
    )
    assert ran.answer["status"] == "completed"
    assert ran.blocks["deploy"]["metadata"]["status"] == status
    assert ("ship" in programs.calls) == (status == "completed")


# A command that fails

CONTINUE_ON_ERROR = """
- id: run_tests
  type: Shell
  inputs:
    command: pytest tests/
    continue-on-error: true  # REMOVED in ADR-005
"""
AFTER_ADR_005 = """
- id: run_tests
  type: Shell
  inputs:
    command: pytest tests/

- id: deploy
  type: Shell
  inputs:
    command: ./deploy.sh
  # Option 1: Use shortcut accessor
  condition: "${blocks.run_tests.succeeded}"
  # Option 2: Check exit code explicitly
  # condition: "${blocks.run_tests.outputs.exit_code} == 0"
  depends_on: [run_tests]
"""
SECOND_OPTION = AFTER_ADR_005.replace(
    '  condition: "${blocks.run_tests.succ', '  # condition: "${blocks.run_tests.succ'
)
SECOND_OPTION = SECOND_OPTION.replace(
    '  # condition: "${blocks.run_tests.outputs', '  condition: "${blocks.run_tests.outputs'
)


@pytest.mark.rows("G10")
def test_continue_on_error_makes_a_failed_command_count_as_success(run: Any, programs: Programs) -> None:
    programs.add("pytest", "exit 1")
    after = "- {id: after, type: Shell, depends_on: [run_tests], inputs: {command: echo after}}\n"
    ran = run("name: older\nblocks:" + CONTINUE_ON_ERROR + after)
    assert ran.answer["status"] == "completed"
    assert ran.blocks["run_tests"]["metadata"]["outcome"] == "success"
    assert ran.blocks["run_tests"]["outputs"]["exit_code"] == 1
    assert ran.blocks["after"]["outputs"]["stdout"] == "after\n"


@pytest.mark.rows("G4", "G6", "G10")
@pytest.mark.parametrize("blocks", [AFTER_ADR_005, SECOND_OPTION], ids=["shortcut", "exit code"])
@pytest.mark.parametrize("exit_code", [0, 1])
def test_a_later_block_looks_at_how_the_command_went(
    run: Any, programs: Programs, workspace: Any, blocks: str, exit_code: int
) -> None:
    programs.add("pytest", f"exit {exit_code}")
    programs.add("deploy.sh", at=workspace)
    ran = run("name: newer\nblocks:" + blocks)
    assert ran.answer["status"] == "completed"
    assert ran.blocks["run_tests"]["metadata"]["status"] == "completed"
    assert ran.blocks["deploy"]["metadata"]["skipped"] == (exit_code != 0)
    assert programs.calls == ["pytest tests/", "deploy.sh"][: 2 - exit_code]
