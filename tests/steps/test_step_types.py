"""What holds for all of our own step types, and the two that the server does not carry out itself."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from workflows_mcp.steps.base import StepOutputs
from workflows_mcp.steps.call import ExecuteWorkflow
from workflows_mcp.steps.prompt import Prompt
from workflows_mcp.steps.registry import default_registry

NAMES = [
    "CreateFile",
    "CreateWorktree",
    "ExecuteWorkflow",
    "MergeJSONState",
    "Prompt",
    "ReadFile",
    "ReadJSONState",
    "RemoveWorktree",
    "RenderTemplate",
    "Shell",
    "WriteJSONState",
]


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
    assert bool(step.capabilities) == (name not in ("Prompt", "ExecuteWorkflow"))
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
    assert prompt.by == "agent"
    assert prompt.answered(None, {"response": "yes"}).outputs == {"response": "yes"}
    with pytest.raises(TypeError):
        prompt.run(None, None)  # type: ignore[arg-type]


@pytest.mark.rows("G16")
def test_a_call_has_two_names_and_is_not_carried_out_here() -> None:
    assert isinstance(default_registry().get("Workflow"), ExecuteWorkflow)
    assert ExecuteWorkflow().output_defaults({}) == {}
    with pytest.raises(TypeError):
        ExecuteWorkflow().run(None, None)  # type: ignore[arg-type]
