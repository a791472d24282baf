"""conditional-deploy and run-command."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from workflows_mcp.errors import InvalidResult
from workflows_mcp.library.catalog import Catalog
from workflows_mcp.settings.model import Settings
from workflows_mcp.steps.registry import default_registry

pytestmark = pytest.mark.rows("G22")

COMMANDS = {
    "check_command": "echo checked",
    "deploy_command": 'echo "deploy $DEPLOY_ENVIRONMENT" >> done',
    "rollback_command": 'echo "rollback $DEPLOY_ENVIRONMENT" >> done',
}


def done(workspace: Path) -> list[str]:
    """What was done to the world."""
    record = workspace / "done"
    return record.read_text().splitlines() if record.exists() else []


def test_a_harmless_environment_is_deployed_to_when_the_checks_pass(workspace: Path, outputs: Any) -> None:
    assert outputs("conditional-deploy", {**COMMANDS, "environment": "staging"}) == {
        "deployed": True,
        "reason": "deployed to staging",
        "checks_passed": True,
        "rolled_back": False,
        "log": "== checks: exit code 0\nchecked\n== deploy: exit code 0\n",
    }
    assert done(workspace) == ["deploy staging"]


@pytest.mark.parametrize(
    "environment", ["production", " Production", "PROD", "prod-eu", "staging-of-theirs", "$(x)"]
)
def test_every_other_environment_needs_a_yes(workspace: Path, run: Any, environment: str) -> None:
    inputs = {**COMMANDS, "environment": environment}
    asked = run("conditional-deploy", inputs)
    assert asked["status"] == "pending_action"
    assert f"Deploy to '{environment}'?" in asked["action"]["parameters"]["prompt"]
    with pytest.raises(InvalidResult, match="must be true or false"):
        run("conditional-deploy", inputs, answers=("yesterday",))
    assert done(workspace) == []
    declined = run("conditional-deploy", inputs, answers=("no, not yet",))
    assert declined["status"] == "completed"
    assert (declined["outputs"]["deployed"], declined["outputs"]["reason"]) == (False, "not approved")
    assert done(workspace) == []
    approved = run("conditional-deploy", inputs, answers=("Yes",))
    assert approved["outputs"]["deployed"] is True
    assert done(workspace) == [f"deploy {environment}"]


@pytest.mark.parametrize("check", ["exit 1", "sleep 30", "no-such-command"])
def test_nothing_is_asked_or_deployed_when_the_checks_fail(workspace: Path, outputs: Any, check: str) -> None:
    for environment in ("production", "staging"):
        inputs = {**COMMANDS, "environment": environment, "check_command": check, "check_timeout": 0.3}
        found = outputs("conditional-deploy", inputs)
        assert (found["deployed"], found["reason"]) == (False, "the checks failed")
        assert found["checks_passed"] is False
    assert done(workspace) == []


@pytest.mark.parametrize("deploy", ["echo half way; exit 3", "echo half way; sleep 30"])
def test_a_deployment_that_fails_or_takes_too_long_is_rolled_back_and_fails_the_run(
    workspace: Path, run: Any, deploy: str
) -> None:
    inputs = {**COMMANDS, "environment": "test", "deploy_command": deploy, "deploy_timeout": 0.5}
    answer = run("conditional-deploy", inputs)
    assert answer["status"] == "failed"
    assert "block 'deploy' failed" in answer["error"]["message"]
    found = answer["outputs"]
    assert (found["deployed"], found["rolled_back"]) == (False, True)
    assert found["reason"] == "the deployment failed and was rolled back"
    assert "half way" in found["log"]
    assert done(workspace) == ["rollback test"]


def test_a_deployment_that_cannot_be_rolled_back_says_so(run: Any) -> None:
    inputs = {"environment": "test", "deploy_command": "exit 3"}
    alone = run("conditional-deploy", inputs)["outputs"]
    assert alone["reason"] == "the deployment failed and was not rolled back: there is no rollback command"
    broken = run("conditional-deploy", {**inputs, "rollback_command": "exit 4"})
    assert broken["status"] == "failed"
    assert broken["outputs"]["reason"] == "the deployment failed, and so did the rollback"


def test_a_command_gets_its_variables_and_fails_the_run_where_it_fails(
    workspace: Path, outputs: Any, run: Any
) -> None:
    (workspace / "a place").mkdir()
    inputs = {
        "command": 'printf "%s|" "$WORD" "$(basename "$PWD")"; echo oops >&2',
        "working_dir": "a place",
        "env": {"WORD": '$(touch pwned) "x'},
    }
    assert outputs("run-command", inputs) == {
        "exit_code": 0,
        "stdout": '$(touch pwned) "x|a place|',
        "stderr": "oops\n",
    }
    assert list(workspace.rglob("pwned")) == []
    failed = run("run-command", {"command": "echo no >&2; exit 5"})
    assert (failed["status"], failed["outputs"]["exit_code"]) == ("failed", 5)


def test_a_command_that_a_crash_cut_off_is_not_repeated_unasked(settings: Settings) -> None:
    [node] = Catalog.of(settings, default_registry()).definition("run-command").plan.body.nodes
    assert node.on_interrupt == "ask"
