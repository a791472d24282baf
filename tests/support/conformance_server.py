"""Our server, over our HTTP, with the tools, resources and prompts that the official conformance suite asks for.

    python tests/support/conformance_server.py       # says where it listens, as `workflows-mcp serve --http` does

What the suite wants of each is fixed by its own descriptions. Nothing of it is in the package.
"""

from __future__ import annotations

import asyncio
import base64
import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from mcp import types
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.prompts.base import UserMessage
from mcp.shared.exceptions import MCPError

from workflows_mcp.mcp_server.http import run_http
from workflows_mcp.mcp_server.server import WorkflowsServer, build_server, log_to_stderr
from workflows_mcp.runs.service import Service
from workflows_mcp.settings.http import Address
from workflows_mcp.settings.model import load_settings

Ctx = Context[Service, Any]
T = TypeVar("T")
Asked = types.CallToolResult | types.InputRequiredResult

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg=="
WAV = base64.b64encode(
    b"RIFF\x26\x00\x00\x00WAVEfmt \x10\x00\x00\x00\x01\x00\x01\x00\x40\x1f\x00\x00\x80\x3e\x00\x00"
    b"\x02\x00\x10\x00data\x02\x00\x00\x00\x00\x00"
).decode()
IMAGE = types.ImageContent(type="image", data=PNG, mime_type="image/png")
A_MOMENT = 0.05


def said(*content: types.ContentBlock | str) -> types.CallToolResult:
    blocks = [types.TextContent(type="text", text=it) if isinstance(it, str) else it for it in content]
    return types.CallToolResult(content=blocks)


def embedded(uri: str, mime_type: str, text: str) -> types.EmbeddedResource:
    return types.EmbeddedResource(
        type="resource", resource=types.TextResourceContents(uri=uri, mime_type=mime_type, text=text)
    )


def fields(**properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


def add_contents(server: WorkflowsServer) -> None:
    """Every kind of content that a tool can give, and how it fails."""

    @server.tool(structured_output=False)
    async def test_simple_text() -> types.CallToolResult:
        """A text."""
        return said("This is a simple text response for testing.")

    @server.tool(structured_output=False)
    async def test_image_content() -> types.CallToolResult:
        """An image."""
        return said(IMAGE)

    @server.tool(structured_output=False)
    async def test_audio_content() -> types.CallToolResult:
        """A sound."""
        return said(types.AudioContent(type="audio", data=WAV, mime_type="audio/wav"))

    @server.tool(structured_output=False)
    async def test_embedded_resource() -> types.CallToolResult:
        """A resource."""
        text = "This is an embedded resource content."
        return said(embedded("test://embedded-resource", "text/plain", text))

    @server.tool(structured_output=False)
    async def test_multiple_content_types() -> types.CallToolResult:
        """A text, an image and a resource."""
        mixed = embedded("test://mixed-content-resource", "application/json", '{"test":"data","value":123}')
        return said("Multiple content types test:", IMAGE, mixed)

    @server.tool(structured_output=False)
    async def test_error_handling() -> types.CallToolResult:
        """Always fails."""
        raise ToolError("This tool intentionally returns an error for testing")


def add_notices(server: WorkflowsServer) -> None:
    """What is told during a call."""

    @server.tool(structured_output=False)
    async def test_tool_with_logging(ctx: Ctx) -> types.CallToolResult:
        """Logs three times."""
        for text in ("Tool execution started", "Tool processing data", "Tool execution completed"):
            await ctx.session.send_log_message("info", text, related_request_id=ctx.request_id)
            await asyncio.sleep(A_MOMENT)
        return said("logged three times")

    @server.tool(structured_output=False)
    async def test_logging_tool(ctx: Ctx) -> types.CallToolResult:
        """Logs, if it was asked to."""
        await ctx.session.send_log_message("info", "logged", related_request_id=ctx.request_id)
        return said("logged")

    @server.tool(structured_output=False)
    async def test_tool_with_progress(ctx: Ctx) -> types.CallToolResult:
        """Tells of its progress three times."""
        for done in (0, 50, 100):
            await ctx.report_progress(done, 100)
            await asyncio.sleep(A_MOMENT)
        return said("told three times")

    @server.tool(structured_output=False)
    async def test_streaming_elicitation(ctx: Ctx) -> Asked:
        """Asks the user, after telling of its progress."""
        await ctx.report_progress(0, 1)
        return await answered(
            ctx, {"confirm": question("Go on?", ok={"type": "boolean"})}, lambda _: said("done")
        )


def add_legacy_questions(server: WorkflowsServer) -> None:
    """What clients of the older protocols are asked during a call."""

    async def asked(ctx: Ctx, message: str, schema: dict[str, Any]) -> types.CallToolResult:
        got = await ctx.session.elicit_form(message, schema, related_request_id=ctx.request_id)
        return said(f"Elicitation completed: action={got.action}, content={got.content}")

    @server.tool(structured_output=False)
    async def test_sampling(ctx: Ctx, prompt: str) -> types.CallToolResult:
        """Asks the model of the client."""
        message = types.SamplingMessage(role="user", content=types.TextContent(type="text", text=prompt))
        got = await ctx.session.create_message([message], max_tokens=100, related_request_id=ctx.request_id)
        return said(f"LLM response: {getattr(got.content, 'text', got.content)}")

    @server.tool(structured_output=False)
    async def test_elicitation(ctx: Ctx, message: str) -> types.CallToolResult:
        """Asks the user."""
        username = {"type": "string", "description": "User's response"}
        email = {"type": "string", "description": "User's email address"}
        return await asked(ctx, message, fields(username=username, email=email))

    @server.tool(structured_output=False)
    async def test_elicitation_sep1034_defaults(ctx: Ctx) -> types.CallToolResult:
        """Asks the user, with a default for every kind of value."""
        properties = {
            "name": {"type": "string", "default": "John Doe"},
            "age": {"type": "integer", "default": 30},
            "score": {"type": "number", "default": 95.5},
            "status": {"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
            "verified": {"type": "boolean", "default": True},
        }
        return await asked(ctx, "Who are you?", {"type": "object", "properties": properties})

    @server.tool(structured_output=False)
    async def test_elicitation_sep1330_enums(ctx: Ctx) -> types.CallToolResult:
        """Asks the user to choose, in every way of choosing."""
        plain = {"type": "string", "enum": ["option1", "option2", "option3"]}

        def titled(what: str) -> list[dict[str, str]]:
            numbers = ("First", "Second", "Third")
            return [{"const": f"value{at}", "title": f"{it} {what}"} for at, it in enumerate(numbers, 1)]

        properties = {
            "untitledSingle": plain,
            "titledSingle": {"type": "string", "oneOf": titled("Option")},
            "legacyEnum": {
                "type": "string",
                "enum": ["opt1", "opt2", "opt3"],
                "enumNames": ["Option One", "Option Two", "Option Three"],
            },
            "untitledMulti": {"type": "array", "items": plain},
            "titledMulti": {"type": "array", "items": {"anyOf": titled("Choice")}},
        }
        return await asked(ctx, "Which?", {"type": "object", "properties": properties})


def question(message: str, **properties: dict[str, Any]) -> types.ElicitRequest:
    return types.ElicitRequest(
        params=types.ElicitRequestFormParams(message=message, requested_schema=fields(**properties))
    )


def sampling(text: str, most: int) -> types.CreateMessageRequest:
    message = types.SamplingMessage(role="user", content=types.TextContent(type="text", text=text))
    return types.CreateMessageRequest(
        params=types.CreateMessageRequestParams(messages=[message], max_tokens=most)
    )


NAME = question("What is your name?", name={"type": "string"})
OK = question("Please confirm", ok={"type": "boolean"})
ROOTS = types.ListRootsRequest()


async def answered(
    ctx: Ctx,
    requests: dict[str, Any],
    done: Callable[[Mapping[str, Any]], T],
    state: str | None = None,
) -> T | types.InputRequiredResult:
    """What `done` makes of the answers; what is still missing is asked for, with the state, which must come back."""
    given = ctx.input_responses or {}
    accepted = {key for key, it in given.items() if getattr(it, "action", "accept") == "accept"}
    missing = {key: it for key, it in requests.items() if key not in accepted}
    if missing or (state is not None and ctx.request_state != state):
        return types.InputRequiredResult(input_requests=missing or requests, request_state=state)
    return done(given)


def add_questions(server: WorkflowsServer) -> None:
    """What clients of 2026-07-28 are asked by an answer that says what is missing."""

    def greeted(given: Mapping[str, Any]) -> types.CallToolResult:
        return said(f"Hello, {given['user_name'].content['name']}!")

    @server.tool(structured_output=False)
    async def test_input_required_result_elicitation(ctx: Ctx) -> Asked:
        """Asks for a name."""
        return await answered(ctx, {"user_name": NAME}, greeted)

    @server.tool(structured_output=False)
    async def test_input_required_result_sampling(ctx: Ctx) -> Asked:
        """Asks the model of the client."""
        capital = sampling("What is the capital of France?", 100)
        return await answered(
            ctx,
            {"capital_question": capital},
            lambda given: said(str(getattr(given["capital_question"].content, "text", ""))),
        )

    @server.tool(structured_output=False)
    async def test_input_required_result_list_roots(ctx: Ctx) -> Asked:
        """Asks for the roots of the client."""
        return await answered(
            ctx,
            {"client_roots": ROOTS},
            lambda given: said(", ".join(str(root.uri) for root in given["client_roots"].roots)),
        )

    @server.tool(structured_output=False)
    async def test_input_required_result_request_state(ctx: Ctx) -> Asked:
        """Asks, and wants its state back."""
        return await answered(ctx, {"confirm": OK}, lambda _: said("state-ok"), state="first")

    @server.tool(structured_output=False)
    async def test_input_required_result_tampered_state(ctx: Ctx) -> Asked:
        """Asks, and refuses a state that is not its own."""
        return await answered(ctx, {"confirm": OK}, lambda _: said("state-ok"), state="sealed")

    @server.tool(structured_output=False)
    async def test_input_required_result_multiple_inputs(ctx: Ctx) -> Asked:
        """Asks for three things at once."""
        requests = {"user_name": NAME, "greeting": sampling("Generate a greeting", 50), "client_roots": ROOTS}
        return await answered(ctx, requests, greeted, state="three")

    @server.tool(structured_output=False)
    async def test_input_required_result_multi_round(ctx: Ctx) -> Asked:
        """Asks twice, the second time with another state."""
        color = question("Step 2: What is your favorite color?", color={"type": "string"})
        if ctx.request_state == "round-2":
            return await answered(ctx, {"step2": color}, lambda _: said("both rounds are done"), "round-2")
        name = question("Step 1: What is your name?", name={"type": "string"})
        again = types.InputRequiredResult(input_requests={"step2": color}, request_state="round-2")
        return await answered(ctx, {"step1": name}, lambda _: again, "round-1")

    @server.tool(structured_output=False)
    async def test_input_required_result_capabilities(ctx: Ctx) -> Asked:
        """Asks only for what the client can do."""
        can = ctx.client_capabilities
        requests: dict[str, Any] = {}
        if can is not None and can.sampling is not None:
            requests["greeting"] = sampling("Generate a greeting", 50)
        if can is not None and can.elicitation is not None:
            requests["user_name"] = NAME
        return await answered(ctx, requests, lambda _: said("done"))

    @server.tool(structured_output=False)
    async def test_missing_capability(ctx: Ctx) -> types.CallToolResult:
        """Needs a client that can sample."""
        can = ctx.client_capabilities
        if can is None or can.sampling is None:
            needed: dict[str, Any] = {"requiredCapabilities": {"sampling": {}}}
            raise MCPError(types.MISSING_REQUIRED_CLIENT_CAPABILITY, "This needs sampling", needed)
        return said("it can")

    @server.prompt()
    async def test_input_required_result_prompt(ctx: Ctx) -> list[UserMessage] | types.InputRequiredResult:
        """Asks for what the prompt is to be about."""
        about = question("What context should the prompt use?", context={"type": "string"})
        return await answered(
            ctx,
            {"user_context": about},
            lambda given: [UserMessage(given["user_context"].content["context"])],
        )


def add_resources_and_prompts(server: WorkflowsServer) -> None:
    @server.resource("test://static-text", mime_type="text/plain")
    def static_text() -> str:
        """A text."""
        return "This is the content of the static text resource."

    @server.resource("test://static-binary", mime_type="image/png")
    def static_binary() -> bytes:
        """An image."""
        return base64.b64decode(PNG)

    @server.resource("test://watched-resource", mime_type="text/plain")
    def watched() -> str:
        """One that can be subscribed to."""
        return "Watched."

    @server.resource("test://template/{id}/data", mime_type="application/json")
    def data_of(id: str) -> dict[str, Any]:
        """Data by id."""
        return {"id": id, "templateTest": True, "data": f"Data for ID: {id}"}

    @server.prompt()
    def test_simple_prompt() -> str:
        """A text."""
        return "This is a simple prompt for testing."

    @server.prompt()
    def test_prompt_with_arguments(arg1: str, arg2: str) -> str:
        """A text with what was given."""
        return f"Prompt with arguments: arg1='{arg1}', arg2='{arg2}'"

    @server.prompt()
    def test_prompt_with_embedded_resource(resourceUri: str) -> list[UserMessage]:
        """A resource."""
        resource = embedded(resourceUri, "text/plain", "Embedded resource content for testing.")
        return [UserMessage(resource), UserMessage("Please process the embedded resource above.")]

    @server.prompt()
    def test_prompt_with_image() -> list[UserMessage]:
        """An image."""
        return [UserMessage(IMAGE), UserMessage("Please analyze the image above.")]


def conformance_server() -> WorkflowsServer:
    server = build_server(load_settings(), exits_on_signals=False)
    add_contents(server)
    add_notices(server)
    add_legacy_questions(server)
    add_questions(server)
    add_resources_and_prompts(server)
    return server


if __name__ == "__main__":
    log_to_stderr(load_settings())
    sys.exit(run_http(conformance_server(), load_settings(), Address("127.0.0.1", 0)))
