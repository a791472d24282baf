"""What a workflow imports: files beside it or in the directories of definitions, their workflows and tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from support.rendered import Service
from workflows_mcp.dialects import load
from workflows_mcp.errors import DefinitionError, RequestError, UnknownWorkflow
from workflows_mcp.library.catalog import Catalog
from workflows_mcp.plan.model import Bundle, Call
from workflows_mcp.settings.model import Settings
from workflows_mcp.steps.registry import default_registry

Write = Callable[..., Path]

CALLS = "steps: [{type: include_workflow, workflow: shared:check}]"
HANDS_OUT = "steps: [{type: parallel_foreach, items: [1], sub_agent_task: process}]"
TASKS = "name: shared:tasks\nsub_agent_tasks:\n  process:\n    steps: [{id: work, type: wait, duration_seconds: 1}]\n"


def workflow(name: str, steps: str = "steps: [{type: exit}]", imports: str = "") -> str:
    head = f"imports: [{imports}]\n" if imports else ""
    return f"name: {name}\n{head}default_state: {{raw: {{}}}}\n{steps}\n"


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write_file(name: str, text: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    return write_file


def catalog_of(*directories: Path) -> Catalog:
    return Catalog(None, directories, lambda text, file: load(text, file=file, registry=default_registry()))


def problems_of(path: Path, *directories: Path) -> list[str]:
    with pytest.raises(DefinitionError) as caught:
        catalog_of(*directories).bundle_of_file(path)
    return [str(problem) for problem in caught.value.problems]


def calls(bundle: Bundle) -> list[object]:
    return [node.do.name for node in bundle.plans[bundle.main].body.nodes if isinstance(node.do, Call)]


@pytest.mark.rows("R2")
def test_an_import_is_looked_for_beside_the_file_first(tmp_path: Path, write: Write) -> None:
    main = write("flows/main.yaml", workflow("main", CALLS, "shared/check.yaml"))
    write("library/shared/check.yaml", workflow("shared:check", "description: far\nsteps: [{type: exit}]"))
    catalog = catalog_of(tmp_path / "library")
    assert catalog.bundle_of_file(main).plans["shared:check"].description == "far"
    write("flows/shared/check.yaml", workflow("shared:check", "description: near\nsteps: [{type: exit}]"))
    bundle = catalog.bundle_of_file(main)
    assert (bundle.main, list(bundle.plans)) == ("main", ["main", "shared:check"])
    assert bundle.plans["shared:check"].description == "near"
    assert "near" in bundle.sources["shared:check"]


@pytest.mark.rows("R2")
def test_a_text_without_a_file_imports_from_the_directories(tmp_path: Path, write: Write) -> None:
    write("strong/shared/check.yml", workflow("shared:check", "description: strong\nsteps: [{type: exit}]"))
    write("weak/shared/check.yml", workflow("shared:check", "description: weak\nsteps: [{type: exit}]"))
    catalog = catalog_of(tmp_path / "weak", tmp_path / "strong")
    bundle = catalog.bundle_of_text(workflow("main", CALLS, "shared/check"))
    assert bundle.plans["shared:check"].description == "strong"


@pytest.mark.rows("R2")
def test_what_is_imported_goes_before_the_catalogue(tmp_path: Path, write: Write) -> None:
    write("library/check.yaml", workflow("shared:check", "description: listed\nsteps: [{type: exit}]"))
    write("flows/own/check.yaml", workflow("shared:check", "description: own\nsteps: [{type: exit}]"))
    main = write("flows/main.yaml", workflow("main", CALLS, "own/check.yaml"))
    assert catalog_of(tmp_path / "library").bundle_of_file(main).plans["shared:check"].description == "own"


@pytest.mark.rows("R2")
def test_imports_of_imported_files_count_too_and_a_circle_is_fine(tmp_path: Path, write: Write) -> None:
    main = write("main.yaml", workflow("main", CALLS, "a/one.yaml"))
    write("a/one.yaml", workflow("one", imports="two.yaml"))
    write("a/two.yaml", workflow("shared:check", imports="../main.yaml, one.yaml"))
    assert sorted(catalog_of().bundle_of_file(main).plans) == ["main", "one", "shared:check"]


@pytest.mark.rows("R2")
def test_a_missing_file_is_told_at_its_line_with_where_was_looked(tmp_path: Path, write: Write) -> None:
    write("flows/there.yaml", workflow("there"))
    text = workflow("main", imports="there.yaml, shared/gone.yaml, more, .")
    main = write("flows/main.yaml", text)
    first, second, third = problems_of(main, tmp_path / "library")
    assert first.startswith(f"{main}:2:23: there is no file 'shared/gone.yaml'\n    2 | imports: [there.yaml")
    assert f"{tmp_path}/flows/shared/gone.yaml, {tmp_path}/library/shared/gone.yaml" in first
    assert f"{tmp_path}/flows/more, {tmp_path}/flows/more.yaml, {tmp_path}/flows/more.yml" in second
    assert third.endswith("name a file, e.g. shared/common-tasks.yaml")


@pytest.mark.rows("R2")
def test_problems_of_an_imported_file_are_told_with_its_own_lines(tmp_path: Path, write: Write) -> None:
    main = write("main.yaml", workflow("main", CALLS, "shared/check.yaml"))
    check = write("shared/check.yaml", workflow("shared:check", "steps:\n  - {type: exti}"))
    [problem, *rest] = problems_of(main)
    assert problem.startswith(f"{check}:4:12: there is no step type 'exti'")
    assert rest == []


@pytest.mark.rows("R2", "R16")
def test_a_file_of_tasks_gives_its_tasks(tmp_path: Path, write: Write) -> None:
    main = write("main.yaml", workflow("main", HANDS_OUT, "shared/tasks.yaml"))
    write("shared/tasks.yaml", TASKS)
    catalog = catalog_of()
    bundle = catalog.bundle_of_file(main)
    assert calls(bundle) == ["shared:tasks#process"]
    assert bundle.plans["shared:tasks"].body.nodes == ()
    assert list(bundle.every_plan) == ["main", "shared:tasks", "shared:tasks#process"]
    assert bundle.sources["shared:tasks"] == TASKS
    assert catalog.bundle_of_file(main) is bundle, "the same files, the same plans"


@pytest.mark.rows("R16")
def test_a_task_may_hand_out_an_imported_one(tmp_path: Path, write: Write) -> None:
    steps = (
        "steps: [{type: parallel_foreach, items: [1], sub_agent_task: own}]\nsub_agent_tasks:\n  own:\n"
        "    steps: [{type: parallel_foreach, items: [1], sub_agent_task: process}]"
    )
    main = write("main.yaml", workflow("main", steps, "tasks.yaml"))
    write("tasks.yaml", TASKS)
    [task] = catalog_of().bundle_of_file(main).plans["main"].tasks
    assert isinstance(task.body.nodes[0].do, Call)
    assert task.body.nodes[0].do.name == "shared:tasks#process"


@pytest.mark.rows("R16")
def test_a_task_that_no_import_has_is_told(tmp_path: Path, write: Write) -> None:
    main = write("main.yaml", workflow("main", HANDS_OUT.replace("process", "proces"), "tasks.yaml"))
    write("tasks.yaml", TASKS)
    [problem] = problems_of(main)
    assert problem.startswith(
        f"{main}:4:62: there is no task 'proces', in this file or in those that it imports"
    )
    assert "did you mean 'process'?" in problem
    write("tasks.yaml", TASKS.replace("process:", "proces:") + "steps: [{type: exit}]\n")
    [problem] = problems_of(main)
    assert "has steps, so only it can use its tasks" in problem


@pytest.mark.rows("R16")
def test_a_file_of_tasks_is_no_workflow_that_could_be_run(tmp_path: Path, write: Write) -> None:
    write("tasks.yaml", TASKS)
    write("main.yaml", workflow("main"))
    catalog = catalog_of(tmp_path)
    assert [summary.name for summary in catalog.list()] == ["main"]
    with pytest.raises(RequestError, match="'shared:tasks' has no steps: it has tasks"):
        catalog.bundle("shared:tasks")
    assert catalog.check_text(TASKS) == []


@pytest.mark.rows("R2")
@pytest.mark.parametrize("main_first", [True, False])
def test_a_name_means_one_file_in_a_run(tmp_path: Path, write: Write, main_first: bool) -> None:
    listed = write("library/check.yaml", workflow("shared:check"))
    write("library/other.yaml", workflow("other", CALLS))
    own = write("flows/own/check.yaml", workflow("shared:check"))
    steps = f"steps: [{{type: include_workflow, workflow: {'other' if main_first else 'importer'}}}]"
    main = write("flows/main.yaml", workflow("main", steps, "own/check.yaml" if main_first else ""))
    write("library/importer.yaml", workflow("importer", CALLS.replace("shared:check", "other"), str(own)))
    [problem] = problems_of(main, tmp_path / "library")
    assert "'shared:check' is a workflow in" in problem
    assert {str(listed), str(own)} <= set(problem.replace(",", " ").split())


@pytest.mark.rows("R1")
def test_a_name_with_a_colon_is_found_in_the_project_before_the_home(
    tmp_path: Path, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    text = "default_state: {raw: {}}\ndescription: {}\nsteps: [{type: exit}]\n"
    write("home/.aromcp/workflows/standards:fix.yaml", text.replace("{}\nsteps", "global\nsteps"))
    write("home/.aromcp/workflows/code:format.yaml", text.replace("{}\nsteps", "global\nsteps"))
    write("work/.aromcp/workflows/standards:fix.yaml", text.replace("{}\nsteps", "project\nsteps"))
    write(
        "work/.aromcp/workflows/wrapped.yaml",
        "workflow:\n  inputs: {name: string}\n  name: 'a:b'\n  steps: [{type: exit}]",
    )
    settings = Settings(workspace=tmp_path / "work", home=tmp_path / "data")
    catalog = Catalog.of(settings, default_registry())
    assert catalog.bundle("standards:fix").plans["standards:fix"].description == "project"
    assert catalog.source_of("standards:fix") == str(tmp_path / "work/.aromcp/workflows")
    assert catalog.bundle("code:format").plans["code:format"].description == "global"
    assert catalog.bundle("a:b").main == "a:b"
    with pytest.raises(UnknownWorkflow) as caught:
        catalog.bundle("Standards:Fix")
    assert "there is no workflow 'Standards:Fix'" in caught.value.message
    looked = caught.value.hint.partition("looked in: ")[2]
    assert f"{tmp_path}/home/.aromcp/workflows" in looked
    assert f"{tmp_path}/work/.aromcp/workflows" in looked


@pytest.mark.rows("R2")
def test_an_error_in_an_imported_workflow_is_shown_in_its_own_file(tmp_path: Path, write: Write) -> None:
    main = write("flows/main.yaml", workflow("main", CALLS, "shared/check.yaml"))
    check = write(
        "flows/shared/check.yaml",
        'workflow:\n  name: "shared:check"\n  default_state: {raw: {n: 1}}\n  steps:\n'
        '    - {type: user_message, message: "{{ n.parts.length }}"}\n',
    )

    async def go() -> None:
        settings = Settings(workspace=tmp_path, home=tmp_path / "data")
        async with Service.open(settings) as service:
            answer = await service.start(file=str(main))
            assert answer["status"] == "failed"
            assert f"{check.name}:5:" in str(answer["error"])

    asyncio.run(asyncio.wait_for(go(), 30))


@pytest.mark.rows("G24")
def test_broken_files_that_call_each_other_are_told_once(tmp_path: Path, write: Write) -> None:
    for name, other in (("a", "b"), ("b", "a")):
        call = f"{{id: call, type: ExecuteWorkflow, inputs: {{workflow: {other}}}}}"
        write(f"{name}.yaml", f"name: {name}\nblocks: [{{id: x, type: Shel}}, {call}]\n")
    with pytest.raises(DefinitionError) as caught:
        catalog_of(tmp_path).bundle("a")
    assert [problem.message for problem in caught.value.problems] == ["there is no block type 'Shel'"]
