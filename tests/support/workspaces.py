"""The workspace and the settings of a test that runs workflows: import the fixtures in a conftest.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from workflows_mcp.settings.model import Settings


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    path = tmp_path / "workspace"
    (path / ".workflows").mkdir(parents=True)
    return path


@pytest.fixture
def settings(tmp_path: Path, workspace: Path) -> Settings:
    return Settings(workspace=workspace, home=tmp_path / "home")
