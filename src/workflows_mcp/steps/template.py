"""The step type `RenderTemplate`: text from a Jinja template and variables, kept or written to a file."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from workflows_mcp.errors import ExpressionError, StepError, WorkflowsError
from workflows_mcp.expressions import render, syntax_error
from workflows_mcp.steps.base import Step, StepContext, StepInputs, StepOutputs, StepResult
from workflows_mcp.steps.files import encoded
from workflows_mcp.values import Value


class RenderTemplateInputs(StepInputs):
    template: str = Field(description="A Jinja template: {{ name }}, {% for %}, {% if %}, filters.")
    variables: dict[str, Any] = Field(default_factory=dict, description="What the template can use, by name.")
    strict: bool = Field(
        True, description="Whether a name that does not exist is an error; false: it is empty."
    )
    output_path: str | None = Field(None, description="A file to write the text to, if any.")
    create_parents: bool = Field(True, description="Whether missing directories of output_path are made.")
    encoding: str = Field("utf-8", description="The encoding of that file.")


class RenderTemplateOutputs(StepOutputs):
    rendered: str = ""
    content: str = ""
    output_path: str = ""
    size_bytes: int = 0
    success: bool = False


class RenderTemplate(Step):
    """Renders a Jinja template and gives the text, or writes it to a file too.

    `{{ … }}` is looked up in `variables` only. Lists and objects are written as JSON, true and false as such,
    null as nothing. Templates run in a sandbox, within limits of time and length.
    """

    name = "RenderTemplate"
    Inputs = RenderTemplateInputs
    Outputs = RenderTemplateOutputs
    level = "trusted"
    capabilities = frozenset({"write_files"})
    literal_inputs = frozenset({"template"})

    def changes_world(self, inputs: dict[str, Value]) -> bool:
        return bool(inputs.get("output_path"))

    def check_literals(self, inputs: dict[str, Value]) -> list[tuple[str, WorkflowsError, int]]:
        template = inputs.get("template")
        error = syntax_error(template) if isinstance(template, str) else None
        return [("template", error, error.offset)] if error is not None else []

    def run(self, inputs: RenderTemplateInputs, context: StepContext) -> StepResult:
        limits = context.world.limits
        try:
            text = render(
                inputs.template,
                inputs.variables,
                strict=inputs.strict,
                seconds=limits.expression_seconds,
                max_chars=limits.expression_chars,
            )
        except ExpressionError as error:
            raise StepError(error.message, hint=error.hint) from None
        data = encoded(text, inputs.encoding)
        written = ""
        if inputs.output_path:
            path = context.world.path_for_writing(inputs.output_path)
            context.world.write(path, data, create_parents=inputs.create_parents)
            written = str(path)
        return StepResult(
            {
                "rendered": text,
                "content": text,
                "output_path": written,
                "size_bytes": len(data),
                "success": True,
            }
        )
