"""What a project directory may set: before anybody trusts it only what makes the rules narrower."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from support import forked
from workflows_mcp.errors import RequestError
from workflows_mcp.limits import DEFAULT_LIMITS, Limits
from workflows_mcp.settings.files import TABLES
from workflows_mcp.settings.http import NAMES
from workflows_mcp.settings.model import _READERS, _TEMPORAL_READERS, Settings, load_settings
from workflows_mcp.settings.trust import FILES

pytestmark = pytest.mark.rows("O11")

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "security.md").read_text(encoding="utf-8")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    directory = tmp_path / "project"
    directory.mkdir()
    return directory


def environment(tmp_path: Path, **more: str) -> dict[str, str]:
    return {"XDG_CONFIG_HOME": str(tmp_path / "config"), "XDG_DATA_HOME": str(tmp_path / "data"), **more}


def command(tmp_path: Path, project: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    keep = {key: value for key, value in os.environ.items() if not key.startswith("WORKFLOWS_")}
    return subprocess.run(
        [*forked.command(), *arguments],
        cwd=project,
        env={**keep, "HOME": str(tmp_path), **environment(tmp_path, **more)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


WIDENING = {
    "home": 'home = "{d}/runs"',
    "template_paths": 'template_paths = ["/"]',
    "allowed_paths": 'allowed_paths = ["/"]',
    "secrets_file": 'secrets_file = "/etc/secrets"',
    "mcp_servers": '[mcp_servers.evil]\ncommand = "evil"',
    "workflow_tools": 'workflow_tools = ["all"]',
    "elicitation": 'elicitation = "never"',
    "hooks": 'hooks = "off"',
    "engine": 'engine = "temporal"',
    "temporal.host": '[temporal]\nhost = "evil.example:7233"',
    "temporal.namespace": '[temporal]\nnamespace = "theirs"',
    "temporal.task_queue": '[temporal]\ntask_queue = "theirs"',
    "temporal.tls": "[temporal]\ntls = false",
    "temporal.tls_ca": '[temporal]\ntls_ca = "ca.pem"',
    "temporal.blobs": '[temporal]\nblobs = "/tmp/blobs"',
    "temporal.worker": "[temporal]\nworker = true",
    "http.hosts": '[http]\nhosts = ["evil.example"]',
    "limits.javascript_bytes": "[limits]\njavascript_bytes = 4_000_000_000",
    "limits.checkpoint_days": "[limits]\ncheckpoint_days = 0.0001",
    "limits.run_days": "[limits]\nrun_days = 0.0001",
    "limits.max_ended_runs": "[limits]\nkept_runs = 1",
    "limits.store_bytes": "[limits]\nstore_bytes = 1",
    "limits.stop_refusals": "[limits]\nstop_refusals = 1",
}
NARROWING = {
    "allow_commands": "allow_commands = false",
    "security_level": 'security_level = "safe"',
    "denied_capabilities": 'denied_capabilities = ["network"]',
    "secrets": "secrets = []",
    "read_only": "read_only = true",
    "toolsets": 'toolsets = ["graph"]',
    "state_access": 'state_access = "warn"',
    "elicitation": 'elicitation = "always"',
    "log_level": 'log_level = "ERROR"',
    "template_paths": 'template_paths = ["{d}/flows"]',
    "limits.parallel_steps": "[limits]\nparallel_steps = 2",
    "temporal.worker": "[temporal]\nworker = false",
}


def value_of(settings: Settings, place: str) -> Any:
    for name in place.split("."):
        settings = getattr(settings, name)
    return settings


@pytest.mark.parametrize("place", WIDENING)
def test_what_could_widen_rights_is_ignored_with_one_line_until_the_directory_is_trusted(
    place: str, project: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = load_settings(environment(tmp_path), workspace=project)
    (project / "workflows.toml").write_text(WIDENING[place].format(d=project) + "\n")
    assert load_settings(environment(tmp_path), workspace=project) == before
    [line] = [record.getMessage() for record in caplog.records if "trust" in record.getMessage()]
    assert place in line
    assert f"workflows-mcp trust {project}" in line
    caplog.clear()
    trusted = load_settings(environment(tmp_path, WORKFLOWS_TRUST=str(tmp_path)), workspace=project)
    if place != "temporal.worker":
        assert value_of(trusted, place) != value_of(before, place)
    assert "trust" not in caplog.text


@pytest.mark.parametrize("place", NARROWING)
def test_what_only_narrows_counts_without_trust(
    place: str, project: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (project / "flows").mkdir()
    before = load_settings(environment(tmp_path), workspace=project)
    (project / "workflows.toml").write_text(NARROWING[place].format(d=project) + "\n")
    after = load_settings(environment(tmp_path), workspace=project)
    assert value_of(after, place) != value_of(before, place)
    assert caplog.text == ""


def test_a_key_of_the_user_is_not_sent_to_the_host_of_a_cloned_repository(
    project: Path, tmp_path: Path
) -> None:
    (project / "workflows.toml").write_text(
        'engine = "temporal"\n[temporal]\nhost = "evil.example:7233"\ntls = false\n'
    )
    settings = load_settings(environment(tmp_path, TEMPORAL_API_KEY="sk-mine"), workspace=project)
    assert (settings.engine, settings.temporal.host, settings.temporal.api_key) == ("embedded", None, None)


def test_a_key_is_sent_over_tls_or_to_this_machine_only(project: Path, tmp_path: Path) -> None:
    open_host = {"WORKFLOWS_TEMPORAL_HOST": "flows.example.org:7233", "WORKFLOWS_TEMPORAL_TLS": "false"}
    with pytest.raises(RequestError, match=r"an API key is not sent to flows\.example\.org:7233") as refused:
        load_settings(environment(tmp_path, TEMPORAL_API_KEY="sk-mine", **open_host), workspace=project)
    assert "sk-mine" not in str(refused.value)
    assert load_settings(environment(tmp_path, **open_host), workspace=project).temporal.tls is False
    for host in ("localhost:7233", "127.0.0.1:1", "[::1]:7233"):
        here = {**open_host, "WORKFLOWS_TEMPORAL_HOST": host, "TEMPORAL_API_KEY": "sk-mine"}
        assert load_settings(environment(tmp_path, **here), workspace=project).temporal.api_key == "sk-mine"


def test_trust_is_given_listed_and_taken_back_and_a_change_asks_again(project: Path, tmp_path: Path) -> None:
    (project / "workflows.toml").write_text('home = "there"\nlog_level = "ERROR"\n')
    ignored = command(tmp_path, project, "runs")
    assert ignored.returncode == 0
    assert ignored.stderr.count("is not trusted") == 1
    assert not (project / "there").exists()

    given = command(tmp_path, project, "trust")
    assert given.returncode == 0, given.stderr
    assert "workflows.toml" in given.stdout
    assert "home" in given.stdout
    assert "trust" not in command(tmp_path, project, "runs").stderr
    assert (project / "there").exists()
    listed = command(tmp_path, project, "trust", "--list", "--json")
    assert json.loads(listed.stdout)["trusted"] == [{"directory": str(project), "state": "trusted"}]
    assert (tmp_path / "config/workflows-mcp/trusted.json").stat().st_mode & 0o077 == 0

    (project / ".mcp.json").write_text('{"mcpServers": {"new": {"command": "x"}}}')
    assert "has changed since you trusted it" in command(tmp_path, project, "runs").stderr
    assert "changed since" in command(tmp_path, project, "trust", "--list").stdout
    assert command(tmp_path, project.parent, "trust", str(project)).returncode == 0
    assert "trust" not in command(tmp_path, project, "runs").stderr
    (project / ".mcp.json").unlink()
    assert "trust" not in command(tmp_path, project, "runs").stderr, (
        "to remove a file does not widen anything"
    )

    assert command(tmp_path, project, "trust", "--remove").returncode == 0
    assert "is not trusted" in command(tmp_path, project, "runs").stderr
    assert command(tmp_path, project, "trust", "--remove").returncode == 1


def test_a_directory_is_trusted_by_where_it_really_is(project: Path, tmp_path: Path) -> None:
    (project / "workflows.toml").write_text('home = "there"\n')
    (tmp_path / "link").symlink_to(project)
    assert command(tmp_path, tmp_path / "link", "trust").returncode == 0
    assert "trust" not in command(tmp_path, project, "runs").stderr


def test_what_cannot_be_trusted_is_refused(project: Path, tmp_path: Path) -> None:
    nothing = command(tmp_path, project, "trust")
    assert (nothing.returncode, nothing.stdout) == (2, "")
    assert "there is nothing to trust" in nothing.stderr
    assert "there is no directory" in command(tmp_path, project, "trust", str(tmp_path / "nowhere")).stderr
    with pytest.raises(RequestError, match="WORKFLOWS_TRUST must be absolute paths"):
        load_settings(environment(tmp_path, WORKFLOWS_TRUST="true"), workspace=project)
    (tmp_path / "config" / "workflows-mcp").mkdir(parents=True)
    (tmp_path / "config" / "workflows-mcp" / "trusted.json").write_text("[")
    (project / "workflows.toml").write_text('home = "there"\n')
    assert load_settings(environment(tmp_path), workspace=project).home != Path("there").resolve()


def test_a_server_of_a_file_in_a_directory_that_nobody_trusts_is_not_started(
    project: Path, tmp_path: Path
) -> None:
    touched = tmp_path / "started"
    servers = {"mcpServers": {"evil": {"command": "touch", "args": [str(touched)]}}}
    (project / ".mcp.json").write_text(json.dumps(servers))
    (project / "call.yaml").write_text(
        "name: call\nsteps:\n  - {id: c, type: mcp_call, tool: evil.x, run_on: server}\ninitial_state: {}\n"
    )
    said = command(tmp_path, project, "run", "call.yaml")
    assert said.returncode == 1
    assert (
        "to use the servers in .mcp.json, trust its directory: workflows-mcp trust"
        in said.stdout + said.stderr
    )
    assert not touched.exists()
    assert command(tmp_path, project, "trust").returncode == 0
    command(tmp_path, project, "run", "call.yaml")
    assert touched.exists()


def rows() -> dict[str, str]:
    """What the table says of each setting."""
    table = PAGE.partition("\n## Who may set what\n")[2].partition("\n## ")[0]
    return {
        name: line
        for line in table.splitlines()
        if line.startswith("| `")
        for name in re.findall(r"`([^`]+)`", line.split("|")[1])
    }


def test_the_page_says_of_every_setting_and_every_file_who_may_set_it() -> None:
    names = {name for name in _READERS if name not in TABLES}
    names |= {f"temporal.{name}" for name in _TEMPORAL_READERS} | {f"http.{name}" for name in NAMES}
    names |= {"limits", "trust"} | set(FILES)
    assert names - set(rows()) == set()
    known = names | {f"limits.{item.name}" for item in fields(Limits)} | {".workflows", ".aromcp/workflows"}
    assert {name for name in rows() if name not in known and not name.startswith("WORKFLOWS_")} == set()


@pytest.mark.parametrize("place", [*WIDENING, *NARROWING])
def test_the_page_says_the_same_as_the_code(place: str) -> None:
    row = rows().get(place) or rows()[place.partition(".")[0]]
    both = place in WIDENING and place in NARROWING
    if not both and not place.startswith("limits"):
        assert ("needs trust" in row) == (place in WIDENING), row


def test_a_limit_that_deletes_or_lets_agents_leave_needs_trust_whatever_it_is(
    project: Path, tmp_path: Path
) -> None:
    named = [name for name in rows() if name.startswith("limits.")]
    assert named
    for place in named:
        name = place.partition(".")[2]
        (project / "workflows.toml").write_text(f"[limits]\n{name} = 1\n")
        assert load_settings(environment(tmp_path), workspace=project).limits == DEFAULT_LIMITS, name
    assert dataclasses.replace(DEFAULT_LIMITS) == Limits()
