"""Commands that only the agent can run: what it is asked, and which answers are understood."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from support.questions import AskedRun
from workflows_mcp.engines.permissions import PermittedSteps
from workflows_mcp.policy.rules import Policy
from workflows_mcp.policy.secrets import Secrets
from workflows_mcp.steps.agent_shell import AgentShell
from workflows_mcp.steps.base import Question, StepResult
from workflows_mcp.steps.registry import default_registry
from workflows_mcp.values import Value, secret_mark

pytestmark = pytest.mark.rows("R10")
STEP = AgentShell()


def asked(**inputs: Value) -> Question:
    return STEP.ask(STEP.Inputs.model_validate({"command": "./deploy.sh prod", **inputs}))


def answer(result: Value, output_format: str = "text") -> StepResult:
    return AskedRun(STEP, {"command": "./deploy.sh", "output_format": output_format}).submit(result)


def test_the_agent_is_told_what_to_run_why_and_for_how_long_in_milliseconds() -> None:
    question = asked(reason="Requires a terminal", output_format="json", timeout=600)
    assert question.type == "agent_shell_command"
    assert question.parameters == {
        "command": "./deploy.sh prod",
        "reason": "Requires a terminal",
        "output_format": "json",
        "timeout": 600_000,
    }
    assert list(question.result_schema["properties"]) == ["stdout", "stderr", "exit_code", "duration"]
    for said in ("once and unchanged", "600 seconds", "milliseconds", "read as JSON"):
        assert said in question.instructions


def test_what_the_definition_does_not_say_is_not_told() -> None:
    question = asked()
    assert question.parameters == {"command": "./deploy.sh prod"}
    assert "seconds" not in question.instructions
    question = asked(working_dir="web", env={"N": 1}, timeout=0.25)
    assert question.parameters == {
        "command": "./deploy.sh prod",
        "working_dir": "web",
        "env": {"N": "1"},
        "timeout": 250,
    }
    for said in ("parameters.working_dir", "parameters.env", "0.25 seconds"):
        assert said in question.instructions


@pytest.mark.parametrize(
    ("unsafe", "command"), [({}, "./deploy.sh 'a;' date"), ({"unsafe": "raw"}, "./deploy.sh a; date")]
)
def test_values_are_data_in_the_text_that_the_agent_runs_unless_the_author_says_otherwise(
    unsafe: dict[str, Value], command: str
) -> None:
    run = AskedRun(STEP, {"command": "./deploy.sh ${inputs.where}", **unsafe}, where="a; date")
    assert run.action["parameters"]["command"] == command


@pytest.mark.parametrize(
    ("output_format", "result", "value"),
    [
        ("json", {"deployed": True}, {"deployed": True}),
        ("json", '{"deployed": true}', {"deployed": True}),
        ("json", [1, 2], [1, 2]),
        ("json", "42", 42),
        ("json", "in words", "in words"),
        ("lines", ["a", "b"], ["a", "b"]),
        ("lines", "a\nb\n", ["a", "b"]),
        ("key_value", "A=1\n", {"A": "1"}),
        ("key_value", {"A": "1"}, {"A": "1"}),
        ("text", "done\n", "done\n"),
        ("text", {"ok": True}, {"ok": True}),
        ("text", 3, 3),
        ("text", None, None),
        ("text", {}, {}),
        ("json", {"stdout": "x", "deployed": True}, {"stdout": "x", "deployed": True}),
        ("json", {"exit_code": "none", "stdout": ""}, {"exit_code": "none", "stdout": ""}),
        ("json", {"stdout": ["x"]}, {"stdout": ["x"]}),
        ("json", {"stderr": "x"}, {"stderr": "x"}),
    ],
)
def test_what_the_agent_has_read_already_is_the_result_and_text_is_read(
    output_format: str, result: Value, value: Value
) -> None:
    assert answer(result, output_format) == StepResult({"result": value, "exit_code": None})


@pytest.mark.parametrize(
    ("output_format", "result", "value"),
    [
        ("json", {"stdout": '{"deployed": true}\n', "stderr": "", "exit_code": 0}, {"deployed": True}),
        ("lines", {"stdout": "a\nb\n", "stderr": None, "exit_code": "0", "duration": 1.5}, ["a", "b"]),
        ("key_value", {"stdout": "A=1\n", "exit_code": 0}, {"A": "1"}),
        ("text", {"stdout": '{"a": 1}', "exit_code": 0}, '{"a": 1}'),
        ("text", {"exit_code": 0}, ""),
    ],
)
def test_what_was_printed_is_read_here(output_format: str, result: Value, value: Value) -> None:
    assert answer(result, output_format) == StepResult({"result": value, "exit_code": 0})


def test_who_hands_on_the_output_alone_has_run_it_well() -> None:
    assert answer({"stdout": "x\n"}, "lines") == StepResult({"result": ["x"], "exit_code": None})


@pytest.mark.parametrize(
    ("output_format", "result", "outputs", "message"),
    [
        (
            "text",
            {"stdout": "one\n", "stderr": "no\nrights\n", "exit_code": 3},
            {"result": "one\n", "exit_code": 3},
            "Command exited with code 3: rights",
        ),
        (
            "json",
            {"stdout": "oops", "exit_code": 124},
            {"result": None, "exit_code": 124},
            "Command exited with code 124: oops",
        ),
        (
            "json",
            {"stdout": "oops", "exit_code": 0},
            {"result": None, "exit_code": 0},
            "the output of the command is not JSON (JSON is malformed: invalid character (byte 0)); "
            'it begins: "oops"',
        ),
        (
            "json",
            {"stdout": "", "exit_code": 0},
            {"result": None, "exit_code": 0},
            "the command printed nothing; JSON was expected",
        ),
        (
            "json",
            {"is_error": True, "error": "the user said no"},
            {"result": None, "exit_code": None},
            "the command failed: the user said no",
        ),
        (
            "text",
            {"is_error": True, "exit_code": 127},
            {"result": None, "exit_code": 127},
            "the command failed: it gave no reason",
        ),
    ],
)
def test_a_command_that_failed_fails_the_step_and_says_why(
    output_format: str, result: Value, outputs: dict[str, Value], message: str
) -> None:
    assert answer(result, output_format) == StepResult(outputs, ok=False, message=message)


@pytest.mark.rows("X5")
def test_an_answer_cannot_spell_a_secret() -> None:
    run = AskedRun(STEP, {"command": "x", "output_format": "json"})
    secrets = Secrets(environ={"WORKFLOWS_SECRET_TOKEN": "s3cr3t-value"})
    for stdout, value in [
        ('{"a": "s3cr3t-value"}', {"a": secret_mark("TOKEN")}),
        ('{"a": "\\u27e6secret:TOKEN\\u27e7"}', {"a": "[secret:TOKEN⟧"}),
    ]:
        taken = run.submit({"stdout": stdout, "exit_code": 0}, secrets.redact)
        assert taken.outputs["result"] == value


def test_it_is_handed_to_nobody_where_commands_may_not_run(tmp_path: Path) -> None:
    denied = PermittedSteps(default_registry(), Policy(tmp_path, allow_commands=False))
    step = denied.find("agent_shell_command", "reactive")
    assert step is not None
    assert step.ask(None).type == "forbidden"


@pytest.mark.parametrize(
    "inputs",
    [
        {},
        {"command": "x", "output_format": "xml"},
        {"command": "x", "timeout": 0},
        {"command": "x", "env": {"A": [1]}},
        {"command": "x", "shell": True},
    ],
)
def test_what_cannot_be_run_is_refused(inputs: dict[str, Value]) -> None:
    with pytest.raises(ValidationError):
        STEP.Inputs.model_validate(inputs)
