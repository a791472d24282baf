"""Which levels and capabilities the settings allow, and what a step can do that it has not declared."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest

from workflows_mcp.errors import Forbidden, RequestError
from workflows_mcp.policy.handles import World
from workflows_mcp.policy.rules import Policy, policy_of
from workflows_mcp.settings.model import CAPABILITIES, LEVELS, Settings, load_settings
from workflows_mcp.steps.base import Capability, SecurityLevel


def test_the_settings_know_the_levels_and_capabilities_of_steps() -> None:
    assert get_args(SecurityLevel) == LEVELS
    assert get_args(Capability) == CAPABILITIES


@pytest.mark.parametrize(
    ("allowed", "refused"),
    [
        ("safe", ["trusted", "privileged", "unheard-of"]),
        ("trusted", ["privileged", "unheard-of"]),
        ("privileged", []),
    ],
)
def test_no_level_above_the_allowed_one_may_run(allowed: str, refused: list[str]) -> None:
    policy = Policy(Path("/"), security_level=allowed)
    levels = [*LEVELS, "unheard-of"]
    assert [level for level in levels if policy.denials(level, [])] == refused


def test_every_reason_names_its_setting_and_what_would_allow_it() -> None:
    denied = frozenset({"network"})
    policy = Policy(Path("/"), allow_commands=False, security_level="safe", denied_capabilities=denied)
    found = policy.denials("trusted", {"run_commands", "network", "read_files"})
    assert [str(denial) for denial in found] == [
        "it is trusted, and security_level is safe",
        "it needs network, and denied_capabilities has network",
        "it needs run_commands, and allow_commands is false",
    ]
    settings = (
        "WORKFLOWS_SECURITY_LEVEL=trusted",
        "WORKFLOWS_DENIED_CAPABILITIES",
        "WORKFLOWS_ALLOW_COMMANDS=true",
    )
    assert all(setting in denial.remedy for setting, denial in zip(settings, found, strict=True))


def test_by_default_everything_may_run(tmp_path: Path) -> None:
    policy = policy_of(Settings(tmp_path, tmp_path))
    assert policy.denials("privileged", CAPABILITIES) == []


def test_a_step_that_has_not_declared_what_it_does_cannot_do_it_either(tmp_path: Path) -> None:
    denied = frozenset({"run_commands", "read_files", "write_files"})
    world = World(Policy(tmp_path, denied_capabilities=denied), "run-1", tmp_path / "scratch")
    (tmp_path / "there").write_text("x")
    for touch in (
        lambda: world.path_for_reading("there"),
        lambda: world.read(tmp_path / "there"),
        lambda: world.path_for_writing("new"),
        lambda: world.write(tmp_path / "new", b"x"),
        world.check_command,
    ):
        with pytest.raises(Forbidden, match="WORKFLOWS_DENIED_CAPABILITIES"):
            touch()
    assert not (tmp_path / "new").exists()


def test_the_settings_are_read_from_the_environment_and_from_the_file(tmp_path: Path) -> None:
    (tmp_path / "workflows.toml").write_text(
        'security_level = "trusted"\ndenied_capabilities = ["network"]\nsecrets = ["A"]\nsecrets_file = "x.env"\n'
    )
    settings = load_settings({}, workspace=tmp_path)
    assert settings.security_level == "trusted"
    assert settings.denied_capabilities == {"network"}
    assert settings.secrets == ("A",)
    environ = {
        "WORKFLOWS_SECURITY_LEVEL": "Safe",
        "WORKFLOWS_DENIED_CAPABILITIES": "write_files, run_commands",
        "WORKFLOWS_SECRETS": "B,C",
        "WORKFLOWS_SECRETS_FILE": str(tmp_path / "s.env"),
    }
    settings = load_settings(environ, workspace=tmp_path)
    assert settings.security_level == "safe"
    assert settings.denied_capabilities == {"write_files", "run_commands"}
    assert settings.secrets == ("B", "C")
    assert settings.secrets_file == tmp_path / "s.env"
    assert load_settings({}, workspace=tmp_path / "other").secrets is None


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"WORKFLOWS_SECURITY_LEVEL": "trustd"}, "did you mean 'trusted'"),
        ({"WORKFLOWS_DENIED_CAPABILITIES": "netwrok"}, "did you mean 'network'"),
        ({"WORKFLOWS_DENIED_CAPABILITIES": "network,all"}, "unknown capability 'all'"),
    ],
)
def test_a_misspelt_rule_is_an_error_and_not_no_rule(
    environ: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(RequestError) as caught:
        load_settings(environ, workspace=tmp_path)
    assert said in str(caught.value)


def test_a_list_in_the_file_must_be_one(tmp_path: Path) -> None:
    (tmp_path / "workflows.toml").write_text("secrets = 3\n")
    with pytest.raises(RequestError, match="'secrets'"):
        load_settings({}, workspace=tmp_path)
