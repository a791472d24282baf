"""Which paths a step may touch."""

from __future__ import annotations

from pathlib import Path

import pytest

from workflows_mcp.errors import Forbidden, StepError
from workflows_mcp.policy.handles import World
from workflows_mcp.policy.rules import Policy


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    path = tmp_path / "workspace"
    path.mkdir()
    return path


@pytest.fixture
def world(workspace: Path, tmp_path: Path) -> World:
    return World(Policy(workspace), "run-1", tmp_path / "scratch" / "run-1")


def test_relative_paths_start_in_the_workspace(world: World, workspace: Path) -> None:
    assert world.path_for_reading("a/b.txt") == workspace / "a" / "b.txt"
    assert world.path_for_writing(str(workspace / "c")) == workspace / "c"


@pytest.mark.parametrize("path", ["../outside", "/etc/passwd", "a/../../outside", "~root/x"])
def test_paths_outside_are_refused_with_the_setting_that_allows_them(world: World, path: str) -> None:
    for take in (world.path_for_reading, world.path_for_writing):
        with pytest.raises(Forbidden) as caught:
            take(path)
        assert str(world.policy.workspace) in str(caught.value)
        assert "WORKFLOWS_ALLOWED_PATHS" in str(caught.value)


def test_a_symbolic_link_does_not_lead_outside(world: World, workspace: Path, tmp_path: Path) -> None:
    (workspace / "link").symlink_to(tmp_path)
    (workspace / "inner").symlink_to(workspace)
    with pytest.raises(Forbidden):
        world.path_for_writing("link/x")
    assert world.path_for_writing("inner/x") == workspace / "x"


def test_a_directory_that_the_settings_allow_is_open(workspace: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    world = World(Policy(workspace, (other,)), "run-1", tmp_path / "scratch")
    assert world.path_for_writing(str(other / "x")) == other / "x"


def test_a_name_that_only_begins_like_the_workspace_is_outside(world: World, workspace: Path) -> None:
    with pytest.raises(Forbidden):
        world.path_for_reading(f"{workspace}-other/x")


@pytest.mark.parametrize("path", ["$SCRATCH/x", "${SCRATCH}/x"])
def test_the_scratch_directory_is_open_and_made_when_first_used(
    world: World, tmp_path: Path, path: str
) -> None:
    scratch = tmp_path / "scratch" / "run-1"
    assert not scratch.exists()
    assert world.path_for_writing(path) == scratch / "x"
    assert scratch.is_dir()


def test_the_scratch_directory_of_another_run_is_closed(world: World, tmp_path: Path) -> None:
    with pytest.raises(Forbidden):
        world.path_for_reading(str(tmp_path / "scratch" / "run-2" / "x"))


@pytest.mark.parametrize("path", ["", "  ", "a\0b"])
def test_what_is_no_path_is_refused(world: World, path: str) -> None:
    with pytest.raises(StepError):
        world.path_for_reading(path)


def test_a_working_directory_must_be_there(world: World, workspace: Path) -> None:
    (workspace / "sub").mkdir()
    (workspace / "file").touch()
    assert world.working_directory("") == workspace
    assert world.working_directory("sub") == workspace / "sub"
    with pytest.raises(StepError, match="does not exist"):
        world.working_directory("missing")
    with pytest.raises(StepError, match="is not a directory"):
        world.working_directory("file")
    with pytest.raises(Forbidden):
        world.working_directory("/")


def test_commands_get_the_servers_variables_but_not_its_settings(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORKFLOWS_HOME", "/secret")
    monkeypatch.setenv("COLOR", "blue")
    environment = world.command_environment({"COLOR": "red", "SIZE": "3"})
    assert environment["COLOR"] == "red"
    assert environment["SIZE"] == "3"
    assert environment["SCRATCH"] == str(world.scratch_path)
    assert "WORKFLOWS_HOME" not in environment


@pytest.mark.parametrize("name", ["", "A=B", "A\0"])
def test_a_variable_needs_a_name(world: World, name: str) -> None:
    with pytest.raises(StepError):
        world.command_environment({name: "x"})


def test_commands_can_be_switched_off(workspace: Path, tmp_path: Path) -> None:
    world = World(Policy(workspace, allow_commands=False), "run-1", tmp_path / "scratch")
    with pytest.raises(Forbidden, match="WORKFLOWS_ALLOW_COMMANDS"):
        world.check_command()
