"""Values that cannot be kept are refused with their place, whatever tool they are sent to; and no error is bare."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from workflows_mcp.limits import DEFAULT_LIMITS
from workflows_mcp.values import to_json

ASKS = "name: asks\nblocks:\n  - {id: q, type: Prompt, inputs: {prompt: 'What?'}}\n"
WAITS = "name: waits\ninitial_state: {}\nsteps:\n  - {id: w, type: wait, duration_seconds: 1.0e+12}\n"
UPDATES = "name: updates\ndefault_state: {raw: {}}\nsteps:\n  - {id: u, type: user_input, prompt: x}\n"

REFUSED: list[tuple[Any, str]] = [
    (2**70, "argument 'result' cannot be taken: it is an integer of more than 64 bits"),
    ([-(2**63) - 1], "argument 'result[0]' cannot be taken: it is an integer"),
    ("x" * 1001, "argument 'result' is larger than the limit of 1000 bytes"),
    (["x" * 1001], "WORKFLOWS_LIMIT_ARGUMENT_BYTES"),
    ([[[[[[[[[[[1]]]]]]]]]]], "it is nested deeper than 10 (WORKFLOWS_LIMIT_VALUE_DEPTH)"),
]


def test_a_result_that_cannot_be_kept_is_refused_with_the_place_and_changes_nothing(place: Any) -> None:
    place.define("asks", ASKS)
    (place.workspace / "workflows.toml").write_text("[limits]\nargument_bytes = 1000\nvalue_depth = 10\n")

    async def work(agent: Any) -> None:
        run = (await agent.call("start_workflow", workflow="asks"))["workflow_id"]
        for value, said in REFUSED:
            assert said in await agent.refused("submit_result", workflow_id=run, result=value), value
        assert (await agent.call("get_workflow_status", workflow_id=run))["status"] == "pending_action"
        await agent.call("submit_result", workflow_id=run, result=2**64 - 1)

    place.serve(work)


def test_a_wait_of_thousands_of_years_can_be_read_and_cancelled(place: Any) -> None:
    place.define("waits", WAITS)

    async def work(agent: Any) -> None:
        started = await agent.call("start_workflow", workflow="waits", wait_seconds=0)
        run = started["workflow_id"]
        assert (
            "after the year 9999"
            in (await agent.call("get_workflow_status", workflow_id=run, wait_seconds=0))["why"]
        )
        assert (await agent.call("control_workflow", workflow_id=run, action="cancel"))[
            "status"
        ] == "cancelled"

    place.serve(work)


def test_a_path_of_thousands_of_parts_is_refused_with_a_reason_in_few_words(place: Any) -> None:
    place.define("updates", UPDATES)
    (place.workspace / "workflows.toml").write_text('toolsets = ["core", "reactive"]\n')

    async def work(agent: Any) -> None:
        run = (await agent.call("workflow_start", workflow="updates"))["workflow_id"]
        update = [{"path": "raw" + ".b" * 5000, "value": 1}]
        said = await agent.refused("workflow_state_update", workflow_id=run, updates=update)
        assert "nested" in said
        for tool, arguments in (
            ("get_workflow_state", {"workflow_id": run, "paths": ["a" + ".b" * 5000]}),
            ("get_workflow_info", {"workflow": "n" * 1_000_000}),
            ("get_workflow_status", {"workflow_id": "n" * 1_000_000}),
        ):
            said = await agent.refused(tool, **arguments)
            assert ": " in said.partition(tool)[2], "it says more than that it failed"
            assert len(said) < 4000, tool

    place.serve(work)


DEEP = "[" * 3000 + "]" * 3000


@pytest.mark.parametrize(
    "line",
    [
        '{"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"arguments": {"x": %s}}}',
        '{"method": "tools/call", "params": {"id": 8, "arguments": {"x": %s}}, "jsonrpc": "2.0", "id": 7}',
        '{"method": "tools/call", "params": {"x": %s}, "id": 7, "jsonrpc": "2.0"}',
    ],
)
@pytest.mark.parametrize("value", [DEEP, "9" * 100_000, "[" * 100_000], ids=["deep", "long", "open"])
def test_a_line_that_cannot_be_read_is_answered_with_its_id(line: str, value: str, place: Any) -> None:
    parameters = place.parameters
    done = subprocess.run(
        [parameters.command, *parameters.args],
        cwd=place.workspace,
        env=parameters.env,
        input=line % value + "\n",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    [answered] = [json.loads(it) for it in done.stdout.splitlines()]
    assert answered["id"] == 7, answered
    assert answered["error"]["message"]


@pytest.mark.parametrize(
    "wrong",
    [
        f"name: {'n' * 1_000_000}\nblocks: 5\n",
        f"name: huge\nblocks:\n  - {{id: {'i' * 1_000_000}, type: Shel}}\n",
        f"name: huge\ninputs: {{n: {{type: integer, default: {'9' * 100_000}}}}}\nblocks: []\n",
        f"name: huge\nblocks:\n  - {{id: a, type: Shell, {'k' * 100_000}: {'9' * 100_000}}}\n",
        "name: many\nblocks:\n"
        + "".join(f"  - {{id: b{number}, type: {'none ' * 1500}}}\n" for number in range(40)),
    ],
    ids=["name", "id", "number", "key", "many"],
)
def test_what_is_said_of_a_definition_keeps_to_the_limit_of_an_answer(place: Any, wrong: str) -> None:
    async def work(agent: Any) -> None:
        found = await agent.call("validate_workflow_yaml", yaml_content=wrong)
        assert not found["valid"]
        assert len(json.dumps(found, ensure_ascii=False)) < DEFAULT_LIMITS.answer_chars
        assert ("more" in found) == ("many" in wrong)

    place.serve(work)


def test_what_is_read_of_a_long_definition_and_of_the_memory_keeps_to_the_limit_too(place: Any) -> None:
    """Also where every character takes two in JSON."""
    (place.workspace / "workflows.toml").write_text('toolsets = "all"\n')
    rest = ASKS.removeprefix("name: asks\n")
    place.define("long", "name: long\ndescription: |\n  a\n  " + '"' * 40_000 + f"\n{rest}")

    async def work(agent: Any) -> None:
        most = DEFAULT_LIMITS.answer_chars
        info = await agent.call("get_workflow_info", workflow="long", definition=True)
        assert most * 0.9 < len(to_json(info)) <= most
        assert f"read on with read the file {place.workspace}" in info["definition"]
        value = '"' * 60_000
        await agent.call("save_to_memory", key="long", value=value)
        text, offset = "", 0
        while offset >= 0:
            part = await agent.call("load_from_memory", key="long", offset=offset)
            assert len(to_json(part)) <= most
            text, offset = text + part["text"], part.get("next_offset", -1)
        assert json.loads(text) == value

    place.serve(work)


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("start_workflow", {"workflow": "n" * 1_000_000}),
        ("start_workflow", {"workflow": "x", "wait_seconds": "9" * 100_000}),
        ("start_workflow", {"workflow": "x", "inputs": {"i" * 1_000_000: 2**70}}),
        ("start_workflow", {"workflow": "x", "n" * 1_000_000: 1}),
        ("get_workflow_status", {"workflow_id": "w" * 1_000_000}),
        ("control_workflow", {"workflow_id": "x", "action": "a" * 1_000_000}),
    ],
)
def test_a_refusal_keeps_to_the_limit_of_an_answer(place: Any, tool: str, arguments: dict[str, Any]) -> None:
    async def work(agent: Any) -> None:
        said = await agent.refused(tool, **arguments)
        assert len(said) < DEFAULT_LIMITS.answer_chars

    place.serve(work)


def test_an_answer_to_a_prompt_that_is_too_large_is_refused_in_every_toolset(place: Any) -> None:
    place.define("asks", ASKS)
    (place.workspace / "workflows.toml").write_text('toolsets = "all"\n[limits]\nargument_bytes = 1000\n')

    async def work(agent: Any) -> None:
        paused = await agent.call("execute_workflow", workflow="asks")
        where = {"checkpoint_id": paused["checkpoint_id"]}
        said = await agent.refused("resume_workflow", **where, response="x" * 1001)
        assert "argument 'response' is larger than the limit of 1000 bytes" in said
        ended = await agent.call("resume_workflow", **where, response="x" * 900)
        assert ended["status"] == "success"

    place.serve(work)
