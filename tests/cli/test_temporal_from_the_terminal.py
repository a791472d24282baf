"""Runs on a Temporal server, from the terminal: the real development server, workers and servers as processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest

from support.processes import PATIENCE_SECONDS, Background, background, eventually
from support.temporal import servers_of
from workflows_mcp.temporal_dev.server import DevServer, answers, free_port

pytestmark = pytest.mark.rows("S13")

GREET = """\
name: greet
blocks:
  - {id: hello, type: Shell, inputs: {command: printf hello}}
  - {id: who, type: Prompt, inputs: {prompt: "Who?"}}
  - {id: both, type: Shell, depends_on: [hello, who], inputs: {command: 'echo "${blocks.hello.stdout}" ${blocks.who.response}'}}
outputs: {said: "${blocks.both.stdout}"}
"""
SLOW = """\
name: slow
blocks:
  - {id: wait, type: Shell, inputs: {command: 'echo $$ >> begun; while [ ! -e go ]; do sleep 0.05; done; echo done'}}
outputs: {said: "${blocks.wait.stdout}"}
"""
Start = Callable[..., Background]


@pytest.fixture
def start(terminal: Any) -> Iterator[Start]:
    """Starts the command in the background; what is still there at the end is ended."""
    with ExitStack() as running:

        def go(*arguments: str, **environment: str) -> Background:
            process: AbstractContextManager[Background] = background(
                [*terminal.command, *arguments], terminal.workspace, {**terminal.environment, **environment}
            )
            return running.enter_context(process)

        yield go


@pytest.fixture
def on_server(terminal: Any, temporal_address: Any) -> Any:
    """A terminal whose settings name the server of all tests, and a task queue of their own."""
    terminal.environment |= {
        "WORKFLOWS_ENGINE": "temporal",
        "WORKFLOWS_TEMPORAL_HOST": temporal_address.host,
        "WORKFLOWS_TEMPORAL_TASK_QUEUE": temporal_address.task_queue,
    }
    return terminal


@pytest.fixture
def needs_program(temporal_server: DevServer) -> None:
    """The program is there; what it is not there for is skipped by that fixture, which says why."""


def port_in(home: Path) -> int:
    return int(json.loads((home / "temporal" / "server.json").read_text())["port"])


def begun(terminal: Any) -> list[int]:
    """The processes that the slow step was begun in, so far."""
    file = terminal.workspace / "begun"
    return [int(line) for line in file.read_text().split()] if file.exists() else []


# The development server


@pytest.mark.usefixtures("needs_program")
def test_temporal_dev_says_where_it_is_is_found_by_its_home_and_goes_when_it_is_told_to(
    terminal: Any, start: Start
) -> None:
    terminal.environment["WORKFLOWS_ENGINE"] = "temporal"
    assert terminal.run("runs", "--json").data == {"runs": []}  # with a server of its own, which ends with it
    port = free_port()
    server = start("temporal-dev", "--port", str(port))
    said = server.says(f"WORKFLOWS_TEMPORAL_HOST=127.0.0.1:{port}")
    assert str(terminal.home / "temporal" / "dev.db") in said
    terminal.write("greet.yaml", GREET)
    terminal.write("answers.yaml", "who: Ada")
    done = terminal.run("run", "greet.yaml", "--answers", "answers.yaml", "--json")
    assert done.data["outputs"] == {"said": "hello Ada\n"}, done.err
    assert port_in(terminal.home) == port
    again = terminal.run("temporal-dev", "--port", str(free_port()))
    assert again.code == 2
    assert f"is already running, at 127.0.0.1:{port}" in again.err
    assert (
        "in use by another program" in terminal.run("temporal-dev", "--port", str(port), "--db", "x.db").err
    )
    assert server.told(signal.SIGTERM) == 0
    assert server.process.stdout is not None
    assert server.process.stdout.read() == ""
    assert not answers(port)
    assert servers_of(terminal.home) == []


@pytest.mark.usefixtures("needs_program")
def test_temporal_dev_goes_on_with_the_runs_of_its_database(terminal: Any, start: Start) -> None:
    port, database = free_port(), terminal.home.parent / "elsewhere" / "runs.db"
    terminal.environment |= {
        "WORKFLOWS_ENGINE": "temporal",
        "WORKFLOWS_TEMPORAL_HOST": f"127.0.0.1:{port}",
    }
    terminal.write("greet.yaml", GREET)
    server = start("temporal-dev", "--port", str(port), "--db", str(database))
    server.says("WORKFLOWS_TEMPORAL_HOST=")
    asked = terminal.run("run", "greet.yaml", "--json")
    assert asked.data["status"] == "pending_action", asked.err
    assert server.told(signal.SIGINT) == 0
    start("temporal-dev", "--port", str(port), "--db", str(database)).says("WORKFLOWS_TEMPORAL_HOST=")
    done = terminal.run("answer", asked.data["workflow_id"], "Ada", "--json")
    assert done.data["outputs"] == {"said": "hello Ada\n"}, done.err


@pytest.mark.usefixtures("needs_program")
def test_temporal_dev_has_a_web_page_where_it_is_wanted(start: Start) -> None:
    port = free_port()
    while not 1024 < port < 64000:
        port = free_port()
    start("temporal-dev", "--port", str(port), "--ui").says(f"http://127.0.0.1:{port + 1000}")
    assert eventually(lambda: answers(port + 1000))


# Workers


def test_a_worker_carries_out_the_steps_of_a_server_that_lends_none(on_server: Any, start: Start) -> None:
    on_server.write("greet.yaml", GREET)
    on_server.write("answers.yaml", "who: Ada")
    worker = start("worker")
    assert on_server.environment["WORKFLOWS_TEMPORAL_TASK_QUEUE"] in worker.says("Ctrl-C stops it")
    on_server.environment["WORKFLOWS_TEMPORAL_WORKER"] = "false"
    done = on_server.run("run", "greet.yaml", "--answers", "answers.yaml", "--json")
    assert done.data["outputs"] == {"said": "hello Ada\n"}, done.err
    assert worker.told(signal.SIGINT) == 0
    assert worker.process.stdout is not None
    assert worker.process.stdout.read() == ""


def test_a_worker_that_is_told_to_go_hands_its_step_back_and_no_command_that_looks_takes_it_on(
    on_server: Any, start: Start
) -> None:
    on_server.write("slow.yaml", SLOW)
    worker = start("worker")
    worker.says("Ctrl-C stops it")
    client = start("run", "slow.yaml", "--json", WORKFLOWS_TEMPORAL_WORKER="false")
    eventually(lambda: len(begun(on_server)) == 1)
    assert worker.told(signal.SIGTERM) == 0
    assert "other workers take over" in worker.said
    assert not psutil.pid_exists(begun(on_server)[0])
    runs = on_server.run("runs", "--json").data["runs"]
    assert [run["status"] for run in runs] == ["running"]
    shown = on_server.run("show", runs[0]["workflow_id"], "--json")
    assert shown.data["blocks"]["wait"]["metadata"]["status"] == "running", shown.err
    assert len(begun(on_server)) == 1
    start("worker")
    eventually(lambda: len(begun(on_server)) == 2)
    (on_server.workspace / "go").touch()
    out, _ = client.process.communicate(timeout=PATIENCE_SECONDS)
    assert json.loads(out).get("outputs") == {"said": "done\n"}, out + client.said


# Serving MCP


@pytest.mark.parametrize(("number", "level"), [(signal.SIGTERM, "DEBUG"), (signal.SIGINT, "WARNING")])
def test_a_server_over_temporal_speaks_nothing_but_the_protocol_and_ends_what_it_has_started(
    on_server: Any, start: Start, number: int, level: str
) -> None:
    server = start("serve", "--engine", "temporal", WORKFLOWS_ENGINE="embedded", WORKFLOWS_LOG_LEVEL=level)
    server.introduce()
    answer = server.call("start_workflow", yaml=GREET)
    assert answer["action"]["step_id"] == "who"
    answer = server.call("submit_result", workflow_id=answer["workflow_id"], result="Ada")
    assert answer["outputs"] == {"said": "hello Ada\n"}
    assert server.call("start_workflow", yaml=SLOW, wait_seconds=0)["status"] == "running"
    eventually(lambda: len(begun(on_server)) == 1)
    assert server.told(number) == 128 + number
    assert server.process.stdout is not None
    assert [json.loads(line)["jsonrpc"] for line in server.process.stdout] == []
    assert not psutil.pid_exists(begun(on_server)[0])
    assert level == "DEBUG" or server.said == ""


@pytest.mark.usefixtures("needs_program")
def test_with_nothing_configured_servers_share_one_of_their_own_and_go_on_when_its_process_is_killed(
    terminal: Any, start: Start
) -> None:
    first = start("serve", "--engine", "temporal")
    first.introduce()
    run_id = first.call("start_workflow", yaml=GREET)["workflow_id"]
    port = port_in(terminal.home)
    second = start("serve", "--engine", "temporal")
    second.introduce()
    assert second.call("get_next_step", workflow_id=run_id)["action"]["step_id"] == "who"
    assert port_in(terminal.home) == port
    first.process.kill()
    eventually(
        lambda: (
            json.loads((terminal.home / "temporal" / "server.json").read_text())["pid"] == second.process.pid
        )
    )
    answer = second.call("submit_result", workflow_id=run_id, result="Ada")
    assert answer["outputs"] == {"said": "hello Ada\n"}
    assert port_in(terminal.home) == port
    assert second.told(signal.SIGTERM) == 128 + signal.SIGTERM
    eventually(lambda: not servers_of(terminal.home))


# What cannot be


INSTALLED = f"pip install --editable '{Path(__file__).resolve().parents[2]}[temporal]'"


def run_without(
    package: str, terminal: Any, *arguments: str, before: str = ""
) -> subprocess.CompletedProcess[str]:
    """The command in a Python that does not have a package."""
    program = (
        f"import sys; sys.modules[{package!r}] = None; sys.argv[1:] = {list(arguments)!r}\n{before}\n"
        "from workflows_mcp.cli.main import main; sys.exit(main())"
    )
    return subprocess.run(
        [sys.executable, "-c", program],
        cwd=terminal.workspace,
        env=terminal.environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_without_the_package_it_is_said_what_to_install(terminal: Any) -> None:
    terminal.environment["WORKFLOWS_ENGINE"] = "temporal"
    for words in (["runs", "--json"], ["worker"]):
        said = run_without("temporalio", terminal, *words)
        assert said.returncode == 2
        assert INSTALLED in said.stdout + said.stderr
        assert "Traceback" not in said.stderr
    said = run_without("temporalio", terminal, "serve")
    assert said.returncode == 2
    assert said.stderr.count("needs a package that is not installed") == 1, "it is told once"
    terminal.write("greet.yaml", GREET)
    assert run_without("temporalio", terminal, "validate", "greet.yaml").returncode == 0


@pytest.mark.parametrize(
    ("prefix", "made_by", "command"),
    [
        (".venv", "", "pip install"),
        (".venv", "uv = 0.9.1", "uv pip install"),
        (".local/share/uv/tools/workflows-mcp", "uv = 0.9.1", "uv tool install"),
        (".local/share/pipx/venvs/workflows-mcp", "", "pipx install --force"),
    ],
)
@pytest.mark.parametrize(
    ("origin", "package"),
    [
        ('{"url": "file:///a%20b", "dir_info": {"editable": true}}', "--editable '/a b[temporal]'"),
        ('{"url": "file:///src/it.whl", "archive_info": {}}', "'/src/it.whl[temporal]'"),
        (None, "'workflows-mcp[temporal]'"),
    ],
)
def test_the_missing_package_is_installed_by_what_installed_this_and_from_where_this_came(
    terminal: Any, tmp_path: Path, prefix: str, made_by: str, command: str, origin: str | None, package: str
) -> None:
    environment = tmp_path / prefix
    environment.mkdir(parents=True)
    (environment / "pyvenv.cfg").write_text(f"home = /usr/bin\n{made_by}\n", encoding="utf-8")
    terminal.environment["WORKFLOWS_ENGINE"] = "temporal"
    before = (
        f"sys.prefix = {str(environment)!r}\nimport importlib.metadata as metadata\n"
        f"metadata.PathDistribution.read_text = lambda *_: {origin!r}"
    )
    said = run_without("temporalio", terminal, "runs", before=before)
    assert f"{command} {package}, or set" in said.stderr


def test_without_the_program_it_is_said_what_to_install(terminal: Any, tmp_path: Path) -> None:
    program = (
        "import sys, sysconfig; sysconfig.get_path = lambda _: '/nowhere'\n"
        "from workflows_mcp.cli.main import main; sys.exit(main(['temporal-dev']))"
    )
    said = subprocess.run(
        [sys.executable, "-c", program],
        env={**terminal.environment, "PATH": str(tmp_path)},
        cwd=terminal.workspace,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert said.returncode == 2
    assert INSTALLED in said.stderr


def test_the_embedded_engine_does_not_load_temporal(terminal: Any) -> None:
    terminal.write("greet.yaml", GREET)
    program = (
        "import sys; from workflows_mcp.cli.main import main; code = main(['run', 'greet.yaml'])\n"
        "sys.exit(code if 'temporalio' not in sys.modules else 99)"
    )
    said = subprocess.run(
        [sys.executable, "-c", program],
        env=terminal.environment,
        cwd=terminal.workspace,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert said.returncode == 3


def test_a_server_that_is_not_there_and_a_namespace_that_is_not_there_are_told(on_server: Any) -> None:
    key = "sk-this-is-the-key"
    on_server.environment |= {"WORKFLOWS_TEMPORAL_API_KEY": key, "WORKFLOWS_LOG_LEVEL": "DEBUG"}
    for setting, value, words in (
        ("WORKFLOWS_TEMPORAL_NAMESPACE", "other", "has no namespace 'other'"),
        ("WORKFLOWS_TEMPORAL_HOST", f"127.0.0.1:{free_port()}", "does not answer"),
        ("WORKFLOWS_TEMPORAL_TLS", "true", "WORKFLOWS_TEMPORAL_TLS=false"),
    ):
        before = dict(on_server.environment)
        on_server.environment |= {"WORKFLOWS_TEMPORAL_TLS": "false", setting: value}
        said = on_server.run("runs", "--json")
        on_server.environment = before
        assert said.code == 2
        assert said.data["error"]["code"] == "no_temporal"
        assert words in said.data["error"]["message"] + said.data["error"]["hint"]
        assert key not in said.out + said.err


def test_a_command_does_not_get_the_key(on_server: Any) -> None:
    on_server.environment |= {
        "WORKFLOWS_TEMPORAL_API_KEY": "sk-this-is-the-key",
        "WORKFLOWS_TEMPORAL_TLS": "false",
    }
    on_server.write("env.yaml", "name: env\nblocks: [{id: a, type: Shell, inputs: {command: env}}]\n")
    said = on_server.run("run", "env.yaml", "--json")
    shown = on_server.run("show", said.data["workflow_id"], "--json")
    assert "PATH=" in shown.out
    assert "sk-this-is-the-key" not in said.out + said.err + shown.out
    assert os.environ.get("WORKFLOWS_TEMPORAL_API_KEY") is None
