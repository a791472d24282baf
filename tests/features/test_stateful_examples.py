"""The complete examples of the stateful dialect, as they are written: driven through a real server by agents that
follow a script. Every action is as it should be, every step costs one call, and the state at the end is right."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from support.scripted import (
    ANALYZE,
    DEPLOY,
    PLANNING,
    SMALL_PR,
    TOPICS,
    Agents,
    Answers,
    Asked,
    digest,
    example,
    kept,
    ran,
)
from support.stdio import Call, served

pytestmark = pytest.mark.slow
After = Callable[[Call, Agents], Awaitable[None]]


def driven(
    directory: Path,
    name: str,
    answers: Answers,
    inputs: dict[str, Any],
    *,
    agents_of: type[Agents] = Agents,
    after: After | None = None,
) -> tuple[dict[str, Any], Agents]:
    """The state at the end, and the agents. The last answer says only that the run is completed."""

    async def work(call: Call) -> tuple[dict[str, Any], Agents]:
        agents = agents_of(call, answers)
        answer = await agents.drive(yaml=example(name), inputs=inputs)
        assert set(answer) == {"workflow_id", "status", "progress", "next"}
        assert answer["status"] == "completed"
        details = f"get_workflow_state(workflow_id='{agents.run_id}')"
        fork = f"control_workflow(workflow_id='{agents.run_id}', action='fork', step_id=…) redoes "
        assert answer["next"].startswith(f"nothing; {details} has the details and step ids; {fork}")
        if after is not None:
            await after(call, agents)
        found = await call("get_workflow_state", workflow_id=agents.run_id, paths=["state"])
        return found["values"]["state"], agents

    return served(directory, work, toolsets="core,memory" if after is not None else "core")


def tool(who: str, step: str, name: str, **arguments: Any) -> Asked:
    return Asked(who, step, "mcp_call", {"tool": name, "args": arguments})


def command(step: str, text: str, *, who: str = "main") -> Asked:
    return Asked(who, step, "shell", {"command": text, "timeout": 30.0})


# deploy-service


def deploying(service: str, environment: str) -> list[Asked]:
    return [
        command("build", f"docker build -t {service}:latest ."),
        command("test", f"docker run {service}:latest npm test"),
        command("push", f"docker push {service}:latest"),
        tool("main", "deploy", "kubernetes.apply", manifest=f"k8s/{environment}/{service}.yaml"),
        Asked("main", "notify", "prompt", {"message": f"Deployment complete for {service}", "type": "info"}),
    ]


@pytest.mark.rows("S1", "S3", "S8", "S9", "S12", "S16")
def test_deploy_service_asks_for_one_step_after_the_other(tmp_path: Path) -> None:
    state, agents = driven(
        tmp_path, "deploy-service", DEPLOY, {"service_name": "api", "environment": "production"}
    )
    assert agents.asked == deploying("api", "production")
    assert agents.calls == {"main": 6}  # one to start, and one for each step
    assert state == {
        "deployed": False,
        "build_output": kept("built"),
        "test_results": kept("5 passing"),
        "push_result": kept("pushed"),
        "deploy_status": {"applied": True, "replicas": 3},
    }


@pytest.mark.rows("S3", "S16")
def test_deploy_service_leaves_out_the_test_of_what_was_not_built(tmp_path: Path) -> None:
    answers = {**DEPLOY, "build": ran("no such file", 2)}
    state, agents = driven(tmp_path, "deploy-service", answers, {"service_name": "api"})
    everything = deploying("api", "staging")
    assert agents.asked == [everything[0], *everything[2:]]
    assert agents.calls == {"main": 5}
    assert "test_results" not in state
    assert state["build_output"] == kept("no such file", 2)


# analyze-codebase


class SideBySide(Agents):
    """Nobody hands in what it has read before all three have been asked to."""

    def __init__(self, call: Call, answers: Answers) -> None:
        super().__init__(call, answers)
        self.all_read = asyncio.Barrier(3)

    async def do(self, who: str, workflow_id: str, action: dict[str, Any]) -> dict[str, Any]:
        if action["step_id"] == "read-file":
            await self.all_read.wait()
        return await super().do(who, workflow_id, action)


@pytest.mark.rows("S1", "S5", "S6", "S7", "S8", "S11", "S12", "S16")
def test_analyze_codebase_is_done_by_sub_agents_side_by_side(tmp_path: Path) -> None:
    state, agents = driven(
        tmp_path, "analyze-codebase", ANALYZE, {"repository": "/repo"}, agents_of=SideBySide
    )
    find, handed_out, summarize = agents.asked_of("main")
    assert find.type == "shell"
    lines = re.sub(r"[\\\s]+", " ", find.parameters["command"])
    assert lines.strip() == 'find /repo -name "*.py" -o -name "*.js" -o -name "*.ts" | head -50'

    assert (handed_out.step, handed_out.type) == ("analyze-files", "parallel_tasks")
    files = ["/repo/a.py", "/repo/b.js", "/repo/c.ts"]
    assert handed_out.parameters == {
        "task": "analyze_file",
        "tasks": [
            {"workflow_id": f"{agents.run_id}.analyze-files.{n}", "context": path}
            for n, path in enumerate(files)
        ],
    }
    checks = ["security", "performance", "style"]
    for n, (path, count) in enumerate(zip(files, (3, 1, 2), strict=True)):
        who = f"analyze-files.{n}"
        assert agents.asked_of(who) == [
            command("read-file", f"cat {path}", who=who),
            tool(who, "analyze", "code_analyzer", code="line\n" * count, checks=checks),
        ]
    results = [
        {"file": path, "issues": [f"line {n}" for n in range(count)], "score": 100 - count}
        for path, count in zip(files, (3, 1, 2), strict=True)
    ]
    assert (summarize.step, summarize.type) == ("summarize", "delegate")
    instructions = summarize.parameters["instructions"]
    assert json.loads(instructions.partition("Analysis results: ")[2].partition("\n")[0]) == results
    assert summarize.parameters["agent"] == "@report-writer"
    assert set(summarize.parameters) == {"agent", "instructions"}  # each value once
    # The main agent: start, find-files, one look when all sub-agents are done, summarize. A sub-agent: one call
    # to begin with, and one for each step.
    assert agents.calls == {"main": 4, **{f"analyze-files.{n}": 3 for n in range(3)}}
    assert state == {
        "files": files,
        "analysis_results": results,
        "file_list_raw": kept("".join(f"{path}\n" for path in files)),
        "summary": {
            "response": "97 points, nothing critical",
            "agent_used": "@report-writer",
            "tokens_used": None,
        },
    }


# interactive-planning


@pytest.mark.rows("S2", "S4", "S5", "S6", "S7", "S8", "S9", "S11", "S12", "S16", "S18")
def test_interactive_planning_is_researched_one_by_one_reviewed_approved_and_saved(tmp_path: Path) -> None:
    memory: dict[str, Any] = {}

    async def look_it_up(call: Call, _: Agents) -> None:
        for key in (await call("list_memory_keys"))["keys"]:
            memory[key] = (await call("load_from_memory", key=key))["value"]

    state, agents = driven(tmp_path, "interactive-planning", PLANNING, {}, after=look_it_up)
    request = "Add auth to my app"
    main = agents.asked_of("main")
    assert [(asked.step, asked.type) for asked in main] == [
        ("get-user-request", "prompt"),
        ("generate-research-tasks", "delegate"),
        ("execute-research", "foreach"),
        ("execute-research", "foreach"),
        ("generate-initial-plan", "delegate"),
        ("review-plan", "delegate"),
        ("finalize-plan", "delegate"),
        ("approve-plan", "prompt"),
    ]
    ask, generate, first, second, plan, review, finalize, approve = (asked.parameters for asked in main)
    assert ask == {"message": "What would you like to plan today?", "type": "text"}
    assert generate["instructions"].startswith(f"The user wants to: {request}\n")
    assert "Generate up to 5 focused research questions." in generate["instructions"]
    for number, handed_out in enumerate((first, second)):
        task = {"workflow_id": f"{agents.run_id}.execute-research.{number}", "context": TOPICS[number]}
        assert handed_out == {"task": "research_topic", "tasks": [task]}
    findings = "".join(f"\nTask: {topic}\nKey findings: 1 source\n---\n" for topic in TOPICS)
    assert f"User request: {request}\n\nResearch findings:\n{findings}" in plan["instructions"]
    assert f"Original request: {request}\n\nProposed plan:\n# Plan 1\n" in review["instructions"]
    assert review["agent"] == "@code-standards-reviewer"
    assert "agent" not in finalize
    assert "Original plan:\n# Plan 1\n\nReview feedback:\nNo rate limits\n" in finalize["instructions"]
    question = f"for: {request}\n\n# Plan 2\n\nWould you like to proceed with this plan?\n"
    assert (approve["message"].endswith(question), approve["type"]) == (True, "confirm")

    sources = [f"https://example.org/{digest(topic)[:4]}" for topic in TOPICS]
    for number, topic in enumerate(TOPICS):
        who = f"execute-research.{number}"
        search, analyze = agents.asked_of(who)  # what it saves, the server saves itself
        assert search == tool(who, "search-web", "web_search", query=topic, max_results=5)
        assert (analyze.step, analyze.parameters["tool"]) == ("analyze-results", "analyze_text")
        assert json.loads(analyze.parameters["args"]["text"]) == {"urls": [sources[number]]}
        assert f"Analyze these search results for: {topic}\n" in analyze.parameters["args"]["task"]
    research = [asked.who for asked in agents.asked if asked.who != "main"]
    assert research == ["execute-research.0"] * 2 + ["execute-research.1"] * 2

    # Start, the six steps that are its own, and one look after each of the two tasks.
    assert agents.calls == {"main": 9, "execute-research.0": 3, "execute-research.1": 3}
    assert state["research_tasks"] == TOPICS
    assert state["task_count"] == 2
    assert state["research_results"] == [
        {"task": topic, "findings": "1 source", "sources_count": 1} for topic in TOPICS
    ]
    assert state["review"] == PLANNING["review-plan"]
    assert (state["approved"], state["status"]) == (True, "Plan approved and saved")
    key = f"plan_{digest(request)}"
    assert set(memory) == {key, *(f"research_{digest(topic)}" for topic in TOPICS)}
    assert memory[key].pop("approved_at") > "2020"
    assert memory[key] == {"request": request, "plan": "# Plan 2"}
    saved = memory[f"research_{digest(TOPICS[1])}"]
    assert (saved["task"], saved["sources"], saved["analysis"]) == (TOPICS[1], [sources[1]], "1 source")


@pytest.mark.rows("S4", "S16")
def test_interactive_planning_saves_nothing_that_was_not_approved(tmp_path: Path) -> None:
    answers = {**PLANNING, "approve-plan": {"confirmed": False}, "generate-research-tasks": '["One"]'}
    state, agents = driven(tmp_path, "interactive-planning", answers, {"max_research_tasks": 1})
    assert "Generate up to 1 focused" in agents.asked[1].parameters["instructions"]
    assert agents.calls == {"main": 8, "execute-research.0": 3}
    assert (state["approved"], state["status"]) == (False, "Plan rejected by user")
    assert "saved_plan" not in state
    assert [result["task"] for result in state["research_results"]] == ["One"]


# pr-automation


FETCH = tool("main", "fetch-pr", "github.get_pr", pr=12)
CHECKS = [
    command("run-tests", "cd /tmp/repo && npm test"),
    command("run-quality-check", "cd /tmp/repo && npm run lint:score"),
]


@pytest.mark.rows("S1", "S4", "S8", "S11", "S16")
def test_pr_automation_merges_what_is_small_and_good(tmp_path: Path) -> None:
    state, agents = driven(tmp_path, "pr-automation", SMALL_PR, {"pr_number": 12})
    merge = tool("main", "approve-and-merge", "github.merge_pr", pr=12, method="squash")
    assert agents.asked == [FETCH, *CHECKS, merge]
    assert agents.calls == {"main": 5}
    assert state == {
        "pr_data": {"files_changed": 3, "title": "Fix it"},
        "test_results": kept("ok"),
        "quality_results": kept("Lint done\nScore: 97\n"),
        "test_passed": True,
        "quality_score": 97,
        "merge_result": {"merged": True},
    }


@pytest.mark.rows("S4", "S16")
@pytest.mark.parametrize(
    ("changed", "passed", "score"),
    [
        ({"run-tests": ran("1 failing", 1)}, False, 97),
        ({"run-quality-check": ran("Score: 94")}, True, 94),
    ],
)
def test_pr_automation_comments_on_what_is_small_and_bad(
    tmp_path: Path, changed: Answers, passed: bool, score: int
) -> None:
    state, agents = driven(tmp_path, "pr-automation", {**SMALL_PR, **changed}, {"pr_number": 12})
    *before, comment = agents.asked
    assert before == [FETCH, *CHECKS]
    assert comment.parameters["args"] == {
        "pr": 12,
        "comment": f"Automated check results:\n- Tests: {'Passed ✅' if passed else 'Failed ❌'}\n"
        f"- Quality Score: {score}/100\n\nManual review required.\n",
    }
    assert agents.calls == {"main": 5}
    assert (state["test_passed"], state["quality_score"]) == (passed, score)
    assert state["comment_result"] == {"commented": True}
    assert "merge_result" not in state


@pytest.mark.rows("S4", "S16")
def test_pr_automation_leaves_what_is_large_to_people(tmp_path: Path) -> None:
    answers = {**SMALL_PR, "fetch-pr": {"files_changed": 51}}
    state, agents = driven(tmp_path, "pr-automation", answers, {"pr_number": 12})
    message = "Large PR #12 needs review (51 files)"
    review = tool("main", "request-review", "slack.notify", channel="#code-review", message=message)
    assert agents.asked == [FETCH, review]
    assert agents.calls == {"main": 3}
    assert state == {
        "pr_data": {"files_changed": 51},
        "test_passed": False,
        "quality_score": 0,
        "review_requested": {"ok": True},
    }
