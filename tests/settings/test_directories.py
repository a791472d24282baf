"""The directories that everything happens in: those whose names cannot be told are refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from workflows_mcp.errors import RequestError
from workflows_mcp.settings.model import load_settings


def test_a_directory_whose_path_is_no_utf_8_is_refused_before_anything_is_kept_there(tmp_path: Path) -> None:
    odd = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9"))
    odd.mkdir()
    with pytest.raises(RequestError, match="the path of the working directory is not UTF-8"):
        load_settings({"WORKFLOWS_HOME": str(tmp_path)}, workspace=odd)
    with pytest.raises(RequestError, match=r"the path of the directory of runs \(home\) is not UTF-8"):
        load_settings({"WORKFLOWS_HOME": str(odd)}, workspace=tmp_path)
