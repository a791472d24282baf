"""Over stdio, whoever sends a line that is no message is told so, instead of waiting for an answer for ever."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

HALF_A_CHARACTER = '{"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": "\\ud83d"}}'
Exchange = Callable[[str], dict[str, Any]]


@pytest.fixture(params=["before anything else", "2025-06-18", "2026-07-28"])
def exchange(place: Any, request: pytest.FixtureRequest) -> Iterator[Exchange]:
    """Sends lines to a server, and gives the first answer."""
    parameters = place.parameters
    process = subprocess.Popen(
        [parameters.command, *parameters.args],
        cwd=parameters.cwd,
        env={**parameters.env, "PATH": "/usr/bin:/bin"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    stdin, stdout = process.stdin, process.stdout
    patience = threading.Timer(20, process.kill)  # one that does not answer is not waited for
    patience.start()

    def send(lines: str) -> dict[str, Any]:
        stdin.write(f"{lines}\n")
        stdin.flush()
        answer: dict[str, Any] = json.loads(stdout.readline())
        return answer

    client = {"name": "test", "version": "1"}
    if request.param == "2025-06-18":
        hello = {"protocolVersion": request.param, "capabilities": {}, "clientInfo": client}
        assert "result" in send(
            json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello})
        )
        stdin.write('{"jsonrpc": "2.0", "method": "notifications/initialized"}\n')
    elif request.param == "2026-07-28":
        assert "result" in send(listed(2))
    try:
        yield send
    finally:
        patience.cancel()
        stdin.close()
        assert process.wait(20) == 0
        stdout.close()


def listed(number: int) -> str:
    """A request of the later era, which needs nothing before it."""
    about = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    return json.dumps({"jsonrpc": "2.0", "id": number, "method": "tools/list", "params": {"_meta": about}})


@pytest.mark.parametrize(
    ("line", "number", "code", "said"),
    [
        (HALF_A_CHARACTER, 7, -32700, "it holds half of a character"),
        ('{"jsonrpc": "2.0", "id": 7, "method": "tools/l', 7, -32700, "Unterminated string"),
        ("hello", None, -32700, "the line is no JSON"),
        ('{"id": 7, "method": "tools/list"}', 7, -32600, "jsonrpc: Field required"),
        ('{"jsonrpc": "2.0", "id": "a", "method": 5}', "a", -32600, "method: Input should be a valid string"),
        ('{"jsonrpc": "2.0", "id": 7, "nothing": 5}', None, -32600, "method: Field required"),
        ('[{"jsonrpc": "2.0", "id": 7, "method": "ping"}]', None, -32600, "messages are sent one by one"),
        ("7", None, -32600, "it is no object"),
        ('{"jsonrpc": "2.0", "id": "\\ud83d", "method": "ping"}', None, -32700, "half of a character"),
        (
            '{"jsonrpc": "2.0", "id": 7, "method": "ping", "params": [1]}',
            7,
            -32600,
            "params: Input should be",
        ),
    ],
)
def test_a_line_that_is_no_message_is_answered_with_what_is_wrong_about_it(
    exchange: Exchange, line: str, number: Any, code: int, said: str
) -> None:
    answer = exchange(line)
    assert (answer["jsonrpc"], answer["id"], answer["error"]["code"]) == ("2.0", number, code)
    assert said in answer["error"]["message"]


def test_what_nobody_waits_for_is_passed_over_and_the_next_message_is_answered(exchange: Exchange) -> None:
    answer = exchange(f"\n  \n{json.dumps({'jsonrpc': '2.0', 'method': 'x', 'params': 3})}\nhello")
    assert answer["error"]["code"] == -32700


@pytest.mark.parametrize("line", ["hello", HALF_A_CHARACTER])
def test_the_server_goes_on_after_it(exchange: Exchange, line: str, request: pytest.FixtureRequest) -> None:
    assert "error" in exchange(line)
    number = 5
    asked = listed(number) if "2025" not in request.node.name else '{"jsonrpc":"2.0","id":5,"method":"ping"}'
    assert exchange(asked)["id"] == number


@pytest.mark.parametrize("exchange", ["2026-07-28"], indirect=True)
@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e999"])
def test_a_number_that_is_none_is_refused_with_its_place_and_does_not_become_null(
    exchange: Exchange, number: str
) -> None:
    request = json.loads(listed(9))
    arguments = {"workflow_id": "wf_1", "result": {"rows": [1, {"x": "HERE"}]}}
    request |= {"method": "tools/call"}
    request["params"] |= {"name": "submit_result", "arguments": arguments}
    answer = exchange(json.dumps(request).replace('"HERE"', number))
    assert answer["id"] == 9
    said = answer["result"]["content"][0]["text"]
    assert "argument 'result.rows[1].x' cannot be taken: it is no finite number" in said
