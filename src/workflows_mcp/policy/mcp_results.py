"""What a tool gave, as the value that a workflow goes on with: the same whoever has called the tool.

Structured content if there is any, else the data that the text is JSON of, else the text. What is no text
(images, links) stays as it came. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from workflows_mcp.values import Value, from_json

_ENVELOPE = frozenset(
    {"content", "structuredContent", "structured_content", "isError", "is_error", "_meta", "meta"}
    | {"resultType", "result_type"}
)


@dataclass(frozen=True, slots=True)
class ToolResult:
    value: Value
    failed: bool = False
    """The tool was called, and says that it could not do what it was to do."""
    message: str = ""
    """What it says of its failure."""


def tool_result(structured: Any, content: list[dict[str, Any]], *, failed: bool = False) -> ToolResult:
    """`content`: the blocks of the answer, as the protocol has them."""
    texts = [block["text"] for block in content if block.get("type") == "text" and "text" in block]
    text = "\n".join(texts)
    value: Value = structured
    if structured is None:
        value = _as_data(text) if len(texts) == len(content) else {"content": content}
    return ToolResult(value, failed, text.strip() or "it does not say why") if failed else ToolResult(value)


def unpacked(result: Value) -> ToolResult:
    """What somebody has handed on: the answer of a tool as the protocol has it, or only what it was."""
    if not isinstance(result, dict):
        return ToolResult(result)
    failed = result.get("is_error") is True or result.get("isError") is True
    content = result.get("content")
    packed = isinstance(content, list) and all(isinstance(it, dict) and "type" in it for it in content)
    if packed and result.keys() <= _ENVELOPE:
        structured = result.get("structuredContent", result.get("structured_content"))
        return tool_result(structured, content or [], failed=failed)
    if not failed:
        return ToolResult(result)
    said = [text for key in ("error", "message", "text") if isinstance(text := result.get(key), str)]
    return ToolResult(result, failed, next(iter(said), "") or "it does not say why")


def _as_data(text: str) -> Value:
    try:
        return from_json(text)
    except ValueError:
        return text
