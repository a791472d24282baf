"""Skills over MCP (SEP-2640): those of the plugin, and workflows themselves, with digests that hold."""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from mcp import Client
from mcp.shared.exceptions import MCPError

from support.in_memory import Desk, called
from support.inspector import PACKAGE, inspector
from support.node import npm_package
from support.skills_client import SKILLS, pages_of, skill, skills_of, text_at
from workflows_mcp.answers.actions import Action
from workflows_mcp.mcp_server.skills import LISTED, unique_names
from workflows_mcp.mcp_server.toolsets import tools_of
from workflows_mcp.settings.model import TOOLSETS

pytestmark = pytest.mark.rows("P10")

ROOT = Path(__file__).resolve().parents[2]
OF_THE_PLUGIN = ROOT / "plugin" / "skills"
FOLLOWING = "skill://following-workflows/SKILL.md"
WRITING = "skill://writing-workflows/SKILL.md"

GREET = """\
name: Team:Greet it
description: |
  Greets: "somebody" | é 🎉
  --- in two lines
inputs:
  who: {type: string, required: true, description: Whom}
  loud: {type: boolean, default: false}
blocks:
  - {id: hello, type: Shell, inputs: {command: 'echo "Hello ${inputs.who}"'}}
outputs: {said: "${blocks.hello.outputs.stdout}"}
"""
GREET_SKILL = "skill://workflows/team-greet-it/SKILL.md"


def of_workflow(name: str) -> str:
    return f"name: {name}\nblocks:\n  - {{id: a, type: Shell, inputs: {{command: 'true'}}}}\n"


def frontmatter_of(text: str) -> dict[str, Any]:
    _, head, _ = text.split("---\n", 2)
    found = yaml.safe_load(head)
    assert isinstance(found, dict)
    return found


async def assert_verified(client: Client, entry: dict[str, Any]) -> str:
    """Check an entry as a host does: digest, size, frontmatter, name. Return the text."""
    [file] = entry["resources"]
    assert file["uri"] == entry["uri"]
    text = await text_at(client, file["uri"])
    assert file["size"] == len(text.encode())
    assert file["digest"] == f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
    assert frontmatter_of(text) == entry["frontmatter"]
    assert entry["uri"].split("/")[-2] == entry["frontmatter"]["name"]
    assert re.fullmatch(r"(?!.*--)[a-z0-9]([a-z0-9-]{0,62}[a-z0-9])?", entry["frontmatter"]["name"])
    assert 0 < len(entry["frontmatter"]["description"]) <= 1024
    return text


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def test_the_skills_of_the_plugin_are_served_byte_for_byte_and_all_of_their_files(desk: Desk) -> None:
    files = {
        f"skill://{path.relative_to(OF_THE_PLUGIN).as_posix()}": path.read_text(encoding="utf-8")
        for path in OF_THE_PLUGIN.rglob("*")
        if path.is_file()
    }
    assert {FOLLOWING, WRITING} <= set(files)

    async def work(client: Client) -> None:
        entries = await skills_of(client)
        served = {file["uri"] for entry in entries.values() for file in entry["resources"]}
        assert {uri for uri in served if not uri.startswith("skill://workflows/")} == set(files)
        for uri, text in files.items():
            assert await assert_verified(client, await skill(client, uri)) == text

    desk.serve(work)


def test_a_workflow_is_a_skill_by_which_an_agent_can_run_it(desk: Desk) -> None:
    desk.define("greet", GREET)

    async def work(client: Client) -> None:
        entry = (await skills_of(client))[GREET_SKILL]
        assert entry == await skill(client, GREET_SKILL)
        text = await assert_verified(client, entry)
        assert entry["frontmatter"]["name"] == "team-greet-it"
        assert entry["frontmatter"]["description"].startswith("Runs the workflow Team:Greet it. Greets:")
        assert "- `who` (required): Whom; string" in text
        assert "- `loud` (optional): boolean; default false" in text
        assert FOLLOWING in text
        [(tool, name)] = re.findall(r'Call `(\w+)` .* with `workflow`: ("[^"]*")', text)
        run = await called(client, tool, workflow=json.loads(name), inputs={"who": "Ada"})
        assert run["outputs"] == {"said": "Hello Ada\n"}

    desk.serve(work)


def test_every_listed_skill_holds_what_its_entry_says(desk: Desk) -> None:
    async def work(client: Client) -> None:
        entries = await skills_of(client)
        assert len(entries) > 30, "with the workflows of the library"
        for entry in entries.values():
            await assert_verified(client, entry)

    desk.serve(work)


def test_the_server_declares_the_extension_and_says_how_long_a_list_holds(desk: Desk) -> None:
    async def work(client: Client) -> None:
        declared = client.server_capabilities.extensions or {}
        assert declared[SKILLS] == {}
        [page] = await pages_of(client)
        assert page.model_extra is not None
        assert {"ttlMs": 0, "cacheScope": "private"}.items() <= page.model_extra.items()

    desk.serve(work)


def test_a_workflow_that_cannot_run_is_no_skill_and_one_of_the_project_replaces_that_of_the_library(
    desk: Desk,
) -> None:
    desk.define("broken", "name: broken\nblocks:\n  - {id: a, type: Nothing}\n")
    desk.define("hello", of_workflow("hello") + "description: Ours\n")

    async def work(client: Client) -> None:
        entries = await skills_of(client)
        assert "skill://workflows/broken/SKILL.md" not in entries
        assert entries["skill://workflows/hello/SKILL.md"]["frontmatter"]["description"].endswith("Ours")

    desk.serve(work)


def test_a_changed_file_has_a_new_digest_and_one_that_is_gone_is_unknown(desk: Desk) -> None:
    file = desk.define("greet", GREET)

    async def work(client: Client) -> None:
        before = await skill(client, GREET_SKILL)
        file.write_text(GREET.replace("Whom", "Who is greeted"), encoding="utf-8")
        after = await skill(client, GREET_SKILL)
        assert after["resources"] != before["resources"]
        assert "Who is greeted" in await assert_verified(client, after)
        file.unlink()
        with pytest.raises(MCPError, match="Unknown skill"):
            await skill(client, GREET_SKILL)

    desk.serve(work)


def test_a_skill_is_made_once_as_long_as_its_file_is_the_same(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.define("greet", GREET)
    from workflows_mcp.mcp_server import skills

    made: list[str] = []
    make = skills._skill_of

    def counted(uri: str, *more: Any) -> skills.Skill:
        made.append(uri)
        return make(uri, *more)

    monkeypatch.setattr(skills, "_skill_of", counted)

    async def work(client: Client) -> None:
        assert made == [], "nothing is made before a client asks"
        await skill(client, GREET_SKILL)
        assert made == [GREET_SKILL]
        for _ in range(2):
            await skills_of(client)
        assert made.count(GREET_SKILL) == 1

    desk.serve(work)


def test_a_long_list_comes_in_pages_each_skill_once(desk: Desk) -> None:
    for number in range(LISTED + 5):
        desk.define(f"many-{number}", of_workflow(f"many-{number}"))

    async def work(client: Client) -> None:
        pages = await pages_of(client)
        assert len(pages) > 1
        listed = [entry["uri"] for page in pages for entry in page.skills]
        assert len(listed) == len(set(listed))
        own = {f"skill://workflows/many-{number}/SKILL.md" for number in range(LISTED + 5)}
        assert own <= set(listed)

    desk.serve(work)


def test_workflows_whose_names_become_the_same_are_told_apart() -> None:
    names = unique_names(["a:b", "a/b", "a-b", "A b", "é", "ü", "x" * 80, "x" * 81, "ok"])
    assert names["a-b"] == "a-b"
    assert names["ok"] == "ok"
    assert len(set(names.values())) == len(names)
    for name in names.values():
        assert re.fullmatch(r"(?!.*--)[a-z0-9]([a-z0-9-]{0,62}[a-z0-9])?", name), name
    assert unique_names(["standards:fix"]) == {"standards:fix": "standards-fix"}


def test_an_unknown_skill_is_an_invalid_parameter_with_the_nearest_spelling(desk: Desk) -> None:
    async def work(client: Client) -> None:
        for ask in (skill, text_at):
            with pytest.raises(MCPError, match="did you mean") as refused:
                await ask(client, "skill://following-workflow/SKILL.md")
            assert refused.value.error.code == -32602

    desk.serve(work)


def test_clients_of_the_handshake_era_read_the_skills_of_the_plugin_as_resources(desk: Desk) -> None:
    async def work(client: Client) -> None:
        listed = {str(it.uri): it for it in (await client.list_resources()).resources}
        assert {uri for uri in listed if uri.startswith("skill://")} == {FOLLOWING, WRITING}
        assert listed[FOLLOWING].name == "following-workflows"
        assert listed[FOLLOWING].description
        assert (await text_at(client, FOLLOWING)).startswith("---\nname: following-workflows\n")
        with pytest.raises(MCPError):
            await skills_of(client)

    desk.serve(work, mode="legacy")


@pytest.mark.parametrize(
    ("more", "start"),
    [
        ({"WORKFLOWS_TOOLSETS": "core"}, "start_workflow"),
        ({"WORKFLOWS_TOOLSETS": "stateful"}, "start_workflow"),
        ({"WORKFLOWS_TOOLSETS": "reactive"}, "workflow_start"),
        ({"WORKFLOWS_TOOLSETS": "graph"}, "execute_workflow"),
    ],
)
def test_the_skill_of_a_workflow_names_the_tool_that_is_there(
    desk: Desk, more: dict[str, str], start: str
) -> None:
    desk.define("greet", GREET)

    async def work(client: Client) -> None:
        assert f"Call `{start}`" in await text_at(client, GREET_SKILL)
        assert start in {tool.name for tool in (await client.list_tools()).tools}

    desk.serve(work, more=more)


@pytest.mark.parametrize(
    ("more", "there"),
    [
        ({"WORKFLOWS_READ_ONLY": "true"}, {WRITING}),
        ({"WORKFLOWS_TASK": "wf_1.review.0"}, {FOLLOWING, WRITING}),
    ],
)
def test_a_server_that_starts_no_runs_has_no_workflow_as_a_skill(
    desk: Desk, more: dict[str, str], there: set[str]
) -> None:
    desk.define("greet", GREET)

    async def work(client: Client) -> None:
        assert set(await skills_of(client)) == there
        with pytest.raises(MCPError, match="Unknown skill"):
            await text_at(client, GREET_SKILL)

    desk.serve(work, more=more)


# ---- the skill for following workflows

TEXT = (OF_THE_PLUGIN / "following-workflows" / "SKILL.md").read_text(encoding="utf-8")
TYPES = {"user_input", "prompt", "parallel_tasks", "foreach", "error", "workflows"}
"""What is named and is no argument or field of a tool."""
OF_ANSWERS = {
    *Action.__struct_fields__,
    *("rejected_because", "results_left", "decisions", "message", "how"),
}


def words_of(schema: object) -> set[str]:
    if isinstance(schema, dict):
        own = {*schema.get("properties", {}), *(it for it in schema.get("enum", ()) if isinstance(it, str))}
        return own.union(*(words_of(value) for value in schema.values()))
    if isinstance(schema, list):
        return set().union(*(words_of(value) for value in schema))
    return set()


def test_following_workflows_names_no_tool_or_field_that_there_is_not() -> None:
    tools = tools_of(TOOLSETS) + tools_of(("core",))
    known = {*TOOLSETS, *TYPES, *OF_ANSWERS, *(tool.name for tool in tools)}
    for tool in tools:
        known |= words_of(tool.parameters) | words_of(tool.output_schema)
    named = {it for it in re.findall(r"`([^`]+)`", TEXT) if re.fullmatch(r"[A-Za-z_]+", it)}
    assert {"submit_result", "pending_action", "context_full", "cancel"} <= named
    assert named - known == set()


def test_following_workflows_says_how_the_calls_are_named_in_each_toolset() -> None:
    rows = re.findall(r"^\| `(\w+)`.* \| `(\w+)` \| `(\w+)` \|$", TEXT, re.M)
    served = {
        toolset: {tool.name for tool in tools_of((toolset,))}
        for toolset in ("core", "stateful", "reactive", "graph")
    }
    assert len(rows) == 5
    for core, reactive, graph in rows:
        assert core in served["core"] & served["stateful"]
        assert reactive in served["reactive"]
        assert graph in served["graph"]


def test_following_workflows_says_how_to_leave_a_run_and_that_a_gate_is_for_humans() -> None:
    leaving = TEXT.partition("## Leaving a run")[2].partition("\n## ")[0]
    for action in ("context_full", "resume", "cancel", "retry"):
        assert f"`action` `{action}`" in leaving
    assert "no tool call of yours can decide it" in TEXT
    assert len(TEXT) < 6_000, "it is read as a whole when it is needed"


# ---- clients that nobody here wrote


@pytest.mark.slow
def test_the_inspector_verifies_every_skill(tmp_path: Path) -> None:
    npm_package(PACKAGE)
    desk = Desk(tmp_path)
    desk.define("greet", GREET)
    server = (sys.executable, "-m", "workflows_mcp", "serve")
    environment = {"WORKFLOWS_HOME": str(desk.home), "PATH": os.environ["PATH"]}
    with inspector(server, "modern", cwd=desk.workspace, environment=environment) as client:
        said = client.run(
            "launcher/build/index.js",
            *("--cli", *server, "--protocol-era", "modern", "--method", "skills/list"),
            *("--verify", "--format", "json"),
        )
    assert said.returncode == 0, said.stdout[-3000:] + said.stderr
    reports = {it["uri"]: it for it in map(json.loads, said.stdout.splitlines())}
    assert {FOLLOWING, WRITING, GREET_SKILL} <= set(reports)
    assert {it["outcome"] for it in reports.values()} == {"verified"}
    assert [it for it in reports.values() if it["conformance"] or it["frontmatter"]] == []
