"""What an agent does not answer in time: the server's own timer ends it, in every dialect."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from support.clocked import Clocked, clocked_service
from workflows_mcp.errors import DefinitionError, NotExpected

pytestmark = pytest.mark.rows("X7")

GRAPH = """
name: it
blocks:
  - {id: ask, type: Prompt, inputs: {prompt: "Go?"}, timeout: 60%s}
  - {id: then, type: Shell, inputs: {command: "true"}, depends_on: [{block: ask, required: false}]}
"""
STATEFUL = """
name: it
initial_state: {}
steps:
  - {id: ask, type: delegate, needs_state: [], instructions: "Go?", timeout: 60%s}
  - {id: then, type: shell, needs_state: [], command: "true", run_on: server}
"""
STATEFUL_SHELL = """
name: it
initial_state: {}
steps:
  - {id: ask, type: shell, needs_state: [], command: "make", timeout: 60%s}
  - {id: then, type: shell, needs_state: [], command: "true", run_on: server}
"""
REACTIVE = """
name: it
default_state: {raw: {}}
steps:
  - {id: ask, type: agent_shell_command, command: "make", timeout: 60000%s}
  - {id: then, type: shell_command, command: "true"}
"""
REACTIVE_INPUT = """
name: it
default_state: {raw: {}}
steps:
  - {id: ask, type: user_input, prompt: "Go?", timeout: 60000%s}
  - {id: then, type: shell_command, command: "true"}
"""
CALL = """
name: it
default_state: {raw: {}}
steps:
  - {id: ask, type: mcp_call, method: lint, timeout: 60000%s}
  - {id: then, type: shell_command, command: "true"}
"""
EVERY = {
    "graph": GRAPH,
    "stateful": STATEFUL,
    "stateful shell": STATEFUL_SHELL,
    "reactive": REACTIVE,
    "reactive question": REACTIVE_INPUT,
    "reactive call": CALL,
}


def play(directory: Path, scenario: Callable[[Clocked], Awaitable[None]]) -> None:
    async def go() -> None:
        async with clocked_service(directory) as clocked:
            await scenario(clocked)

    asyncio.run(asyncio.wait_for(go(), 30))


async def states(clocked: Clocked, run_id: str) -> dict[str, str]:
    blocks = (await clocked.service.state(run_id, paths=["blocks"]))["values"]["blocks"]
    return {name: block["metadata"]["status"] for name, block in blocks.items()}


@pytest.mark.parametrize("text", EVERY.values(), ids=EVERY.keys())
def test_a_step_that_no_agent_answers_in_time_fails(text: str, tmp_path: Path) -> None:
    if text is GRAPH:
        text = text.replace("[{block: ask, required: false}]", "[ask]")

    async def scenario(clocked: Clocked) -> None:
        answer = await clocked.service.start(text=text % "")
        run_id, asked = answer["workflow_id"], answer["action"]["step_id"]
        await clocked.clock.advance(59)
        assert (await clocked.service.status(run_id))["status"] == "pending_action"
        await clocked.clock.advance(2)
        answer = await clocked.ended(run_id)
        assert (answer["status"], answer["error"]["code"]) == ("failed", "timeout")
        assert "timed out after 60 s" in answer["error"]["message"]
        assert answer["error"]["block"] == "ask"
        with pytest.raises(NotExpected):
            await clocked.service.submit(run_id, "too late", step_id=asked)

    play(tmp_path, scenario)


@pytest.mark.parametrize("text", EVERY.values(), ids=EVERY.keys())
def test_with_continue_the_workflow_continues_after_a_timeout(text: str, tmp_path: Path) -> None:
    async def scenario(clocked: Clocked) -> None:
        answer = await clocked.service.start(text=text % ", on_timeout: continue")
        await clocked.clock.advance(61)
        answer = await clocked.ended(answer["workflow_id"])
        assert answer["status"] == "completed"
        assert await states(clocked, answer["workflow_id"]) == {"ask": "failed", "then": "completed"}

    play(tmp_path, scenario)


@pytest.mark.parametrize("text", EVERY.values(), ids=EVERY.keys())
def test_with_retry_the_step_is_asked_again_after_a_timeout_three_times_in_all(
    text: str, tmp_path: Path
) -> None:
    async def scenario(clocked: Clocked) -> None:
        answer = await clocked.service.start(text=text % ", on_timeout: retry")
        run_id = answer["workflow_id"]
        for attempt in ("1", "2", "3"):
            await clocked.until(run_id, lambda state, it=attempt: state.frames["ask"].attempt == it)  # type: ignore[misc]
            await clocked.until(run_id, lambda state: state.frames["ask"].kind == "agent")
            await clocked.clock.advance(60.5)
        await clocked.until(run_id, lambda state: "ask" not in state.frames)
        blocks = (await clocked.service.state(run_id, paths=["blocks"]))["values"]["blocks"]
        assert (blocks["ask"]["metadata"]["status"], blocks["ask"]["metadata"]["attempts"]) == ("failed", 3)

    play(tmp_path, scenario)


def test_without_a_timeout_of_the_step_an_agent_may_take_for_ever(tmp_path: Path) -> None:
    """What the type says of time (30 seconds for a command) is for the agent to keep to."""

    async def scenario(clocked: Clocked) -> None:
        for text in (STATEFUL, STATEFUL_SHELL):
            answer = await clocked.service.start(text=text.replace(", timeout: 60%s", ""))
            await clocked.clock.advance(1_000_000)
            assert (await clocked.service.status(answer["workflow_id"]))["status"] == "pending_action"

    play(tmp_path, scenario)


TASKS = {
    "graph": """
name: it
blocks:
  - {id: each, type: Prompt, for_each: [a, b], inputs: {prompt: "${each.value}?"}, timeout: 60%s}
""",
    "stateful": """
name: it
initial_state: {}
tasks:
  look: {inputs: {it: {type: string}}, steps: [
    {id: read, type: delegate, needs_state: [], instructions: "{{ inputs.it }}"}]}
steps:
  - {id: each, type: foreach, needs_state: [], items: [a, b], task: look, agent: "@task", output_to: found,
     timeout: 60%s}
""",
    "reactive": """
name: it
default_state: {raw: {}}
sub_agent_tasks:
  look: {steps: [{id: read, type: mcp_call, method: look, params: {at: "{{ item }}"}}]}
steps:
  - {id: each, type: parallel_foreach, items: [a, b], sub_agent_task: look, timeout: 60000%s}
""",
}
"""Two tasks, of which the first is answered and the agent of the second one dies."""


async def first_answered(clocked: Clocked, text: str) -> str:
    answer = await clocked.service.start(text=text)
    run_id: str = answer["workflow_id"]
    if answer["action"]["type"] == "prompt":
        await clocked.service.submit(run_id, "fine", step_id=answer["action"]["step_id"])
    else:
        first, second = (task["workflow_id"] for task in answer["action"]["parameters"]["tasks"])
        await clocked.service.submit(first, "fine")
        await clocked.service.next_step(second)
        assert (await clocked.service.status(run_id))["status"] == "waiting"
    return run_id


@pytest.mark.parametrize("text", TASKS.values(), ids=TASKS.keys())
def test_a_task_whose_agent_dies_fails_when_its_time_is_over(text: str, tmp_path: Path) -> None:
    async def scenario(clocked: Clocked) -> None:
        run_id = await first_answered(clocked, text % "")
        await clocked.clock.advance(61)
        answer = await clocked.ended(run_id)
        assert (answer["status"], answer["error"]["code"]) == ("failed", "timeout")
        assert "1 of 2 items failed" in answer["error"]["message"]

    play(tmp_path, scenario)


@pytest.mark.parametrize("text", TASKS.values(), ids=TASKS.keys())
def test_with_continue_the_workflow_goes_on_without_the_task(text: str, tmp_path: Path) -> None:
    async def scenario(clocked: Clocked) -> None:
        run_id = await first_answered(clocked, text % ", on_timeout: continue")
        await clocked.clock.advance(61)
        answer = await clocked.ended(run_id)
        assert answer["status"] == "completed"
        if "state" in answer and "found" in answer["state"]:
            assert answer["state"]["found"][1] == {"error": "timed out after 60 s"}

    play(tmp_path, scenario)


@pytest.mark.parametrize("text", TASKS.values(), ids=TASKS.keys())
def test_with_retry_the_task_is_handed_out_again(text: str, tmp_path: Path) -> None:
    async def scenario(clocked: Clocked) -> None:
        run_id = await first_answered(clocked, text % ", on_timeout: retry")
        await clocked.clock.advance(60.5)
        await clocked.until(run_id, lambda state: state.frames["each/1"].attempt == "2")
        await clocked.until(run_id, lambda state: any(it.kind == "agent" for it in state.frames.values()))
        answer = await clocked.service.status(run_id)
        assert answer["status"] == "pending_action"
        if answer["action"]["type"] == "prompt":
            await clocked.service.submit(run_id, "fine", step_id=answer["action"]["step_id"])
        else:
            tasks = answer["action"]["parameters"]["tasks"]
            assert tasks[-1]["status"] == "waiting to start"
            await clocked.service.submit(tasks[-1]["workflow_id"], "fine")
        assert (await clocked.ended(run_id))["status"] == "completed"

    play(tmp_path, scenario)


QUESTIONS = {
    "graph": (
        "name: it\nblocks: [{id: ask, type: Prompt, inputs: {prompt: Go?}, timeout: 60, on_timeout: no}]\n"
        "outputs: {said: '${blocks.ask.outputs.response}'}",
        {"response": "no"},
    ),
    "a word that means something": (
        "name: it\nblocks: [{id: ask, type: Prompt, inputs: {prompt: Go?}, timeout: 60,"
        " on_timeout: {answer: retry}}]",
        {"response": "retry"},
    ),
    "stateful": (
        "name: it\ninitial_state: {}\nsteps: [{id: ask, type: prompt, needs_state: [], message: Go?,"
        " prompt_type: confirm, timeout: 60, on_timeout: no}]",
        {"confirmed": False},
    ),
    "a choice": (
        "name: it\ninitial_state: {b: B}\nsteps: [{id: ask, type: prompt, needs_state: [b], message: Go?,"
        " prompt_type: choice, options: [A, B], timeout: 60, on_timeout: '{{ state.b }}'}]",
        {"selected": "B"},
    ),
    "reactive": (
        "name: it\ndefault_state: {raw: {}}\nsteps: [{id: ask, type: user_input, prompt: Who?, timeout: 60000,"
        " on_timeout: nobody}]",
        {"result": "nobody"},
    ),
}


@pytest.mark.parametrize(("text", "outputs"), QUESTIONS.values(), ids=QUESTIONS.keys())
def test_a_question_that_nobody_answers_in_time_takes_the_answer_of_its_definition(
    text: str, outputs: dict[str, object], tmp_path: Path
) -> None:
    async def scenario(clocked: Clocked) -> None:
        answer = await clocked.service.start(text=text)
        await clocked.clock.advance(61)
        answer = await clocked.ended(answer["workflow_id"])
        assert answer["status"] == "completed"
        blocks = (await clocked.service.state(answer["workflow_id"], paths=["blocks"]))["values"]["blocks"]
        assert blocks["ask"]["outputs"] == outputs
        assert "on_timeout" in blocks["ask"]["metadata"]["message"]

    play(tmp_path, scenario)


def test_an_answer_that_nobody_could_give_is_refused_at_load(tmp_path: Path) -> None:
    text = QUESTIONS["stateful"][0].replace("on_timeout: no", "on_timeout: perhaps")

    async def scenario(clocked: Clocked) -> None:
        with pytest.raises(DefinitionError, match="'on_timeout' is not a valid answer"):
            await clocked.service.start(text=text)

    play(tmp_path, scenario)


def test_a_block_can_wait(tmp_path: Path) -> None:
    text = """
name: it
inputs: {pause: {type: number, default: 30}}
blocks:
  - {id: rest, type: Wait, inputs: {duration_seconds: "${inputs.pause}", message: "resting"}}
  - {id: then, type: Shell, depends_on: [rest], inputs: {command: "true"}}
"""

    async def scenario(clocked: Clocked) -> None:
        answer = await clocked.service.start(text=text, wait_seconds=0)
        assert (answer["status"], "resting" in answer["why"]) == ("waiting", True)
        await clocked.clock.advance(31)
        assert (await clocked.ended(answer["workflow_id"]))["status"] == "completed"

    play(tmp_path, scenario)
