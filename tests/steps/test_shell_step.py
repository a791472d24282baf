"""The step type Shell, with real commands."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from support.rendered import Service
from workflows_mcp.engines.clock import SystemClock
from workflows_mcp.engines.executor import Executor
from workflows_mcp.errors import Forbidden, StepError
from workflows_mcp.expressions.language import Code
from workflows_mcp.limits import Limits
from workflows_mcp.machine import commands
from workflows_mcp.machine.events import StepDone, StepFailed
from workflows_mcp.policy.handles import World
from workflows_mcp.policy.processes import end_leftovers
from workflows_mcp.policy.rules import Policy
from workflows_mcp.policy.secrets import Secrets
from workflows_mcp.settings.model import Settings
from workflows_mcp.steps.base import StepContext, StepResult
from workflows_mcp.steps.registry import default_registry
from workflows_mcp.steps.shell import Shell
from workflows_mcp.values import Value, secret_mark, to_json

RunStep = Callable[..., StepResult]
SHELL = Shell()


@pytest.mark.rows("G10")
def test_a_command_gives_its_output_and_exit_code(run_step: RunStep) -> None:
    result = run_step(SHELL, {"command": "echo out; echo err >&2"})
    time_taken = result.outputs.pop("execution_time_ms")
    assert result.outputs.pop("duration") == pytest.approx(time_taken / 1000, abs=0.001)
    assert result == StepResult(
        {
            "exit_code": 0,
            "stdout": "out\n",
            "stderr": "err\n",
            "success": True,
            "command_executed": "echo out; echo err >&2",
            "truncated": False,
        }
    )
    assert 0 < time_taken < 10_000


@pytest.mark.rows("G10")
@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("exit 1", "Command exited with code 1"),
        ("echo reason >&2; exit 7", "Command exited with code 7: reason"),
        ("echo one; echo 'the last line'; echo; exit 2", "Command exited with code 2: the last line"),
    ],
)
def test_another_exit_code_is_a_failure_that_says_what_was_printed_last(
    run_step: RunStep, command: str, message: str
) -> None:
    result = run_step(SHELL, {"command": command})
    assert (result.ok, result.message, result.outputs["success"]) == (False, message, False)


def test_a_signal_is_named(run_step: RunStep) -> None:
    result = run_step(SHELL, {"command": "kill -KILL $$"})
    assert result.outputs["exit_code"] == 137
    assert result.message == "Command was ended by signal 9 (SIGKILL)"


@pytest.mark.rows("G10")
@pytest.mark.parametrize("name", ["continue-on-error", "continue_on_error"])
def test_continue_on_error_makes_any_exit_code_a_success(run_step: RunStep, name: str) -> None:
    result = run_step(SHELL, {"command": "exit 3", name: True})
    assert (result.ok, result.outputs["success"], result.outputs["exit_code"]) == (True, True, 3)


@pytest.mark.rows("G10")
def test_it_runs_where_it_is_told(run_step: RunStep, workspace: Path) -> None:
    (workspace / "sub").mkdir()
    assert run_step(SHELL, {"command": "pwd"}).outputs["stdout"] == f"{workspace}\n"
    assert run_step(SHELL, {"command": "pwd", "working_dir": "sub"}).outputs["stdout"] == f"{workspace}/sub\n"
    with pytest.raises(StepError, match="does not exist"):
        run_step(SHELL, {"command": "pwd", "working_dir": "missing"})
    with pytest.raises(Forbidden):
        run_step(SHELL, {"command": "pwd", "working_dir": "/"})


@pytest.mark.rows("G10")
def test_variables_are_added_to_its_environment(run_step: RunStep) -> None:
    env = {"A": "x y", "B": 3, "C": True, "D": 1.5, "E": None}
    result = run_step(SHELL, {"command": 'echo "$A|$B|$C|$D|$E"', "env": env})
    assert result.outputs["stdout"] == "x y|3|true|1.5|\n"
    with pytest.raises(ValidationError, match="'A' must be text"):
        run_step(SHELL, {"command": "true", "env": {"A": [1]}})


def test_a_value_in_a_variable_is_data(run_step: RunStep, workspace: Path) -> None:
    result = run_step(SHELL, {"command": 'echo "$X"', "env": {"X": "$(touch pwned)"}})
    assert result.outputs["stdout"] == "$(touch pwned)\n"
    assert not (workspace / "pwned").exists()


@pytest.mark.rows("G10")
@pytest.mark.parametrize("text", ["echo @", 'echo "@"', "echo '@'", "cat <<E\n@\nE\n"])
def test_values_run_no_second_command(run_step: RunStep, workspace: Path, text: str) -> None:
    hostile = "'; touch pwned; echo \""
    code = Code(tuple(text.split("@")), (hostile,))
    result = run_step(SHELL, {"command": text}, code=code)
    assert hostile in result.outputs["stdout"]
    assert list(workspace.iterdir()) == []
    assert result.outputs["command_executed"] == text.replace("@", hostile)


def test_raw_values_are_syntax(run_step: RunStep) -> None:
    code = Code(("echo ", ""), ("a; echo b",))
    assert run_step(SHELL, {"command": ""}, code=code).outputs["stdout"] == "a; echo b\n"
    raw = run_step(SHELL, {"command": "", "unsafe": "raw"}, code=code)
    assert raw.outputs["stdout"] == "a\nb\n"
    with pytest.raises(ValidationError):
        run_step(SHELL, {"command": "", "unsafe": "yes"})


def test_a_command_that_is_one_value_is_run_as_it_is(run_step: RunStep) -> None:
    code = Code(("", ""), ("for x in 1 2; do echo $x; done",))
    assert run_step(SHELL, {"command": ""}, code=code).outputs["stdout"] == "1\n2\n"


@pytest.mark.rows("G10")
def test_without_a_shell_nothing_is_special(run_step: RunStep) -> None:
    code = Code(("printf '%s|' $HOME * ", " 'a b'"), ("x; y",))
    result = run_step(SHELL, {"command": "", "shell": False}, code=code)
    assert result.outputs["stdout"] == "$HOME|*|x; y|a b|"
    with pytest.raises(StepError, match="command not found: no-such-program"):
        run_step(SHELL, {"command": "no-such-program x", "shell": False})


@pytest.mark.parametrize("shell", [True, False])
def test_an_empty_command_is_an_error(run_step: RunStep, shell: bool) -> None:
    with pytest.raises(StepError, match="the command is empty"):
        run_step(SHELL, {"command": "  \n", "shell": shell})


@pytest.mark.rows("G10")
def test_output_can_be_discarded(run_step: RunStep) -> None:
    outputs = run_step(SHELL, {"command": "echo x; echo y >&2", "capture_output": False}).outputs
    assert (outputs["stdout"], outputs["stderr"], outputs["exit_code"]) == ("", "", 0)


@pytest.mark.parametrize("text", ["printf %s '@' | wc -c", "wc -c <<E\n@\nE\n"])
def test_a_value_of_a_megabyte_works_and_leaves_nothing_behind(
    run_step: RunStep, world: World, text: str
) -> None:
    code = Code(tuple(text.split("@")), ("x" * 1_000_000,))
    result = run_step(SHELL, {"command": ""}, code=code)
    assert result.outputs["stdout"].strip() in ("1000000", "1000001")
    assert list(world.scratch_path.iterdir()) == []
    assert len(result.outputs["command_executed"]) <= world.limits.preview_chars


def test_a_script_of_a_megabyte_works(run_step: RunStep) -> None:
    result = run_step(SHELL, {"command": "true\n" * 200_000 + "echo end"})
    assert result.outputs["stdout"] == "end\n"


def test_the_scratch_directory_is_the_runs_own(run_step: RunStep, world: World) -> None:
    run_step(SHELL, {"command": "echo data > $SCRATCH/file"})
    assert (world.scratch_path / "file").read_text() == "data\n"
    assert run_step(SHELL, {"command": "cat $SCRATCH/file"}).outputs["stdout"] == "data\n"


def test_commands_can_be_switched_off(run_step: RunStep, workspace: Path, tmp_path: Path) -> None:
    closed = World(Policy(workspace, allow_commands=False), "run-1", tmp_path / "scratch")
    with pytest.raises(Forbidden, match="switched off"):
        run_step(SHELL, {"command": "touch x"}, at=closed)
    assert list(workspace.iterdir()) == []


@pytest.mark.rows("G10")
def test_cancelling_ends_the_command_and_its_value_files(world: World) -> None:
    code = Code(("echo '", "' | sleep 60 & sleep 60"), ("x" * 100_000,))

    async def scenario() -> None:
        context = StepContext("run-1", "run-1/cancelled", world, {}, {"command": code})
        task = asyncio.ensure_future(SHELL.run(SHELL.Inputs.model_validate({"command": ""}), context))
        while not world.scratch_path.exists() or not list(world.scratch_path.iterdir()):
            await asyncio.sleep(0.005)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(scenario())
    assert list(world.scratch_path.iterdir()) == []
    assert end_leftovers({"run-1/cancelled"}) == 0


def test_what_a_block_gives_that_did_not_run() -> None:
    assert SHELL.output_defaults({"outputs": {"count": {"path": "x"}}}) == {
        "exit_code": 0,
        "stdout": "",
        "stderr": "",
        "success": False,
        "command_executed": "",
        "execution_time_ms": 0.0,
        "duration": None,
        "truncated": False,
        "count": None,
    }


@pytest.mark.parametrize("timeout", [0, -1, "soon"])
def test_a_timeout_is_a_number_of_seconds(timeout: object) -> None:
    with pytest.raises(ValidationError):
        SHELL.Inputs.model_validate({"command": "true", "timeout": timeout})


# What it printed, as data


@pytest.mark.rows("R9")
@pytest.mark.parametrize(
    ("output_format", "command", "value"),
    [
        ("text", "echo a; echo b", "a\nb\n"),
        ("lines", "echo a; echo b", ["a", "b"]),
        ("lines", "true", []),
        ("json", """echo '{"passed": 3}'""", {"passed": 3}),
        ("key_value", "echo A=1; echo 'b: 2'", {"A": "1", "b": "2"}),
    ],
)
def test_a_command_that_is_told_a_format_gives_its_output_in_it(
    run_step: RunStep, output_format: str, command: str, value: Value
) -> None:
    result = run_step(SHELL, {"command": command}, config={"output_format": output_format})
    assert (result.ok, result.message, result.outputs["result"]) == (True, None, value)
    assert result.outputs["exit_code"] == 0


@pytest.mark.rows("R9")
@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("echo not yet", 'is not JSON (JSON is malformed: invalid character (byte 4)); it begins: "not yet"'),
        ("true", "the command printed nothing; JSON was expected"),
    ],
)  # fmt: skip
def test_output_of_another_format_is_a_failure_that_shows_it(
    run_step: RunStep, command: str, says: str
) -> None:
    result = run_step(SHELL, {"command": command}, config={"output_format": "json"})
    assert not result.ok
    assert says in str(result.message)
    assert (result.outputs["result"], result.outputs["success"], result.outputs["exit_code"]) == (
        None,
        False,
        0,
    )


@pytest.mark.rows("R9")
@pytest.mark.parametrize(("printed", "value"), [("{}", {}), ("nothing", None)])
def test_a_command_that_failed_says_its_exit_code_and_gives_what_data_there_is(
    run_step: RunStep, printed: str, value: Value
) -> None:
    command = f"echo '{printed}'; echo broken >&2; exit 3"
    result = run_step(SHELL, {"command": command}, config={"output_format": "json"})
    assert (result.ok, result.message) == (False, "Command exited with code 3: broken")
    assert (result.outputs["result"], result.outputs["exit_code"]) == (value, 3)


@pytest.mark.rows("R9")
def test_what_was_not_kept_whole_is_not_taken_for_data(
    run_step: RunStep, workspace: Path, tmp_path: Path
) -> None:
    small = World(Policy(workspace, limits=Limits(captured_bytes=100)), "run-1", tmp_path / "scratch")
    command = {"command": "seq 100", "truncate": True}
    result = run_step(SHELL, command, config={"output_format": "lines"}, at=small)
    assert not result.ok
    assert "more than the limit of 100 bytes" in str(result.message)
    assert "WORKFLOWS_LIMIT_CAPTURED_BYTES" in str(result.message)
    assert result.outputs["result"] is None
    text = run_step(SHELL, command, config={"output_format": "text"}, at=small)
    whole = "".join(f"{number}\n" for number in range(1, 101))
    assert (text.ok, text.outputs["result"], text.outputs["truncated"]) == (True, whole[:100], True)


@pytest.mark.rows("R9")
def test_only_the_reactive_dialect_has_formats() -> None:
    assert SHELL.dialect_config["reactive"] == {"output_format": "text"}
    assert [SHELL.result_output_in(dialect) for dialect in ("graph", "stateful", "reactive")] == [
        "",
        "",
        "result",
    ]
    assert SHELL.performer_for({}, "reactive") == "server"
    assert "output_format" not in SHELL.Inputs.model_fields
    assert "result" not in SHELL.output_defaults({})
    assert SHELL.output_defaults({"output_format": "json"})["result"] is None
    assert SHELL.check_config({"output_format": "json"}) == []
    ((path, message, hint),) = SHELL.check_config({"output_format": "jsn"})
    assert (path, message) == (("output_format",), 'there is no output format "jsn"')
    assert "did you mean 'json'?" in hint


@pytest.mark.rows("R9")
def test_values_are_data_whatever_the_format(run_step: RunStep, workspace: Path) -> None:
    hostile = 'a"; touch pwned; echo "'
    code = Code(("printf '%s\\n' \"", '"'), (hostile,))
    config = {"output_format": "lines"}
    assert run_step(SHELL, {"command": ""}, code=code, config=config).outputs["result"] == [hostile]
    assert list(workspace.iterdir()) == []
    raw = run_step(SHELL, {"command": "", "unsafe": "raw"}, code=code, config=config)
    assert raw.outputs["result"] == ["a"]
    assert (workspace / "pwned").exists()


@pytest.mark.rows("R9", "X5")
def test_a_secret_is_taken_out_of_the_data_too(workspace: Path, tmp_path: Path) -> None:
    secrets = Secrets(environ={"WORKFLOWS_SECRET_PIN": "4711471147"})
    executor = Executor(
        default_registry(), Policy(workspace), tmp_path / "scratch", SystemClock(), secrets=secrets
    )
    code = Code(("""printf '{"pin": %s, "why": "it is %s"}' """, " ", ""), (secret_mark("PIN"),) * 2)
    config: dict[str, Value] = {"output_format": "json"}

    async def scenario() -> StepDone | StepFailed:
        last_seen: asyncio.Future[StepDone | StepFailed] = asyncio.get_running_loop().create_future()
        command = commands.RunStep("go#1", "go", "Shell", {"command": "x"}, {"command": code}, config)
        executor.runner_for("run-1", "").perform(command, last_seen.set_result)
        return await last_seen

    event = asyncio.run(scenario())
    assert isinstance(event, StepDone)
    assert event.outputs["result"] == {"pin": secret_mark("PIN"), "why": f"it is {secret_mark('PIN')}"}
    assert "4711" not in to_json(event.outputs)


# Handed to an agent


def test_an_agent_is_asked_to_run_exactly_this_and_to_say_how_it_went() -> None:
    question = SHELL.ask(SHELL.Inputs.model_validate({"command": "make test", "timeout": 120}))
    assert question.type == "shell"
    assert question.parameters == {"command": "make test", "timeout": 120}
    assert question.result_schema["required"] == ["exit_code"]
    for said in ("once and unchanged", "120 seconds", "also if it failed", '"exit_code"'):
        assert said in question.instructions
    inputs = SHELL.Inputs.model_validate({"command": "env", "working_dir": "src", "env": {"N": 1}})
    question = SHELL.ask(inputs)
    assert question.parameters == {"command": "env", "timeout": 120, "working_dir": "src", "env": {"N": "1"}}
    assert "parameters.working_dir" in question.instructions
    assert "parameters.env" in question.instructions


def test_whatever_the_exit_code_a_command_that_an_agent_has_run_is_a_result() -> None:
    inputs = SHELL.Inputs.model_validate({"command": "false"})
    assert SHELL.parse_result(inputs, {"exit_code": 3, "stderr": "no", "extra": 1}) == StepResult(
        {"stdout": "", "stderr": "no", "exit_code": 3, "duration": None, "success": False}
    )
    given = {"stdout": "ok", "stderr": None, "exit_code": 0, "duration": 1.5}
    assert SHELL.parse_result(inputs, given).outputs == {
        "stdout": "ok",
        "stderr": "",
        "exit_code": 0,
        "duration": 1.5,
        "success": True,
    }


def test_in_the_stateful_dialect_the_exit_code_of_a_command_of_the_server_is_a_result_too(
    run_step: RunStep,
) -> None:
    result = run_step(SHELL, {"command": "exit 7"}, config=SHELL.dialect_config["stateful"])
    assert result.ok
    assert (result.outputs["exit_code"], result.outputs["success"]) == (7, False)
    assert SHELL.performer_for({}, "stateful") == "agent"
    assert SHELL.performer_for({}, "graph") == "server"


@pytest.mark.rows("S8")
@pytest.mark.parametrize(
    ("unsafe", "command"), [("", "echo 'a;' date '|' wc"), (", unsafe: raw", "echo a; date | wc")]
)
def test_values_are_data_in_the_text_that_an_agent_runs_unless_the_author_says_otherwise(
    unsafe: str, command: str, tmp_path: Path
) -> None:
    text = f"""\
name: commands
version: "1.0.0"
initial_state: {{what: "a; date | wc"}}
steps:
  - {{id: go, type: shell, needs_state: [what], command: "echo {{{{ state.what }}}}"{unsafe}}}
"""

    async def work() -> dict[str, Any]:
        async with Service.open(Settings(workspace=tmp_path, home=tmp_path / "home")) as service:
            return await service.start(text=text)

    assert asyncio.run(work())["action"]["parameters"]["command"] == command
