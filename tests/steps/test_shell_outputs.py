"""Outputs that a command leaves in files."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from workflows_mcp.errors import Forbidden, StepError
from workflows_mcp.limits import Limits
from workflows_mcp.policy.files import remove_directory
from workflows_mcp.policy.handles import World
from workflows_mcp.policy.rules import Policy
from workflows_mcp.steps.base import StepResult
from workflows_mcp.steps.shell import Shell
from workflows_mcp.values import Value

RunStep = Callable[..., StepResult]
SHELL = Shell()


def output(run_step: RunStep, command: str, **spec: Value) -> Value:
    config = {"outputs": {"value": {"path": "$SCRATCH/out", **spec}}}
    return run_step(SHELL, {"command": command}, config=config).outputs["value"]


@pytest.mark.rows("G11")
@pytest.mark.parametrize(
    ("kind", "content", "value"),
    [
        ("string", "text\\n", "text"),
        ("str", "a b", "a b"),
        ("int", "1\\n", 1),
        ("integer", " -42 ", -42),
        ("float", "1.5\\n", 1.5),
        ("number", "3", 3.0),
        ("bool", "true\\n", True),
        ("boolean", "No", False),
        ("json", '{"a": [1, null]}', {"a": [1, None]}),
        ("json", "3", 3),
        ("list", "[1]", [1]),
        ("dict", '{"a": 1}', {"a": 1}),
        ("object", "{}", {}),
    ],
)
def test_a_file_becomes_a_value_of_its_type(run_step: RunStep, kind: str, content: str, value: Value) -> None:
    assert output(run_step, f"printf '{content}' > $SCRATCH/out", type=kind) == value


@pytest.mark.rows("G11")
@pytest.mark.parametrize(
    ("kind", "content"),
    [
        ("int", "1.5"),
        ("int", "one"),
        ("float", "nan"),
        ("float", "inf"),
        ("bool", "maybe"),
        ("json", "{x"),
        ("list", "{}"),
        ("dict", "[]"),
        ("string", "\\377"),
    ],
)
def test_wrong_content_is_an_error_that_names_output_file_and_content(
    run_step: RunStep, kind: str, content: str
) -> None:
    with pytest.raises(StepError) as caught:
        output(run_step, f"printf '{content}' > $SCRATCH/out", type=kind)
    message = str(caught.value)
    assert "'value'" in message
    assert kind in message
    assert "/out" in message


@pytest.mark.rows("G11")
def test_a_missing_output_is_an_error_unless_it_is_optional(run_step: RunStep) -> None:
    with pytest.raises(StepError, match=r"'value' is missing.*/out(.|\n)*required: false"):
        output(run_step, "true")
    assert output(run_step, "true", required=False) is None


@pytest.mark.rows("G11")
def test_after_a_failure_what_is_there_is_read_and_the_rest_is_null(run_step: RunStep) -> None:
    config = {"outputs": {"there": {"path": "$SCRATCH/a"}, "missing": {"path": "$SCRATCH/b"}}}
    result = run_step(SHELL, {"command": "echo x > $SCRATCH/a; exit 1"}, config=config)
    assert (result.ok, result.outputs["there"], result.outputs["missing"]) == (False, "x", None)
    assert output(run_step, "echo x > $SCRATCH/out; exit 1", type="int") is None


@pytest.mark.rows("G11")
def test_a_path_is_relative_to_the_working_directory(run_step: RunStep, workspace: Path) -> None:
    (workspace / "sub").mkdir()
    config = {"outputs": {"value": {"path": "$DIR/out.txt"}}}
    inputs = {"command": "mkdir d; echo x > d/out.txt", "working_dir": "sub", "env": {"DIR": "d"}}
    assert run_step(SHELL, inputs, config=config).outputs["value"] == "x"


@pytest.mark.rows("G11")
def test_an_absolute_path_needs_unsafe(run_step: RunStep, workspace: Path) -> None:
    path = str(workspace / "out")
    with pytest.raises(Forbidden, match="absolute path"):
        output(run_step, "echo x > out", path=path)
    assert output(run_step, "echo x > out", path=path, unsafe=True) == "x"


@pytest.mark.rows("G11")
def test_a_path_may_not_leave_the_working_directory(run_step: RunStep, workspace: Path) -> None:
    (workspace / "sub").mkdir()
    (workspace / "out").write_text("x")
    (workspace / "sub" / "up").symlink_to(workspace)

    def read(path: str, unsafe: bool = False) -> Value:
        config = {"outputs": {"value": {"path": path, "unsafe": unsafe}}}
        return run_step(SHELL, {"command": "true", "working_dir": "sub"}, config=config).outputs["value"]

    for path in ("../out", "up/out"):
        with pytest.raises(Forbidden, match="outside the working directory"):
            read(path)
        assert read(path, unsafe=True) == "x"


@pytest.mark.rows("G11")
def test_unsafe_does_not_lift_what_policy_forbids(run_step: RunStep) -> None:
    with pytest.raises(Forbidden, match="WORKFLOWS_ALLOWED_PATHS"):
        output(run_step, "true", path="/etc/passwd", unsafe=True)


@pytest.mark.rows("G11")
@pytest.mark.parametrize("unsafe", [False, True])
def test_a_symbolic_link_is_refused(run_step: RunStep, unsafe: bool) -> None:
    with pytest.raises(Forbidden, match="symbolic link"):
        output(run_step, "echo x > real; ln -s real link", path="link", unsafe=unsafe)


@pytest.mark.rows("G11")
def test_only_ordinary_files_are_read(run_step: RunStep) -> None:
    with pytest.raises(StepError, match="it is a directory"):
        output(run_step, "mkdir $SCRATCH/out")
    with pytest.raises(StepError, match="not an ordinary file"):
        output(run_step, "rmdir $SCRATCH/out; mkfifo $SCRATCH/out")


@pytest.mark.rows("G11")
def test_a_file_beyond_the_limit_is_refused(run_step: RunStep, workspace: Path, tmp_path: Path) -> None:
    small = World(Policy(workspace, limits=Limits(file_bytes=10)), "run-1", tmp_path / "small")
    config = {"outputs": {"value": {"path": "out"}}}
    with pytest.raises(StepError, match="WORKFLOWS_LIMIT_FILE_BYTES"):
        run_step(SHELL, {"command": "echo 12345678901 > out"}, config=config, at=small)
    os.truncate(workspace / "out", 10)
    assert run_step(SHELL, {"command": "true"}, config=config, at=small).outputs["value"] == "1234567890"


@pytest.mark.rows("G11")
def test_declared_outputs_are_checked_before_anything_runs() -> None:
    specs: Value = {
        "exit_code": {"path": "x"},
        "a": "x",
        "b": {"type": "int"},
        "c": {"path": "x", "type": "intger"},
        "d": {"path": "x", "requird": True, "unsafe": "yes"},
        "good": {"path": "x", "type": "json", "description": "d", "required": False, "unsafe": True},
    }
    problems = SHELL.check_config({"outputs": specs})
    assert [path for path, _, _ in problems] == [
        ("outputs", "exit_code"),
        ("outputs", "a"),
        ("outputs", "b"),
        ("outputs", "c", "type"),
        ("outputs", "d", "requird"),
        ("outputs", "d", "unsafe"),
    ]
    hints = [hint for _, _, hint in problems]
    assert "did you mean 'int'" in hints[3] or "did you mean 'integer'" in hints[3]
    assert "did you mean 'required'" in hints[4]
    assert SHELL.check_config({"outputs": ["x"]})[0][0] == ("outputs",)
    assert SHELL.check_config({}) == []


@pytest.mark.parametrize("place", ["$RUN_SCRATCH", "$RUN_SCRATCH/.steps", "$SCRATCH"])
def test_a_link_in_place_of_the_scratch_directory_leads_nowhere(
    run_step: RunStep, world: World, tmp_path: Path, place: str
) -> None:
    foreign = tmp_path / "foreign"
    (foreign / "mine").mkdir(parents=True)
    for directory in (foreign, foreign / "mine"):
        (directory / "out").write_text("private")
        directory.chmod(0o755)
    command = f'rm -rf "{place}" && ln -s "{foreign}" "{place}"'
    paths = ("$SCRATCH/out", f"{place}/out", f"{place}/mine/out")
    for path in paths:
        config: dict[str, Value] = {"outputs": {"value": {"path": path}}}
        with pytest.raises(Forbidden):
            run_step(SHELL, {"command": command}, config=config, at=world.for_step("mine"))
    world.for_step("mine").scratch_directory()
    remove_directory(tmp_path / "scratch" / "run-1")
    for directory in (foreign, foreign / "mine"):
        assert (directory / "out").read_text() == "private"
        assert directory.stat().st_mode & 0o777 == 0o755
