"""A run continues with a changed definition: what was done stays done, and must be unchanged."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from support.rendered import Service
from workflows_mcp.errors import InvalidInputs, RequestError
from workflows_mcp.settings.model import Settings

pytestmark = pytest.mark.rows("X3")

Work = Callable[[Service], Awaitable[None]]


class Place:
    def __init__(self, workspace: Path, settings: Settings) -> None:
        self.workspace = workspace
        self._settings = settings

    def serve(self, work: Work) -> None:
        async def session() -> None:
            async with Service.open(self._settings) as service:
                await work(service)

        asyncio.run(asyncio.wait_for(session(), 30))

    @property
    def said(self) -> list[str]:
        return (self.workspace / "log").read_text().split()


@pytest.fixture
def place(workspace: Path, settings: Settings) -> Place:
    return Place(workspace, settings)


GRAPH = """
name: release
inputs: {data: {type: object, default: {name: Ada}}}
blocks:
  - {id: build, type: Shell, inputs: {command: 'echo build >> log; printf 1.2'}}
  - {id: test, type: Shell, depends_on: [build], inputs: {command: 'echo test >> log; printf ok'}}
  - {id: notes, type: CreateFile, depends_on: [test], inputs: {path: notes, content: "v${inputs.data.nmae}"}}
outputs: {said: "${blocks.test.stdout}"}
"""
FIXED = GRAPH.replace("v${inputs.data.nmae}", "v${blocks.build.stdout}")

STATEFUL = """
name: release
initial_state: {}
steps:
  - {id: ask, type: prompt, prompt_type: text, message: Name?, output_to: name}
  - {id: build, type: shell, run_on: server, needs_state: [], command: 'echo build >> log; printf 1.2', output_to: built}
  - {id: notes, type: shell, run_on: server, needs_state: [built], command: 'exit 3', output_to: noted}
  - {id: check, type: condition, needs_state: [noted], if: "{{ state.noted.exit_code != 0 }}", then: [{id: gone, type: ReadFile, path: nowhere}]}
  - {id: end, type: return, needs_state: [name, built], value: "{{ state.name.input }} {{ state.built.stdout }}"}
"""

REACTIVE = """
name: release
default_state: {raw: {n: 1}}
steps:
  - {id: ask, type: user_input, prompt: "Name?", state_update: {path: raw.name}}
  - {id: build, type: shell_command, command: "echo build >> log; printf 1.2", state_update: {path: raw.built}}
  - {id: notes, type: state_update, path: raw.notes, value: "{{ nothing.at.all }}"}
  - {id: said, type: user_message, message: "{{ name }} {{ built }}"}
"""


async def failed(service: Service, text: str, *answers: str) -> str:
    answer = await service.start(text=text)
    for given in answers:
        answer = await service.submit(answer["workflow_id"], given)
    assert answer["status"] == "failed", answer
    return str(answer["workflow_id"])


def test_a_slip_in_the_last_block_costs_nothing_that_was_done(place: Place) -> None:
    async def work(service: Service) -> None:
        old = await failed(service, GRAPH)
        with pytest.raises(RequestError, match="would fail again"):
            await service.retry(old)
        done = await service.retry(old, text=FIXED)
        assert (done["status"], done["outputs"], done["forked_from"]) == ("completed", {"said": "ok"}, old)
        assert (place.workspace / "notes").read_text() == "v1.2"
        assert place.said == ["build", "test"]
        assert (await service.retry(old, text=FIXED))["workflow_id"] == done["workflow_id"]

    place.serve(work)


def test_a_step_of_a_sequence_that_failed_runs_with_its_new_definition(place: Place) -> None:
    async def work(service: Service) -> None:
        old = await failed(service, STATEFUL, "Ada")
        # the step that failed comes after one that was wrong, and has run: it must run again, too
        fixed = STATEFUL.replace("exit 3", "echo notes >> log")
        with pytest.raises(
            RequestError, match="'notes' has run, and its 'command' differs: \"exit 3\" → \"echo"
        ):
            await service.retry(old, text=fixed)
        done = await service.fork(old, "notes", text=fixed)
        assert (done["status"], done["result"]) == ("completed", "Ada 1.2")
        assert place.said == ["build", "notes"]
        # what had not run may be anything, also new steps
        more = STATEFUL.replace("nowhere}]}", "log}]}\n  - {id: more, type: set_state, updates: {x: 1}}")
        assert (await service.retry(old, text=more))["result"] == "Ada 1.2"
        assert place.said == ["build", "notes"]

    place.serve(work)


def test_a_reactive_run_keeps_its_state_and_its_answers(place: Place) -> None:
    async def work(service: Service) -> None:
        old = await failed(service, REACTIVE, "Lin")
        fixed = REACTIVE.replace("nothing.at.all", "name + built")
        with pytest.raises(RequestError, match="'build' has run, and is not there any more"):
            await service.retry(old, text=fixed.replace("id: build", "id: make"))
        with pytest.raises(
            RequestError, match="'ask' has run, and would not be reached after the steps before"
        ):
            await service.retry(
                old, text=fixed.replace("steps:", "steps:\n  - {id: new, type: wait, duration_seconds: 1}")
            )
        with pytest.raises(RequestError, match="'notes'"):
            await service.retry(old, text=REACTIVE)
        done = await service.retry(old, text=fixed)
        assert done["status"] == "completed"
        assert done["state"] == {"n": 1, "name": "Lin", "built": "1.2", "notes": "Lin1.2"}
        assert done["messages"] == ["Lin 1.2"]
        assert place.said == ["build"]

    place.serve(work)


def test_a_slip_in_an_output_is_fixed_without_running_anything_again(place: Place) -> None:
    text = FIXED.replace("${blocks.test.stdout}", "${inputs.data.nmae}")

    async def work(service: Service) -> None:
        old = await failed(service, text)
        done = await service.retry(old, text=FIXED)
        assert (done["status"], done["outputs"]) == ("completed", {"said": "ok"})
        assert place.said == ["build", "test"]
        listed = await service.recent()
        assert {it["status"] for it in listed} == {"completed", "failed"}

    place.serve(work)


def test_a_cancelled_run_and_one_that_waits_continue_with_a_changed_definition(place: Place) -> None:
    text = """
name: ask
blocks:
  - {id: build, type: Shell, inputs: {command: 'echo build >> log'}}
  - {id: ask, type: Prompt, depends_on: [build], inputs: {prompt: 'Old?'}}
"""
    new = text.replace("Old?", "New?")

    async def work(service: Service) -> None:
        run = (await service.start(text=text))["workflow_id"]
        forked = await service.fork(run, "ask", text=new)
        assert forked["action"]["parameters"] == {"prompt": "New?"}
        await service.cancel(forked["workflow_id"])
        back = await service.retry(forked["workflow_id"], text=text)
        assert back["action"]["parameters"] == {"prompt": "Old?"}
        assert (await service.submit(back["workflow_id"], "yes"))["status"] == "completed"
        assert place.said == ["build"]

    place.serve(work)


def test_inside_of_calls_and_items_what_was_done_is_kept_and_compared(place: Place) -> None:
    inner = """
name: inner
inputs: {n: {type: string}}
blocks:
  - {id: first, type: Shell, inputs: {command: 'echo first >> log'}}
  - {id: second, type: Shell, depends_on: [first], inputs: {command: 'echo second >> log; test ${inputs.n} != b'}}
"""
    outer = """
name: outer
blocks:
  - {id: each, type: ExecuteWorkflow, for_each: [a, b, c], inputs: {workflow: inner, inputs: {n: "${each.value}"}}}
"""
    file = place.workspace / ".workflows" / "inner.yaml"
    file.write_text(inner)

    async def work(service: Service) -> None:
        old = await failed(service, outer)
        file.write_text(inner.replace("first >> log", "1 >> log"))
        with pytest.raises(RequestError) as refused:
            await service.retry(old, text=outer)
        assert "'each/0/first' has run, and its 'inputs.command' differs" in refused.value.message
        assert "inner.yaml:5)" in refused.value.message
        file.write_text(inner.replace("test ${inputs.n} != b", "true"))
        with pytest.raises(RequestError, match="'each/0/second' has run"):
            await service.retry(old, text=outer)
        file.write_text(inner)
        (place.workspace / "b").touch()
        assert (await service.fork(old, "each", text=outer))["status"] == "failed"

    place.serve(work)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("echo build", "echo  build", "'build' has run, and its 'inputs.command' differs: \"echo build >> log; printf 1.2\" → \"echo  build"),
        (", depends_on: [build]", "", "'test' has run, and its 'depends_on' differs: [\"build\"] → null"),
        ("depends_on: [build], ", "condition: '${inputs.data.name} == 3', depends_on: [build], ",
         "'test' has run, and its 'condition' differs: null → "),
        ("blocks:\n", "blocks:\n  - {id: new, type: Prompt, inputs: {prompt: '?'}}\n", ""),
        ("depends_on: [build], ", "depends_on: [build, new], ", "'test' has run, and its 'depends_on' differs: [\"build\"] → [\"build\",\"new\"]"),
        ("name: release", "name: other", "it is the workflow 'other', and the run is one of 'release'"),
    ],
)  # fmt: skip
def test_a_change_of_what_was_done_is_refused_with_what_differs(
    place: Place, old: str, new: str, expected: str
) -> None:
    changed = FIXED.replace(old, new).replace("depends_on: [test]", "depends_on: [test, build]")
    if "new]" in new:
        changed = changed.replace(
            "blocks:\n", "blocks:\n  - {id: new, type: Prompt, inputs: {prompt: '?'}}\n"
        )

    async def work(service: Service) -> None:
        run = await failed(service, GRAPH)
        if not expected:  # a new block beside the others
            assert (await service.retry(run, text=changed))["action"]["step_id"] == "new"
            return
        with pytest.raises(RequestError) as refused:
            await service.retry(run, text=changed)
        assert expected in refused.value.message
        assert refused.value.code == "definition_changed"
        assert place.said == ["build", "test"]
        assert len(await service.recent()) == 1

    place.serve(work)


def test_a_definition_that_fails_again_or_needs_other_inputs_is_refused(place: Place) -> None:
    async def work(service: Service) -> None:
        run = await failed(service, GRAPH)
        with pytest.raises(
            RequestError, match="with this definition, the run would fail again: block 'notes'"
        ):
            await service.retry(run, text=GRAPH)
        with pytest.raises(InvalidInputs):
            await service.retry(
                run, text=FIXED.replace("inputs: {data", "inputs: {more: {type: string}, data")
            )
        added = FIXED.replace("inputs: {data", "inputs: {more: {type: string, default: x}, data")
        added = added.replace("v${blocks.build.stdout}", "${inputs.more}")
        assert (await service.retry(run, text=added))["status"] == "completed"
        assert (place.workspace / "notes").read_text() == "x"

    place.serve(work)


def test_a_changed_step_that_has_run_is_run_again_by_a_fork(place: Place) -> None:
    async def work(service: Service) -> None:
        run = await failed(service, GRAPH)
        changed = FIXED.replace("echo test", "echo again")
        done = await service.fork(run, "test", text=changed)
        assert (done["status"], place.said) == ("completed", ["build", "test", "again"])

    place.serve(work)


def test_a_definition_for_a_run_that_was_continued_already_is_used_or_refused(place: Place) -> None:
    async def work(service: Service) -> None:
        run_id = await failed(service, GRAPH)
        made = (await service.retry(run_id, text=FIXED))["workflow_id"]
        moved = FIXED.replace("blocks:", "# where things are does not matter\nblocks:")
        assert (await service.retry(run_id, text=moved))["workflow_id"] == made
        assert (await service.retry(run_id))["workflow_id"] == made
        with pytest.raises(RequestError, match=f"continued before, as {made}, with another") as refused:
            await service.retry(run_id, text=FIXED.replace('content: "v', 'content: "version '))
        assert refused.value.code == "continued_before"
        assert made in refused.value.hint
        assert place.said == ["build", "test"]

    place.serve(work)


INPUTS = """
name: adds
inputs: {n: {type: any, default: "7"}}
blocks:
  - {id: first, type: Shell, inputs: {command: 'echo first >> log'}}
  - {id: second, type: Shell, depends_on: [first], inputs: {command: 'echo ${inputs.n} >> log; test -e fixed'}}
outputs: {n: "${inputs.n}"}
"""


def test_a_run_with_a_changed_definition_is_retried_with_its_new_inputs(place: Place) -> None:
    async def work(service: Service) -> None:
        run_id = await failed(service, INPUTS)
        changed = INPUTS.replace('n: {type: any, default: "7"}', "n: {type: integer}, more: {default: 5}")
        changed = changed.replace("echo ${inputs.n} >>", "echo ${inputs.n} ${inputs.more} >>")
        again = await service.retry(run_id, text=changed)
        assert again["status"] == "failed"
        (place.workspace / "fixed").touch()
        done = await service.retry(again["workflow_id"])
        assert (done["status"], done["outputs"]) == ("completed", {"n": 7})
        forked = await service.fork(done["workflow_id"], "second")
        assert (forked["status"], forked["outputs"]) == ("completed", {"n": 7})
        assert place.said == ["first", *("7", *("7", "5") * 3)]

    place.serve(work)


ROUNDS = """
name: rounds
initial_state: {word: one, n: 0}
steps:
  - {id: say, type: shell, run_on: server, needs_state: [word], command: 'echo {{ state.word }} >> log'}
  - {id: next, type: set_state, needs_state: [n], updates: {word: two, n: "{{ state.n + 1 }}"}}
  - id: more
    type: condition
    needs_state: [n]
    if: "{{ state.n < 2 }}"
    then: [{id: back, type: goto, target: say, max_iterations: 3}]
  - {id: last, type: shell, run_on: server, needs_state: [], command: 'exit 3'}
"""


def test_an_earlier_round_that_would_go_otherwise_is_refused(place: Place) -> None:
    async def work(service: Service) -> None:
        run_id = await failed(service, ROUNDS)
        fixed = ROUNDS.replace("exit 3", "echo done >> log")
        with pytest.raises(
            RequestError, match="'say' has run, and its input 'command' would differ"
        ) as refused:
            await service.retry(run_id, text=fixed.replace("word: one", "word: other"))
        assert refused.value.code == "definition_changed"
        assert (await service.retry(run_id, text=fixed))["status"] == "completed"
        assert place.said == ["one", "two", "done"]

    place.serve(work)
