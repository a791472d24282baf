"""Old names of settings work, and the user is told the new name once."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from workflows_mcp.errors import RequestError
from workflows_mcp.limits import Limits
from workflows_mcp.settings import model
from workflows_mcp.settings.model import RENAMED_LIMITS, load_settings

PAGE = Path(__file__).resolve().parents[2] / "docs" / "settings.md"


@pytest.fixture(autouse=True)
def fresh_process() -> Iterator[None]:
    model._warn_renamed.cache_clear()
    yield
    model._warn_renamed.cache_clear()


def notices(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [it.getMessage() for it in caplog.records if "deprecated" in it.getMessage()]


@pytest.mark.parametrize(("old", "new"), RENAMED_LIMITS.items())
def test_an_old_name_in_the_environment_works_with_one_notice(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, old: str, new: str
) -> None:
    environ = {f"WORKFLOWS_LIMIT_{old.upper()}": "7"}
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert getattr(load_settings(environ, workspace=tmp_path).limits, new) == 7
    names = f"WORKFLOWS_LIMIT_{old.upper()} is deprecated: use WORKFLOWS_LIMIT_{new.upper()}"
    assert notices(caplog) == [f"the setting {names}"]


@pytest.mark.parametrize(("old", "new"), RENAMED_LIMITS.items())
def test_an_old_name_in_a_file_works_and_the_environment_takes_precedence(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, old: str, new: str
) -> None:
    (tmp_path / "workflows.toml").write_text(f"[limits]\n{old} = 5\n", encoding="utf-8")
    environ = {"WORKFLOWS_TRUST": str(tmp_path)}
    with caplog.at_level(logging.WARNING):
        assert getattr(load_settings(environ, workspace=tmp_path).limits, new) == 5
        for name in (old, new):
            overridden = {**environ, f"WORKFLOWS_LIMIT_{name.upper()}": "6"}
            assert getattr(load_settings(overridden, workspace=tmp_path).limits, new) == 6
    assert notices(caplog)[0] == f"the setting limits.{old} is deprecated: use limits.{new}"


def test_both_names_at_once_are_refused(tmp_path: Path) -> None:
    for old, new in RENAMED_LIMITS.items():
        environ = {f"WORKFLOWS_LIMIT_{name.upper()}": "7" for name in (old, new)}
        with pytest.raises(RequestError, match="is the old name of") as refusal:
            load_settings(environ, workspace=tmp_path)
        assert refusal.value.hint == "set only the new one"


def test_old_names_are_documented_and_are_no_limits_any_more() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for old, new in RENAMED_LIMITS.items():
        assert f"| `{old.upper()}` | `{new.upper()}` |" in text
        assert new in Limits.__dataclass_fields__
        assert old not in Limits.__dataclass_fields__
