"""A workflow with three questions, and a model that carries it out: what it does wrong, it mends from the error
alone, so what an error does not say is not known to it.

    turns = Announcer("mcp__workflows__").turns     # for `scripted_model`; the same for every agent

Each turn says why it is there; `shown` keeps what the model was shown after each, by the name of the turn.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable
from typing import Any

from support.model_apis import Said
from support.scripted_model import last_output, last_result

ANNOUNCE = """\
name: announce
description: Announces a release of a project where its users are
inputs:
  project: {type: string, required: true, description: What is announced}
default_state: {raw: {}}
steps:
  - id: channel
    type: user_input
    prompt: "Where is {{ project }} announced?"
    validation: {choices: [mailing-list, forum]}
    state_update: {path: raw.channel}
  - id: draft
    type: agent_shell_command
    command: "./draft.sh {{ channel }}"
    state_update: {path: raw.draft}
  - id: approve
    type: user_input
    prompt: "Send it to the {{ channel }}?"
    prompt_type: confirm
    state_update: {path: raw.approved}
"""
BAD = "name: bad\nblocks:\n" + "".join(f"  - {{id: block{it}, type: Shel}}\n" for it in range(200))
"""So much is wrong with it that it cannot all be said at once."""
DRAFT = {"exit_code": 0, "stdout": "Ada 2 is out", "stderr": ""}
Messages = list[dict[str, Any]]


class Announcer:
    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.shown: dict[str, str] = {}
        """What the model was shown of each call, by the name of the turn that made it."""
        self.run_id = ""
        self.status = ""
        self._last: Callable[[Messages], Said] | None = None

    @property
    def turns(self) -> list[Callable[[Messages], Said]]:
        return [
            self._noted(turn)
            for turn in (
                self.discover,
                self.look,
                self.write_a_bad_definition,
                self.misspell_the_workflow,
                self.misspell_an_input,
                self.start,
                self.answer_beside_the_schema,
                self.answer_by_the_schema,
                self.misspell_the_step,
                self.name_the_step,
                self.misspell_an_argument,
                self.confirm,
                self.read,
                self.tell,
            )
        ]

    def _noted(self, turn: Callable[[Messages], Said]) -> Callable[[Messages], Said]:
        def noted(messages: Messages) -> Said:
            if self._last is not None:
                self.shown[self._last.__name__] = last_output(messages)
            self._last = turn
            return turn(messages)

        return noted

    def _call(self, tool: str, **arguments: Any) -> Said:
        return f"{self.prefix}{tool}", arguments

    # What each turn says

    def discover(self, messages: Messages) -> Said:
        return self._call("list_workflows", query="release users")

    def look(self, messages: Messages) -> Said:
        [found] = last_result(messages)["workflows"]
        return self._call("get_workflow_info", workflow=found["name"])

    def write_a_bad_definition(self, messages: Messages) -> Said:
        assert last_result(messages)["inputs"]["required"] == ["project"]
        return self._call("start_workflow", yaml=BAD)

    def misspell_the_workflow(self, messages: Messages) -> Said:
        return self._call("start_workflow", workflow="anounce", inputs={"project": "Ada"})

    def misspell_an_input(self, messages: Messages) -> Said:
        return self._call("start_workflow", workflow=_meant(messages), inputs='{"projct": "Ada"}')

    def start(self, messages: Messages) -> Said:
        inputs = json.dumps({_meant(messages): "Ada"})  # as text, which is how some models send objects
        return self._call("start_workflow", workflow="announce", inputs=inputs)

    def answer_beside_the_schema(self, messages: Messages) -> Said:
        asked = last_result(messages)
        self.run_id = asked["workflow_id"]
        return self._submit(asked["action"]["step_id"], "the mailing list")

    def answer_by_the_schema(self, messages: Messages) -> Said:
        schema = _json_after("must fit ", last_output(messages))
        [(field, described)] = schema["properties"].items()
        [nearest] = difflib.get_close_matches("the mailing list", described["enum"], n=1)
        return self._submit("channel", {field: nearest})

    def misspell_the_step(self, messages: Messages) -> Said:
        asked = last_result(messages)["action"]
        assert asked["parameters"]["command"] == "./draft.sh mailing-list"
        return self._submit("drafts", DRAFT)

    def name_the_step(self, messages: Messages) -> Said:
        asked = _json_after("what is asked now: ", last_output(messages))
        assert asked["step_id"] == _meant(messages)
        return self._submit(asked["step_id"], json.dumps(DRAFT))

    def misspell_an_argument(self, messages: Messages) -> Said:
        asked = last_result(messages)["action"]
        return self._call("submit_result", workflow_id=self.run_id, step=asked["step_id"], result="yes")

    def confirm(self, messages: Messages) -> Said:
        arguments = {"workflow_id": self.run_id, _meant(messages): "approve", "result": '{"input": "yes"}'}
        return self._call("submit_result", **arguments)

    def read(self, messages: Messages) -> Said:
        ended = last_result(messages)
        self.status = ended["status"]
        assert f"get_workflow_state(workflow_id='{self.run_id}')" in ended["next"]
        return self._call("get_workflow_state", workflow_id=self.run_id)

    def tell(self, messages: Messages) -> Said:
        return f"{self.status}: {last_result(messages)['state']['draft']}"

    def _submit(self, step_id: str, result: Any) -> Said:
        return self._call("submit_result", workflow_id=self.run_id, step_id=step_id, result=result)


def _meant(messages: Messages) -> str:
    """What the error says that was meant."""
    error = last_output(messages)
    meant = re.search(r"did you mean '([^']+)'", error)
    assert meant is not None, error
    return meant[1]


def _json_after(words: str, text: str) -> dict[str, Any]:
    _, found, rest = text.partition(words)
    assert found, text
    value: dict[str, Any] = json.JSONDecoder().raw_decode(rest)[0]
    return value
