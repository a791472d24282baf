"""Which tools `allow_tools` allows, and which calls no agent may make while it has a run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from workflows_mcp.runs.tool_rules import Store, ToolUse, forbidden, not_allowed, path_matches

pytestmark = pytest.mark.rows("P4")

DIRECTORY = "/src/project"
HOME = "/data/workflows-mcp"
STORE = Store((HOME, "/tmp/workflows-mcp-0"), (f"{HOME}/scratch",), (4711,))


def bash(command: str) -> ToolUse:
    return ToolUse("Bash", {"command": command}, DIRECTORY)


def edit(path: str, tool: str = "Edit") -> ToolUse:
    return ToolUse(tool, {"file_path": path, "new_string": "x"}, DIRECTORY)


PATCH = "*** Begin Patch\n*** Update File: {}\n@@\n-a\n+b\n*** End Patch\n"


@pytest.mark.parametrize(
    ("patterns", "command"),
    [
        (["Bash"], "rm -rf x | sh"),
        (["*"], "anything"),
        (["Bash(*)"], "make"),
        (["Bash(pytest:*)"], "pytest"),
        (["Bash(pytest:*)"], "pytest -q tests/a.py"),
        (["Bash(pytest:*)"], "cd src && pytest -q; echo done"),
        (["Bash(pytest:*)"], "pytest -q > /dev/null 2>&1"),
        (["Bash(pytest:*)"], "for i in 1 2; do pytest; done"),
        (["Bash(npm run test)"], "npm run test"),
        (["Bash(git * main)"], "git push origin main"),
        (["Bash(git log *)"], "git log"),
        (["Bash(pytest:*)", "Bash(tee:*)"], "pytest | tee log.txt"),
        (["Bash(pytest:*)", "Edit"], "pytest > log.txt"),
        (["Bash(pytest:*)", "Edit(logs/**)"], "pytest > logs/today/a.txt"),
        (["Edit"], f"apply_patch <<'EOF'\n{PATCH.format('a.py')}EOF\n"),
    ],
)
def test_a_command_is_allowed_if_every_command_in_it_is(patterns: list[str], command: str) -> None:
    assert not_allowed(patterns, bash(command)) == ""


@pytest.mark.parametrize(
    ("patterns", "command", "why"),
    [
        (["Bash(pytest:*)"], "pytest2", "`pytest2` is not allowed"),
        (["Bash(pytest:*)"], "pytest && rm -rf build", "`rm -rf build` is not allowed"),
        (["Bash(pytest:*)"], "pytest $(rm x)", "`rm x` is not allowed"),
        (["Bash(pytest:*)"], "pytest `rm x`", "`rm x` is not allowed"),
        (["Bash(pytest:*)"], 'pytest "${A:-$(rm x)}"', "`rm x` is not allowed"),
        (["Bash(pytest:*)"], "pytest <(rm x)", "`rm x` is not allowed"),
        (["Bash(pytest:*)"], "pytest\nrm x", "`rm x` is not allowed"),
        (["Bash(pytest:*)"], "pytest & rm x", "`rm x` is not allowed"),
        (["Bash(pytest:*)"], "pytest | sh", "`sh` is not allowed"),
        (["Bash(pytest:*)"], "if true; then rm x; fi", "`rm x` is not allowed"),
        (["Bash(pytest:*)"], "f() { rm x; }; f", "`rm x` is not allowed"),
        (["Bash(pytest:*)"], "cat <<EOF\n$(rm x)\nEOF\n", "`cat` is not allowed"),
        (["Bash(pytest:*)"], "p''ytest2", "`pytest2` is not allowed"),
        (["Bash(pytest:*)"], "$CMD -q", "is not allowed"),
        (["Bash(pytest:*)"], "pytest > a.txt", "writing to a.txt is not allowed"),
        (["Bash(pytest:*)"], "echo x >> .bashrc", "writing to .bashrc is not allowed"),
        (["Bash(pytest:*)", "Edit(logs/**)"], "pytest > a.txt", "writing to a.txt is not allowed"),
        (["Bash(pytest:*)"], "PATH=/evil pytest", "setting PATH for a command is not allowed"),
        (["Bash(npm run test)"], "npm run test2", "`npm run test2` is not allowed"),
        (["Edit"], "pytest", "`pytest` is not allowed"),
        ([], "pytest", "`pytest` is not allowed"),
        (["Edit(src/**)"], f"apply_patch <<'EOF'\n{PATCH.format('a.py')}EOF\n", "is not allowed"),
    ],
)
def test_a_command_that_is_hidden_in_another_one_is_not_allowed(
    patterns: list[str], command: str, why: str
) -> None:
    assert why in not_allowed(patterns, bash(command))


@pytest.mark.parametrize(
    ("patterns", "use"),
    [
        (["Edit"], edit("a.py")),
        (["Edit"], edit("a.py", "Write")),
        (["Write"], edit("a.py", "Edit")),
        (["Edit"], ToolUse("apply_patch", {"input": PATCH.format("a.py")}, DIRECTORY)),
        (["Edit(src/**)"], edit("src/deep/a.py")),
        (["Edit(src/**)"], edit(f"{DIRECTORY}/src/a.py")),
        (["Edit(*.md)"], edit("docs/a.md")),
        ([], ToolUse("Read", {"file_path": "/etc/hosts"}, DIRECTORY)),
        (["Read(src/**)"], ToolUse("Grep", {"path": "src", "pattern": "x"}, DIRECTORY)),
        (["Edit(src/**)"], ToolUse("Edit", {"file_path": "a.py"}, f"{DIRECTORY}/src/deep", DIRECTORY)),
        ([], ToolUse("AskUserQuestion", {})),
        ([], ToolUse("TodoWrite", {"todos": []})),
        ([], ToolUse("update_plan", {})),
        (["Task"], ToolUse("Agent", {"prompt": "x"})),
        (["Agent"], ToolUse("multi_agent_v1spawn_agent", {"message": "x"})),
        ([], ToolUse("multi_agent_v1wait_agent", {"targets": []})),
        (["Agent(Explore)"], ToolUse("Agent", {"subagent_type": "Explore", "prompt": "x"})),
        (["mcp__github"], ToolUse("mcp__github__list_issues", {})),
        (["mcp__github__*"], ToolUse("mcp__github__list_issues", {})),
        (["mcp__github__list_*"], ToolUse("mcp__github__list_issues", {})),
        (["WebFetch(domain:example.com)"], ToolUse("WebFetch", {"url": "https://example.com/a?b"})),
        (["WebFetch(domain:*.example.com)"], ToolUse("WebFetch", {"url": "https://a.example.com:80/"})),
    ],
)
def test_tools_are_allowed_by_name_path_domain_and_server(patterns: list[str], use: ToolUse) -> None:
    assert not_allowed(patterns, use) == ""


@pytest.mark.parametrize(
    ("patterns", "use"),
    [
        (["Bash(pytest:*)"], edit("a.py")),
        (["Edit(src/**)"], edit("a.py")),
        (["Edit(src/**)"], edit("src/../a.py")),
        (["Edit(src/**)"], ToolUse("Edit", {"file_path": "src/a.py"}, f"{DIRECTORY}/lib", DIRECTORY)),
        (["Edit(src/**)"], ToolUse("apply_patch", {"input": PATCH.format("a.py")}, DIRECTORY)),
        (["Read(src/**)"], ToolUse("Read", {"file_path": "secrets.txt"}, DIRECTORY)),
        (["Edit"], ToolUse("Agent", {"prompt": "x"})),
        (["Edit"], ToolUse("WebFetch", {"url": "https://example.com"})),
        (["Agent(Explore)"], ToolUse("Agent", {"subagent_type": "general-purpose"})),
        (["mcp__github"], ToolUse("mcp__github2__x", {})),
        (["mcp__github__list_*"], ToolUse("mcp__github__delete", {})),
        (["WebFetch(domain:example.com)"], ToolUse("WebFetch", {"url": "https://example.com@evil.org/"})),
        (["WebFetch(domain:example.com)"], ToolUse("WebFetch", {"url": "https://evil.org/example.com"})),
        (["Edit"], ToolUse("PowerShell", {"command": "x"})),
    ],
)
def test_other_tools_are_not_allowed(patterns: list[str], use: ToolUse) -> None:
    assert use.name in not_allowed(patterns, use)


def test_a_link_does_not_lead_out_of_an_allowed_directory(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "out").symlink_to("/etc")
    assert path_matches("src/**", "src/a", str(tmp_path))
    assert not path_matches("src/**", "src/out/passwd", str(tmp_path))


@pytest.mark.parametrize(
    "command",
    [
        "workflows-mcp answer wf_1 approve",
        "/opt/venv/bin/workflows-mcp answer wf_1 approve",
        "uvx workflows-mcp answer wf_1 approve",
        "python -m workflows_mcp answer wf_1 approve",
        "python3 -c 'import workflows_mcp'",
        "python - <<'EOF'\nfrom workflows_mcp.runs import Service\nEOF",
        "workflows-'mcp' ans\\wer wf_1 approve",
        'w=workflows-mcp; "$w" answer wf_1 approve',
        "echo approve | script -qc 'workflows-mcp answer wf_1' /dev/null",
        "expect -c 'spawn workflows-mcp answer wf_1'",
        "$WORKFLOWS_MCP_COMMAND answer wf_1 approve",
        "env -u CLAUDECODE workflows-mcp answer wf_1 approve",
        "workflows-mcp budget wf_1 --agent-steps 1000",
        "workflows-mcp trust .",
        "echo '{}' | workflows-mcp hook",
        f"sqlite3 {HOME}/runs.db 'delete from runs'",
        f"rm -rf {HOME}",
        f"cd {HOME} && rm *",
        "rm /data/../data/workflows-mcp/sessions/x.json",
        "cd /data && rm workflows-mcp/runs.db",
        "rm ../../data/workflows-mcp/sessions/a.json",
        "dd of=/data/workflows-mcp/x",
        "rm /tmp/workflows-mcp-0/*",
        "export WORKFLOWS_HOOKS=off",
        "sed -i 's/x/disableAllHooks/' ~/.claude/settings.json",
        "pkill -f workflows-mcp",
        "kill -9 4711",
        "kill $(pgrep -f workflows_mcp)",
    ],
)
def test_no_command_of_an_agent_reaches_its_gates_its_store_or_its_server(command: str) -> None:
    assert forbidden(bash(command), STORE) != ""


@pytest.mark.parametrize(
    "command",
    [
        "workflows-mcp list",
        "workflows-mcp show wf_1",
        "workflows-mcp cancel wf_1",
        "git commit -m 'an answer'",
        f"cat {HOME}/scratch/wf_1/log.txt",
        "ls /data/workflows-mcp-other",
        "kill 4712",
        "python -c 'print(1)'",
        "cat ../other/file",
        "grep -rn 'answer' src",
    ],
)
def test_other_commands_are_not_held_back(command: str) -> None:
    assert forbidden(bash(command), STORE) == ""


@pytest.mark.parametrize(
    "use",
    [
        edit(f"{HOME}/runs.db"),
        edit("../../data/workflows-mcp/sessions/a.json"),
        edit("/tmp/workflows-mcp-0/abc", "Write"),
        ToolUse("apply_patch", {"input": PATCH.format(f"{HOME}/sessions/a.json")}, DIRECTORY),
        ToolUse("mcp__files__move", {"paths": [f"{HOME}/runs.db"]}, DIRECTORY),
        ToolUse(
            "Write", {"file_path": ".claude/settings.json", "content": '{"disableAllHooks": true}'}, "/p"
        ),
        ToolUse("Write", {"file_path": "/p/.codex/x", "content": "WORKFLOWS_HOOKS=off"}, "/p"),
    ],
    ids=lambda use: use.title,
)
def test_no_tool_changes_the_store_or_switches_off_the_hooks(use: ToolUse) -> None:
    assert forbidden(use, STORE) != ""


def test_files_beside_the_store_and_reading_it_are_not_held_back() -> None:
    for use in (
        edit("/data/workflows-mcp2/a"),
        edit(f"{HOME}/scratch/wf_1/a.txt"),
        edit("notes.md"),
        ToolUse("Write", {"file_path": "a.md", "content": f"runs are in {HOME}\nand WORKFLOWS_HOOKS"}, "/p"),
        ToolUse("Read", {"file_path": f"{HOME}/runs.db"}, DIRECTORY),
    ):
        assert forbidden(use, STORE) == "", use


def test_the_home_of_the_user_is_seen_in_its_short_spellings() -> None:
    home = os.path.expanduser("~")
    store = Store((f"{home}/.local/share/workflows-mcp",))
    for command in (
        "rm -rf ~/.local/share/workflows-mcp",
        'rm -rf "$HOME/.local/share/workflows-mcp/hooks"',
        "rm -rf ${HOME}/.local/share/workflows-mcp",
    ):
        assert forbidden(bash(command), store) != ""
    assert forbidden(bash("ls ~/.local/share"), store) == ""
