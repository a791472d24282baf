"""How agents talk to their models: the Messages API and the Responses API, each as far as an agent needs it.

Both are read into the same shape, that of the Messages API, so that one script of turns does for every agent:

    {"system": …, "messages": [{"role": …, "content": [blocks]}], "tools": [{"name", "description", "input_schema"}]}

The Responses API has `namespaces` besides: what is said of the tools of a server together.
Nothing here knows what is said, or to whom.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, ClassVar, Protocol

Said = str | tuple[str, dict[str, Any]]
"""A text, or the call of a tool: its name and its arguments."""
Request = dict[str, Any]


class ModelApi(Protocol):
    """How requests are read and answered."""

    def wants_a_turn(self, path: str, request: Request) -> bool:
        """Whether it is the agent that asks, and not one of its conveniences, such as a title."""

    def read(self, request: Request) -> Request:
        """The request in the common shape."""

    def answer(self, request: Request, said: Said, number: int) -> tuple[str, str]:
        """The type of the body, and the body."""


class MessagesApi:
    """Anthropic's, which Claude Code speaks."""

    _USAGE: ClassVar = {"input_tokens": 1, "output_tokens": 1}

    def wants_a_turn(self, path: str, request: Request) -> bool:
        return "count_tokens" not in path and bool(request.get("tools"))

    def read(self, request: Request) -> Request:
        return request

    def answer(self, request: Request, said: Said, number: int) -> tuple[str, str]:
        if isinstance(said, str):
            block: dict[str, Any] = {"type": "text", "text": said}
        else:
            block = {"type": "tool_use", "id": f"call_{number}", "name": said[0], "input": said[1]}
        stop = "end_turn" if isinstance(said, str) else "tool_use"
        message = {
            "id": f"message_{number}",
            "type": "message",
            "role": "assistant",
            "model": request.get("model"),
            "stop_sequence": None,
            "usage": self._USAGE,
        }
        if request.get("stream"):
            return "text/event-stream", "".join(_events(self._stream(message, block, stop)))
        whole = {**message, "content": [block], "stop_reason": stop, **self._USAGE}
        return "application/json", json.dumps(whole)

    def _stream(
        self, message: dict[str, Any], block: dict[str, Any], stop: str
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        if block["type"] == "text":
            empty, delta = {**block, "text": ""}, {"type": "text_delta", "text": block["text"]}
        else:
            empty = {**block, "input": {}}
            delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
        yield "message_start", {"message": {**message, "content": [], "stop_reason": None}}
        yield "content_block_start", {"index": 0, "content_block": empty}
        yield "content_block_delta", {"index": 0, "delta": delta}
        yield "content_block_stop", {"index": 0}
        yield (
            "message_delta",
            {"delta": {"stop_reason": stop, "stop_sequence": None}, "usage": self._USAGE},
        )
        yield "message_stop", {}


class ResponsesApi:
    """OpenAI's, which Codex speaks. Tools of an MCP server are in a namespace there: `mcp__server` and `tool` are
    read as the tool `mcp__server__tool`, and a call of that is sent as a call in the namespace."""

    _BEFORE_OUTPUT = re.compile(r"\AWall time: [\d.]+ seconds\nOutput:\n?")
    """What Codex puts before what a tool gave."""

    def wants_a_turn(self, path: str, request: Request) -> bool:
        return path.endswith("/responses") and bool(request.get("tools"))

    def read(self, request: Request) -> Request:
        messages = [self._message(item) for item in request["input"]]
        return {
            "system": request.get("instructions") or "",
            "messages": [message for message in messages if message["content"]],
            "tools": list(self._tools(request)),
            "namespaces": {it["name"]: it["description"] for it in request["tools"] if it.get("tools")},
        }

    def answer(self, request: Request, said: Said, number: int) -> tuple[str, str]:
        if isinstance(said, str):
            content = [{"type": "output_text", "text": said, "annotations": []}]
            item: dict[str, Any] = {"type": "message", "role": "assistant", "content": content}
        else:
            item = {"type": "function_call", "call_id": f"call_{number}", **self._named(request, said[0])}
            item["arguments"] = json.dumps(said[1])
        item["id"] = f"item_{number}"
        counted = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
        done = {"id": f"response_{number}", "output": [item], "usage": counted}
        stream = (
            ("response.created", {"response": {"id": done["id"]}}),
            ("response.output_item.done", {"output_index": 0, "item": item}),
            ("response.completed", {"response": done}),
        )
        return "text/event-stream", "".join(_events(iter(stream)))

    def _tools(self, request: Request) -> Iterator[dict[str, Any]]:
        for tool in request["tools"]:
            if tool["type"] == "function":
                yield self._tool(tool["name"], tool)
            for inner in tool.get("tools", ()):
                yield self._tool(f"{tool['name']}__{inner['name']}", inner)

    def _tool(self, name: str, tool: dict[str, Any]) -> dict[str, Any]:
        return {"name": name, "description": tool["description"], "input_schema": tool["parameters"]}

    def _named(self, request: Request, name: str) -> dict[str, str]:
        for tool in request["tools"]:
            space = f"{tool.get('name')}__"
            if tool["type"] == "namespace" and name.startswith(space):
                return {"namespace": tool["name"], "name": name.removeprefix(space)}
        return {"name": name}

    def _message(self, item: dict[str, Any]) -> dict[str, Any]:
        match item["type"]:
            case "message":
                blocks = [
                    {"type": "text", "text": part["text"]} for part in item["content"] if "text" in part
                ]
                return {"role": item["role"], "content": blocks}
            case "function_call":
                name = "__".join(filter(None, (item.get("namespace"), item["name"])))
                call = {"type": "tool_use", "id": item["call_id"], "name": name}
                return {"role": "assistant", "content": [{**call, "input": json.loads(item["arguments"])}]}
            case "function_call_output":
                result = {"type": "tool_result", "tool_use_id": item["call_id"]}
                return {"role": "user", "content": [{**result, "content": self._output(item["output"])}]}
        return {"role": "assistant", "content": []}

    def _output(self, output: Any) -> str:
        parts = [output] if isinstance(output, str) else [part.get("text", "") for part in output]
        return self._BEFORE_OUTPUT.sub("", "\n".join(parts))


MESSAGES, RESPONSES = MessagesApi(), ResponsesApi()


def _events(stream: Iterator[tuple[str, dict[str, Any]]]) -> Iterator[str]:
    for kind, data in stream:
        yield f"event: {kind}\ndata: {json.dumps({'type': kind, **data})}\n\n"
