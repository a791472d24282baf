"""What is wrong with workflows that others call, and with secrets, is said at load and fails when it is reached."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from features.conftest import Run
from support.git import GitRepository
from support.rendered import Service
from workflows_mcp.errors import InvalidInputs, MissingSecret, Problem
from workflows_mcp.settings.model import Settings

BROKEN = "name: broken\nblocks:\n  - {id: a, type: Shel, inputs: {command: 'true'}}\n"
CALLER = """
name: caller
inputs: {really: {type: boolean, default: false}}
blocks:
  - {id: first, type: Shell, inputs: {command: echo done}}
  - id: call
    type: Workflow
    depends_on: [first]
    condition: ${inputs.really}
    inputs: {workflow: broken}
outputs: {said: "${blocks.first.outputs.stdout | trim}"}
"""


def with_service(settings: Settings, use: Callable[[Service], Any]) -> Any:
    async def look() -> Any:
        async with Service.open(settings) as service:
            return use(service)

    return asyncio.run(look())


@pytest.mark.rows("G16", "G24")
def test_a_broken_workflow_that_is_never_reached_is_a_warning(
    run: Run, settings: Settings, workspace: Path
) -> None:
    ran = run(CALLER, library={"broken": BROKEN, "caller": CALLER})
    assert (ran.answer["status"], ran.answer["outputs"]) == ("completed", {"said": "done"})
    [problem] = with_service(settings, lambda service: service.validate(CALLER))
    assert isinstance(problem, Problem)
    assert problem.warning
    assert "workflow 'broken' cannot be run: there is no block type 'Shel'" in problem.message
    listed = {it.name: it for it in with_service(settings, lambda service: service.list_workflows())}
    assert not listed["caller"].problems
    assert listed["broken"].problems


@pytest.mark.rows("G16")
def test_a_broken_workflow_fails_the_run_when_it_is_reached(run: Run) -> None:
    ran = run(CALLER, {"really": True}, library={"broken": BROKEN})
    assert ran.answer["status"] == "failed"
    assert "broken" in str(ran.answer["error"])
    assert ran.blocks["first"]["metadata"]["status"] == "completed"


@pytest.mark.rows("G24")
def test_the_list_says_of_a_wrong_call_what_starting_it_says(settings: Settings, workspace: Path) -> None:
    text = "name: wrong\nblocks:\n  - {id: a, type: Workflow, inputs: {workflow: nowhere}}\n"
    (workspace / ".workflows" / "wrong.yaml").write_text(text)
    listed = {it.name: it for it in with_service(settings, lambda service: service.list_workflows())}
    assert [it.code for it in listed["wrong"].problems] == ["unknown_workflow"]


@pytest.mark.rows("G16")
def test_the_library_calls_its_own_workflows(
    settings: Settings, workspace: Path, repository: GitRepository
) -> None:
    own = "name: git-commit\ninputs: {other: string}\nblocks: [{id: a, type: Shell, inputs: {command: 'false'}}]\n"
    (workspace / ".workflows" / "git-commit.yaml").write_text(own)
    (repository.path / "new.txt").write_text("new")

    async def go() -> dict[str, Any]:
        async with Service.open(settings) as service:
            answer = await service.start(workflow="commit-and-push", inputs={"message": "Add new.txt"})
            return await service.state(answer["workflow_id"], paths=["blocks.commit.status"])

    found = asyncio.run(asyncio.wait_for(go(), 30))
    assert found["values"]["blocks.commit.status"] == "completed"
    assert "Add new.txt" in repository("log", "--format=%s")


@pytest.mark.rows("G16")
@pytest.mark.parametrize("first", ["own", "library"])
def test_a_run_may_use_the_user_s_and_the_library_s_workflow_of_one_name(
    first: str, run: Run, workspace: Path, repository: GitRepository
) -> None:
    own = "name: git-commit\nblocks: [{id: a, type: Shell, inputs: {command: echo own}}]\noutputs: {said: '${blocks.a.outputs.stdout}'}\n"
    (workspace / ".workflows" / "git-commit.yaml").write_text(own)
    (repository.path / "new.txt").write_text("new")
    calls = {
        "own": "  - {id: own, type: Workflow, inputs: {workflow: git-commit}}\n",
        "library": "  - {id: library, type: Workflow, inputs: {workflow: commit-and-push, inputs: {message: Add new.txt, confirm: false}}}\n",
    }
    order = sorted(calls, key=lambda name: name != first)
    ran = run("blocks:\n" + "".join(calls[name] for name in order))
    assert ran.blocks["own"]["outputs"]["said"] == "own\n"
    assert "Add new.txt" in repository("log", "--format=%s")


BURIED = """
name: buried
initial_state: {}
steps:
  - {id: first, type: shell, command: ls}
  - {id: second, type: shell, needs_state: [], comand: ls}
  - {id: third, type: workflow, needs_state: [], workflow: not-there}
"""


def test_errors_come_before_warnings_those_of_calls_too(settings: Settings) -> None:
    found = with_service(settings, lambda service: service.validate(BURIED))
    told = [(it.place.line if it.place else 0, it.warning) for it in found]
    errors = [line for line, warning in told if not warning]
    assert told == [*((line, False) for line in errors), *((5, True) for _ in told[len(errors) :])]
    assert errors == sorted(errors)
    assert {6, 7} <= {*errors}
    assert len(errors) < len(told)


SECRET = """
{required}
inputs: {{publish: {{type: boolean, default: false}}}}
blocks:
  - id: publish
    type: Shell
    condition: ${{inputs.publish}}
    inputs: {{command: 'echo "$T" > /dev/null', env: {{T: "${{secrets.NOT_THERE}}"}}}}
"""


@pytest.mark.rows("X5")
def test_a_missing_secret_is_warned_of_and_demanded_when_it_is_reached(run: Run, settings: Settings) -> None:
    text = SECRET.format(required="")
    [problem] = with_service(settings, lambda service: service.validate(text))
    assert (problem.code, problem.warning) == ("missing_secret", True)
    assert "NOT_THERE" in problem.message
    assert run(text).answer["status"] == "completed"
    failed = run(text, {"publish": True}).answer
    assert failed["status"] == "failed"
    assert "NOT_THERE" in str(failed["error"])


@pytest.mark.rows("X5")
def test_secrets_that_are_required_are_demanded_at_the_start(run: Run) -> None:
    with pytest.raises(MissingSecret, match="NOT_THERE"):
        run(SECRET.format(required="secrets: required"))


@pytest.mark.rows("G17")
def test_library_workflows_take_other_names_of_their_inputs(
    settings: Settings, repository: GitRepository
) -> None:
    (repository.path / "new.txt").write_text("new")

    async def go() -> list[dict[str, Any]]:
        async with Service.open(settings) as service:
            branch = await service.start(workflow="git-checkout-branch", inputs={"branch_name": "topic"})
            inputs = {"commit_message": "Add new.txt", "working_dir": "."}
            return [branch, await service.start(workflow="git-commit", inputs=inputs)]

    answers = asyncio.run(asyncio.wait_for(go(), 30))
    assert [answer["status"] for answer in answers] == ["completed", "completed"]
    assert "Add new.txt" in repository("log", "topic", "--format=%s")


@pytest.mark.rows("G17")
def test_an_input_given_by_two_of_its_names_is_refused(run: Run) -> None:
    text = (
        "inputs: {message: {type: string, aliases: [commit_message]}}\n"
        "blocks: [{id: a, type: Shell, inputs: {command: 'true'}}]\noutputs: {m: '${inputs.message}'}\n"
    )
    assert run(text, {"commit_message": "x"}).answer["outputs"] == {"m": "x"}
    with pytest.raises(InvalidInputs, match="'commit_message' is an alias of the input 'message'"):
        run(text, {"commit_message": "x", "message": "y"})
