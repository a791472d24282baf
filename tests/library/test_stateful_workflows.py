"""The built-in workflows of steps, carried out by an agent that knows an answer to every step."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.rendered import Service
from support.scripted import digest
from workflows_mcp.errors import InvalidInputs
from workflows_mcp.machine import Identity
from workflows_mcp.settings.model import Settings

Answer = dict[str, Any]
Action = dict[str, Any]
Answers = dict[str, Any]
"""What the agent submits, by the id of the step: a value, or a function of the action that gives it."""
OK = {"stdout": "fine", "stderr": "", "exit_code": 0}
FAILED = {"stdout": "", "stderr": "broken", "exit_code": 1}


class Agent:
    """Carries out whatever it is handed, tasks for sub-agents too, and keeps what it was handed."""

    def __init__(self, settings: Settings, answers: Answers) -> None:
        self.settings = settings
        self.answers = answers
        self.handed: list[Action] = []

    def run(self, workflow: str, inputs: Answer) -> Answer:
        async def work() -> Answer:
            async with Service.open(self.settings) as service:
                answer = await service.start(workflow=workflow, inputs=inputs)
                return await self._drive(service, answer)

        return asyncio.run(asyncio.wait_for(work(), 60))

    async def _drive(self, service: Service, answer: Answer) -> Answer:
        while answer["status"] == "pending_action":
            action, run_id = answer["action"], answer["workflow_id"]
            self.handed.append(action)
            if "tasks" in action["parameters"]:
                for task in action["parameters"]["tasks"]:
                    if task["status"] == "waiting to start":
                        ended = await self._drive(service, await service.next_step(task["workflow_id"]))
                        assert ended["status"] == "completed", ended
                answer = await service.status(run_id, wait_seconds=5)
                continue
            given = self.answers[action["step_id"]]
            result = given(action) if callable(given) else given
            answer = await service.submit(run_id, result, step_id=action["step_id"])
        return answer

    def steps(self) -> list[str]:
        return [action["step_id"] for action in self.handed]

    def parameters(self, step: str) -> list[Answer]:
        return [action["parameters"] for action in self.handed if action["step_id"] == step]


@pytest.fixture
def agent(settings: Settings) -> Callable[..., Agent]:
    def made(**answers: Any) -> Agent:
        return Agent(settings, {name.replace("_", "-"): given for name, given in answers.items()})

    return made


DEPLOY = {"build": OK, "test": OK, "push": OK, "deploy": OK, "notify": True}


@pytest.mark.rows("S16", "S3", "S8")
def test_a_service_is_deployed_when_all_goes_well(agent: Callable[..., Agent]) -> None:
    main = agent(**DEPLOY)
    answer = main.run("deploy-service", {"service_name": "shop", "environment": "production"})
    assert (answer["status"], answer["result"]) == (
        "completed",
        {"deployed": True, "reason": "it is deployed to production"},
    )
    assert main.steps() == ["build", "test", "push", "deploy", "notify"]
    assert main.parameters("build")[0] == {"command": "docker build -t shop:latest .", "timeout": 600}
    assert main.parameters("test")[0]["command"] == "docker run --rm shop:latest npm test"
    assert main.parameters("deploy")[0]["command"] == 'kubectl apply -f "k8s/production/shop.yaml"'
    assert main.parameters("notify")[0] == {"message": "shop: it is deployed to production", "type": "info"}


@pytest.mark.rows("S16", "S3")
@pytest.mark.parametrize(
    ("failing", "steps", "reason"),
    [
        ("build", ["build", "notify"], "the build failed"),
        ("test", ["build", "test", "notify"], "the tests failed"),
        ("push", ["build", "test", "push", "notify"], "the push failed"),
        ("deploy", ["build", "test", "push", "deploy", "notify"], "the manifest could not be applied"),
    ],
)
def test_what_fails_keeps_a_service_from_being_deployed(
    agent: Callable[..., Agent], failing: str, steps: list[str], reason: str
) -> None:
    main = agent(**{**DEPLOY, failing: FAILED})
    answer = main.run("deploy-service", {"service_name": "shop"})
    assert (answer["status"], answer["result"]) == ("completed", {"deployed": False, "reason": reason})
    assert main.steps() == steps


@pytest.mark.rows("S16", "S5", "S6")
def test_every_file_of_a_codebase_is_looked_at_by_a_sub_agent(agent: Callable[..., Agent]) -> None:
    main = agent(
        find_files={"stdout": "src/a.py\nsrc/b b.py\n", "exit_code": 0},
        analyze='```json\n{"score": 7, "issues": ["3: a secret in the code"]}\n```',
        summarize="All is well.",
    )
    answer = main.run("analyze-codebase", {"repository": "my src", "file_patterns": ["*.py"]})
    assert answer["status"] == "completed", answer
    assert answer["result"]["files"] == 2
    assert answer["result"]["summary"] == "All is well."
    assert [item["file"] for item in answer["result"]["results"]] == ["src/a.py", "src/b b.py"]
    assert [item["score"] for item in answer["result"]["results"]] == [7, 7]
    assert [item["issues"] for item in answer["result"]["results"]] == [["3: a secret in the code"]] * 2
    assert main.parameters("summarize")[0]["agent"] == "@report-writer"
    assert '"score":7' in main.parameters("summarize")[0]["instructions"].replace(" ", "")
    assert 'find "my src"' in main.parameters("find-files")[0]["command"]
    [handed] = [action for action in main.handed if action["type"] == "parallel_tasks"]
    assert handed["parameters"]["agent"] == "@task"


@pytest.mark.rows("S16", "S5", "S6", "G22")
@pytest.mark.parametrize("approved", [True, False])
def test_the_example_of_a_report_asks_sub_agents_and_the_user_and_writes_the_file(
    agent: Callable[..., Agent], workspace: Path, approved: bool
) -> None:
    questions = ["What do ants eat?", "Where do they live?"]
    main = agent(
        divide=f"```json\n{json.dumps(questions)}\n```",
        research=lambda action: f"An answer to: {action['parameters']['instructions'].splitlines()[0]}",
        write="# Ants\n\nThey eat {{ crumbs }}.",
        approve=approved,
    )
    answer = main.run("example-report", {"topic": "ants", "save_to": "docs/ants.md"})
    assert answer["status"] == "completed", answer
    file = workspace / "docs" / "ants.md"
    assert answer["result"] == {"questions": 2, "saved_to": str(file) if approved else ""}
    assert file.exists() == approved
    if approved:
        assert file.read_text(encoding="utf-8") == "# Ants\n\nThey eat {{ crumbs }}."
    [handed] = [action for action in main.handed if action["type"] == "parallel_tasks"]
    assert [task["context"] for task in handed["parameters"]["tasks"]] == questions
    [asked] = main.parameters("write")
    assert "## What do ants eat?\nAn answer to: " in asked["instructions"]


@pytest.mark.rows("G22", "P1", "P2", "P6")
def test_checked_work_counts_when_it_is_done_and_a_person_has_approved_it(
    settings: Settings, workspace: Path
) -> None:
    ada = Identity("ada", "terminal", human=True)

    async def work() -> None:
        async with Service.open(settings) as service:
            run = (await service.start(workflow="example-checked-work", inputs={"task": "Say hello"}))[
                "workflow_id"
            ]
            result = {"files": ["notes.md"], "summary": "It says hello."}
            answer = await service.submit(run, result, step_id="work", wait_seconds=20)
            assert answer["action"]["rejected_because"][0].startswith("the file must exist, and have content")
            (workspace / "notes.md").write_text("TODO: hello", encoding="utf-8")
            answer = await service.submit(run, result, step_id="work@v2", wait_seconds=20)
            assert answer["action"]["rejected_because"][0].startswith("nothing may be left to do")
            assert answer["action"]["results_left"] == 1
            (workspace / "notes.md").write_text("hello", encoding="utf-8")
            answer = await service.submit(run, result, step_id="work@v3", wait_seconds=20)
            assert answer["decisions"][0]["message"].strip() == "It says hello.\nIs notes.md good?"
            answer = (await service.decide(run, "reject", by=ada, comment="Say who you are.")).rendered()
            assert answer["action"]["parameters"]["instructions"].endswith("notes.md. Say who you are.\n")
            await service.submit(run, result, step_id="work@2", wait_seconds=20)
            answer = (await service.decide(run, "approve", by=ada)).rendered()
            assert answer["result"] == {"files": ["notes.md"], "approved_by": "ada"}

    asyncio.run(work())


@pytest.mark.rows("S16", "S5")
def test_a_codebase_without_files_has_nothing_to_look_at(agent: Callable[..., Agent]) -> None:
    main = agent(find_files={"stdout": "\n", "exit_code": 0}, summarize="Nothing there.")
    answer = main.run("analyze-codebase", {"repository": "."})
    assert answer["result"] == {"files": 0, "results": [], "summary": "Nothing there."}
    assert main.steps() == ["find-files", "summarize"]


def pull_request(files: int, tests: Any, quality: str) -> Answers:
    return {
        "fetch_pr": {"stdout": json.dumps({"changedFiles": files}), "exit_code": 0},
        "request_review": True,
        "run_tests": tests,
        "run_quality_check": {"stdout": quality, "exit_code": 0},
        "approve_and_merge": OK,
        "comment_issues": OK,
    }


@pytest.mark.rows("S16", "S4")
@pytest.mark.parametrize(
    ("answers", "last", "result"),
    [
        (pull_request(51, OK, ""), "request-review", (False, True, False, 0)),
        (pull_request(3, OK, "Score: 97"), "approve-and-merge", (True, False, True, 97)),
        (pull_request(3, OK, "Score: 94"), "comment-issues", (False, False, True, 94)),
        (pull_request(3, FAILED, "Score: 97"), "comment-issues", (False, False, False, 97)),
        (pull_request(3, OK, "no score at all"), "comment-issues", (False, False, True, 0)),
    ],
)
def test_a_pull_request_is_merged_commented_on_or_left_to_people(
    agent: Callable[..., Agent], answers: Answers, last: str, result: tuple[Any, ...]
) -> None:
    main = agent(**answers)
    answer = main.run("pr-automation", {"pr_number": 12, "repository_path": "checkout"})
    assert answer["status"] == "completed", answer
    names = ("merged", "left_to_people", "test_passed", "quality_score")
    commented = last == "comment-issues"
    assert answer["result"] == {**dict(zip(names, result, strict=True)), "commented": commented}
    assert main.steps()[-1] == last
    for parameters in main.parameters("run-tests"):
        assert parameters["working_dir"] == "checkout"
    for parameters in main.parameters("comment-issues"):
        tests = "passed" if result[2] else "failed"
        assert f"tests {tests}, quality score {result[3]}/100" in parameters["command"]


@pytest.mark.rows("S16")
def test_a_pull_request_that_cannot_be_read_is_left_to_people(agent: Callable[..., Agent]) -> None:
    main = agent(fetch_pr=FAILED)
    answer = main.run("pr-automation", {"pr_number": 12})
    assert answer["result"] == {"merged": False, "left_to_people": True, "reason": "broken"}
    assert main.steps() == ["fetch-pr"]


QUESTIONS = ["How do sessions work?", "Which providers are there?"]


def planning(approved: bool) -> Answers:
    return {
        "get_user_request": {"input": "auth in my app"},
        "generate_research_tasks": f"```json\n{json.dumps(QUESTIONS)}\n```",
        "research": lambda action: f"Found: {action['parameters']['instructions'].splitlines()[0]}",
        "generate_initial_plan": "First plan",
        "review_plan": "Mind the tokens",
        "finalize_plan": lambda action: f"Better plan, {'tokens' in action['parameters']['instructions']}",
        "approve_plan": {"confirmed": approved},
    }


@pytest.mark.rows("S16", "S5", "S6", "S7", "S9", "S18")
@pytest.mark.parametrize("approved", [True, False])
def test_a_plan_is_researched_reviewed_and_approved_or_not(
    agent: Callable[..., Agent], settings: Settings, approved: bool
) -> None:
    main = agent(**planning(approved))
    answer = main.run("interactive-planning", {"max_research_tasks": 2})
    assert answer["status"] == "completed", answer
    saved = f"Plan approved and saved to memory as plan_{digest('auth in my app')}"
    assert answer["result"] == {
        "approved": approved,
        "status": saved if approved else "Plan rejected by user",
        "comment": "",
        "plan": "Better plan, True",
    }
    researched = [parameters["instructions"].splitlines()[0] for parameters in main.parameters("research")]
    assert researched == [f"Research this question: {question}" for question in QUESTIONS]
    [plan] = main.parameters("generate-initial-plan")
    for question in QUESTIONS:
        assert (
            f"Task: {question}\nKey findings: Found: Research this question: {question}\n"
            in plan["instructions"]
        )
    [asked] = main.parameters("approve-plan")
    assert asked["message"].startswith(
        "Here's your implementation plan for: auth in my app\n\nBetter plan, True\n"
    )
    assert main.parameters("review-plan")[0]["agent"] == "@code-standards-reviewer"
    assert "agent" not in plan

    async def remembered() -> list[str]:
        async with Service.open(settings) as service:
            return await service.list_memory()

    keys = asyncio.run(remembered())
    assert len([key for key in keys if key.startswith("research_")]) == 2
    assert [key for key in keys if key.startswith("plan_")] == (
        [saved.rsplit(maxsplit=1)[-1]] if approved else []
    )


@pytest.mark.rows("S16", "S4")
def test_a_rejected_plan_is_revised_as_the_comment_says_and_nothing_else_is_repeated(
    agent: Callable[..., Agent],
) -> None:
    main = agent(
        **{
            **planning(True),
            "approve_plan": {"confirmed": False, "comment": "no rollback"},
            "finalize_plan@2": "A plan with a rollback",
            "approve_plan@2": {"confirmed": True},
        }
    )
    answer = main.run("interactive-planning", {"max_research_tasks": 2})
    assert (answer["result"]["approved"], answer["result"]["plan"]) == (True, "A plan with a rollback")
    assert main.steps()[-4:] == ["finalize-plan", "approve-plan", "finalize-plan@2", "approve-plan@2"]
    assert len(main.parameters("research")) == 2
    [first], [revision] = main.parameters("finalize-plan"), main.parameters("finalize-plan@2")
    assert "rejected" not in first["instructions"]
    assert revision["instructions"].startswith(
        "The user rejected the plan: no rollback\n\nRejected plan:\nBetter plan, True\n"
    )
    [asked] = main.parameters("approve-plan@2")
    assert "A plan with a rollback" in asked["message"]


@pytest.mark.rows("S16", "S9")
@pytest.mark.parametrize("reply", ["no json here", '{"questions": ["How?"]}', '"How?"', "[]", "7"])
def test_research_questions_that_are_not_a_json_array_are_asked_for_again(
    agent: Callable[..., Agent], reply: str
) -> None:
    main = agent(
        **{
            **planning(True),
            "generate_research_tasks": reply,
            "generate_research_tasks@2": json.dumps(QUESTIONS),
        }
    )
    answer = main.run("interactive-planning", {})
    assert answer["result"]["approved"] is True, answer
    [again] = main.parameters("generate-research-tasks@2")
    assert again["instructions"].startswith(f"Your last reply was not a JSON array: {reply}\n\n")
    assert len(main.parameters("research")) == len(QUESTIONS)
    assert "The user wants to: auth in my app\n" in again["instructions"]


@pytest.mark.parametrize(
    "workflow",
    [
        "interactive-planning",
        "analyze-codebase",
        "deploy-service",
        "pr-automation",
        "example-report",
        "example-checked-work",
    ],
)
def test_the_library_needs_no_tools_that_a_coding_agent_does_not_have(
    settings: Settings, workflow: str
) -> None:
    assert "agent_tools" not in Service.open(settings).workflow_info(workflow)


@pytest.mark.rows("S1", "S16")
def test_more_research_than_is_allowed_is_refused_before_anything_is_asked(
    agent: Callable[..., Agent],
) -> None:
    with pytest.raises(InvalidInputs, match="'max_research_tasks' must be 10 or less, not 11"):
        agent().run("interactive-planning", {"max_research_tasks": 11})
