"""The report of a run says what happened, who did it, and what a reader should look at; on both engines."""

from __future__ import annotations

import asyncio
import html.parser
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from workflows_mcp.answers import Report, as_json, render
from workflows_mcp.errors import Damaged, RequestError
from workflows_mcp.machine import Identity
from workflows_mcp.runs import Service, calling_as
from workflows_mcp.settings.model import Settings, TemporalSettings

pytestmark = pytest.mark.rows("P7")
ADA = Identity("ada", "terminal", human=True)
Scenario = Callable[[Service], Awaitable[Report]]
Reported = Callable[[Scenario], Report]


@pytest.fixture(params=["embedded", "temporal"])
def reported(request: pytest.FixtureRequest, settings: Settings) -> Reported:
    """Run a scenario on an engine, and return the report that it gives."""
    given = settings
    if request.param == "temporal":
        pytest.importorskip("temporalio", reason="pip install -e .[temporal]")
        address = request.getfixturevalue("temporal_address")
        temporal = TemporalSettings(host=address.host, task_queue=address.task_queue)
        given = replace(settings, engine="temporal", temporal=temporal)

    def run(scenario: Scenario) -> Report:
        async def go() -> Report:
            async with Service.open(given) as service:
                return await asyncio.wait_for(scenario(service), 60)

        report = asyncio.run(go())
        assert report.proof.holds, report.proof.mismatches
        return report

    return run


def statuses(report: Report) -> dict[str, str]:
    return {it.step: it.status for it in report.steps}


def deviations(report: Report) -> list[tuple[str, str]]:
    return [(it.kind, it.step) for it in report.deviations]


PROCESS = """
name: release
inputs: {version: string}
initial_state: {}
steps:
  - id: implement
    type: delegate
    instructions: "Implement {{ inputs.version }} {{ rejection.comment }}"
    needs_state: []
    result: {type: object, required: [files]}
    verify:
      - "result.files | length > 0"
      - {command: "test -f built", message: "build it first"}
    output_to: done
  - {id: test, type: shell, needs_state: [], command: "make test"}
  - {id: approve, type: gate, needs_state: [], message: "Release?", on_reject: {back_to: implement}}
  - {id: end, type: return, needs_state: [], value: "released"}
"""
RAN = {"stdout": "ok", "stderr": "", "exit_code": 0}


def test_a_process_with_checks_a_push_back_and_refusals_is_told_step_by_step(
    reported: Reported, workspace: Path
) -> None:
    async def scenario(service: Service) -> Report:
        run_id = (await service.start(text=PROCESS, inputs={"version": "1.0"})).workflow_id
        with pytest.raises(RequestError):
            await service.submit(run_id, {"no": "files"})
        await service.submit(run_id, {"files": []})
        await service.submit(run_id, {"files": ["a.py"]})
        (workspace / "built").touch()
        await service.submit(run_id, {"files": ["a.py"]})
        with pytest.raises(RequestError):
            await service.submit(run_id, "approve", step_id="approve")
        await service.submit(run_id, RAN)
        with pytest.raises(RequestError):
            await service.submit(run_id, "approve", step_id="approve")
        await service.decide(run_id, "reject", by=ADA, comment="add a test")
        await service.submit(run_id, {"files": ["a.py", "test_a.py"]})
        await service.submit(run_id, RAN)
        answer = await service.decide(run_id, "approve", by=ADA)
        assert answer.status == "completed", answer
        report = await service.report(run_id, expected=answer.proof)
        assert report.proof.fits_at > 0
        assert answer.proof in answer.next
        return report

    report = reported(scenario)
    run = report.run
    assert (run.workflow, run.status, run.inputs, run.result) == (
        "release", "completed", {"version": "1.0"}, "released",
    )  # fmt: skip
    assert [it.step for it in report.steps] == [
        "implement", "test", "approve", "implement@2", "test@2", "approve@2", "end",
    ]  # fmt: skip
    implement, test, approve, *_ = report.steps
    assert [it.outcome for it in implement.attempts] == ["rejected", "rejected", "success"]
    assert [it.reasons for it in implement.rejections] == [
        ["this must hold: result.files | length > 0"],
        ["build it first (test -f built: exit code 1)"],
    ]
    found = [(it.round, it.check, it.passed, it.exit_code) for it in implement.checks]
    assert found == [
        (1, "result.files | length > 0", False, None),
        (2, "result.files | length > 0", True, None),
        (2, "test -f built", False, 1),
        (3, "result.files | length > 0", True, None),
        (3, "test -f built", True, 0),
    ]
    assert {implement.redone_at, test.redone_at, approve.redone_at} == {report.decisions[0].event}
    assert [(it.choice, it.by, it.comment, it.redone) for it in report.decisions] == [
        ("reject", ADA, "add a test", ["implement"]),
        ("approve", ADA, "", []),
    ]
    assert all(it.waited > 0 for it in (implement.attempts[0], approve.attempts[0]))
    assert report.totals.agent_steps == 6
    assert [it.kind for it in report.notes] == ["refused", "refused", "refused", "sent_back"]
    assert sorted(deviations(report)) == sorted(
        [
            ("rejected_result", "implement"),
            ("rejected_result", "implement"),
            ("refused", ""),
            ("refused", ""),
            ("refused", ""),
            ("sent_back", ""),
        ]
    )


GRAPH = """
name: graph
inputs: {skip: {type: boolean, default: false}}
blocks:
  - {id: flaky, type: Shell, retry: {attempts: 2, delay: 0.01}, on_failure: continue, inputs: {command: "test -f there"}}
  - {id: bad, type: Shell, on_failure: continue, inputs: {command: "exit 3"}}
  - {id: each, type: Shell, for_each: [1, 2], inputs: {command: "echo ${each.value}"}}
  - {id: approve, type: Gate, condition: "${inputs.skip}", inputs: {message: "Release?"}}
  - {id: ask, type: Prompt, depends_on: [each], inputs: {prompt: "Which?"}}
  - {id: said, type: RenderTemplate, depends_on: [ask], inputs: {template: "${blocks.ask.outputs.response}"}}
outputs: {said: "${blocks.said.outputs.content}"}
"""


def test_a_report_shows_attempts_items_tolerated_failures_and_skipped_gates(reported: Reported) -> None:
    async def scenario(service: Service) -> Report:
        run_id = (await service.start(text=GRAPH, wait_seconds=20)).workflow_id
        answer = await service.submit(run_id, "this", wait_seconds=20)
        assert answer.status == "completed", answer
        return await service.report(run_id)

    report = reported(scenario)
    steps = {it.step: it for it in report.steps}
    assert [it.outcome for it in steps["flaky"].attempts] == ["failure", "failure"]
    assert steps["bad"].tolerated_by
    assert (steps["each"].items, statuses(report)["each/0"], statuses(report)["each/1"]) == (
        2, "completed", "completed",
    )  # fmt: skip
    assert steps["each/0"].attempts[0].performer == "server"
    assert steps["ask"].attempts[0].performer == "agent"
    assert set(deviations(report)) == {
        ("tolerated_failure", "flaky"),
        ("tolerated_failure", "bad"),
        ("skipped_gate", "approve"),
    }


def test_the_report_of_a_fork_says_what_it_kept_from_the_original_run(reported: Reported) -> None:
    async def scenario(service: Service) -> Report:
        run_id = (await service.start(text=GRAPH, wait_seconds=20)).workflow_id
        await service.submit(run_id, "this", wait_seconds=20)
        changed = GRAPH.replace("Which?", "Which one?")
        with calling_as(ADA):
            fork = (await service.fork(run_id, "ask", text=changed)).workflow_id
        answer = await service.submit(fork, "that", wait_seconds=20)
        assert answer.outputs == {"said": "that"}, answer
        return await service.report(fork)

    report = reported(scenario)
    assert report.run.forked_from
    kept = {it.step for it in report.steps if it.kept}
    assert kept == {"flaky", "bad", "each", "each/0", "each/1", "approve"}
    asked = [(it.step, it.kept, it.redone_at > 0) for it in report.steps if it.step in ("ask", "said")]
    assert asked == [
        ("ask", False, True),
        ("said", False, True),
        ("ask", False, False),
        ("said", False, False),
    ]
    assert report.totals.kept == 6
    assert {"forked", "reopened"} <= {it.kind for it in report.notes}
    assert ("changed_definition", "") in deviations(report)
    assert f"fork of `{report.run.forked_from.partition('@')[0]}`" in render(report, "md")


def test_the_report_of_a_retry_shows_the_failure_and_the_second_try(
    reported: Reported, workspace: Path
) -> None:
    text = "name: w\nblocks:\n  - {id: a, type: Shell, inputs: {command: 'test -f there'}}\n"

    async def scenario(service: Service) -> Report:
        run_id = (await service.start(text=text, wait_seconds=20)).workflow_id
        failed = await service.report(run_id)
        assert (failed.run.status, deviations(failed)) == ("failed", [("failure", "a")])
        (workspace / "there").touch()
        answer = await service.retry(run_id, wait_seconds=20)
        assert answer.status == "completed"
        return await service.report(answer.workflow_id)

    report = reported(scenario)
    assert [(it.step, it.outcome, it.redone_at > 0) for it in report.steps] == [
        ("a", "failure", True),
        ("a", "success", False),
    ]
    assert deviations(report) == []
    assert "## Deviations\n\nnone\n" in render(report, "md")


TASKS = """
name: tasks
initial_state: {}
steps:
  - {id: each, type: foreach, needs_state: [], items: [a, b], task: one, agent: "@reviewer", output_to: all}
  - {id: end, type: return, needs_state: [all], value: "{{ state.all }}"}
tasks:
  one:
    inputs: {file: string}
    steps:
      - {id: look, type: delegate, needs_state: [], instructions: "Look at {{ inputs.file }}", output_to: seen}
      - {id: said, type: return, needs_state: [seen], value: "{{ state.seen }}"}
"""


def test_the_report_counts_sub_agents_and_shows_the_steps_of_each(reported: Reported) -> None:
    async def scenario(service: Service) -> Report:
        run_id = (await service.start(text=TASKS)).workflow_id
        for number in (0, 1):
            await service.next_step(f"{run_id}.each.{number}")
            await service.submit(f"{run_id}.each.{number}", f"fine {number}")
        answer = await service.status(run_id, wait_seconds=20)
        assert answer.status == "completed", answer
        return await service.report(f"{run_id}.each.0")

    report = reported(scenario)
    steps = {it.step: it for it in report.steps}
    assert (steps["each"].items, steps["each"].agent, report.totals.sub_agents) == (2, "@reviewer", 2)
    assert {"each/0/look", "each/1/look"} <= set(steps)
    assert "fine 1" in steps["each/1/look"].attempts[0].result
    assert report.totals.agent_steps == 2


REACTIVE = """
name: state
state_schema: {raw: {count: number}}
default_state: {raw: {count: 0}}
steps:
  - {id: ask, type: user_input, prompt: "Which?"}
"""


def test_changes_of_the_state_by_agents_are_reported(reported: Reported) -> None:
    async def scenario(service: Service) -> Report:
        run_id = (await service.start(text=REACTIVE)).workflow_id
        await service.conversations.update(run_id, [{"path": "raw.count", "value": 7}])
        return await service.report(run_id)

    report = reported(scenario)
    assert [(it.kind, it.text) for it in report.notes] == [("state_updated", "set raw.count: 7")]
    assert statuses(report) == {"ask": "under way"}


def test_interruptions_by_the_user_and_the_end_of_a_cancelled_run_are_reported(reported: Reported) -> None:
    async def scenario(service: Service) -> Report:
        run_id = (await service.start(text=GRAPH, wait_seconds=20)).workflow_id
        assert await service.park(run_id)
        await service.resume_run(run_id)
        await service.cancel(run_id, reason="not needed")
        return await service.report(run_id)

    report = reported(scenario)
    assert [it.kind for it in report.notes] == ["parked", "resumed", "cancelled"]
    assert report.run.status == "cancelled"
    ask = next(it for it in report.steps if it.step == "ask")
    assert (ask.status, ask.attempts[0].outcome) == ("stopped", "stopped")
    assert ("cancelled", "") in deviations(report)


BUDGET = """
name: budget
budget: {agent_steps: 1}
blocks:
  - {id: one, type: Prompt, inputs: {prompt: "1?"}}
  - {id: two, type: Prompt, depends_on: [one], inputs: {prompt: "2?"}}
"""


def test_a_raised_budget_is_reported_with_who_raised_it_and_how_long_the_run_waited(
    reported: Reported,
) -> None:
    async def scenario(service: Service) -> Report:
        run_id = (await service.start(text=BUDGET)).workflow_id
        await service.submit(run_id, "1")
        await service.raise_budget(run_id, {"agent_steps": 2}, by=ADA)
        answer = await service.submit(run_id, "2", wait_seconds=20)
        assert answer.status == "completed", answer
        return await service.report(run_id)

    report = reported(scenario)
    assert [(it.kind, it.text, it.by) for it in report.notes] == [
        ("budget_raised", "raised agent_steps to 2", ADA)
    ]
    assert deviations(report) == [("budget_raised", "")]
    assert report.totals.waited_for_people > 0
    assert [it.performer for it in report.steps[1].attempts] == ["agent"]


def test_on_temporal_edited_files_of_large_values_are_evident_and_so_is_another_last_hash(
    settings: Settings, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("temporalio", reason="pip install -e .[temporal]")
    address = request.getfixturevalue("temporal_address")
    temporal = TemporalSettings(host=address.host, task_queue=address.task_queue)
    given = replace(settings, engine="temporal", temporal=temporal)
    text = "name: w\nblocks:\n  - {id: ask, type: Prompt, inputs: {prompt: 'The log?'}}\n"

    async def go() -> list[Report]:
        async with Service.open(given) as service:
            run_id = (await service.start(text=text)).workflow_id
            answer = await service.submit(run_id, "a long line\n" * 100_000)
            assert len(answer.proof) == 16
            reports = [await service.report(run_id, expected=answer.proof)]
            found = await service._engine._memo(run_id)  # type: ignore[attr-defined]
            changed = {**found, "proof": "0" * 64}

            async def memo(_: str) -> dict[str, Any]:
                return changed

            monkeypatch.setattr(service._engine, "_memo", memo)
            reports.append(await service.report(run_id))
            for file in given.blobs.glob("*/*"):
                file.write_bytes(b"x" + file.read_bytes()[1:])
            with pytest.raises(Damaged, match="a large value was changed"):
                await service.report(run_id)
            for file in given.blobs.glob("*/*"):
                file.unlink()
            with pytest.raises(Damaged, match="a large value is missing"):
                await service.report(run_id)
            return reports

    untouched, other = asyncio.run(go())
    assert untouched.proof.holds
    assert "do not lead to the hash that was stored" in other.deviations[0].text
    assert "Temporal server keeps" in render(untouched, "md")


# How it is written

HOSTILE = '</style><script>alert(1)</script>" onload="x" <img src=x onerror=y> `| \\`` **b** [a](http://evil) \x1b[2J \u202e'


class Elements(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()
        self.attributes: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.add(tag)
        self.attributes.update(name for name, _ in attrs)


@pytest.fixture
def hostile(settings: Settings) -> Report:
    async def go() -> Report:
        async with Service.open(settings) as service:
            run_id = (await service.start(text=PROCESS, inputs={"version": HOSTILE})).workflow_id
            with pytest.raises(RequestError):
                await service.submit(run_id, {HOSTILE: HOSTILE})
            await service.submit(run_id, {"files": [], "more": HOSTILE})
            await service.cancel(run_id, reason=HOSTILE)
            return await service.report(run_id)

    return asyncio.run(go())


def test_values_of_a_run_never_become_elements_of_the_page(hostile: Report) -> None:
    page = render(hostile, "html")
    seen = Elements()
    seen.feed(page)
    assert seen.found == {
        "html", "head", "meta", "title", "style", "body", "h1", "h2", "h3", "p", "ul", "li", "code", "table",
        "thead", "tbody", "tr", "th", "td",
    }  # fmt: skip
    assert seen.attributes == {"lang", "charset", "http-equiv", "content", "name"}
    assert "\x1b" not in page
    assert "\u202e" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "default-src 'none'" in page
    assert "prefers-color-scheme" in page or "light dark" in page
    assert "@media print" in page
    assert "http://" not in page.replace("http://evil", "")


def test_values_of_a_run_never_become_markup_in_markdown(hostile: Report) -> None:
    text = render(hostile, "md")
    assert "\x1b" not in text
    assert "\u202e" not in text
    reason = (
        '\\</style\\>\\<script\\>alert(1)\\</script\\>" onload="x" \\<img src=x onerror=y\\> \\`\\| \\\\\\`\\` '
        "\\*\\*b\\*\\* \\[a\\](http\\://evil) �\\[2J �"
    )
    assert f"| cancelled |  | {reason} |" in text
    headings = [line.lstrip("# ") for line in text.splitlines() if line.startswith("#")]
    assert headings == [
        f"Report of the run `{hostile.run.id}`", "Steps", "Step 1: `implement`", "Decisions",
        "What happened beside the steps", "Use", "Proof", "Deviations",
    ]  # fmt: skip
    code = next(line for line in text.splitlines() if line.startswith("- inputs: "))
    assert code.startswith("- inputs: ```{")
    assert code.endswith("}```"), "more marks around it than it has inside"


def test_json_has_every_value_whole_and_times_as_text(hostile: Report) -> None:
    found: dict[str, Any] = json.loads(render(hostile, "json"))
    assert found == json.loads(json.dumps(as_json(hostile)))
    assert found["run"]["inputs"] == {"version": HOSTILE}
    assert found["run"]["started_at"].endswith("Z")
    assert found["steps"][0]["attempts"][0]["started_at"].endswith("Z")
    assert found["proof"]["holds"] is True


@pytest.mark.rows("X9")
def test_secrets_are_redacted_in_a_report(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    text = """
name: secretive
inputs: {note: string}
blocks:
  - {id: show, type: Shell, inputs: {command: "echo $TOKEN", env: {TOKEN: "${secrets.DEPLOY_TOKEN}"}}}
"""
    monkeypatch.setenv("WORKFLOWS_SECRET_DEPLOY_TOKEN", "hunter2-hunter2")

    async def go() -> Report:
        async with Service.open(settings) as service:
            answer = await service.start(text=text, inputs={"note": "hunter2-hunter2"}, wait_seconds=20)
            return await service.report(answer.workflow_id)

    report = asyncio.run(go())
    for form in ("md", "html", "json"):
        assert "hunter2" not in render(report, form)
