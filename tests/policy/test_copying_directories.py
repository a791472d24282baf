"""Copying a directory in which somebody may be working: nothing is followed out of it, nothing is shared."""

from __future__ import annotations

from pathlib import Path

import pytest

from workflows_mcp.policy.files import copy_directory


def test_a_directory_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("secret")
    (tmp_path / "link").symlink_to(outside)
    copy_directory(tmp_path / "link", tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_links_lead_to_the_same_place_inside_of_the_copy_whichever_way_they_go(tmp_path: Path) -> None:
    source, copy = tmp_path / "source", tmp_path / "copy"
    (source / "a").mkdir(parents=True)
    (source / "b").mkdir()
    (source / "b" / "file").write_text("original")
    links = {"relative": "../b/file", "around": "../../source/b/file", "absolute": str(source / "b" / "file")}
    for name, leads_to in links.items():
        (source / "a" / name).symlink_to(leads_to)
    (source / "a" / "broken").symlink_to("../nothing")
    copy_directory(source, copy)
    for name in links:
        (copy / "a" / name).write_text(name)
        assert (copy / "b" / "file").read_text() == name
    assert (source / "b" / "file").read_text() == "original"
    assert (copy / "a" / "broken").is_symlink()


def test_what_is_there_already_is_not_written_over(tmp_path: Path) -> None:
    for name in ("source", "copy"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    with pytest.raises(FileExistsError):
        copy_directory(tmp_path / "source", tmp_path / "copy")
    assert (tmp_path / "copy" / "file").read_text() == "copy"
