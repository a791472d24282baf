"""The documented examples of the graph dialect: questions, their answers, and runs that wait for them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from support.git import GitRepository
from support.programs import Programs
from support.rendered import Service
from workflows_mcp.settings.model import Settings

CONFIRM = """
- id: confirm_deploy
  type: Prompt
  inputs:
    prompt: |
      Deploy to production?

      Respond with 'yes' or 'no'

# Parse response with condition
- id: deploy
  type: Shell
  inputs:
    command: "./deploy.sh"
  condition: ${blocks.confirm_deploy.response} == 'yes'
  depends_on: [confirm_deploy]
"""
CHOOSE = """
- id: select_env
  type: Prompt
  inputs:
    prompt: |
      Select deployment environment:

      1. development
      2. staging
      3. production

      Respond with the number of your choice.

# Parse response with conditions
- id: deploy_dev
  type: Shell
  inputs:
    command: "./deploy.sh dev"
  condition: ${blocks.select_env.response} == '1'
  depends_on: [select_env]

- id: deploy_staging
  type: Shell
  inputs:
    command: "./deploy.sh staging"
  condition: ${blocks.select_env.response} == '2'
  depends_on: [select_env]
"""
COMMIT = """
- id: get_commit_msg
  type: Prompt
  inputs:
    prompt: |
      Generate a semantic commit message following Conventional Commits.

      Format: type(scope): description

      Respond with ONLY the commit message.

# Use response directly
- id: create_commit
  type: Shell
  inputs:
    command: git commit -m "${blocks.get_commit_msg.response}"
  depends_on: [get_commit_msg]
"""


@pytest.mark.rows("G15", "G19")
def test_a_question_pauses_the_run_with_its_prompt(run: Any, programs: Programs, workspace: Path) -> None:
    programs.add("deploy.sh", at=workspace)
    ran = run("name: confirm\nblocks:" + CONFIRM)
    assert ran.answer["status"] == "pending_action"
    action = ran.answer["action"]
    assert action["parameters"] == {"prompt": "Deploy to production?\n\nRespond with 'yes' or 'no'\n"}
    assert action["step_id"] == "confirm_deploy"
    assert ran.blocks["confirm_deploy"]["metadata"]["status"] == "paused"
    assert programs.calls == []


@pytest.mark.rows("G6", "G15")
@pytest.mark.parametrize(
    ("answer", "calls"), [("yes", ["deploy.sh"]), ({"response": "yes"}, ["deploy.sh"]), ("no", [])]
)
def test_a_confirmation_decides_whether_to_deploy(
    run: Any, programs: Programs, workspace: Path, answer: Any, calls: list[str]
) -> None:
    programs.add("deploy.sh", at=workspace)
    ran = run("name: confirm\nblocks:" + CONFIRM, answers=[answer])
    assert ran.answer["status"] == "completed"
    assert programs.calls == calls
    assert ran.blocks["deploy"]["metadata"]["skipped"] == (calls == [])


@pytest.mark.rows("G6", "G15")
@pytest.mark.parametrize(
    ("answer", "calls"), [("1", ["deploy.sh dev"]), ("2", ["deploy.sh staging"]), ("3", [])]
)
def test_one_of_several_choices_is_taken(
    run: Any, programs: Programs, workspace: Path, answer: str, calls: list[str]
) -> None:
    programs.add("deploy.sh", at=workspace)
    ran = run("name: choose\nblocks:" + CHOOSE, answers=[answer])
    assert ran.answer["status"] == "completed"
    assert ran.blocks["select_env"]["outputs"] == {"response": answer}
    assert programs.calls == calls


@pytest.mark.rows("G15")
@pytest.mark.parametrize(
    "message",
    [
        "feat(cli): add a command",
        'fix: say "$HOME" and `id` as they are; $(touch hacked)',
        "docs: two lines\n\nand ${inputs.nothing} in the second",
    ],
)
def test_an_answer_in_free_form_is_the_message_of_a_commit(
    run: Any, repository: GitRepository, message: str
) -> None:
    (repository.path / "file.txt").write_text("x", encoding="utf-8")
    repository("add", "file.txt")
    ran = run("name: commit\nblocks:" + COMMIT, answers=[message])
    assert ran.answer["status"] == "completed", ran.answer
    assert repository("log", "-1", "--format=%B") == message
    assert not (repository.path / "hacked").exists()


# A question deep inside

LEVELS = {
    "middle": """
name: middle
inputs: {service: string}
blocks:
  - {id: before, type: Shell, inputs: {command: 'echo "before ${inputs.service}" >> log.txt'}}
  - {id: inner, type: ExecuteWorkflow, depends_on: [before], inputs: {workflow: asks, inputs: {what: "${inputs.service}"}}}
  - {id: then, type: Prompt, depends_on: [inner], inputs: {prompt: "You said ${blocks.inner.outputs.said}. Sure?"}}
outputs: {said: "${blocks.inner.outputs.said}", sure: "${blocks.then.response}"}
""",
    "asks": """
name: asks
inputs: {what: string}
blocks:
  - {id: ask, type: Prompt, inputs: {prompt: "Deploy ${inputs.what}?"}}
  - {id: note, type: Shell, depends_on: [ask], inputs: {command: 'echo "asked" >> log.txt'}}
outputs: {said: "${blocks.ask.response}"}
""",
}
TOP = """
name: top
blocks:
  - {id: call, type: ExecuteWorkflow, inputs: {workflow: middle, inputs: {service: web}}}
  - {id: after, type: Shell, depends_on: [call], condition: "${blocks.call.outputs.sure} == 'yes'",
     inputs: {command: 'echo "after ${blocks.call.outputs.said}" >> log.txt'}}
outputs: {said: "${blocks.call.outputs.said}", deep: "${blocks.call.blocks.inner.blocks.ask.outputs.response}"}
"""


@pytest.mark.rows("G8", "G15", "G16")
def test_a_nested_run_pauses_and_goes_on_through_every_level_even_in_another_process_of_the_server(
    settings: Settings, workspace: Path
) -> None:
    for name, text in LEVELS.items():
        (workspace / ".workflows" / f"{name}.yaml").write_text(text, encoding="utf-8")

    async def started() -> dict[str, Any]:
        async with Service.open(settings) as service:
            return await service.start(text=TOP)

    async def submitted(run_id: str, answer: str) -> dict[str, Any]:
        async with Service.open(settings) as service:
            return await service.submit(run_id, answer)

    paused = asyncio.run(started())
    assert paused["status"] == "pending_action"
    assert paused["action"]["step_id"] == "call/inner/ask"
    assert paused["action"]["parameters"] == {"prompt": "Deploy web?"}
    again = asyncio.run(submitted(paused["workflow_id"], "go"))
    assert again["status"] == "pending_action"
    assert again["action"]["step_id"] == "call/then"
    assert again["action"]["parameters"] == {"prompt": "You said go. Sure?"}
    done = asyncio.run(submitted(paused["workflow_id"], "yes"))
    assert done["status"] == "completed"
    assert done["outputs"] == {"said": "go", "deep": "go"}
    log = (workspace / "log.txt").read_text(encoding="utf-8")
    assert log == "before web\nasked\nafter go\n", "every step ran once"
