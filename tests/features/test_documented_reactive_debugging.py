"""The documented tools of the reactive dialect for going on in another conversation, and for looking into runs."""

from __future__ import annotations

import pytest

from support.reactive_check import FILES, Serve, complete, serving_check, started
from support.rendered import Service
from workflows_mcp.settings.model import Settings


@pytest.fixture
def serve(settings: Settings) -> Serve:
    return serving_check(settings)


# Going on later


@pytest.mark.rows("R18", "R19", "R22")
def test_a_run_goes_on_in_a_new_conversation_from_where_it_was(serve: Serve) -> None:
    async def work(service: Service) -> None:
        run_id = (await started(service))["workflow_id"]
        await complete(service, run_id, "detect_files", FILES)
        mark = await service.step_protocol.checkpoint(run_id, "Context approaching limit", None)
        assert mark["checkpoint_id"].startswith(f"chk_{run_id}_")
        resumed = await service.step_protocol.resume(run_id, 30.0)
        assert (resumed["workflow_id"], resumed["workflow"]) == (run_id, "docs:check")
        assert resumed["last_checkpoint"]["step_id"] == "check_typescript"
        assert resumed["last_checkpoint"]["timestamp"].endswith("Z")
        assert resumed["state"]["file_count"] == 2
        assert resumed["step"]["id"] == "check_typescript"
        await complete(service, run_id, "check_typescript", {"errors": ["late"]})
        again = await service.step_protocol.resume(mark["checkpoint_id"], 30.0)
        assert again["workflow_id"] != run_id, "going back makes another run of it"
        assert again["step"]["id"] == "check_typescript"
        assert "typescript_results" not in again["state"]

    serve(work)


@pytest.mark.rows("R18", "R22")
def test_a_run_that_failed_goes_on_from_the_step_that_failed(serve: Serve) -> None:
    async def work(service: Service) -> None:
        run_id = (await started(service))["workflow_id"]
        await complete(service, run_id, "detect_files", FILES)
        await complete(service, run_id, "check_typescript", None, status="failed", error="no compiler")
        resumed = await service.step_protocol.resume(run_id, 30.0)
        assert resumed["step"]["definition"]["method"] == "check_typescript"
        assert resumed["state"]["git_files"] == FILES
        answer = await complete(service, resumed["workflow_id"], resumed["step"]["id"], {"errors": []})
        assert answer["step"]["type"] == "parallel_tasks"

    serve(work)


# Looking into runs


@pytest.mark.rows("R8", "R21")
def test_only_what_comes_from_a_change_is_computed_anew(serve: Serve) -> None:
    async def work(service: Service) -> None:
        run_id = (await started(service))["workflow_id"]
        await service.step_protocol.update(run_id, [{"path": "raw.git_files", "value": ["a.ts"]}], None)
        before = len((await service.debugger.trace_transformations(run_id, None))["traces"])
        await service.step_protocol.update(run_id, [{"path": "raw.attempts", "value": 5}], None)
        traces = (await service.debugger.trace_transformations(run_id, None, include_timing=True))["traces"]
        (last,) = traces[before:]
        assert (last["field"], last["trigger"]) == ("is_complete", "raw.attempts")
        assert (last["input"], last["output"]) == ([["a.ts"], 5], True)
        assert last["duration_ms"] >= 0
        assert last["timestamp"].endswith("Z")

    serve(work)


@pytest.mark.rows("R21")
def test_a_run_and_a_workflow_can_be_looked_into(serve: Serve) -> None:
    async def work(service: Service) -> None:
        run_id = (await started(service))["workflow_id"]
        await complete(service, run_id, "detect_files", FILES)
        info = await service.debugger.debug_info(run_id)
        assert info["current_step"] == "check_typescript"
        assert [(it["step_id"], it["status"]) for it in info["step_history"]] == [
            ("detect_files", "success"),
            ("update_status", "success"),
        ]
        assert info["state_size"]["raw_bytes"] > 0
        assert {it["field"] for it in info["performance"]["slowest_transformations"]} <= {
            "valid_files",
            "file_batches",
            "is_complete",
        }
        plan = await service.debugger.explain_plan("docs:check", {"branch": "dev"})
        assert [it["step_id"] for it in plan["steps"]][:2] == ["detect_files", "update_status"]
        assert {"check_typescript", "read_files"} <= set(plan["required_tools"])

    serve(work)


@pytest.mark.rows("R5", "R21")
def test_a_transform_is_tried_out_alone(serve: Serve) -> None:
    async def work(service: Service) -> None:
        tried = await service.debugger.test_transformation(
            "input.filter(f => !skip.includes(f))", ["a", "b"], {"skip": ["a"]}, ""
        )
        assert (tried["success"], tried["output"]) == (True, ["b"])
        assert tried["execution_time_ms"] >= 0
        tried = await service.debugger.test_transformation("JSON.parse(input)", "{bad", None, "")
        assert tried["success"] is False
        assert "SyntaxError" in tried["error"]

    serve(work)
