"""The step type `RenderTemplate` renders a Jinja template, and can write the text to a file."""

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
    variables: dict[str, Any] = Field(
        default_factory=dict, description="The variables of the template, by name."
    )
    strict: bool = Field(
        True, description="Whether an unknown name is an error; false: it renders as nothing."
    )
    output_path: str | None = Field(None, description="A file to write the text to.")
    create_parents: bool = Field(True, description="Whether to create missing directories of output_path.")
    encoding: str = Field("utf-8", description="The encoding of that file.")


class RenderTemplateOutputs(StepOutputs):
    rendered: str = ""
    content: str = ""
    output_path: str = ""
    size_bytes: int = 0
    success: bool = False


class RenderTemplate(Step):
    """Renders a Jinja template; returns the text, and can also write it to a file.

    `{{ … }}` sees `variables` only. Lists and objects are rendered as JSON, booleans as true and false, and
    null as nothing. Templates run in a sandbox, with limits for time and length.
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
