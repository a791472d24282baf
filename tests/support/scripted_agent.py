"""A command-line agent that does what a test says: it answers prompts from a script, and keeps a record of them.

agent = ScriptedAgent(tmp_path / "agent")
agent.answers("research this", '["a"]', '["b"]')     # the first time, and from the second time on
agent.answers("write", stderr="no access", code=3)
settings = Settings(…, agents={"helper": agent.command("helper")})
agent.prompts                                        # every prompt that it has got, in order
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from workflows_mcp.settings.agents import AgentCommand

_PROGRAM = """
import json, os, re, subprocess, sys, time
here = os.path.dirname(os.path.abspath(__file__))
prompt = sys.argv[-1] if "--argument" in sys.argv else sys.stdin.read()
ours = {name: value for name, value in os.environ.items() if name.startswith("WORKFLOWS_")}
call = {"prompt": prompt, "environment": ours, "pid": os.getpid(), "directory": os.getcwd()}
with open(os.path.join(here, "calls"), "a") as file:
    file.write(json.dumps(call) + "\\n")
script = json.load(open(os.path.join(here, "script.json")))
number, rule = next(it for it in enumerate(script) if re.search(it[1]["match"], prompt, re.S))
time_number = 0
while True:
    try:
        os.close(os.open(os.path.join(here, f"{number}-{time_number}"), os.O_CREAT | os.O_EXCL))
        break
    except FileExistsError:
        time_number += 1
if rule["children"]:
    child = "import os, time; open(os.path.join(%r, 'children'), 'a').write(str(os.getpid()) + chr(10)); time.sleep(600)"
    started = [subprocess.Popen([sys.executable, "-c", child % here], start_new_session=True) for _ in range(2)]
while rule["waits_for"] and not os.path.exists(os.path.join(here, rule["waits_for"])):
    time.sleep(0.01)
sys.stderr.write(rule["stderr"])
replies = rule["replies"]
if replies:
    sys.stdout.write(replies[min(time_number, len(replies) - 1)])
sys.exit(rule["code"])
"""


class ScriptedAgent:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.directory.mkdir()
        self.program = directory / "agent.py"
        self.program.write_text(_PROGRAM, encoding="utf-8")
        self._script: list[dict[str, Any]] = []
        self.answers("never asked")

    def answers(
        self,
        match: str,
        *replies: str,
        stderr: str = "",
        code: int = 0,
        waits_for: str = "",
        children: bool = False,
    ) -> None:
        """What it prints for a prompt that matches; the first rule that matches counts."""
        rule = {"match": match, "replies": replies, "stderr": stderr, "code": code}
        self._script.append({**rule, "waits_for": waits_for, "children": children})
        (self.directory / "script.json").write_text(json.dumps(self._script), encoding="utf-8")

    def continues(self, name: str) -> None:
        """Let the calls continue that wait for a file of this name."""
        (self.directory / name).touch()

    def argv(self, *more: str) -> list[str]:
        return [sys.executable, "-I", str(self.program), *more]

    def command(self, name: str, **more: Any) -> AgentCommand:
        return AgentCommand(name, tuple(self.argv()), **more)

    @property
    def calls(self) -> list[dict[str, Any]]:
        record = self.directory / "calls"
        return [json.loads(line) for line in record.read_text().splitlines()] if record.exists() else []

    @property
    def prompts(self) -> list[str]:
        return [call["prompt"] for call in self.calls]

    @property
    def children(self) -> list[int]:
        """The processes that its calls have started."""
        record = self.directory / "children"
        return [int(line) for line in record.read_text().splitlines()] if record.exists() else []
