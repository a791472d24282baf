"""Runs of reactive workflows at the same time see nothing of each other, and JavaScript that means harm is stopped
with an error that says which field it is, in which file and line, while everybody else goes on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from support.rendered import Service
from workflows_mcp.errors import DefinitionError
from workflows_mcp.limits import Limits
from workflows_mcp.settings.model import Settings

pytestmark = pytest.mark.rows("R5")

# Two workflows with the same names for everything, none of which means the same in both.
NUMBERS = """
name: numbers
inputs: {seed: {type: integer, required: true}}
config: {step: 2}
default_state: {raw: {value: 0, items: []}}
state_schema:
  raw: {value: number, items: array}
  computed:
    total: {from: raw.items, transform: "input.reduce((sum, it) => sum + it, 0)"}
    double: {from: computed.total, transform: input * 2}
    globals: {from: raw.items, transform: "TRIES"}
steps:
  - id: loop
    type: while
    condition: items.length < 3
    body:
      - {type: state_update, updates: [{path: raw.value, value: "{{ seed + items.length * step }}"}]}
      - {type: state_update, path: raw.items, operation: append, value: "{{ value }}"}
  - {id: pause, type: shell_command, command: "echo {{ total }}", output_format: json, state_update: {path: raw.value}}
  - {id: each, type: parallel_foreach, items: "{{ items }}", sub_agent_task: task}
sub_agent_tasks:
  task: {steps: [{type: state_update, path: "raw.done.n{{ item }}", value: "{{ double }}"}]}
"""
WORDS = """
name: words
inputs: {seed: {type: string, required: true}}
config: {step: "-"}
default_state: {raw: {value: "", items: {}}}
state_schema:
  raw: {value: string, items: object}
  computed:
    total: {from: raw.items, transform: "Object.values(input).join('+')"}
    double: {from: computed.total, transform: "input + input"}
    globals: {from: raw.items, transform: "TRIES"}
steps:
  - id: loop
    type: while
    condition: Object.keys(items).length < 3
    body:
      - {type: state_update, updates: [{path: raw.value, value: "{{ seed + step + Object.keys(items).length }}"}]}
      - {type: state_update, path: "raw.items.{{ value }}", value: "{{ value }}"}
  - {id: pause, type: shell_command, command: "echo {{ total }}", state_update: {path: raw.value, value: "{{ result.trim() }}"}}
  - {id: each, type: parallel_foreach, items: "{{ Object.keys(items) }}", sub_agent_task: task}
sub_agent_tasks:
  task: {steps: [{type: state_update, path: "raw.done.{{ item }}", value: "{{ double.length }}"}]}
"""
LEAVES_TRACES = """
const tried = [];
const leave = (what, how) => { try { how(); tried.push(what); } catch (error) { } };
leave('object', () => { Object.prototype.trace = 'WHO'; });
leave('list', () => { Array.prototype.trace = 'WHO'; });
leave('map', () => { Array.prototype.map = () => 'WHO'; });
leave('math', () => { Math.max = () => 'WHO'; });
leave('json', () => { JSON.parse = () => 'WHO'; });
leave('text', () => { ''.__proto__.trim = () => 'WHO'; });
leave('function', () => { leave.constructor.prototype.call = () => 'WHO'; });
leave('define', () => { Object.defineProperty(Object.prototype, 'value', {value: 'WHO'}); });
leave('pattern', () => { RegExp.prototype.test = () => 'WHO'; });
return [tried, [1, 2].map(it => it + 1), Math.max(1, 2), ({}).trace === undefined, ' x '.trim(), /x/.test('x')];
"""
UNTOUCHED = [[], [2, 3], 2, True, "x", True]


def hostile_to_others(text: str, who: str) -> str:
    script = " ".join(LEAVES_TRACES.replace("WHO", who).split())
    return text.replace('"TRIES"', json.dumps(script))


def numbers(seed: int) -> dict[str, Any]:
    items = [seed + 2 * n for n in range(3)]
    total = sum(items)
    done = {f"n{it}": total * 2 for it in items}
    return {"seed": seed, "value": total, "items": items, "total": total, "double": total * 2, "done": done}


def words(seed: str) -> dict[str, Any]:
    items = {f"{seed}-{n}": f"{seed}-{n}" for n in range(3)}
    total = "+".join(items)
    done = dict.fromkeys(items, len(total) * 2)
    return {"seed": seed, "value": total, "items": items, "total": total, "double": total * 2, "done": done}


async def finished(service: Service, answer: dict[str, Any]) -> dict[str, Any]:
    while answer["status"] in ("running", "waiting"):
        answer = await service.status(answer["workflow_id"], wait_seconds=20)
    assert answer["status"] == "completed", answer
    return dict(answer["state"])


@pytest.mark.slow
@pytest.mark.rows("R4", "X1")
def test_two_workflows_at_once_a_hundred_times_never_see_each_other(settings: Settings) -> None:
    texts = (hostile_to_others(NUMBERS, "numbers"), hostile_to_others(WORDS, "words"))

    async def one(service: Service, number: int) -> None:
        text, seed, expected = (
            (texts[0], number, numbers(number))
            if number % 2
            else (texts[1], f"w{number}", words(f"w{number}"))
        )
        state = await finished(
            service, await service.start(text=text, inputs={"seed": seed}, wait_seconds=45)
        )
        assert state.pop("globals") == UNTOUCHED
        assert state == expected

    async def go() -> None:
        async with Service.open(settings) as service:
            for begin in range(0, 200, 40):  # a hundred of each, twenty of each at a time
                await asyncio.gather(*(one(service, number) for number in range(begin, begin + 40)))

    asyncio.run(asyncio.wait_for(go(), 120))


def test_one_workflow_included_twice_at_once_has_two_states(settings: Settings, workspace: Path) -> None:
    (workspace / ".workflows" / "count.yaml").write_text("""
name: count
inputs: {word: string}
default_state: {raw: {seen: []}}
state_schema: {computed: {all: {from: raw.seen, transform: input.join()}}}
steps:
  - {id: loop, type: foreach, items: [1, 2], steps: [{id: sh, type: shell_command, command: "echo {{ word }}{{ item }}", state_update: {path: raw.seen, operation: append, value: "{{ result.trim() }}"}}]}
""")
    text = """
blocks:
  - id: each
    type: Workflow
    for_each: [a, b, c]
    inputs: {workflow: count, inputs: {word: "${each.value}"}}
outputs: {all: "${blocks.each.results}"}
"""

    async def go() -> dict[str, Any]:
        async with Service.open(settings) as service:
            return await service.start(text=text)

    answer = asyncio.run(go())
    assert answer["status"] == "completed", answer
    found = json.dumps(answer["outputs"])
    assert all(f'"all": "{word}1,{word}2"' in found for word in "abc")


def test_a_transform_that_changes_its_input_changes_nothing_else(settings: Settings) -> None:
    text = """
name: changes
default_state: {raw: {items: [3, 1, 2]}}
state_schema:
  computed:
    sorted: {from: raw.items, transform: "input.sort(); input.push(9); return input;"}
    again: {from: raw.items, transform: "items.push(7), items.length"}
    counted: {from: computed.sorted, transform: "input.splice(0, 2).length + input.length"}
steps:
  - {type: user_message, message: "{{ items.push(5) }} {{ sorted }} {{ counted }} {{ sorted }} {{ again }} {{ items }}"}
"""

    async def go() -> dict[str, Any]:
        async with Service.open(settings) as service:
            return await service.start(text=text)

    answer = asyncio.run(go())
    assert answer["status"] == "completed", answer
    assert answer["state"] == {"items": [3, 1, 2], "sorted": [1, 2, 3, 9], "again": 4, "counted": 4}


# Hostile transforms


HOSTILE: dict[str, tuple[str, str]] = {
    "never ends": ("while (true) {}", "took longer than"),
    "never ends and catches": (
        "for (;;) { try { while (true) {} } catch (e) {} finally { continue } }",
        "took longer",
    ),
    "never ends in a getter of its result": ("({ get x() { while (true) {} } })", "took longer than"),
    "never ends in toJSON": ("({ toJSON() { while (true) {} } })", "took longer than"),
    "a pattern that never ends": ("/^(a+)+$/.test('a'.repeat(60) + '!')", "took longer than"),
    "eats memory": ("const a = []; while (true) { a.push('x'.repeat(100000) + a.length); }", "memory"),
    "doubles a text": ("let s = 'x'; for (let i = 0; i < 60; i++) s = s + s; return s.length;", "memory"),
    "one huge text": ("'x'.repeat(2 ** 29).length", "memory"),
    "one huge list": ("new Array(2 ** 28).fill(0).length", "too many"),
    "recursion": ("(function f() { return f() + 1; })()", "call stack"),
    "recursion through a list": (
        "const f = n => [n].map(g); const g = n => [n].map(f); return f(1);",
        "call stack",
    ),
    "a result that holds itself": ("const a = {}; a.a = a; return a;", "circular"),
    "a result without a bottom": ("let a = []; for (let i = 0; i < 100000; i++) a = [a]; return a;", ""),
    "require": ("require('fs').readFileSync('/etc/passwd')", "there is no 'require'"),
    "process": ("process.env.HOME", "there is no 'process'"),
    "globalThis": ("globalThis.process.exit(1)", "there is no 'globalThis'"),
    "constructor": ("constructor.constructor('return this')().process", "there is no 'constructor'"),
    "constructor of a list": ("[].constructor.constructor('return 1')()", "code cannot be made from text"),
    "constructor of a function": ("(() => 0).constructor('return globalThis')()", "code cannot be made"),
    "constructor of a generator": (
        "Object.getPrototypeOf(function* () {}).constructor('yield 1')()",
        "code cannot",
    ),
    "Function": ("new Function('return 1')()", "there is no 'Function'"),
    "the library of the engine": ("std.loadFile('/etc/passwd')", "there is no 'std'"),
    "a function as a result": ("() => 1", "the result is a function"),
    "a symbol as a result": ("Symbol('x')", "the result is a symbol"),
    "a promise": ("Promise.resolve(1)", "there is no 'Promise'"),
    "pollution": ("Object.prototype.hacked = 1; return ({}).hacked;", "not extensible"),
    "pollution of its input": ("input.__proto__.hacked = 1; return ({}).hacked;", "not extensible"),
    "pollution of lists": ("Array.prototype.map = () => 'hacked'; return [1].map(x => x);", "read-only"),
    "a name that it does not declare": ("leak = 1; return leak;", "there is no 'leak'"),
    "time": ("Date.now()", "the time cannot be read here"),
    "chance": ("Math.random()", "there is no randomness here"),
}
REFUSED_AT_ONCE = {
    "import": ("import('fs')", "import is not supported"),
    "eval": ("eval('1 + 1')", "eval"),
    "asynchronous code": ("(async () => 1)()", "asynchronous"),
    "big numbers": ("10n ** 3n", "BigInt"),
    "what is no JavaScript": ("input +", "cannot be read"),
}


def with_transform(transform: str) -> str:
    return f"""
name: hostile
default_state: {{raw: {{n: {{a: 1}}}}}}
state_schema:
  computed:
    evil:
      from: raw.n
      transform: {json.dumps(transform)}
      on_error: propagate
steps:
  - {{id: read, type: user_message, message: "got {{{{ evil }}}}"}}
"""


HARMLESS = """
name: harmless
default_state: {raw: {n: 0}}
state_schema: {computed: {next: {from: raw.n, transform: "[input].map(it => it + 1)[0]"}}}
steps:
  - {id: loop, type: while, condition: n < 5, body: [{type: state_update, path: raw.n, value: "{{ next }}"}]}
  - {id: sh, type: shell_command, command: "echo {{ n }}", output_format: json, state_update: {path: raw.seen}}
"""


@pytest.fixture
def strict(settings: Settings) -> Settings:
    """A server that stops expressions soon."""
    return Settings(
        workspace=settings.workspace,
        home=settings.home,
        limits=Limits(expression_seconds=0.2, javascript_bytes=16 << 20),
    )


def with_service(settings: Settings, work: Callable[[Service], Awaitable[Any]]) -> Any:
    async def go() -> Any:
        async with Service.open(settings) as service:
            return await work(service)

    return asyncio.run(asyncio.wait_for(go(), 60))


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_transform_is_stopped_and_named_while_others_go_on(
    what: str, strict: Settings, workspace: Path
) -> None:
    transform, message = HOSTILE[what]
    file = workspace / "hostile.yaml"
    file.write_text(with_transform(transform))

    async def work(service: Service) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        hostile, harmless = await asyncio.gather(service.start(file=str(file)), service.start(text=HARMLESS))
        return hostile, harmless, await service.start(text=HARMLESS)

    hostile, meanwhile, afterwards = with_service(strict, work)
    assert hostile["status"] == "failed"
    error = hostile["error"]
    assert "the computed field 'evil' cannot be computed" in error["message"]
    assert message in error["message"]
    assert error["place"].startswith(f"{file}:8:")
    assert len(json.dumps(hostile)) < 3000, "an error is something to read"
    for answer in (meanwhile, afterwards):
        assert answer["status"] == "completed", answer
        assert answer["state"] == {"n": 5, "next": 6, "seen": 5}


@pytest.mark.parametrize("what", REFUSED_AT_ONCE)
def test_what_can_be_seen_to_be_wrong_is_refused_before_it_runs(
    what: str, strict: Settings, workspace: Path
) -> None:
    transform, message = REFUSED_AT_ONCE[what]
    file = workspace / "hostile.yaml"
    file.write_text(with_transform(transform))

    async def work(service: Service) -> str:
        with pytest.raises(DefinitionError) as refused:
            await service.start(file=str(file))
        return str(refused.value)

    said = with_service(strict, work)
    assert f"{file}:8:" in said
    assert message in said


@pytest.mark.parametrize("on_error", ["use_fallback, fallback: spare", "ignore"])
def test_being_too_slow_is_not_an_error_that_can_be_put_up_with(strict: Settings, on_error: str) -> None:
    """On another machine it could come out otherwise."""
    text = f"""
name: slow
default_state: {{raw: {{n: 1}}}}
state_schema: {{computed: {{evil: {{from: raw.n, transform: "while (true) {{}}", on_error: {on_error}}}}}}}
steps: [{{id: read, type: user_message, message: "{{{{ evil }}}}"}}]
"""
    answer = with_service(strict, lambda service: service.start(text=text))
    assert (answer["status"], answer["error"]["code"]) == ("failed", "too_slow")


def test_many_that_never_end_do_not_keep_others_from_going_on(strict: Settings) -> None:
    async def work(service: Service) -> tuple[list[dict[str, Any]], dict[str, Any], int]:
        text = with_transform("while (true) {}")
        hostile = [asyncio.create_task(service.start(text=text, wait_seconds=45)) for _ in range(8)]
        await asyncio.sleep(0)
        harmless = await service.start(text=HARMLESS)
        still = sum(not task.done() for task in hostile)
        return await asyncio.gather(*hostile), harmless, still

    hostile, harmless, still = with_service(strict, work)
    assert harmless["status"] == "completed"
    assert still > 0, "it did not wait for them"
    assert {answer["error"]["code"] for answer in hostile} == {"too_slow"}


@pytest.mark.parametrize(
    ("step", "line"),
    [
        ('{id: s, type: conditional, condition: "(() => { while (true) {} })()", then: [{type: exit}]}', 4),
        ('{id: s, type: state_update, path: raw.x, value: 1, transform: "while (true) {}"}', 4),
        ('{id: s, type: foreach, items: "{{ (() => { while (true) {} })() }}", steps: [{type: exit}]}', 4),
        ('{id: s, type: user_message, message: "{{ (() => { while (true) {} })() }}"}', 4),
    ],
)
def test_an_expression_that_never_ends_is_stopped_wherever_it_stands(
    strict: Settings, workspace: Path, step: str, line: int
) -> None:
    file = workspace / "hostile.yaml"
    file.write_text(f"name: hostile\nsteps:\n  - {{type: user_message, message: hello}}\n  - {step}\n")
    answer = with_service(strict, lambda service: service.start(file=str(file)))
    assert (answer["status"], answer["error"]["code"]) == ("failed", "too_slow")
    assert answer["error"]["block"] == "s"
    assert answer["error"]["place"].startswith(f"{file}:{line}:")
    assert answer["messages"] == ["hello"]
