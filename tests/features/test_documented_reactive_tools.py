"""The documented tools of the reactive dialect, through the service: atomic steps in their documented shapes, and a
flat state that is read by bare names and written by full paths."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.reactive_check import CHECK, FILES, Serve, complete, serving_check, started
from support.rendered import Service
from workflows_mcp.errors import InvalidResult, NotExpected, RequestError, WorkflowsError
from workflows_mcp.settings.model import Settings
from workflows_mcp.values import LEFT_OUT


@pytest.fixture
def serve(settings: Settings) -> Serve:
    return serving_check(settings)


def plain(step: dict[str, Any]) -> dict[str, Any]:
    """A step without the words for the agent."""
    return {name: value for name, value in step.items() if name != "instructions"}


# Atomic steps


@pytest.mark.rows("R10", "R17", "R19")
def test_a_command_comes_with_its_values_in_place_and_says_where_its_result_goes(serve: Serve) -> None:
    async def work(service: Service) -> None:
        answer = await started(service, branch="dev")
        assert plain(answer["step"]) == {
            "id": "detect_files",
            "type": "agent_shell_command",
            "definition": {
                "command": "git diff --name-only dev",
                "output_format": "lines",
                "state_update": {"path": "raw.git_files", "value": "{{ result }}"},
            },
            "variable_replacements": {"{{ inputs.branch }}": "dev"},
            "original_expression": "inputs.branch",
        }
        assert "definition.command" in answer["step"]["instructions"]
        assert (answer["status"], answer["messages"]) == ("pending_action", [])

    serve(work)


@pytest.mark.rows("R11", "R14", "R17", "R19")
def test_the_state_is_updated_by_the_server_and_the_next_step_has_computed_values(serve: Serve) -> None:
    async def work(service: Service) -> None:
        run_id = (await started(service))["workflow_id"]
        answer = await complete(service, run_id, "detect_files", FILES)
        assert answer["success"] is True
        step = answer["step"]
        assert (step["id"], step["type"]) == ("check_typescript", "mcp_call")
        assert step["definition"] == {
            "method": "check_typescript",
            "params": {"files": ["src/a.ts", "src/b.ts"]},
            "state_update": {"path": "raw.typescript_results"},
        }
        assert "variable_replacements" not in step, "the values are in the definition"
        step = (await service.step_protocol.next_step(run_id, None, 30.0))["step"]
        assert step["variable_replacements"] == {"{{ valid_files }}": ["src/a.ts", "src/b.ts"]}
        assert step["original_expression"] == "valid_files"
        state = await service.step_protocol.read(run_id, ["file_count", "raw.status"], None)
        assert state == {"file_count": 2, "raw.status": "ready"}

    serve(work)


@pytest.mark.rows("R12", "R15", "R16", "R17", "R19")
def test_tasks_come_all_at_once_and_at_the_end_there_is_no_step(serve: Serve) -> None:
    async def work(service: Service) -> None:
        run_id = (await started(service))["workflow_id"]
        await complete(service, run_id, "detect_files", FILES)
        answer = await complete(service, run_id, "check_typescript", {"errors": []})
        step = answer["step"]
        assert (step["id"], step["type"]) == ("process_batches", "parallel_tasks")
        assert [task["task_id"] for task in step["definition"]["tasks"]] == ["batch_0", "batch_1"]
        task = step["definition"]["tasks"][1]
        assert task["context"]["files"] == ["src/b.ts"]
        assert task["workflow_id"] == f"{run_id}.process_batches.batch_1"
        assert "workflow_get_next_step" in step["definition"]["sub_agent_prompt"]
        assert "EVERY task" in step["instructions"]
        for task in ("batch_1", "batch_0"):
            mine = await service.step_protocol.next_step(run_id, task, 30.0)
            assert mine["step"]["definition"]["params"] == {
                "files": ["src/b.ts" if task == "batch_1" else "src/a.ts"]
            }
            mine = await complete(service, run_id, mine["step"]["id"], {"text": "…"}, task_id=task)
            assert (mine["step"], mine["status"]) == (None, "completed")
        answer = await service.step_protocol.next_step(run_id, None, 30.0)
        assert (answer["step"], answer["status"]) == (None, "completed")
        assert answer["messages"] == ["Processed 2 files with 23 fixes applied!"]
        final = await service.step_protocol.complete(run_id, "success")
        assert (final["success"], final["final_state"]["typescript_results"]) == (True, {"errors": []})

    serve(work)


@pytest.mark.rows("R15")
def test_tasks_one_at_a_time_are_parallel_tasks_too(serve: Serve, workspace: Path) -> None:
    one = CHECK.replace("docs:check", "docs:one").replace(
        "sub_agent_task: look", "max_parallel: 1\n    sub_agent_task: look"
    )
    (workspace / ".aromcp" / "workflows" / "docs:one.yaml").write_text(one, encoding="utf-8")

    async def work(service: Service) -> None:
        run_id = (await service.step_protocol.start("docs:one", {}, 30.0))["workflow_id"]
        await complete(service, run_id, "detect_files", FILES)
        step = (await complete(service, run_id, "check_typescript", {}))["step"]
        assert step["type"] == "parallel_tasks"
        assert [task["task_id"] for task in step["definition"]["tasks"]] == ["batch_0"]

    serve(work)


@pytest.mark.rows("R11", "R19")
def test_a_step_that_could_not_be_done_fails_and_completing_twice_is_harmless(serve: Serve) -> None:
    async def work(service: Service) -> None:
        run_id = (await started(service))["workflow_id"]
        first = await complete(service, run_id, "detect_files", FILES)
        assert await complete(service, run_id, "detect_files", FILES) == first
        with pytest.raises(NotExpected):
            await complete(service, run_id, "detect_files", ["other.ts"])
        answer = await complete(
            service, run_id, "check_typescript", None, status="failed", error="no compiler"
        )
        assert (answer["step"], answer["status"]) == (None, "failed")
        assert "no compiler" in answer["error"]["message"]

    serve(work)


# The state


@pytest.mark.rows("R7", "R20")
def test_the_state_is_read_flat_with_computed_fields(serve: Serve) -> None:
    async def work(service: Service) -> None:
        answer = await started(service)
        flat = {
            "version": "1.0",
            "branch": "main",
            "attempts": 0,
            "git_files": [],
            "file_count": 0,
            "fixes": 23,
            "valid_files": [],
            "file_batches": [],
            "is_complete": False,
        }
        assert answer["state"] == flat
        assert await service.step_protocol.read(answer["workflow_id"], (), None) == flat

    serve(work)


@pytest.mark.rows("R7", "R8", "R20")
def test_an_agent_writes_by_full_paths_and_is_told_what_follows(serve: Serve) -> None:
    async def work(service: Service) -> None:
        run_id = (await started(service))["workflow_id"]
        updates: list[dict[str, Any]] = [
            {"path": "raw.attempts", "value": 1},
            {"path": "raw.git_files", "value": ["src/a.ts"]},
            {"path": "raw.attempts", "operation": "increment"},
            {"path": "state.version", "value": "1.1"},
            {"path": "raw.fixes", "value": []},
            {"path": "raw.fixes", "operation": "append", "value": "one"},
        ]
        answer = await service.step_protocol.update(run_id, updates, None)
        assert answer == {
            "success": True,
            "computed": {
                "valid_files": ["src/a.ts"],
                "file_batches": [{"id": "batch_0", "files": ["src/a.ts"]}],
                "is_complete": True,
            },
        }
        state = await service.step_protocol.read(run_id, (), None)
        assert (state["attempts"], state["version"], state["fixes"]) == (2, "1.1", ["one"])

    serve(work)


@pytest.mark.rows("R7", "R8", "R20")
@pytest.mark.parametrize(
    "wrong",
    [
        {"path": "attempts", "value": 2},
        {"path": "computed.valid_files", "value": []},
        {"path": "valid_files", "value": []},
        {"path": "raw.git_files", "value": "no list"},
        {"path": "raw.git_files", "operation": "increment"},
        {"path": "raw.attempts", "operation": "add", "value": 1},
    ],
)
def test_a_write_that_cannot_be_made_changes_nothing_with_those_beside_it(
    wrong: dict[str, Any], serve: Serve
) -> None:
    async def work(service: Service) -> None:
        answer = await started(service)
        with pytest.raises(RequestError):
            await service.step_protocol.update(
                answer["workflow_id"], [{"path": "raw.fixes", "value": 0}, wrong], None
            )
        assert await service.step_protocol.read(answer["workflow_id"], (), None) == answer["state"]

    serve(work)


@pytest.mark.rows("R7", "R20")
def test_whoever_writes_to_an_input_is_told_where_it_can_be_written(serve: Serve) -> None:
    async def work(service: Service) -> None:
        run_id = (await started(service))["workflow_id"]
        with pytest.raises(RequestError) as refused:
            await service.step_protocol.update(run_id, [{"path": "inputs.branch", "value": "next"}], None)
        assert "raw. or state.: raw.branch." in refused.value.hint
        await service.step_protocol.update(run_id, [{"path": "raw.branch", "value": "next"}], None)
        assert await service.step_protocol.read(run_id, ("branch", "inputs.branch"), None) == {
            "branch": "next",
            "inputs.branch": "main",
        }

    serve(work)


@pytest.mark.rows("R19", "R20")
def test_an_agent_may_write_the_result_itself_and_then_complete_the_step(serve: Serve) -> None:
    async def work(service: Service) -> None:
        run_id = (await started(service))["workflow_id"]
        with pytest.raises(InvalidResult, match=r"raw\.git_files"):
            await complete(service, run_id, "detect_files", LEFT_OUT)
        await service.step_protocol.update(run_id, [{"path": "raw.git_files", "value": FILES}], None)
        answer = await complete(service, run_id, "detect_files", LEFT_OUT)
        assert answer["step"]["definition"]["params"] == {"files": ["src/a.ts", "src/b.ts"]}

    serve(work)


@pytest.mark.rows("R20")
def test_what_a_field_follows_from_and_what_follows_from_it(serve: Serve) -> None:
    async def work(service: Service) -> None:
        run_id = (await started(service))["workflow_id"]
        found = await service.step_protocol.dependencies(run_id, "is_complete")
        assert found["direct_deps"] == ["computed.valid_files", "raw.attempts"]
        assert set(found["all_deps"]) == {"computed.valid_files", "raw.attempts", "raw.git_files"}
        assert found["dependents"] == []
        found = await service.step_protocol.dependencies(run_id, "raw.git_files")
        assert found["direct_deps"] == []
        assert set(found["dependents"]) == {
            "computed.valid_files",
            "computed.file_batches",
            "computed.is_complete",
        }
        with pytest.raises(WorkflowsError, match="is_complte"):
            await service.step_protocol.dependencies(run_id, "is_complte")

    serve(work)


# Definitions


@pytest.mark.rows("R1", "R19")
def test_a_workflow_is_listed_described_and_given_as_it_is_written(serve: Serve, workspace: Path) -> None:
    file = str(workspace / ".aromcp" / "workflows" / "docs:check.yaml")

    async def work(service: Service) -> None:
        listed = service.definitions.listed()["workflows"]
        (found,) = [it for it in listed if it["name"] == "docs:check"]
        assert found == {
            "name": "docs:check",
            "path": file,
            "description": "Looks at what a branch has changed",
            "source": "project",
        }
        assert {it["source"] for it in service.definitions.listed(include_global=False)["workflows"]} == {
            "project"
        }
        info = service.definitions.info("docs:check")
        assert (info["version"], info["found_at"]) == ("2.1.0", file)
        branch = info["inputs"]["branch"]
        assert (branch["type"], branch["default"], branch["required"]) == ("string", "main", False)
        definition = service.definitions.definition("docs:check")
        assert (definition["loaded_from"], definition["source"]) == (file, "project")
        assert [step["id"] for step in definition["steps"]][:2] == ["detect_files", "update_status"]
        assert definition["state_schema"]["raw"] == {"attempts": "number", "git_files": "array"}
        assert list(definition["sub_agent_tasks"]) == ["look"]

    serve(work)
