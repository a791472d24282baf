"""A model that says what a test wants, on loopback, for a real agent that runs without a network.

    with scripted_model(turns) as (address, heard):     # Claude Code, with ANTHROPIC_BASE_URL=address
        …
    heard[0]["messages"]                                # what the agent sent, turn by turn

    with scripted_model(turns, RESPONSES) as …          # the same script for Codex

A turn is a function of the messages so far: it gives a text, or the call of a tool as (name, arguments).
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from support.model_apis import MESSAGES, ModelApi, Said

Turn = Callable[[list[dict[str, Any]]], Said]


def last_output(messages: list[dict[str, Any]]) -> str:
    """What the model was shown of the tool that was called last, be it a result or an error."""
    for message in reversed(messages):
        for block in message["content"] if isinstance(message["content"], list) else ():
            if block["type"] == "tool_result":
                content = block["content"]
                return content if isinstance(content, str) else "".join(part["text"] for part in content)
    raise AssertionError("no tool was called")


def last_result(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """What the tool gave that was called last."""
    text = last_output(messages)
    assert text.startswith("{"), text
    found: dict[str, Any] = json.loads(text)
    return found


def texts(messages: list[dict[str, Any]]) -> str:
    """All that the messages say in words."""
    found = []
    for message in messages:
        content = message["content"]
        blocks = content if isinstance(content, list) else [{"text": content}]
        found += [block["text"] for block in blocks if "text" in block]
    return "\n".join(found)


@contextmanager
def scripted_model(
    turns: Sequence[Turn], api: ModelApi = MESSAGES
) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    last_seen: list[dict[str, Any]] = []

    class Endpoint(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["content-length"])))
            if not api.wants_a_turn(self.path, request):
                self._send(*api.answer(request, "ok", len(last_seen)))
                return
            last_seen.append(api.read(request))
            try:
                said = turns[min(len(last_seen), len(turns)) - 1](last_seen[-1]["messages"])
            except Exception as error:  # the agent would ask again and again
                said = f"the test does not know what to say: {error!r}"
            self._send(*api.answer(request, said, len(last_seen)))

        def do_GET(self) -> None:
            self._send("application/json", "{}")

        def do_HEAD(self) -> None:
            self._send("application/json", "")

        def log_message(self, format: str, *arguments: object) -> None:
            """Nobody reads it."""

        def _send(self, kind: str, text: str) -> None:
            body = text.encode()
            self.send_response(200)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Endpoint)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", last_seen
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
