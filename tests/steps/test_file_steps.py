"""CreateFile and ReadFile."""

from __future__ import annotations

import base64
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import ValidationError

from workflows_mcp.errors import Forbidden, StepError
from workflows_mcp.limits import Limits
from workflows_mcp.policy.handles import World
from workflows_mcp.policy.rules import Policy
from workflows_mcp.steps.base import StepResult
from workflows_mcp.steps.files import CreateFile, ReadFile
from workflows_mcp.values import Value

RunStep = Callable[..., StepResult]
CREATE = CreateFile()
READ = ReadFile()


@pytest.mark.rows("G12")
def test_a_file_is_made_with_exactly_that_text(run_step: RunStep, workspace: Path) -> None:
    content = "Line 1: Test\r\nLine 2: 你好世界\n"
    result = run_step(CREATE, {"path": "a/b/test.txt", "content": content})
    path = workspace / "a" / "b" / "test.txt"
    assert result == StepResult(
        {
            "path": str(path),
            "file_path": str(path),
            "size_bytes": len(content.encode()),
            "created": True,
            "success": True,
        }
    )
    assert path.read_bytes() == content.encode()
    assert run_step(CREATE, {"path": "a/b/test.txt", "content": "x"}).outputs["created"] is False


@pytest.mark.parametrize(
    ("given", "mode"),
    [
        ("755", 0o755),
        ("0755", 0o755),
        ("0o755", 0o755),
        (755, 0o755),
        (0o755, 0o755),
        (644, 0o644),
        (0o644, 0o644),
        (600, 0o600),
        (0o600, 0o600),
        (400, 0o400),
        (1777, 0o1777),
    ],
)
@pytest.mark.parametrize("name", ["permissions", "mode"])
def test_permissions_are_octal_digits(
    run_step: RunStep, workspace: Path, name: str, given: Value, mode: int
) -> None:
    run_step(CREATE, {"path": "f", "content": "", name: given})
    assert stat.S_IMODE((workspace / "f").stat().st_mode) == mode


@pytest.mark.parametrize("given", ["rwx", "888", "77777", 99999, True, 1.5, ""])
def test_what_are_no_permissions_is_refused(given: Value) -> None:
    with pytest.raises(ValidationError, match="octal digits"):
        CREATE.Inputs.model_validate({"path": "f", "content": "", "permissions": given})


@pytest.mark.rows("G12")
def test_an_existing_file_can_be_protected(run_step: RunStep, workspace: Path) -> None:
    (workspace / "f").write_text("old")
    with pytest.raises(StepError, match="already exists"):
        run_step(CREATE, {"path": "f", "content": "new", "overwrite": False})
    assert (workspace / "f").read_text() == "old"


def test_directories_are_only_made_if_wanted(run_step: RunStep, workspace: Path) -> None:
    with pytest.raises(StepError, match="does not exist"):
        run_step(CREATE, {"path": "no/f", "content": "", "create_parents": False})
    assert list(workspace.iterdir()) == []


@pytest.mark.rows("G12")
def test_an_encoding_can_be_chosen(run_step: RunStep, workspace: Path) -> None:
    result = run_step(CREATE, {"path": "f", "content": "é", "encoding": "latin-1"})
    assert result.outputs["size_bytes"] == 1
    assert run_step(READ, {"path": "f", "encoding": "latin-1"}).outputs["content"] == "é"
    with pytest.raises(StepError, match="it has no"):
        run_step(CREATE, {"path": "f", "content": "€", "encoding": "latin-1"})
    with pytest.raises(StepError, match="no encoding 'utf-9'"):
        run_step(CREATE, {"path": "f", "content": "", "encoding": "utf-9"})
    with pytest.raises(StepError, match="no encoding 'utf-9'"):
        run_step(READ, {"path": "f", "encoding": "utf-9"})


def test_values_that_are_no_text_are_written_as_text(run_step: RunStep, workspace: Path) -> None:
    run_step(CREATE, {"path": "f", "content": {"a": [1, None]}})
    assert (workspace / "f").read_text() == '{"a":[1,null]}'


def test_files_outside_are_neither_made_nor_read(run_step: RunStep, tmp_path: Path) -> None:
    with pytest.raises(Forbidden):
        run_step(CREATE, {"path": "../f", "content": ""})
    (tmp_path / "secret").write_text("x")
    with pytest.raises(Forbidden):
        run_step(READ, {"path": str(tmp_path / "secret"), "required": False})


@pytest.mark.rows("G12")
def test_a_file_is_read_as_text(run_step: RunStep, workspace: Path) -> None:
    (workspace / "f").write_bytes("Test with 你好\r\n".encode())
    assert run_step(READ, {"path": "f"}) == StepResult(
        {
            "content": "Test with 你好\r\n",
            "path": str(workspace / "f"),
            "size_bytes": 18,
            "found": True,
            "encoding": "utf-8",
            "success": True,
        }
    )


@pytest.mark.rows("G12")
def test_a_file_is_read_as_bytes(run_step: RunStep, workspace: Path) -> None:
    (workspace / "f").write_bytes(b"\xff\x00")
    outputs = run_step(READ, {"path": "f", "mode": "binary"}).outputs
    assert outputs["encoding"] == "base64"
    assert base64.b64decode(outputs["content"]) == b"\xff\x00"
    with pytest.raises(StepError, match=r"byte 0 is 0xff(.|\n)*mode: binary"):
        run_step(READ, {"path": "f"})


@pytest.mark.rows("G12")
def test_a_missing_file_is_an_error_unless_it_is_optional(run_step: RunStep, workspace: Path) -> None:
    with pytest.raises(StepError, match="there is no file"):
        run_step(READ, {"path": "f"})
    outputs = run_step(READ, {"path": "f", "required": False}).outputs
    assert (outputs["found"], outputs["content"], outputs["size_bytes"]) == (False, "", 0)
    assert outputs["path"] == str(workspace / "f")


@pytest.mark.rows("G12")
def test_a_file_that_is_too_large_is_an_error(run_step: RunStep, workspace: Path, tmp_path: Path) -> None:
    (workspace / "f").write_bytes(b"x" * 2_000_000)
    with pytest.raises(StepError, match=r"2000000 bytes(.|\n)*max_size_mb"):
        run_step(READ, {"path": "f", "max_size_mb": 1})
    assert run_step(READ, {"path": "f"}).outputs["size_bytes"] == 2_000_000
    small = World(Policy(workspace, limits=Limits(file_bytes=1000)), "run-1", tmp_path / "small")
    with pytest.raises(StepError, match="WORKFLOWS_LIMIT_FILE_BYTES"):
        run_step(READ, {"path": "f", "max_size_mb": 100}, at=small)


def test_reading_changes_nothing_and_writing_does() -> None:
    assert READ.changes_world({}) is False
    assert CREATE.changes_world({}) is True
