"""Which engine keeps runs, and where the Temporal server is: from the environment, TOML or YAML."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from workflows_mcp.errors import RequestError
from workflows_mcp.settings.model import _TEMPORAL_READERS, TemporalSettings, load_settings

pytestmark = pytest.mark.rows("S13")

DOCUMENTED = """\
temporal:
  host: localhost:7233
  namespace: default
  task_queue: mcp-workflows
mcp_server:
  workflow_definitions: ./workflows/
  max_pending_actions: 50
  yaml_cache_ttl: 300  # seconds
  worker_threads: 10
"""


def test_by_default_runs_are_kept_here_and_a_server_would_be_our_own(tmp_path: Path) -> None:
    settings = load_settings({"WORKFLOWS_HOME": str(tmp_path / "home")}, workspace=tmp_path)
    assert settings.engine == "embedded"
    assert settings.temporal == TemporalSettings(host=None, namespace="default", task_queue="mcp-workflows")
    assert settings.temporal.worker
    assert settings.blobs == tmp_path / "home" / "blobs"
    assert settings.dev_server == tmp_path / "home" / "temporal"


def test_every_key_can_be_in_the_file_and_the_environment_goes_before_it(tmp_path: Path) -> None:
    for name in ("ca", "cert", "key"):
        (tmp_path / name).touch()
    (tmp_path / "workflows.toml").write_text(
        f"""\
engine = "temporal"
[temporal]
host = "temporal.example.org:7233"
namespace = "team"
task_queue = "flows"
tls = true
tls_ca = "{tmp_path}/ca"
tls_cert = "{tmp_path}/cert"
tls_key = "{tmp_path}/key"
blobs = "{tmp_path}/shared"
worker = false
"""
    )
    trusted = {"WORKFLOWS_TRUST": str(tmp_path)}
    settings = load_settings(trusted, workspace=tmp_path)
    assert settings.engine == "temporal"
    assert settings.temporal == TemporalSettings(
        host="temporal.example.org:7233",
        namespace="team",
        task_queue="flows",
        tls=True,
        tls_ca=tmp_path / "ca",
        tls_cert=tmp_path / "cert",
        tls_key=tmp_path / "key",
        blobs=tmp_path / "shared",
        worker=False,
    )
    assert settings.blobs == tmp_path / "shared"
    environ = {
        **trusted,
        "WORKFLOWS_TEMPORAL_HOST": "other:1",
        "WORKFLOWS_TEMPORAL_NAMESPACE": "mine",
        "WORKFLOWS_TEMPORAL_TASK_QUEUE": "queue",
        "WORKFLOWS_TEMPORAL_TLS": "yes",
        "WORKFLOWS_TEMPORAL_BLOBS": str(tmp_path / "mine"),
        "WORKFLOWS_TEMPORAL_WORKER": "on",
        "WORKFLOWS_TEMPORAL_API_KEY": "sk-mine",
    }
    given = load_settings(environ, workspace=tmp_path).temporal
    assert (given.host, given.namespace, given.task_queue) == ("other:1", "mine", "queue")
    assert (given.tls, given.blobs, given.worker, given.api_key) == (True, tmp_path / "mine", True, "sk-mine")
    assert load_settings({}, workspace=tmp_path, engine="embedded").engine == "embedded"


def test_the_sections_of_the_documents_are_read_as_they_are(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "workflows.yaml").write_text(DOCUMENTED)
    (tmp_path / "workflows").mkdir()
    trusted = {"WORKFLOWS_TRUST": str(tmp_path)}
    settings = load_settings({"WORKFLOWS_ENGINE": "temporal", **trusted}, workspace=tmp_path)
    assert settings.temporal.host == "localhost:7233"
    assert settings.temporal.task_queue == "mcp-workflows"
    assert settings.template_paths == (tmp_path / "workflows",)
    assert settings.limits.pending_actions == 50
    assert settings.limits.parallel_steps == 10
    assert caplog.text == ""
    assert load_settings(trusted, workspace=tmp_path).engine == "embedded"
    assert "engine = temporal" in caplog.text


def test_every_key_and_the_sections_of_the_documents_are_in_the_settings_page() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "settings.md").read_text(encoding="utf-8")
    assert DOCUMENTED in page
    assert [name for name in _TEMPORAL_READERS if f"`{name.upper()}`" not in page] == []


def test_toml_goes_before_yaml_key_by_key(tmp_path: Path) -> None:
    (tmp_path / "workflows.yaml").write_text(DOCUMENTED + "log_level: INFO\nlimits: {call_depth: 7}\n")
    (tmp_path / "workflows.toml").write_text(
        'log_level = "ERROR"\n[limits]\nparallel_steps = 3\n[temporal]\nnamespace = "team"\n'
    )
    environ = {"WORKFLOWS_ENGINE": "embedded", "WORKFLOWS_TRUST": str(tmp_path)}
    settings = load_settings(environ, workspace=tmp_path)
    assert settings.log_level == "ERROR"
    assert (settings.limits.parallel_steps, settings.limits.call_depth) == (3, 7)
    assert (settings.temporal.host, settings.temporal.namespace) == ("localhost:7233", "team")


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("temporal: {hots: x}", "unknown setting 'temporal.hots'", "did you mean 'host'"),
        ("temporl: {}", "unknown setting 'temporl'", "did you mean 'temporal'"),
        ("mcp_server: {worker_thread: 1}", "'mcp_server.worker_thread'", "did you mean 'worker_threads'"),
        ("mcp_server: {worker_threads: 0}", "'mcp_server.worker_threads' must be a number of at least 1", ""),
        ("mcp_server: {yaml_cache_ttl: soon}", "'mcp_server.yaml_cache_ttl' must be a number", ""),
        ("mcp_server: {workflow_definitions: 5}", "must be a directory", ""),
        ("mcp_server: 5", "'mcp_server' must be a table", ""),
        ("temporal: [a]", "'temporal' must be a table", ""),
        ("template_paths: [a]\nmcp_server: {workflow_definitions: b}", "are the same setting", "keep one"),
        ("temporal: {host: localhost}", "must be host:port, not 'localhost'", "localhost:7233"),
        ("temporal: {host: 'https://x:1'}", "must be host:port", ""),
        ("temporal: {host: 'x:99999'}", "must be host:port", ""),
        ("temporal: {host: 7233}", "'temporal.host' must be text", ""),
        ("temporal: {namespace: ' '}", "'temporal.namespace' must be text", ""),
        ("temporal: {tls: 5}", "'temporal.tls' must be true or false", ""),
        ("temporal: {tls_cert: c}", "must be set together", ""),
        ("temporal: {tls: false, tls_ca: c}", "certificates are set", ""),
        ("temporal: {api_key: sk-mine}", "must not be set in a file", "WORKFLOWS_TEMPORAL_API_KEY"),
        ("engine: temproal", "'engine' cannot be 'temproal'", "did you mean 'temporal'"),
        ("log_level: LOUD", "'log_level' cannot be 'LOUD'", "debug"),
        ("temporal: {host: 'a:1', host: 'b:1'}", "duplicate key 'host'", ""),
        ("temporal: {", "is not valid YAML", ""),
        ("- temporal", "must contain settings by name", ""),
    ],
)
def test_what_is_wrong_is_told_with_what_was_meant(
    tmp_path: Path, text: str, message: str, hint: str
) -> None:
    (tmp_path / "workflows.yaml").write_text(text)
    with pytest.raises(RequestError) as caught:
        load_settings({"WORKFLOWS_TRUST": str(tmp_path)}, workspace=tmp_path)
    assert message in caught.value.message
    assert hint in caught.value.hint
    assert "sk-mine" not in str(caught.value)


def test_a_misspelt_variable_is_no_reason_to_use_another_server(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"unknown setting 'temporal\.hsot'"):
        load_settings({"WORKFLOWS_TEMPORAL_HSOT": "a:1"}, workspace=tmp_path)


def test_a_workflow_that_is_called_workflows_is_nobody_s_settings(tmp_path: Path) -> None:
    (tmp_path / "workflows.yaml").write_text("name: x\nblocks: []\n")
    assert load_settings({}, workspace=tmp_path).engine == "embedded"


@pytest.mark.parametrize(
    "name", ["NAMESPACE=team", "TLS=true", "TLS_CA=/ca", "API_KEY=sk-mine"], ids=lambda it: it.split("=")[0]
)
def test_who_says_anything_of_a_server_means_one_that_is_there(tmp_path: Path, name: str) -> None:
    key, _, value = name.partition("=")
    settings = load_settings({f"WORKFLOWS_TEMPORAL_{key}": value}, workspace=tmp_path)
    assert settings.temporal.host == "localhost:7233"


def test_the_key_that_all_programs_share_is_only_for_a_server_that_is_named(tmp_path: Path) -> None:
    shared = {"TEMPORAL_API_KEY": "sk-shared"}
    assert load_settings(shared, workspace=tmp_path).temporal == TemporalSettings()
    named = {**shared, "WORKFLOWS_TEMPORAL_HOST": "a:1"}
    assert load_settings(named, workspace=tmp_path).temporal.api_key == "sk-shared"
    own = {**named, "WORKFLOWS_TEMPORAL_API_KEY": "sk-mine"}
    assert load_settings(own, workspace=tmp_path).temporal.api_key == "sk-mine"


def test_a_key_is_never_shown(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    settings = load_settings({"WORKFLOWS_TEMPORAL_API_KEY": "sk-mine"}, workspace=tmp_path)
    assert "sk-mine" not in repr(settings) + str(settings.temporal) + caplog.text
    with pytest.raises(RequestError) as caught:
        load_settings({"WORKFLOWS_TEMPORAL_API_KEY": "sk-\nmine"}, workspace=tmp_path)
    assert "mine" not in str(caught.value)
