"""The skill that teaches a model to write workflows: every example is checked and carried out with the very calls that
the skill names, what it says of errors is what they say, and everything that it names exists."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from mcp import Client

from support.claude_code import claude_code
from support.scripted_model import scripted_model
from workflows_mcp.dialects.schema import workflow_schema
from workflows_mcp.mcp_server.server import build_server
from workflows_mcp.mcp_server.tools import core
from workflows_mcp.mcp_server.toolsets import tools_of
from workflows_mcp.settings.model import TOOLSETS, load_settings
from workflows_mcp.steps.registry import default_registry

ROOT = Path(__file__).resolve().parents[2]
PLUGIN = ROOT / "plugin"
SKILL = PLUGIN / "skills" / "writing-workflows" / "SKILL.md"
TEXT = SKILL.read_text(encoding="utf-8")
SECTIONS: dict[str, str] = dict(re.findall(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", TEXT, re.M | re.S))
EXAMPLES = {
    name: re.findall(r"^```yaml\n(.*?)^```$", body, re.M | re.S)[0]
    for name, body in SECTIONS.items()
    if "```yaml" in body
}
DEFINITIONS = workflow_schema(default_registry())["$defs"]
REFERENCES = {
    "succeeded",
    "failed",
    "each",
    "value",
    "input",
    "response",
    "secrets",
    "blocks",
    "outputs",
    "metadata",
}
"""What a transform is given, which is no key."""
OF_THE_SERVER = {"workflows"}
"""What it is called where the plugin sets it up."""

OF_ANSWERS = {"failed_blocks"}
"""Fields of answers that no schema declares: that saves tokens."""

Call = Callable[..., Awaitable[dict[str, Any]]]


def serve(place: Path, work: Callable[[Call], Awaitable[None]], monkeypatch: pytest.MonkeyPatch) -> None:
    """What an agent does that has nothing but the skill and the tools."""
    monkeypatch.chdir(place)

    async def session() -> None:
        settings = load_settings({"WORKFLOWS_HOME": str(place / "home"), "HOME": str(place)}, workspace=place)
        async with Client(build_server(settings), raise_exceptions=False) as client:

            async def call(tool: str, **arguments: Any) -> dict[str, Any]:
                result = await client.call_tool(tool, arguments)
                assert not result.is_error, result.content
                assert isinstance(result.structured_content, dict)
                return result.structured_content

            await work(call)

    asyncio.run(asyncio.wait_for(session(), 60))


RUN_IT = object()
"""The answer to a command: what comes of running it."""


def carried_out(command: str) -> dict[str, Any]:
    """What an agent submits that has run a command as it was handed out."""
    done = subprocess.run(
        command, shell=True, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30, check=False
    )
    return {"stdout": done.stdout, "stderr": done.stderr, "exit_code": done.returncode}


def without_round(step: str) -> str:
    """`repair` of `repair@2`, as it is called in the second round of a loop."""
    return step.partition("@")[0]


async def submitted(call: Call, run: dict[str, Any], result: Any) -> dict[str, Any]:
    action = run["action"]
    if result is RUN_IT:
        result = carried_out(action["parameters"]["command"])
    return await call(
        "submit_result", workflow_id=run["workflow_id"], step_id=action["step_id"], result=result
    )


REVIEWS = {"look": {"response": "fine"}}
REPAIRED = {"stdout": "", "stderr": "", "exit_code": 0}
CARRIED_OUT: list[tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    ("Graph", {}, {"keep": {"confirmed": True}}, {"outputs": {"lines": "4", "kept": True}}),
    ("Graph", {}, {"keep": {"confirmed": False}}, {"outputs": {"lines": "4", "kept": False}}),
    (
        "Stateful",
        {"files": ["a.txt", "b.txt"], "test_command": "test -f a.txt && grep 'two' b.txt"},
        {"review": REVIEWS, "test": RUN_IT, "ask": {"selected": "release"}},
        {"result": {"decision": "release"}},
    ),
    (
        "Stateful",
        {"files": ["a.txt"], "test_command": "echo 'it is red'; exit 2"},
        {"review": REVIEWS, "test": RUN_IT, "repair": {"is_error": True, "error": "no idea"}},
        {"error": "no idea"},
    ),
    (
        "Reactive",
        {"word": "two"},
        {"all": {"repair": REPAIRED}, "ask": "keep"},
        {"state": {"decision": "keep", "left": ["b.txt"]}},
    ),
    ("Reactive", {}, {}, {"messages": ["0 files are left."], "state": {"left": []}}),
]
"""Example, inputs, answers by step (of a step with tasks, by step of its tasks), and what comes of it."""


@pytest.mark.parametrize(("example", "inputs", "answers", "expected"), CARRIED_OUT)
def test_an_example_is_right_and_does_what_it_says_by_the_calls_that_the_skill_names(
    example: str,
    inputs: dict[str, Any],
    answers: dict[str, Any],
    expected: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = EXAMPLES[example]
    name = yaml.safe_load(text)["name"]
    (tmp_path / "a.txt").write_text("one\n", encoding="utf-8")
    (tmp_path / "b.txt").write_text("one\ntwo\nthree\n", encoding="utf-8")

    async def work(call: Call) -> None:
        assert await call("validate_workflow_yaml", yaml_content=text) == {"valid": True, "problems": []}
        folder = tmp_path / ".workflows"
        folder.mkdir()
        (folder / f"{name}.yaml").write_text(text, encoding="utf-8")
        assert name in {it["name"] for it in (await call("list_workflows"))["workflows"]}
        run = await call("start_workflow", workflow=name, inputs=inputs)
        asked = []
        while run["status"] == "pending_action":
            action = run["action"]
            asked.append(without_round(action["step_id"]))
            result = answers[asked[-1]]
            if "sub_agent_prompt" in action or action["type"] == "parallel_tasks":
                for task in action["parameters"]["tasks"]:
                    its = await call("get_next_step", workflow_id=task["workflow_id"])
                    while its["status"] == "pending_action":
                        its = await submitted(call, its, result[without_round(its["action"]["step_id"])])
                run = await call("get_workflow_status", workflow_id=run["workflow_id"])
            else:
                run = await submitted(call, run, result)
        assert list(dict.fromkeys(asked)) == list(answers)
        assert run["status"] == ("failed" if "error" in expected else "completed"), run
        assert expected.get("error", "") in run.get("error", {}).get("message", "")
        state = await call("get_workflow_state", workflow_id=run["workflow_id"])
        assert expected.get("state", {}).items() <= state.get("state", {}).items()
        expected_values = {key: expected[key] for key in expected.keys() - {"state", "error"}}
        assert {key: run.get(key) for key in expected_values} == expected_values
        assert (tmp_path / "report.txt").exists() == (answers.get("keep") == {"confirmed": True})

    serve(tmp_path, work, monkeypatch)


BLOCKS = "name: x\ninputs: {who: string}\nblocks:\n  - {id: a, type: Shell, inputs: {command: ls}}\n"
STATEFUL = "name: x\ninitial_state: {n: 0}\nsteps:\n"
REACTIVE = "name: x\ndefault_state: {raw: {n: 0}}\nsteps:\n"
MISTAKES = {
    "does not wait for block": BLOCKS
    + "  - {id: b, type: Shell, inputs: {command: 'echo ${blocks.a.stdout}'}}\n",
    "there is no block type": BLOCKS + "  - {id: b, type: shell, inputs: {command: ls}}\n",
    "there is no step type": STATEFUL + "  - {id: b, type: Shell, needs_state: [], command: ls}\n",
    "a block has no key": BLOCKS + "  - {id: b, type: Shell, command: ls}\n",
    "the workflow has no input": BLOCKS
    + "  - {id: b, type: Shell, inputs: {command: 'echo ${inputs.whom}'}}\n",
    "a workflow has no key 'steps'": BLOCKS + "steps:\n  - {id: b, type: shell, command: ls}\n",
    "does not declare it": STATEFUL + "  - {id: b, type: return, needs_state: [], value: '{{ state.n }}'}\n",
    "prompt needs the input 'prompt_type'": STATEFUL
    + "  - {id: b, type: prompt, needs_state: [], message: m}\n",
    "cannot be written": REACTIVE + "  - {type: state_update, path: computed.n, value: 1}\n",
    "is read as a mapping, not as text": REACTIVE + "  - type: user_message\n    message: {{ n }}\n",
    "nothing provides": REACTIVE + "  - {type: user_message, message: '{{ m }}'}\n",
}


AFTER_A_FAILURE = """\
name: x
blocks:
  - {id: test, type: Shell, on_failure: continue, inputs: {command: exit 1}}
  - {id: strict, type: Shell, depends_on: [test], inputs: {command: 'true'}}
  - {id: lenient, type: Shell, depends_on: [{block: test, required: false}], inputs: {command: 'true'}}
outputs: {strict: '${blocks.strict.succeeded}', lenient: '${blocks.lenient.succeeded}'}
"""


def test_what_depends_on_a_failure_is_skipped_unless_it_says_what_the_skill_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for said in ("on_failure: continue", "depends_on: [{block: test, required: false}]"):
        assert f"`{said}`" in SECTIONS["Graph"]
        assert said in AFTER_A_FAILURE

    async def work(call: Call) -> None:
        run = await call("start_workflow", yaml=AFTER_A_FAILURE)
        assert run["outputs"] == {"strict": False, "lenient": True}

    serve(tmp_path, work, monkeypatch)


def test_what_the_skill_says_of_errors_is_what_they_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = re.findall(r"^\| `(.+?)` \|", SECTIONS["What errors say, and what to do"], re.M)
    assert sorted(it for it in rows if it != "message") == sorted(MISTAKES)

    async def work(call: Call) -> None:
        for message, text in MISTAKES.items():
            found = await call("validate_workflow_yaml", yaml_content=text)
            told = [problem for problem in found["problems"] if message in problem["message"]]
            assert told, (message, found)
            assert all(problem["hint"] for problem in told)

    serve(tmp_path, work, monkeypatch)


def kinds(definition: str) -> set[str]:
    return set(DEFINITIONS[definition]["properties"]["type"]["enum"])


@pytest.mark.parametrize(
    ("section", "definition"), [("Graph", "block"), ("Stateful", "step"), ("Reactive", "reactive_step")]
)
def test_each_dialect_names_all_of_its_step_types_and_no_other(section: str, definition: str) -> None:
    [listed] = re.findall(r"^- Types: (.*?)(?=^- )", SECTIONS[section], re.M | re.S)
    named = set(re.findall(r"`(\w+)`", re.sub(r"\([^)]*\)", "", listed)))
    blocks = kinds("block") - {"Workflow", "gate"}  # other names of ExecuteWorkflow and Gate
    assert named == (blocks if section == "Graph" else kinds(definition) - blocks - {"Workflow"})


def words_of(schema: object) -> Iterator[str]:
    if isinstance(schema, dict):
        yield from schema.get("properties", {})
        yield from (value for value in schema.get("enum", ()) if isinstance(value, str))
        for value in schema.values():
            yield from words_of(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from words_of(value)


def test_the_skill_names_no_key_tool_or_field_that_there_is_not() -> None:
    registry = default_registry()
    known = {*words_of(DEFINITIONS)} | REFERENCES | OF_THE_SERVER | OF_ANSWERS
    known |= {tool.name for tool in tools_of(TOOLSETS)} | {*TOOLSETS}
    for tool in core.TOOLSET.make().values():
        known |= {*words_of(tool.parameters), *words_of(tool.output_schema)}
    for name in registry.own_names():
        step = registry.get(name)
        known |= {name, *step.dialect_names.values(), *step.Outputs.model_fields}
    known |= {it for text in EXAMPLES.values() for it in re.findall(r"\bid: (\w+)", text)}
    prose = re.sub(r"^```.*?^```$", "", TEXT, flags=re.M | re.S)
    spans = [it for it in re.findall(r"`([^`]+)`", prose) if it not in MISTAKES]
    named = {span for span in spans if re.fullmatch(r"[A-Za-z_]+", span)}
    named |= {it for span in spans for it in re.findall(r"^(\w+):", span)}
    assert {"validate_workflow_yaml", "start_workflow", "submit_result", "get_workflow_status"} <= named
    assert named - known == set()


SHOWN = {
    "Graph": ("for_each: ", "confirm: true", ".outputs.confirmed", "condition: ", "type: Shell"),
    "Stateful": (
        "type: delegate",
        "type: foreach",
        "task: ",
        "tasks:",
        "on_timeout: fail",
        "on_timeout: wait",
        "choices: [",
    ),
    "Reactive": ("type: while", "max_iterations: ", "sub_agent_task: ", "sub_agent_tasks:", "choices: ["),
}


@pytest.mark.parametrize("section", SHOWN)
def test_an_example_shows_what_a_model_would_have_to_guess(section: str) -> None:
    assert [it for it in SHOWN[section] if it not in EXAMPLES[section]] == []


def test_the_skill_says_how_to_read_a_definition_in_each_toolset() -> None:
    for way in ("`definition: true`", "`workflow_load_definition`"):
        assert way in SECTIONS["The loop"]


def test_every_workflow_that_we_show_has_one_spelling_of_choices_and_asks_for_yes_with_confirm() -> None:
    ours = [*ROOT.glob("examples/**/*.yaml"), *ROOT.glob("src/workflows_mcp/library/templates/**/*.yaml")]
    assert len(ours) > 20
    texts = {path.name: path.read_text(encoding="utf-8") for path in ours} | EXAMPLES
    other = re.compile(r"^ *options:|[{,] *options:|response *==|response *in ", re.M)
    assert [name for name, text in texts.items() if other.search(text)] == []


def test_the_head_of_the_skill_is_what_clients_read() -> None:
    _, head, _ = TEXT.split("---\n", 2)
    above = yaml.safe_load(head)
    assert above["name"] == SKILL.parent.name
    assert re.fullmatch(r"[a-z0-9-]{1,64}", above["name"])
    assert len(above["description"]) <= 1024
    assert len(TEXT) < 13_000, "it is read as a whole when it is needed"


@pytest.mark.slow
def test_claude_code_has_the_skills_when_it_has_the_plugin(tmp_path: Path) -> None:
    """Its list of skills is read from what it tells a scripted model, and itself."""
    claude = claude_code(tmp_path)
    said = claude("plugin", "validate", "--strict", PLUGIN)
    assert said.returncode == 0, said.stdout + said.stderr
    with scripted_model([lambda messages: "done"]) as (address, _):
        said = claude(
            *("-p", "hello", "--plugin-dir", PLUGIN, "--output-format", "stream-json", "--verbose"),
            environment={
                "ANTHROPIC_BASE_URL": address,
                "ANTHROPIC_API_KEY": "none",
                "WORKFLOWS_MCP_COMMAND": "false",
            },
        )
    told = [json.loads(line) for line in said.stdout.splitlines()]
    [begun] = [it for it in told if it["type"] == "system" and it.get("subtype") == "init"]
    own = {f"workflows:{path.parent.name}" for path in PLUGIN.glob("skills/*/SKILL.md")}
    assert {"workflows:following-workflows", f"workflows:{SKILL.parent.name}"} <= own <= {*begun["skills"]}
