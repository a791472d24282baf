"""What holds for all of our own step types, and the two that the server does not carry out itself."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import ClassVar

import pytest
from pydantic import ValidationError

from workflows_mcp.engines.permissions import PermittedSteps
from workflows_mcp.errors import RequestError
from workflows_mcp.policy.rules import Policy
from workflows_mcp.steps.base import Step, StepOutputs
from workflows_mcp.steps.call import ExecuteWorkflow
from workflows_mcp.steps.prompts import Prompt
from workflows_mcp.steps.registry import ALIASES, DIALECT_NAMES, GROUP, StepRegistry, default_registry

NAMES = [
    "AgentShell",
    "ApplyHints",
    "CreateFile",
    "CreateWorktree",
    "Delegate",
    "ExecuteWorkflow",
    "Fail",
    "Gate",
    "MCPCall",
    "MergeJSONState",
    "Prompt",
    "ReadFile",
    "ReadJSONState",
    "RemoveWorktree",
    "RenderTemplate",
    "Shell",
    "UserInput",
    "UserPrompt",
    "Wait",
    "WriteJSONState",
]
UNTOUCHING = ("Delegate", "ExecuteWorkflow", "Fail", "Gate", "Prompt", "UserInput", "UserPrompt", "Wait")


@pytest.mark.rows("G26")
@pytest.mark.parametrize("name", NAMES)
def test_every_type_is_found_by_name_and_documents_itself(name: str) -> None:
    step = default_registry().get(name)
    assert step.name == name
    assert step.summary.endswith(".")
    for field_name, field in step.Inputs.model_fields.items():
        assert field.description, f"{name}.{field_name} needs a description"
    assert step.Inputs.model_json_schema()["type"] == "object"
    assert issubclass(step.Outputs, StepOutputs)
    assert isinstance(step.output_defaults({}), dict)


@pytest.mark.rows("G23")
@pytest.mark.parametrize("name", NAMES)
def test_a_type_that_touches_the_world_says_so(name: str) -> None:
    step = default_registry().get(name)
    assert bool(step.capabilities) == (name not in UNTOUCHING)
    assert (step.level == "privileged") == ("run_commands" in step.capabilities)


@pytest.mark.parametrize("name", NAMES)
def test_an_unknown_input_is_refused(name: str) -> None:
    with pytest.raises(ValidationError, match="comand"):
        default_registry().get(name).Inputs.model_validate({"comand": "x"})


@pytest.mark.rows("G15")
def test_a_prompt_asks_for_a_response() -> None:
    prompt = Prompt()
    question = prompt.ask(prompt.Inputs.model_validate({"prompt": "Deploy?"}))
    assert question.type == "prompt"
    assert question.parameters == {"prompt": "Deploy?"}
    assert question.result_schema["required"] == ["response"]
    assert question.main_field == "response"
    assert '"response"' in question.instructions
    assert prompt.performer == "agent"
    inputs = prompt.Inputs.model_validate({"prompt": "Deploy?"})
    assert prompt.parse_result(inputs, {"response": "yes"}).outputs == {"response": "yes"}
    with pytest.raises(TypeError):
        prompt.run(None, None)  # type: ignore[arg-type]


@pytest.mark.rows("G16")
def test_a_call_has_two_names_and_is_not_carried_out_here() -> None:
    assert isinstance(default_registry().get("Workflow"), ExecuteWorkflow)
    assert ExecuteWorkflow().output_defaults({}) == {}
    with pytest.raises(TypeError):
        ExecuteWorkflow().run(None, None)  # type: ignore[arg-type]


# Names


@pytest.mark.rows("G26")
def test_a_type_has_a_name_of_its_own_and_one_in_each_dialect_that_has_it() -> None:
    registry = default_registry()
    assert registry.own_names() == NAMES
    assert {"CreateFile", "Shell", "Prompt"} <= set(registry.names())
    assert {"CreateFile", "shell", "prompt", "mcp_call", "delegate"} <= set(registry.names("stateful"))
    reactive = {"shell_command", "agent_shell_command", "user_input", "mcp_call", "apply_hints"}
    assert {"CreateFile", *reactive} <= set(registry.names("reactive"))
    assert not {"MCPCall", "UserPrompt", "shell", *reactive} & set(registry.names())
    assert not {"Shell", "Prompt", "ExecuteWorkflow", *reactive - {"mcp_call"}} & set(
        registry.names("stateful")
    )
    assert not {"Shell", "shell", "Prompt", "prompt"} & set(registry.names("reactive"))
    assert registry.find("shell", "stateful") is registry.find("Shell") is registry.get("Shell")
    assert registry.find("shell_command", "reactive") is registry.get("Shell")
    for name, dialect in (("shell", "graph"), ("Shell", "stateful"), ("MCPCall", "stateful"), ("x", "graph")):
        assert registry.find(name, dialect) is None
    assert registry.find("Workflow") is registry.get("ExecuteWorkflow")
    assert registry.find("Workflow", "stateful") is None
    with pytest.raises(RequestError, match="unknown step type 'shell'") as caught:
        registry.get("shell")
    assert "did you mean 'Shell'?" in caught.value.hint


def test_what_is_known_of_our_own_types_without_importing_them_is_what_they_say() -> None:
    registry = default_registry()
    for name in registry.own_names():
        assert registry.get(name).dialect_names == DIALECT_NAMES.get(name, {})
        assert all(ALIASES[alias] == name for alias in registry.get(name).aliases)


class Fetch(Step):
    """Fetches a page."""

    name = "Fetch"
    dialect_names: ClassVar[Mapping[str, str]] = {"stateful": "fetch"}


class Anywhere(Step):
    """Is itself in every dialect."""

    name = "Anywhere"
    aliases = ("Everywhere",)


def test_types_of_somebody_else_say_for_themselves_where_they_are_and_a_broken_one_breaks_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "somebody_elses", sys.modules[__name__])
    points = [
        EntryPoint("Fetch", "somebody_elses:Fetch", GROUP),
        EntryPoint("Broken", "no_such_module:Broken", GROUP),
        EntryPoint("Shell", "workflows_mcp.steps.shell:Shell", GROUP),
    ]
    registry = StepRegistry(points, steps=[Anywhere()])
    assert registry.names("stateful") == ["Anywhere", "Broken", "fetch", "shell"]
    assert registry.names() == ["Anywhere", "Broken", "Shell"]
    assert isinstance(registry.find("fetch", "stateful"), Fetch)
    assert registry.find("Fetch") is None
    for dialect in ("graph", "stateful"):
        assert isinstance(registry.find("Anywhere", dialect), Anywhere)
        assert isinstance(registry.find("Everywhere", dialect), Anywhere)
    with pytest.raises(ModuleNotFoundError):
        registry.find("Broken")


@pytest.mark.rows("G23")
@pytest.mark.parametrize("name", ["Shell", "MCPCall", "AgentShell"])
def test_what_may_not_run_here_is_not_handed_to_an_agent_either(name: str, tmp_path: Path) -> None:
    allowed = PermittedSteps(default_registry(), Policy(tmp_path))
    assert allowed.get(name) is default_registry().get(name)
    denied = PermittedSteps(default_registry(), Policy(tmp_path, allow_commands=False))
    question = denied.get(name).ask(None)
    assert question.type == "forbidden"
    assert question.parameters == {}
    for dialect, called in default_registry().get(name).dialect_names.items():
        assert denied.names(dialect) == allowed.names(dialect)
        step = denied.find(called, dialect)
        assert step is not None
        assert step.ask(None) == question
