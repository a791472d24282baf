"""docs/reactive-dialect.md says what there is: every key, every step type with what it takes; and its examples work."""

from __future__ import annotations

import asyncio
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.rendered import Service
from workflows_mcp.dialects import load
from workflows_mcp.dialects.document import INPUT
from workflows_mcp.dialects.reactive import ON_RESUME, TASK, WORKFLOW
from workflows_mcp.dialects.reactive_state import COMPUTED, TYPES
from workflows_mcp.dialects.reactive_steps import (
    ABOUT,
    CHANGE,
    COLLECTION,
    CONTROL,
    ERROR_HANDLING,
    FAILING,
    OPERATIONS,
    REACTIVE,
    STRATEGIES,
    TASK_ERROR_HANDLING,
    TASK_ERRORS,
)
from workflows_mcp.dialects.steps import LEFT_OUT
from workflows_mcp.expressions.javascript.syntax import FILTERS
from workflows_mcp.settings.model import Settings
from workflows_mcp.steps.registry import default_registry

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reactive-dialect.md"
TEXT = PAGE.read_text(encoding="utf-8")
EXAMPLES = [
    (extra.strip(), text) for extra, text in re.findall(r"^```yaml([^\n]*)\n(.*?)^```$", TEXT, re.M | re.S)
]
WHOLE = {
    re.findall(r'^name: "(.*)"$', text, re.M)[0]: text for _, text in EXAMPLES if text.startswith("name:")
}
FRAGMENTS = [text for _, text in EXAMPLES if not text.startswith("name:")]
OWN = ("shell_command", "agent_shell_command", "mcp_call", "user_input", "apply_hints")
"""The step types that are carried out and that have a name in this dialect."""
SAID_ONCE = {"type", *FAILING}
"""Said for all types in one place."""


def section(heading: str) -> str:
    assert f"\n{heading}\n" in TEXT, heading
    level = heading.split(maxsplit=1)[0]
    found = TEXT.split(f"\n{heading}\n")[1]
    return re.split(rf"\n#{{2,{len(level)}}} ", found)[0]


def unnamed(names: Any, text: str) -> list[str]:
    return [
        name
        for name in names
        if not re.search(rf"`(?:[^`\n]*[ .|,{{(])?{re.escape(name)}(?![\w])[^`\n]*`", text)
    ]


def test_every_key_of_a_workflow_a_task_an_input_and_a_step_is_in_its_table() -> None:
    assert unnamed(WORKFLOW, section("## A workflow")) == []
    assert unnamed(INPUT, section("### Inputs")) == []
    assert unnamed(ABOUT, section("### Steps")) == []
    assert unnamed(TASK, section("## Tasks")) == []
    assert unnamed(ON_RESUME, section("## Continuing later")) == []


def test_all_that_can_be_said_of_the_state_is_there() -> None:
    assert unnamed(set(TYPES.values()), section("### Types")) == []
    assert unnamed([*CHANGE, *OPERATIONS], section("### Changing it")) == []
    assert unnamed(COMPUTED, section("## Computed fields")) == []
    assert unnamed(FILTERS, section("## Expressions")) == []


def test_all_that_can_be_said_of_failures_is_there() -> None:
    assert unnamed([key for key in FAILING if key != "state_update"], section("### A step")) == []
    assert unnamed([*TASK_ERRORS, *STRATEGIES, *TASK_ERROR_HANDLING], section("### A task")) == []
    assert (
        unnamed(
            [*ERROR_HANDLING, *ERROR_HANDLING["on_error"].kind.schema["enum"], *COLLECTION],
            section("### The workflow"),
        )
        == []
    )


def test_every_step_type_has_a_section_with_all_that_it_takes() -> None:
    registry = default_registry()
    taken = {kind: [key for key in it.keys if key not in ABOUT] for kind, it in CONTROL.items()}
    for name in OWN:
        step = registry.find(name, "reactive")
        assert step is not None
        renamed, left_out = REACTIVE.renamed.get(step.name, {}), LEFT_OUT.get(step.name, ())
        taken[name] = [renamed.get(key, key) for key in step.Inputs.model_fields if key not in left_out]
    listed = section("### Steps")
    for kind, keys in taken.items():
        assert f"[`{kind}`](#{kind})" in listed
        assert unnamed([key for key in keys if key not in SAID_ONCE], section(f"### {kind}")) == [], kind


@pytest.mark.parametrize("name", WHOLE)
def test_every_workflow_of_the_page_can_be_run_without_problems_and_warnings(
    name: str, tmp_path: Path
) -> None:
    for extra, text in EXAMPLES:
        if extra.startswith("file="):
            path = tmp_path / extra.removeprefix("file=")
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
    file = next(
        (extra.removeprefix("file=") for extra, text in EXAMPLES if text == WHOLE[name] and extra), "x.yaml"
    )
    (tmp_path / file).write_text(WHOLE[name], encoding="utf-8")
    service = Service.open(Settings(workspace=tmp_path, home=tmp_path / "home"))
    problems = service.validate(WHOLE[name], file=str(tmp_path / file))
    assert [str(problem) for problem in problems] == []


@pytest.mark.parametrize("index", range(len(FRAGMENTS)))
def test_every_piece_of_the_page_is_part_of_a_workflow_that_can_be_loaded(index: int) -> None:
    """Put into a workflow that has the names which it reads, so that a name that nothing provides is found."""
    piece = yaml.safe_load(FRAGMENTS[index])
    names = (
        "files",
        "tested",
        "pages",
        "batches",
        "file",
        "green",
        "progress",
        "lines",
        "passed",
        "python_files",
    )
    whole: dict[str, Any] = {
        "name": "whole",
        "default_state": {"raw": dict.fromkeys((*names, "coverage", "broken_links", "log"))},
        "sub_agent_tasks": {"review_batch": {"steps": [{"type": "exit"}]}},
        "steps": [{"type": "parallel_foreach", "items": [1], "sub_agent_task": "review_batch"}],
    }
    whole |= {"steps": whole["steps"] + piece} if isinstance(piece, list) else piece
    made = yaml.safe_dump(whole, sort_keys=False, allow_unicode=True)
    definition = load(made, file="whole.yaml", registry=default_registry())
    assert [str(problem) for problem in definition.warnings if problem.code != "name_collision"] == []


def run(
    workflow: str, workspace: Path, answers: dict[str, Any], inputs: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Carried out by an agent, and sub-agents, that know an answer to every step."""

    async def drive(service: Service, answer: dict[str, Any], told: list[str]) -> dict[str, Any]:
        while True:
            told += [message for message in answer.get("messages", []) if message not in told]
            if answer["status"] != "pending_action":
                return answer
            action, run_id = answer["action"], answer["workflow_id"]
            if "tasks" in action["parameters"]:
                for task in action["parameters"]["tasks"]:
                    if task["status"] == "waiting to start":
                        await drive(service, await service.next_step(task["workflow_id"]), told)
                answer = await service.status(run_id, wait_seconds=5)
            else:
                given = answers[action["step_id"].partition("@")[0]]
                result = given(action["parameters"]) if callable(given) else given
                answer = await service.submit(run_id, result, step_id=action["step_id"])

    async def work() -> dict[str, Any]:
        async with Service.open(Settings(workspace=workspace, home=workspace.parent / "home")) as service:
            told: list[str] = []
            ended = await drive(service, await service.start(text=workflow, inputs=inputs or {}), told)
            return {**ended, "told": told}

    return asyncio.run(asyncio.wait_for(work(), 60))


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    path = tmp_path / "repository"
    path.mkdir()

    def git(*arguments: str) -> None:
        who = ("-c", "user.name=a", "-c", "user.email=a@b.c")
        subprocess.run(["git", *who, *arguments], cwd=path, check=True, capture_output=True)

    git("init", "-b", "main")
    for subject in ("begin", "feat: a window", "feat(ui): a door", "fix: the floor", "paint"):
        (path / "house.txt").write_text(subject, encoding="utf-8")
        git("add", "-A")
        git("commit", "-m", subject)
    return path


@pytest.mark.rows("R4", "R5", "R7", "R9", "R12", "R13")
def test_the_first_example_does_what_it_says(repository: Path) -> None:
    asked: list[str] = []

    def title(parameters: dict[str, Any]) -> str:
        asked.append(parameters["prompt"])
        return "v1.2"

    ended = run(WHOLE["notes:draft"], repository, {"ask-title": title}, {"since": "HEAD~3"})
    assert ended["status"] == "completed", ended
    assert asked == ["1 features, 1 fixes. What is the release called?"]
    assert ended["told"] == ["v1.2: other, fix, feat"]
    assert ended["state"]["sections"] == {"other": ["paint"], "fix": ["the floor"], "feat": ["a door"]}
    nothing = run(WHOLE["notes:draft"], repository, {}, {"since": "HEAD"})
    assert (nothing["status"], nothing["told"]) == ("completed", ["Nothing has happened since HEAD."])


@pytest.mark.rows("R15", "R16")
def test_the_example_with_sub_agents_hands_out_a_task_for_each_batch(repository: Path) -> None:
    for number in range(4):
        (repository / f"{number}.py").write_text("", encoding="utf-8")
    subprocess.run(["git", "add", "-A"], cwd=repository, check=True)
    reviewed: list[str] = []

    def review(parameters: dict[str, Any]) -> dict[str, int]:
        reviewed.append(parameters["args"]["path"])
        return {"points": 2}

    ended = run(WHOLE["review:changed"], repository, {"review": review})
    assert ended["status"] == "completed", ended
    assert sorted(reviewed) == ["0.py", "1.py", "2.py", "3.py"]
    assert [batch["id"] for batch in ended["state"]["batches"]] == ["batch_0", "batch_1"]
    assert ended["told"] == ["4 files, 8 open points"]
