"""Files are read within limits and written whole or not at all."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from workflows_mcp.errors import StepError
from workflows_mcp.policy import files


def test_bytes_come_back_as_they_were(tmp_path: Path) -> None:
    data = bytes(range(256)) * 5000
    path = tmp_path / "file"
    assert files.write_file(path, data) is True
    assert files.write_file(path, data) is False
    assert files.read_file(path, len(data), "") == data


def test_what_is_not_there_is_none(tmp_path: Path) -> None:
    assert files.read_file(tmp_path / "nothing", 10, "") is None
    (tmp_path / "file").touch()
    assert files.read_file(tmp_path / "file" / "below", 10, "") is None


def test_a_file_beyond_the_limit_is_refused_with_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 11)
    with pytest.raises(StepError, match=r"11 bytes(.|\n)*set this"):
        files.read_file(tmp_path / "file", 10, "set this")
    assert files.read_file(tmp_path / "file", 11, "") == b"x" * 11
    with pytest.raises(StepError, match="too large"):
        files.read_file(Path(f"/proc/{os.getpid()}/status"), 10, "")  # says that it has no bytes at all


def test_a_named_pipe_is_refused_instead_of_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(StepError, match="not an ordinary file"):
        files.read_file(tmp_path / "pipe", 10, "")
    with pytest.raises(StepError, match="a special file has that name"):
        files.write_file(tmp_path / "pipe", b"x")


def test_a_directory_is_neither_read_nor_replaced(tmp_path: Path) -> None:
    with pytest.raises(StepError, match="it is a directory"):
        files.read_file(tmp_path, 10, "")
    with pytest.raises(StepError, match="a directory has that name"):
        files.write_file(tmp_path, b"x")


def test_a_new_file_gets_usual_permissions_and_an_old_one_keeps_its_own(tmp_path: Path) -> None:
    def mode(path: Path) -> int:
        return stat.S_IMODE(path.stat().st_mode)

    plain = tmp_path / "plain"
    plain.touch()
    files.write_file(tmp_path / "new", b"x")
    assert mode(tmp_path / "new") == mode(plain)
    files.write_file(tmp_path / "script", b"x", permissions=0o755)
    assert mode(tmp_path / "script") == 0o755
    files.write_file(tmp_path / "script", b"y")
    assert mode(tmp_path / "script") == 0o755


def test_an_existing_file_is_only_replaced_if_that_is_wanted(tmp_path: Path) -> None:
    path = tmp_path / "file"
    assert files.write_file(path, b"one", overwrite=False) is True
    with pytest.raises(StepError, match="already exists"):
        files.write_file(path, b"two", overwrite=False)
    assert path.read_bytes() == b"one"


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(StepError, match=r"does not exist(.|\n)*create_parents"):
        files.write_file(tmp_path / "no" / "file", b"x")


def test_a_reader_never_sees_half_a_file_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "file"
    sizes = {1, 3_000_000}
    files.write_file(path, b"x")
    seen: set[int] = set()
    stop = threading.Event()

    def look() -> None:
        while not stop.is_set():
            seen.add(len(path.read_bytes()))

    thread = threading.Thread(target=look)
    thread.start()
    for _ in range(10):
        files.write_file(path, b"x" * 3_000_000)
        files.write_file(path, b"x")
    stop.set()
    thread.join()
    assert seen <= sizes
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_a_failed_write_leaves_the_old_file_and_no_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(StepError, match="No space left"):
        files.write_file(path, b"new")
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_another_process_waits_for_the_lock(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from workflows_mcp.policy import files\n"
        "with files.only_writer_in(Path(sys.argv[1])): print('in', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdin is not None
        assert other.stdout.readline() == b"in\n"
        entered = threading.Event()

        def enter() -> None:
            with files.only_writer_in(tmp_path):
                entered.set()

        thread = threading.Thread(target=enter)
        thread.start()
        assert not entered.wait(0.1)
        other.stdin.close()
        assert entered.wait(5)
        thread.join()
    assert list(tmp_path.iterdir()) == []


def test_waiting_for_a_lock_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "LOCK_SECONDS", 0.05)
    with (
        files.only_writer_in(tmp_path),
        pytest.raises(StepError, match=r"has locked"),
        files.only_writer_in(tmp_path),
    ):
        pass


def test_a_directory_goes_with_everything_in_it(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    (scratch / "locked").mkdir(parents=True)
    (scratch / "locked" / "file").touch()
    (scratch / "locked").chmod(0o500)
    files.remove_directory(scratch)
    assert not scratch.exists()
    files.remove_directory(scratch)


def test_a_link_is_removed_and_never_followed(tmp_path: Path) -> None:
    foreign = tmp_path / "foreign"
    (foreign / "inner").mkdir(parents=True)
    (foreign / "inner" / "file").write_text("kept")
    (foreign / "inner" / "file").chmod(0o400)
    (foreign / "inner").chmod(0o500)
    foreign.chmod(0o500)
    locked = tmp_path / "scratch" / "locked"
    (locked / "deeper").mkdir(parents=True)
    for name, target in (("a", foreign), ("b", foreign / "inner" / "file"), ("c", tmp_path / "nothing")):
        (locked / name).symlink_to(target)
        (locked / "deeper" / name).symlink_to(target)
    (locked / "deeper").chmod(0)
    locked.chmod(0o500)
    files.remove_directory(tmp_path / "scratch")
    assert not (tmp_path / "scratch").exists()

    (tmp_path / "scratch").symlink_to(foreign)
    files.remove_directory(tmp_path / "scratch")
    assert not (tmp_path / "scratch").is_symlink()
    modes = [
        stat.S_IMODE(path.stat().st_mode) for path in (foreign, foreign / "inner", foreign / "inner/file")
    ]
    assert modes == [0o500, 0o500, 0o400]
    assert (foreign / "inner" / "file").read_text() == "kept"
    for path in (foreign, foreign / "inner"):
        path.chmod(0o700)


def test_a_directory_of_any_depth_goes(tmp_path: Path) -> None:
    top = tmp_path / "scratch"
    top.mkdir()
    here = os.open(top, os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("deeper", dir_fd=here)
        inner = os.open("deeper", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)
    try:
        files.remove_directory(top)
        assert not top.exists()
    finally:  # whoever clears up after tests may not get that deep
        subprocess.run(["rm", "-rf", top], check=True)


def test_a_link_that_came_after_the_check_of_a_path_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "real" / "inner").mkdir(parents=True)
    (tmp_path / "real" / "inner" / "file").write_text("text")
    assert files.read_file(tmp_path / "real" / "inner" / "file", 100, "") == b"text"
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert files.read_file(tmp_path / "link" / "inner" / "file", 100, "") is None
    (tmp_path / "real" / "other").symlink_to("inner/file")
    with pytest.raises(StepError, match="cannot read"):
        files.read_file(tmp_path / "real" / "other", 100, "")
