"""What hostile, confused or unlucky workflows and agents do to a run of steps: each gets an error that says what to
do, what was refused has changed nothing, and no other run notices."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from support.rendered import Service
from support.scripted import ran
from support.sessions import Serve, serving
from workflows_mcp.errors import DefinitionError, InvalidResult, NotExpected, RequestError
from workflows_mcp.limits import Limits
from workflows_mcp.settings.model import Settings

TWO_STEPS = """\
name: two-steps
version: "1.0.0"
initial_state: {first: null}
steps:
  - {id: first, type: shell, needs_state: [], command: "make one", output_to: first}
  - {id: second, type: prompt, needs_state: [first], message: "{{ state.first.stdout }}?", prompt_type: confirm,
     output_to: second}
"""
PAYLOADS: dict[str, Any] = {"text": "a" * 40 + "b", "items": [1, 2], "deep": {"a": {"b": 1}}}
NESTED = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
DOUBLED = (
    "{% set n = namespace(s='xx') %}{% for i in range(60) %}{% set n.s = n.s ~ n.s %}{% endfor %}{{ n.s }}"
)


@pytest.fixture
def serve(settings: Settings) -> Serve:
    return serving(settings)


async def journal_of(service: Service, run_id: str) -> tuple[Any, ...]:
    """All that can be seen of a run; its number of events with it."""
    state = await service.state(run_id)
    answer = await service.status(run_id)
    return state, answer


def computing(expression: str) -> str:
    """Asks for something, and then computes."""
    return f"""\
name: computing
version: "1.0.0"
initial_state:
  text: {PAYLOADS["text"]}
  items: [1, 2]
  deep: {{a: {{b: 1}}}}
  kept: before
steps:
  - {{id: ask, type: delegate, needs_state: [], instructions: "go on", output_to: said}}
  - id: compute
    type: set_state
    needs_state: [text, items, deep, said]
    updates:
      kept: after
      computed: |-
        {expression}
  - {{id: never, type: delegate, needs_state: [computed], instructions: "{{{{ state.computed }}}}"}}
"""


# What agents do wrong


@pytest.mark.rows("S12")
def test_the_same_result_twice_is_harmless_and_another_one_is_refused_with_what_is_asked(serve: Any) -> None:
    async def work(service: Service) -> None:
        run_id = (await service.start(text=TWO_STEPS))["workflow_id"]
        for _ in range(2):
            answer = await service.submit(run_id, ran("built"), step_id="first")
            assert answer["action"]["parameters"]["message"] == "built?"
        before = await journal_of(service, run_id)
        with pytest.raises(NotExpected, match=r"'first' .* answered already, with another result") as refused:
            await service.submit(run_id, ran("something else"), step_id="first")
        assert "pending now: 'second'" in refused.value.hint
        assert '"step_id":"second"' in refused.value.hint
        assert await journal_of(service, run_id) == before
        # Without a step id it is taken for the answer to what is asked now, which it does not fit.
        with pytest.raises(InvalidResult, match="does not fit what 'second' asks for"):
            await service.submit(run_id, ran("built"))
        assert await journal_of(service, run_id) == before

    serve(work)


@pytest.mark.rows("S12")
def test_two_agents_that_submit_at_once_cannot_both_be_heard(serve: Any) -> None:
    async def work(service: Service) -> None:
        run_id = (await service.start(text=TWO_STEPS))["workflow_id"]
        given = await asyncio.gather(
            *(service.submit(run_id, ran(f"{n}"), step_id="first") for n in range(20)), return_exceptions=True
        )
        taken = [answer for answer in given if isinstance(answer, dict)]
        assert len(taken) == 1
        assert all(isinstance(it, NotExpected) for it in given if not isinstance(it, dict))
        state = (await service.state(run_id, paths=["state.first.stdout"]))["values"]
        assert taken[0]["action"]["parameters"]["message"] == f"{state['state.first.stdout']}?"

    serve(work)


@pytest.mark.rows("S12")
def test_a_run_that_has_ended_takes_nothing_more(serve: Any) -> None:
    async def work(service: Service) -> None:
        run_id = (await service.start(text=TWO_STEPS))["workflow_id"]
        await service.submit(run_id, ran(), step_id="first")
        await service.submit(run_id, True, step_id="second")
        before = await journal_of(service, run_id)
        assert before[1]["status"] == "completed"
        assert (await service.submit(run_id, True, step_id="second"))["status"] == "completed"
        for step, result in (("second", False), ("first", ran("late")), (None, False), ("third", True)):
            with pytest.raises(NotExpected, match=r"has ended: it is completed") as refused:
                await service.submit(run_id, result, step_id=step)
            assert f"get_workflow_status(workflow_id='{run_id}')" in refused.value.hint
        assert await journal_of(service, run_id) == before

    serve(work)


@pytest.mark.rows("S12")
def test_a_step_of_another_run_is_no_step_of_this_one(serve: Any) -> None:
    async def work(service: Service) -> None:
        ours = (await service.start(text=TWO_STEPS))["workflow_id"]
        other = (await service.start(text=computing("{{ 1 }}")))["workflow_id"]
        before = await journal_of(service, ours), await journal_of(service, other)
        with pytest.raises(NotExpected, match=r"'ask' does not wait .*: the run has no such step") as refused:
            await service.submit(ours, "go", step_id="ask")
        assert "pending now: 'first'" in refused.value.hint
        with pytest.raises(NotExpected, match="did you mean 'first'"):
            await service.submit(ours, ran(), step_id="frist")
        with pytest.raises(RequestError, match="'wf_000000000000'"):
            await service.submit("wf_000000000000", ran(), step_id="first")
        with pytest.raises(RequestError, match=f"'{ours}.first.0'"):
            await service.submit(f"{ours}.first.0", ran(), step_id="first")
        assert (await journal_of(service, ours), await journal_of(service, other)) == before

    serve(work)


@pytest.mark.rows("S8", "S9")
@pytest.mark.parametrize(
    ("step", "result", "words"),
    [
        ("first", {"stdout": "no exit code"}, "exit_code"),
        ("first", {"exit_code": "zero"}, "exit_code"),
        ("first", {"exit_code": 0, "stdout": ["a", "list"]}, "stdout"),
        ("first", [1, 2, 3], "object"),
        ("first", None, "object"),
        ("first", "it went well", "object"),
        ("second", "perhaps", "confirmed"),
        ("second", {"confirmed": "sure, but only on Monday"}, "confirmed"),
        ("second", {"confirmed": None}, "confirmed"),
        ("second", {"confirmed": True, "and": "more"}, "and"),
        ("second", 17, "confirmed"),
        ("second", [], "confirmed"),
    ],
)
def test_a_result_of_the_wrong_shape_is_refused_with_the_right_shape(
    serve: Any, step: str, result: Any, words: str
) -> None:
    async def work(service: Service) -> None:
        run_id = (await service.start(text=TWO_STEPS))["workflow_id"]
        if step == "second":
            await service.submit(run_id, ran("built"), step_id="first")
        before = await journal_of(service, run_id)
        with pytest.raises(InvalidResult) as refused:
            await service.submit(run_id, result, step_id=step)
        assert f"does not fit what '{step}' asks for" in refused.value.message
        assert words in refused.value.message
        says = (
            "submit for example {"
            if step == "first"
            else "submit what the user said in that form, or ask the user again "
        )
        assert refused.value.hint.startswith(says)
        assert ("example" in refused.value.hint) == (step == "first")  # no answer is suggested for the user
        assert '; the result must fit {"type":"object",' in refused.value.hint
        assert refused.value.hint.endswith(". Nothing has changed.")
        assert await journal_of(service, run_id) == before

    serve(work)


# What is too much


@pytest.mark.rows("S14")
def test_a_state_of_more_than_a_megabyte_is_refused_and_the_field_is_named(serve: Any) -> None:
    async def work(service: Service) -> None:
        run = await service.start(text=computing("{{ state.said.response ~ state.said.response }}"))
        answer = await service.submit(run["workflow_id"], "x" * 600_000)
        error = answer["error"]
        assert (answer["status"], error["code"], error["block"]) == ("failed", "state_size", "compute")
        assert "at most 1048576 are allowed (WORKFLOWS_LIMIT_STATE_BYTES)" in error["message"]
        assert "the largest field is 'computed'" in error["message"]
        state = (await service.state(run["workflow_id"], paths=["state.kept"]))["values"]
        assert state == {"state.kept": "before"}  # all updates, or none

        run = await service.start(text=computing("{{ 1 }}"))
        with pytest.raises(InvalidResult, match="the largest field is 'said'") as refused:
            await service.submit(run["workflow_id"], "x" * 1_100_000)
        assert "Nothing has changed" in refused.value.hint
        answer = await service.submit(run["workflow_id"], "less")
        assert answer["action"]["step_id"] == "never"

    serve(work)


EACH = """\
name: each
version: "1.0.0"
initial_state: {{count: {count}}}
steps:
  - id: each
    type: foreach
    needs_state: [count]
    items: "{{{{ range(state.count) | list }}}}"
    task: one
    output_to: results
    {keys}
tasks:
  one:
    inputs: {{number: {{type: number, required: true}}}}
    steps:
      - {{id: back, type: return, needs_state: [], value: "{{{{ inputs.number * 2 }}}}"}}
"""


@pytest.mark.rows("S5", "S14")
def test_more_than_a_hundred_children_at_once_are_refused_with_what_to_write(serve: Any) -> None:
    async def work(service: Service) -> None:
        answer = await service.start(text=EACH.format(count=101, keys=""))
        error = answer["error"]
        assert (answer["status"], error["code"]) == ("failed", "parallel_children")
        assert "101 tasks would be under way at once; the limit is 100" in error["message"]
        assert "WORKFLOWS_LIMIT_PARALLEL_CHILDREN" in error["message"]
        assert error["hint"] == "set sequential: true, or max_parallel: 10"
        assert error["place"].startswith("<yaml>:8:")
        for keys in ("sequential: true", "max_parallel: 100"):
            answer = await service.start(text=EACH.format(count=101, keys=keys))
            results = await service.state(answer["workflow_id"], paths=["state.results"])
            assert results["values"]["state.results"][-1] == 200
        answer = await service.start(text=EACH.format(count=100, keys=""))
        assert answer["status"] == "completed"

    serve(work)


@pytest.mark.rows("S14")
@pytest.mark.parametrize(
    ("expression", "code", "words", "hint"),
    [
        (NESTED, "too_slow", "took longer than 0.5 seconds and was stopped", "EXPRESSION_SECONDS"),
        ("{{ 'a' * 10 ** 10 }}", "expression", "the text is too long: 10000000000", "EXPRESSION_CHARS"),
        ("{{ [1] * 10 ** 10 }}", "expression", "the list is too long: 10000000000 items", ""),
        (DOUBLED, "expression", "the text is too long", "EXPRESSION_CHARS"),
        ("{{ 2 ** (10 ** 9) }}", "expression", "the power is too large", ""),
    ],
)
def test_an_expression_that_takes_too_much_fails_its_step_and_nothing_else(
    serve: Any, expression: str, code: str, words: str, hint: str
) -> None:
    async def work(service: Service) -> None:
        run_id = (await service.start(text=computing(expression)))["workflow_id"]
        answer = await service.submit(run_id, "x")
        error = answer["error"]
        assert (answer["status"], error["code"], error["block"]) == ("failed", code, "compute")
        assert error["message"].startswith("step 'compute' failed: ")
        assert words in error["message"]
        assert not hint or f"raise WORKFLOWS_LIMIT_{hint}" in error["hint"]
        assert error["place"].startswith("<yaml>:16:")
        assert (await service.state(run_id, paths=["state.kept"]))["values"] == {"state.kept": "before"}

    serve(work, expression_seconds=0.5)


@pytest.mark.slow
@pytest.mark.rows("S14")
def test_a_pattern_that_would_never_end_is_stopped_and_named(serve: Any) -> None:
    async def work(service: Service) -> None:
        run_id = (await service.start(text=computing("{{ state.text | regex_search('(a|aa)+$') }}")))[
            "workflow_id"
        ]
        error = (await service.submit(run_id, "x"))["error"]
        assert (error["code"], error["block"]) == ("too_slow", "compute")
        assert 'the pattern "(a|aa)+$" took longer than 1 second on a text of 41' in error["message"]
        assert "remove a repetition inside a repetition" in error["hint"]

    # The limit of a pattern counts the time of the processor, that of an expression the time of the clock.
    serve(work, expression_seconds=600)


@pytest.mark.alone
@pytest.mark.rows("S14")
@pytest.mark.parametrize("expression", [NESTED, "{{ state.text | regex_search('(a|aa)+$') }}"])
def test_other_runs_are_answered_at_once_while_an_expression_is_being_stopped(
    serve: Any, expression: str
) -> None:
    async def work(service: Service) -> None:
        other = (await service.start(text=TWO_STEPS))["workflow_id"]
        slowest = []
        for _ in range(3):  # in one of three rounds at least nothing else keeps the machine busy
            run_id = (await service.start(text=computing(expression)))["workflow_id"]
            stuck = asyncio.create_task(service.submit(run_id, "x"))
            took = []
            while not stuck.done():
                started = time.perf_counter()
                assert (await service.status(other))["status"] == "pending_action"
                took.append(time.perf_counter() - started)
                await asyncio.sleep(0.01)
            assert (await stuck)["error"]["code"] == "too_slow"
            assert len(took) > 5
            slowest.append(max(took))
            if slowest[-1] < 0.1:
                return
        raise AssertionError(f"an answer took {slowest} seconds")

    serve(work, expression_seconds=0.5)


@pytest.mark.slow
@pytest.mark.rows("S14", "X1")
def test_an_expression_that_was_stopped_once_is_not_tried_again_when_the_server_starts_again(
    settings: Settings,
) -> None:
    text = computing(NESTED).replace("type: set_state", "type: set_state\n    on_error: continue", 1)
    text = text.replace("needs_state: [computed]", "needs_state: [kept]").replace(
        "{{ state.computed }}", "{{ state.kept }}"
    )

    def opened(seconds: float) -> Service:
        limits = Limits(expression_seconds=seconds)
        return Service.open(Settings(workspace=settings.workspace, home=settings.home, limits=limits))

    async def work() -> None:
        async with opened(3.0) as service:
            run_id = (await service.start(text=text))["workflow_id"]
            before = await service.submit(run_id, "x")
            assert before["action"]["parameters"]["instructions"] == "before"
        started = time.perf_counter()
        async with opened(3.0) as service:
            assert await service.status(run_id) == before
            took = time.perf_counter() - started
            assert (await service.submit(run_id, "y"))["status"] == "completed"
            assert (await service.state(run_id, paths=["state.kept"]))["values"] == {"state.kept": "before"}
        assert took < 2.5  # it is known to have taken too long

    asyncio.run(asyncio.wait_for(work(), 40))


# Ways out


@pytest.mark.rows("S11")
@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("{{ ''.__class__.__mro__ }}", "is private: names that start with '_' cannot be reached"),
        ("{{ cycler.__init__.__globals__.os }}", "is private"),
        ("{% import 'os' as os %}{{ os }}", "import"),
        ("{{ state.deep['a']['_b'] }}", "'_b' is private"),
        ("{{ lipsum.__globals__ }}", "lipsum"),
        ("{{ self._TemplateReference__context }}", "self"),
        ("{{ state.items.append(3) }}", "append"),
    ],
)
def test_a_way_out_that_can_be_seen_is_refused_before_the_run(
    serve: Any, expression: str, words: str
) -> None:
    async def work(service: Service) -> None:
        with pytest.raises(DefinitionError) as refused:
            await service.start(text=computing(expression))
        text = str(refused.value)
        assert words in text
        assert "<yaml>:16:" in text  # where it stands
        assert await service.recent() == []

    serve(work)


@pytest.mark.rows("S11")
@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("{{ ''['__cla' ~ 'ss__'] }}", "the text has no '__class__'"),
        ("{{ state.items | map(attribute='__class__') | list }}", "the integer has no '__class__'"),
        ("{{ state['__cla' ~ 'ss__'] }}", "__class__"),
        ("{{ state.text | attr('__class__') }}", "__class__"),
    ],
)
def test_a_way_out_that_is_hidden_leads_nowhere(serve: Any, expression: str, words: str) -> None:
    async def work(service: Service) -> None:
        run_id = (await service.start(text=computing(expression)))["workflow_id"]
        answer = await service.submit(run_id, "x")
        assert answer["status"] == "failed"
        assert words in answer["error"]["message"]
        assert answer["error"]["block"] == "compute"
        assert (await service.state(run_id, paths=["state.kept"]))["values"] == {"state.kept": "before"}

    serve(work)


@pytest.mark.rows("S8", "S11")
def test_what_an_agent_submits_is_data_and_never_read_as_an_expression(serve: Any) -> None:
    async def work(service: Service) -> None:
        run_id = (await service.start(text=computing("{{ state.said.response }}")))["workflow_id"]
        hostile = "{{ ''.__class__ }}{% for x in y %}"
        answer = await service.submit(run_id, hostile)
        assert answer["action"]["parameters"]["instructions"] == hostile

    serve(work)
