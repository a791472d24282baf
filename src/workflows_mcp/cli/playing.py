"""The terminal plays the agent: what a run asks is answered from a file, by running a command, or by a
person.

There are no sub-agents here: what tasks ask is asked like everything else, one after the other.
"""

from __future__ import annotations

from typing import Any

from workflows_mcp.cli.answers import MISSING, Answers
from workflows_mcp.cli.asking import (
    agrees,
    as_typed,
    can_ask,
    needs_no_answer,
    read_answer,
    show_message,
    show_question,
)
from workflows_mcp.cli.printing import Paper, took
from workflows_mcp.errors import InvalidResult
from workflows_mcp.service import Service
from workflows_mcp.values import Value

_COMMANDS = {"shell": 1.0, "agent_shell_command": 0.001}
"""The actions that are commands, and how many seconds their timeouts are counted in."""
_NOT_YES = "commands are not run here (allow_commands is off): give the result instead"


class Player:
    def __init__(self, paper: Paper, answers: Answers, *, yes: bool) -> None:
        self.answers = answers
        self._paper = paper
        self._yes = yes
        self.failed: list[str] = []
        """The blocks of the run that have failed so far: whoever is asked should know."""
        self._asked: dict[str, Any] | None = None
        self._what = ""

    async def play(self, service: Service, answer: dict[str, Any]) -> bool:
        """Answer one thing that the run asks; false when nobody here can, or will."""
        run_id = answer["workflow_id"]
        actions = [answer["action"], *answer.get("more_actions", ())]
        for action in actions:
            value = self._known(action)
            if value is not MISSING:
                try:
                    await _submit(service, run_id, action, value)
                except InvalidResult as error:
                    self._paper.line(self._paper.paint(f"the answer in the file: {error.message}", "red"))
                    return False
                return True
        if self._yes and service.settings.allow_commands:
            for action in actions:
                if action["type"] in _COMMANDS:
                    show_question(self._paper, action)
                    await _submit(service, run_id, action, await self._run(service, action))
                    return True
        return can_ask() and await self._ask(service, run_id, actions[0])

    def _known(self, action: dict[str, Any]) -> Value:
        """The answer that nobody needs to be asked for."""
        value = self.answers.next(action["step_id"])
        if needs_no_answer(action):
            show_message(self._paper, action)
            return True if value is MISSING else value
        return value

    async def _ask(self, service: Service, run_id: str, action: dict[str, Any]) -> bool:
        """Ask a person until the answer fits; false when they give none."""
        self._asked, self._what = action, ""
        try:
            return await self._asked_until_it_fits(service, run_id, action)
        finally:
            self._asked = None

    def ask_again(self) -> None:
        """A block has failed while a person is asked: the question is shown again, with its name."""
        if self._asked is not None:
            self._show_question(self._asked)
            self._paper.stream.write(f"{self._what}> ")
            self._paper.stream.flush()

    def _show_question(self, action: dict[str, Any]) -> None:
        show_question(self._paper, action)
        if self.failed:
            self._paper.line(self._paper.paint(f"failed so far: {', '.join(self.failed)}", "red"))

    async def _asked_until_it_fits(self, service: Service, run_id: str, action: dict[str, Any]) -> bool:
        self._show_question(action)
        if action["type"] in _COMMANDS:
            if not service.settings.allow_commands:
                self._paper.line(_NOT_YES)
            elif await agrees(self._paper, "run this command?"):
                self._asked = None
                await _submit(service, run_id, action, await self._run(service, action))
                return True
        self._what = _what(action)
        while True:
            typed = await read_answer(self._paper, self._what)
            if typed is None:
                return False
            try:
                await _submit(service, run_id, action, as_typed(action, typed))
            except InvalidResult as error:
                self._paper.line(self._paper.paint(error.message, "red"))
                continue
            return True

    async def _run(self, service: Service, action: dict[str, Any]) -> Value:
        parameters = action["parameters"]
        seconds = parameters.get("timeout")
        if seconds is not None:
            seconds *= _COMMANDS[action["type"]]
        result = await service.acting.run_command(
            parameters["command"],
            seconds=seconds,
            directory=parameters.get("working_dir", ""),
            variables=parameters.get("env", {}),
        )
        how = f"exit code {result['exit_code']} in {took(result['duration'])}"
        self._paper.line(self._paper.paint(how, "dim"))
        known = action["result_schema"].get("properties", {})
        return {name: value for name, value in result.items() if name in known}


async def _submit(service: Service, run_id: str, action: dict[str, Any], value: Value) -> None:
    await service.submit(run_id, value, step_id=action["step_id"], wait_seconds=0)


def _what(action: dict[str, Any]) -> str:
    """What is to be typed, where that is not a plain answer."""
    return "" if action["type"] in ("prompt", "user_input") else "its result, as JSON or text "
