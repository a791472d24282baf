"""Doing some of a run again, in a new run: what it failed by, or a step that somebody chooses."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from support.rendered import Service
from workflows_mcp.errors import RequestError
from workflows_mcp.settings.model import Settings

pytestmark = pytest.mark.rows("X3")

Work = Callable[[Service], Awaitable[None]]


class Place:
    """Where commands of a workflow leave a line for each time that they are carried out, and find what they need."""

    def __init__(self, workspace: Path, settings: Settings) -> None:
        self.workspace = workspace
        self._settings = settings

    def serve(self, work: Work) -> None:
        async def session() -> None:
            async with Service.open(self._settings) as service:
                await work(service)

        asyncio.run(asyncio.wait_for(session(), 30))

    def define(self, name: str, text: str) -> None:
        (self.workspace / ".workflows" / f"{name}.yaml").write_text(text)

    def mend(self, what: str = "ready") -> None:
        (self.workspace / what).touch()

    @property
    def said(self) -> list[str]:
        return (self.workspace / "log").read_text().split()


@pytest.fixture
def place(workspace: Path, settings: Settings) -> Place:
    return Place(workspace, settings)


def shell(name: str, command: str = "true", *needs: str, more: str = "") -> str:
    needed = f"depends_on: [{', '.join(needs)}], " if needs else ""
    return f"  - {{id: {name}, type: Shell, {needed}{more}inputs: {{command: 'echo {name} >> log; {command}'}}}}\n"


SHIP = (
    "name: ship\nblocks:\n"
    + shell("build", "printf built > $RUN_SCRATCH/artifact")
    + shell("test", "test -f ready && cat $RUN_SCRATCH/artifact", "build")
    + shell("lint", "while ! grep -q test log; do sleep 0.01; done", "build")
    + "  - {id: ask, type: Prompt, depends_on: [test, lint], inputs: {prompt: 'Ship ${blocks.test.stdout}?'}}\n"
    + shell("ship", 'printf %s "${blocks.ask.response}"', "ask")
    + "outputs: {said: '${blocks.ship.stdout}'}\n"
)


def test_a_failed_run_is_tried_again_from_what_failed_and_keeps_what_was_done_beside_it(place: Place) -> None:
    async def work(service: Service) -> None:
        old = await service.start(text=SHIP)
        assert old["status"] == "failed"
        assert sorted(place.said) == ["build", "lint", "test"]
        place.mend()
        new = await service.retry(old["workflow_id"])
        assert (new["status"], new["forked_from"]) == ("pending_action", old["workflow_id"])
        assert new["workflow_id"] != old["workflow_id"]
        assert new["action"]["parameters"] == {"prompt": "Ship built?"}, "files of the run are there, too"
        assert sorted(place.said) == ["build", "lint", "test", "test"]
        same = await service.retry(old["workflow_id"])
        assert (same["workflow_id"], same["action"]) == (new["workflow_id"], new["action"])
        done = await service.submit(new["workflow_id"], "yes")
        assert (done["status"], done["outputs"]) == ("completed", {"said": "yes"})
        before = await service.status(old["workflow_id"])
        assert f"continued as {new['workflow_id']}: get_workflow_status(" in before["next"]
        assert "'retry'" not in before["next"]
        same = {name: it for name, it in before.items() if name not in ("next", "progress")}
        assert same.items() <= old.items()

    place.serve(work)


def test_a_retry_that_fails_too_can_be_tried_again_by_either_id(place: Place) -> None:
    async def work(service: Service) -> None:
        old = (await service.start(text=SHIP))["workflow_id"]
        second = await service.retry(old)
        assert second["status"] == "failed"
        third = await service.retry(old)
        assert third["status"] == "failed"
        assert len({old, second["workflow_id"], third["workflow_id"]}) == 3
        place.mend()
        last = await service.retry(second["workflow_id"])
        assert last["status"] == "pending_action"
        assert place.said.count("test") == 4
        assert place.said.count("build") == place.said.count("lint") == 1

    place.serve(work)


def test_how_long_a_step_took_counts_from_when_it_was_begun_again(place: Place) -> None:
    async def work(service: Service) -> None:
        old = (await service.start(text=SHIP))["workflow_id"]
        first = (await service.state(old, paths=["blocks.test.metadata.started_at"]))["values"]
        place.mend()
        new = (await service.retry(old))["workflow_id"]
        again = (await service.state(new, paths=["blocks.test.metadata.started_at"]))["values"]
        ended = (await service.state(old, paths=["blocks.lint.metadata.completed_at"]))["values"]
        (began,), (began_again,), (ended_at,) = first.values(), again.values(), ended.values()
        assert began < ended_at < began_again

    place.serve(work)


def test_every_block_that_made_it_fail_is_tried_again_and_none_whose_failure_was_put_up_with(
    place: Place,
) -> None:
    text = (
        "name: several\nblocks:\n"
        + shell("one", "test -f ready")
        + shell("two", "test -f ready")
        + shell("fine")
        + shell("loose", "false", more="on_failure: continue, ")
        + shell("last", "true", "one", "two")
    )

    async def work(service: Service) -> None:
        old = (await service.start(text=text))["workflow_id"]
        place.mend()
        assert (await service.retry(old))["status"] == "completed"
        assert sorted(place.said) == sorted(["one", "two", "fine", "loose", "one", "two", "last"])

    place.serve(work)


def test_inside_of_a_call_and_of_items_only_what_failed_is_tried_again(place: Place) -> None:
    place.define(
        "inner",
        "name: inner\ninputs: {n: {type: string}}\nblocks:\n"
        + shell("first", "echo ${inputs.n} >> log")
        + shell("second", "test ${inputs.n} != b || test -f ready", "first"),
    )
    text = """
name: outer
blocks:
  - id: each
    type: ExecuteWorkflow
    for_each: [a, b, c]
    inputs: {workflow: inner, inputs: {n: "${each.value}"}}
outputs: {count: "${blocks.each.count}"}
"""

    async def work(service: Service) -> None:
        old = (await service.start(text=text))["workflow_id"]
        assert place.said.count("second") == 3
        place.mend()
        new = await service.retry(old)
        assert (new["status"], new["outputs"]) == ("completed", {"count": 3})
        assert place.said.count("second") == 4
        assert place.said.count("first") == 3

    place.serve(work)


def test_a_step_that_timed_out_or_has_used_up_its_tries_is_carried_out_again(place: Place) -> None:
    text = (
        "name: slow\nblocks:\n"
        + shell("slow", "test -f ready || sleep 60", more="timeout: 0.2, ")
        + shell("often", "test -f ready", more="retry: {attempts: 2, delay: 0}, ")
    )

    async def work(service: Service) -> None:
        old = (await service.start(text=text))["workflow_id"]
        assert sorted(place.said) == ["often", "often", "slow"]
        place.mend()
        assert (await service.retry(old))["status"] == "completed"
        assert sorted(place.said) == ["often", "often", "often", "slow", "slow"]

    place.serve(work)


def test_a_call_that_timed_out_goes_on_where_it_was(place: Place) -> None:
    place.define(
        "inner",
        "name: inner\nblocks:\n" + shell("quick") + shell("slow", "test -f ready || sleep 60", "quick"),
    )
    text = """
name: outer
blocks:
  - {id: call, type: ExecuteWorkflow, inputs: {workflow: inner, timeout_ms: 300}}
"""

    async def work(service: Service) -> None:
        old = await service.start(text=text)
        assert (old["status"], old["error"]["code"]) == ("failed", "timeout")
        place.mend()
        assert (await service.retry(old["workflow_id"]))["status"] == "completed"
        assert place.said == ["quick", "slow", "slow"]

    place.serve(work)


def test_a_cancelled_run_goes_on_where_it_was(place: Place) -> None:
    async def work(service: Service) -> None:
        place.mend()
        old = await service.start(text=SHIP)
        assert old["status"] == "pending_action"
        await service.cancel(old["workflow_id"], reason="lunch")
        new = await service.retry(old["workflow_id"])
        assert (new["status"], new["action"]) == ("pending_action", old["action"])
        assert (await service.submit(new["workflow_id"], "yes"))["outputs"] == {"said": "yes"}
        assert place.said.count("build") == 1
        assert (await service.status(old["workflow_id"]))["status"] == "cancelled"

    place.serve(work)


TASKS = """
name: review
default_state: {raw: {seen: {}, errors: 0}}
steps:
  - {id: all, type: parallel_foreach, items: [0, 1, 2], sub_agent_task: one, max_parallel: 3}
  - {id: done, type: user_message, message: "{{ Object.keys(seen).length }} seen"}
sub_agent_tasks:
  one:
    steps:
      - {id: ask, type: mcp_call, method: look, params: {at: "{{ item }}"}, state_update: {path: "raw.seen.t{{ item }}"}}
      - {id: check, type: shell_command, command: "echo check{{ item }} >> log; test {{ item }} != 1 || test -f ready"}
"""


def test_what_agents_did_in_other_tasks_stays_done_also_what_came_after_the_failure(place: Place) -> None:
    place.define("review", TASKS)

    async def work(service: Service) -> None:
        run = (await service.start(workflow="review"))["workflow_id"]
        for task in (1, 0, 2):
            await service.submit(f"{run}.all.{task}", f"answer {task}", step_id="ask")
        old = await service.status(run, wait_seconds=10)
        assert old["status"] == "failed"
        place.mend()
        new = await service.retry(run, wait_seconds=10)
        assert new["status"] == "completed"
        assert new["state"]["seen"] == {f"t{number}": f"answer {number}" for number in range(3)}
        assert sorted(place.said) == ["check0", "check1", "check1", "check2"]

    place.serve(work)


STEPS = """
name: steps
initial_state: {count: 0, said: ""}
steps:
  - {id: ask, type: prompt, prompt_type: text, message: Name?, output_to: name}
  - {id: more, type: set_state, needs_state: [count], updates: {count: "{{ state.count + 1 }}"}}
  - id: build
    type: shell
    run_on: server
    command: "echo build >> log; test -f ready && printf built"
    output_to: built
    timeout: 10
  - {id: look, type: condition, needs_state: [count], if: "{{ state.count < 2 }}", then: [{id: back, type: goto, target: more, max_iterations: 3}]}
  - {id: sure, type: prompt, prompt_type: confirm, message: Sure?, output_to: sure}
  - {id: end, type: return, needs_state: [name, count, sure], value: "{{ state.name.input }} {{ state.count }} {{ state.sure.confirmed }}"}
"""


def test_a_step_of_a_sequence_is_done_again_in_its_last_round(place: Place) -> None:
    async def work(service: Service) -> None:
        place.mend()
        run = (await service.start(text=STEPS))["workflow_id"]
        asked = await service.submit(run, "Ada")
        assert asked["action"]["step_id"] == "sure"
        assert place.said == ["build", "build"]
        done = await service.submit(run, True)
        assert (done["status"], done["result"]) == ("completed", "Ada 2 true")

        again = await service.fork(run, "build")
        assert again["action"]["step_id"] == "sure"
        assert place.said == ["build"] * 3
        assert (await service.state(again["workflow_id"], paths=["state.count"]))["values"] == {
            "state.count": 2
        }

        asked = await service.fork(run, "ask")
        assert asked["action"]["step_id"] == "ask"
        await service.submit(asked["workflow_id"], "Lin")
        assert (await service.submit(asked["workflow_id"], False))["result"] == "Lin 2 false"
        assert place.said == ["build"] * 5

    place.serve(work)


def test_a_fork_from_a_block_does_it_again_with_what_depends_on_it_and_nothing_else(place: Place) -> None:
    async def work(service: Service) -> None:
        place.mend()
        # of a run that has completed, the files are gone
        run = (await service.start(text=SHIP.replace("cat $RUN_SCRATCH/artifact", "printf built")))[
            "workflow_id"
        ]
        await service.submit(run, "yes")
        new = await service.fork(run, "test")
        assert (new["status"], new["forked_from"]) == ("pending_action", run)
        assert sorted(place.said) == ["build", "lint", "ship", "test", "test"]
        other = await service.fork(run, "ask")
        assert other["workflow_id"] != new["workflow_id"]
        assert (await service.submit(other["workflow_id"], "no"))["outputs"] == {"said": "no"}
        assert (await service.fork(run, "ask", request_id="once"))["workflow_id"] == (
            await service.fork(run, "ask", request_id="once")
        )["workflow_id"]

    place.serve(work)


def test_a_fork_from_a_call_does_all_of_it_again_and_one_from_inside_only_that(place: Place) -> None:
    place.define("inner", "name: inner\nblocks:\n" + shell("first") + shell("second", "true", "first"))
    text = """
name: outer
blocks:
  - {id: call, type: ExecuteWorkflow, inputs: {workflow: inner}}
"""

    async def work(service: Service) -> None:
        run = (await service.start(text=text))["workflow_id"]
        assert (await service.fork(run, "call"))["status"] == "completed"
        assert place.said == ["first", "second"] * 2
        assert (await service.fork(run, "call/second"))["status"] == "completed"
        assert place.said == ["first", "second", "first", "second", "second"]

    place.serve(work)


def test_what_is_under_way_or_was_cut_off_by_a_cancel_can_be_forked_from(place: Place) -> None:
    async def work(service: Service) -> None:
        place.mend()
        run = (await service.start(text=SHIP))["workflow_id"]
        beside = await service.fork(run, "ask", keep=True)
        assert beside["action"]["step_id"] == "ask"
        end = f"control_workflow(workflow_id='{run}', action='cancel')"
        assert beside["messages"] == [f"The run {run} waits as before; to end it: {end}."]
        await service.submit(run, "yes")
        assert (await service.status(beside["workflow_id"]))["status"] == "pending_action"
        await service.cancel(beside["workflow_id"])
        assert (await service.fork(beside["workflow_id"], "ask"))["action"]["step_id"] == "ask"
        assert sorted(place.said) == ["build", "lint", "ship", "test"]

    place.serve(work)


def test_what_an_agent_wrote_into_the_state_after_the_step_is_not_there_when_it_is_done_again(
    place: Place,
) -> None:
    text = """
name: written
default_state: {raw: {note: none}}
steps:
  - {id: one, type: user_input, prompt: "1?", state_update: {path: raw.one}}
  - {id: two, type: user_input, prompt: "2?", state_update: {path: raw.two}}
"""
    place.define("written", text)

    async def work(service: Service) -> None:
        run = (await service.start(workflow="written"))["workflow_id"]
        await service.step_protocol.update(run, [{"path": "raw.note", "value": "before"}], None)
        await service.submit(run, "a")
        await service.step_protocol.update(run, [{"path": "raw.note", "value": "after"}], None)
        await service.submit(run, "b")
        new = (await service.fork(run, "one"))["workflow_id"]
        assert await service.step_protocol.read(new, (), None) == {"note": "before"}

    place.serve(work)


BROKEN = """
name: broken
blocks:
  - {id: a, type: Shell, inputs: {command: 'echo a >> log'}}
  - {id: b, type: Shell, depends_on: [a], condition: "${blocks.a.stdout} > 3", inputs: {command: 'echo b >> log'}}
"""


@pytest.mark.parametrize(
    ("text", "what", "expected"),
    [
        ("name: fine\nblocks:\n" + shell("a"), "retry", "has completed, so there is nothing to retry"),
        (SHIP, "retry", "is still running and has not failed"),
        (BROKEN, "retry", "would fail again: block 'b' failed"),
        (BROKEN, "fork b", "'b' follows from the steps before it, and cannot run again alone"),
        (SHIP, "fork shipp", "has not reached a step 'shipp'"),
        (SHIP, "fork ship", "has not reached a step 'ship'"),
    ],
)
def test_what_cannot_be_done_again_is_refused_with_what_can(
    place: Place, text: str, what: str, expected: str
) -> None:
    async def work(service: Service) -> None:
        place.mend()
        run = (await service.start(text=text))["workflow_id"]
        said = place.said
        action, _, step = what.partition(" ")
        with pytest.raises(RequestError) as refused:
            await (service.fork(run, step) if action == "fork" else service.retry(run))
        assert expected in refused.value.message
        assert "fork" in refused.value.hint or "it has run: build, lint, test" in refused.value.hint
        assert place.said == said
        assert [it["workflow_id"] for it in await service.recent()] == [run]

    place.serve(work)


def test_a_step_of_a_task_can_be_forked_from(place: Place) -> None:
    place.define("review", TASKS)

    async def work(service: Service) -> None:
        run = (await service.start(workflow="review"))["workflow_id"]
        await service.submit(f"{run}.all.0", "x", step_id="ask")
        forked = await service.fork(f"{run}.all.0", "ask")
        (task,) = [it for it in forked["action"]["parameters"]["tasks"] if it["task_id"].endswith("0")]
        assert (await service.next_step(task["workflow_id"]))["action"]["step_id"] == "ask"

    place.serve(work)


# Found by using it


@pytest.mark.parametrize(("limit", "broken"), [(1, "b"), (2, "b"), (2, "abc"), (1, "ae")])
def test_items_that_were_done_stay_done_however_few_are_carried_out_at_once(
    place: Place, limit: int, broken: str
) -> None:
    text = f"""
name: items
blocks:
  - id: each
    type: Shell
    for_each: [a, b, c, d, e]
    max_parallel: {limit}
    inputs:
      command: |
        echo ${{each.value}} >> log
        echo x > at-${{each.value}}; ls | grep -c ^at- >> crowd; sleep 0.05; rm at-${{each.value}}
        case {broken} in *${{each.value}}*) test -f ready;; esac
outputs: {{count: "${{blocks.each.count}}"}}
"""

    async def work(service: Service) -> None:
        old = await service.start(text=text)
        assert (old["status"], len(place.said)) == ("failed", 5)
        place.mend()
        new = await service.retry(old["workflow_id"])
        assert (new["status"], new["outputs"]) == ("completed", {"count": 5})
        assert sorted(place.said[5:]) == list(broken)
        assert max(int(line) for line in (place.workspace / "crowd").read_text().split()) <= limit

    place.serve(work)


def test_tasks_of_agents_that_were_done_stay_done_one_after_the_other(place: Place) -> None:
    text = """
name: review
steps:
  - {id: all, type: foreach, items: [0, 1, 2], task: one, agent: "@task", sequential: true, output_to: found}
  - {id: end, type: return, needs_state: [found], value: "{{ state.found }}"}
tasks:
  one:
    inputs: {n: {type: integer}}
    steps:
      - {id: look, type: mcp_call, tool: look, args: {n: "{{ inputs.n }}"}, output_to: seen, needs_state: []}
      - {id: check, type: shell, run_on: server, needs_state: [], output_to: checked,
         command: "echo check{{ inputs.n }} >> log; test {{ inputs.n }} != 0 || test -f ready"}
      - {id: judge, type: condition, needs_state: [checked], if: "{{ state.checked.exit_code != 0 }}",
         then: [{id: gone, type: ReadFile, path: nowhere}]}
      - {id: give, type: return, needs_state: [seen], value: "{{ state.seen }}"}
"""
    (place.workspace / "nowhere").unlink(missing_ok=True)

    async def work(service: Service) -> None:
        run = (await service.start(text=text))["workflow_id"]
        for number in range(3):
            await service.submit(f"{run}.all.{number}", f"seen {number}", step_id="look")
            await service.status(run, wait_seconds=10)
        old = await service.status(run, wait_seconds=10)
        assert old["status"] == "failed"
        (place.workspace / "nowhere").write_text("here")
        new = await service.retry(run)
        assert (new["status"], new["result"]) == ("completed", [f"seen {number}" for number in range(3)])
        assert place.said == ["check0", "check1", "check2"]

    place.serve(work)


@pytest.mark.parametrize("how", ["sequential: true", "max_parallel: 2", "max_parallel: 4"])
def test_tasks_that_were_done_in_a_fork_stay_done_when_the_fork_is_retried(place: Place, how: str) -> None:
    text = """
name: review
initial_state: {}
steps:
  - {id: all, type: foreach, needs_state: [], items: [p, q, r, s], task: one, agent: "@task", HOW, output_to: found}
  - {id: end, type: return, needs_state: [found], value: "{{ state.found }}"}
tasks:
  one:
    inputs: {n: {type: string}}
    steps:
      - {id: look, type: mcp_call, tool: look, args: {n: "{{ inputs.n }}"}, output_to: seen, needs_state: []}
      - {id: give, type: return, needs_state: [seen], value: "{{ state.seen }}"}
""".replace("HOW", how)
    broken = {"is_error": True, "error": "it is broken"}

    async def work(service: Service) -> None:
        run = (await service.start(text=text))["workflow_id"]
        for number in (0, 1):
            await service.submit(f"{run}.all.{number}", broken, step_id="look")
        fork = (await service.fork(f"{run}.all.1", "look"))["workflow_id"]
        for number, result in ((1, "seen q"), (2, broken), (3, "seen s")):
            await service.submit(f"{fork}.all.{number}", result, step_id="look")
        assert (await service.status(fork))["status"] == "failed"
        again = await service.retry(fork)
        new = again["workflow_id"]
        for number in (0, 2):
            tasks = (await service.status(new))["action"]["parameters"]["tasks"]
            assert tasks[0]["workflow_id"] == f"{new}.all.{number}"
            assert not any(it["task_id"] in ("all.1", "all.3") for it in tasks)
            await service.submit(f"{new}.all.{number}", f"seen {'pqrs'[number]}", step_id="look")
        ended = await service.status(new)
        assert (ended["status"], ended["result"]) == ("completed", [f"seen {it}" for it in "pqrs"])

    place.serve(work)


def test_one_retry_makes_one_run_however_soon_that_fails(place: Place) -> None:
    text = "name: quick\nblocks: [{id: read, type: ReadFile, inputs: {path: there.txt}}]\n"

    async def work(service: Service) -> None:
        old = (await service.start(text=text))["workflow_id"]
        for number in range(1, 4):
            failed = await service.retry(old)
            assert (failed["status"], len(await service.recent())) == ("failed", number + 1)
        (place.workspace / "there.txt").write_text("here")
        done = await service.retry(old)
        assert (done["status"], done["forked_from"]) == ("completed", failed["workflow_id"])
        assert (await service.retry(old))["workflow_id"] == done["workflow_id"]
        assert len(await service.recent()) == 5

    place.serve(work)


@pytest.mark.rows("R18")
def test_one_resume_makes_one_run_however_soon_that_fails(place: Place) -> None:
    place.define(
        "quick", "name: quick\ndefault_state: {raw: {}}\nsteps: [{id: r, type: ReadFile, path: x.txt}]\n"
    )

    async def work(service: Service) -> None:
        old = (await service.step_protocol.start("quick", {}, 10))["workflow_id"]
        assert (await service.step_protocol.resume(old, 10))["status"] == "failed"
        assert len(await service.recent()) == 2

    place.serve(work)


def test_a_call_that_timed_out_and_cleaned_up_goes_on_with_what_it_was_at(place: Place) -> None:
    place.define(
        "inner",
        """
name: inner
default_state: {raw: {}}
steps:
  - {id: a, type: shell_command, command: "echo a >> log"}
  - {id: b, type: shell_command, command: "echo b >> log; test -f ready || sleep 60"}
error_handling:
  on_failure: [{id: clean, type: shell_command, command: "echo clean >> log"}]
""",
    )
    text = """
name: outer
default_state: {raw: {}}
steps: [{id: call, type: include_workflow, workflow: inner, timeout: 400}]
"""

    async def work(service: Service) -> None:
        old = await service.start(text=text)
        assert (old["status"], old["error"]["code"], place.said) == ("failed", "timeout", ["a", "b", "clean"])
        place.mend()
        assert (await service.retry(old["workflow_id"]))["status"] == "completed"
        assert place.said == ["a", "b", "clean", "b"]
        assert (await service.fork(old["workflow_id"], "call/b"))["status"] == "completed"
        assert place.said == ["a", "b", "clean", "b", "b"]

    place.serve(work)


def test_what_failed_in_a_call_before_it_timed_out_is_tried_again_with_what_was_cut_off(place: Place) -> None:
    place.define(
        "inner",
        "name: inner\nblocks:\n"
        + shell("bad", "test -f ready")
        + shell("slow", "test -f ready || sleep 60", more="on_failure: continue, "),
    )
    text = "name: outer\nblocks: [{id: call, type: ExecuteWorkflow, inputs: {workflow: inner, timeout_ms: 300}}]\n"

    async def work(service: Service) -> None:
        old = (await service.start(text=text))["workflow_id"]
        assert sorted(place.said) == ["bad", "slow"]
        place.mend()
        assert (await service.retry(old))["status"] == "completed"
        assert sorted(place.said) == ["bad", "bad", "slow", "slow"]

    place.serve(work)


def test_chance_that_a_run_has_made_use_of_stays_what_it_was_in_a_fork_of_a_fork(place: Place) -> None:
    text = """
name: chance
default_state: {raw: {}}
steps:
  - {id: one, type: user_input, prompt: "1?", state_update: {path: raw.one}}
  - {id: draw, type: state_update, path: raw.id, value: "{{ uuid() }}"}
  - {id: two, type: user_input, prompt: "2?", state_update: {path: raw.two}}
"""

    async def work(service: Service) -> None:
        run = (await service.start(text=text))["workflow_id"]
        await service.submit(run, "a")
        first = (await service.fork(run, "one"))["workflow_id"]
        await service.submit(first, "b")
        second = (await service.fork(first, "two"))["workflow_id"]
        third = (await service.fork(second, "two"))["workflow_id"]
        drawn = [
            (await service.step_protocol.read(it, ("id",), None))["id"] for it in (run, first, second, third)
        ]
        assert drawn[0] != drawn[1] == drawn[2] == drawn[3]

    place.serve(work)


def test_what_an_agent_wrote_in_place_of_a_result_goes_with_its_step_and_stays_with_others(
    place: Place,
) -> None:
    place.define("review", TASKS)

    async def work(service: Service) -> None:
        run = (await service.start(workflow="review"))["workflow_id"]
        await service.submit(f"{run}.all.1", "answer 1", step_id="ask")
        await service.status(f"{run}.all.1", wait_seconds=5)
        await service.step_protocol.update(run, [{"path": "raw.seen.t0", "value": "written"}], None)
        await service.step_protocol.complete_step(f"{run}.all.0", "ask", wait_seconds=5)
        await service.step_protocol.update(run, [{"path": "raw.seen.t2", "value": "too"}], f"{run}.all.2")
        await service.step_protocol.complete_step(f"{run}.all.2", "ask", wait_seconds=5)
        assert (await service.status(run, wait_seconds=10))["status"] == "failed"
        place.mend()
        new = await service.retry(run, wait_seconds=10)
        assert new["state"]["seen"] == {"t0": "written", "t1": "answer 1", "t2": "too"}
        forked = await service.fork(f"{new['workflow_id']}.all.2", "ask")
        assert (await service.step_protocol.read(forked["workflow_id"], ("seen",), None)) == {
            "seen": {"t0": "written", "t1": "answer 1"}
        }

    place.serve(work)


def test_a_call_by_name_that_another_one_found_first_is_not_repeated_with_it(place: Place) -> None:
    place.define(
        "inner", "name: inner\ninputs: {n: {type: string}}\nblocks:\n" + shell("x", "echo ${inputs.n} >> log")
    )
    text = """
name: outer
inputs: {which: {type: string, default: inner}}
blocks:
  - {id: one, type: ExecuteWorkflow, inputs: {workflow: "${inputs.which}", inputs: {n: one}}}
  - {id: pause, type: Shell, inputs: {command: 'while ! grep -q one log; do sleep 0.01; done'}}
  - {id: two, type: ExecuteWorkflow, depends_on: [pause], inputs: {workflow: "${inputs.which}", inputs: {n: two}}}
"""

    async def work(service: Service) -> None:
        run = (await service.start(text=text))["workflow_id"]
        assert place.said == ["x", "one", "x", "two"]
        place.define("inner", "name: inner\ninputs: {n: {type: string}}\nblocks:\n" + shell("new"))
        assert (await service.fork(run, "one"))["status"] == "completed"
        assert place.said == ["x", "one", "x", "two", "x", "one"], "by the definition of the old run"

    place.serve(work)


def test_only_the_last_round_of_a_step_can_be_done_again(place: Place) -> None:
    async def work(service: Service) -> None:
        place.mend()
        run = (await service.start(text=STEPS))["workflow_id"]
        await service.submit(run, "Ada")
        assert (await service.fork(run, "build@2"))["action"]["step_id"] == "sure"
        with pytest.raises(RequestError, match="has reached 'build' 2 times, and only the last round"):
            await service.fork(run, "build@1")

    place.serve(work)
