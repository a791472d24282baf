"""JavaScript can eat up neither time nor memory, and whatever was stopped, the next expression runs."""

from __future__ import annotations

import time
from typing import Any

import pytest

from workflows_mcp.errors import TOO_LARGE, TOO_SLOW, ExpressionError
from workflows_mcp.expressions.javascript import engine
from workflows_mcp.expressions.javascript.language import JavaScript
from workflows_mcp.limits import Limits

pytestmark = pytest.mark.rows("R5")

LANGUAGE = JavaScript()
BRIEF = Limits(expression_seconds=0.03)
SMALL = Limits(expression_seconds=2.0, javascript_bytes=8 * 1024 * 1024)
LONG = "const a = 'a'.repeat(9e6), b = 'a'.repeat(9e6);"
"""Two texts that are the same, and take a millisecond to compare."""


def run(source: str, limits: Limits = BRIEF, **scope: Any) -> Any:
    return LANGUAGE.transform(source).evaluate({"input": None, "__limits__": limits, **scope})


def fault(source: str, limits: Limits = BRIEF, **scope: Any) -> ExpressionError:
    """What a source ends with; the next one works, and it was not much longer than allowed."""
    began = time.monotonic()
    with pytest.raises(ExpressionError) as caught:
        run(source, limits, **scope)
    assert time.monotonic() - began < 10  # on a busy machine it gets another try
    assert run("[1, 2].map(x => x + 1)") == [2, 3]
    return caught.value


@pytest.mark.parametrize(
    "source",
    [
        "for (;;) {}",
        "for (;;);",
        "while (true) {}",
        "do {} while (true)",
        "let i = 0; do i++; while (true)",
        "for (;;) { try { for (;;) {} } catch (e) {} }",
        "try { for (;;) {} } finally { for (;;) {} }",
        "const f = () => { try { f() } catch { f() } }; f()",
        "const f = n => n < 2 ? 1 : f(n - 1) + f(n - 2); f(60)",
        "function* g() { for (;;) yield 1 }\nfor (const x of g()) {}",
        "function* g() { for (;;) yield 1 }\nnew Set(g())",
        "const it = { next: () => ({ value: 1 }), [Symbol.iterator]() { return this } }; new Set(it)",
        "({ toJSON() { for (;;) {} } })",
        "({ get a() { for (;;) {} } })",
        "const o = { valueOf() { for (;;) {} } }; o + 1",
        "throw { toString() { for (;;) {} }, get x() { for (;;) {} } }",
        "const e = new Error('x'); Object.defineProperty(e, 'message', { get() { for (;;) {} } }); throw e",
        "/(a+)+$/.test('a'.repeat(40) + 'b')",
        "'a'.repeat(1e6).replace(/(a*)*b/, '')",
        "let a = [[]]; for (let i = 0; i < 40; i++) a = [a, a]; a.flat(Infinity)",
        "let a = [[]]; for (let i = 0; i < 40; i++) a = [a, a]; String(a)",
        "let a = [[]]; for (let i = 0; i < 40; i++) a = [a, a]; a",
        "let a = {}; for (let i = 0; i < 40; i++) a = { l: a, r: a }; JSON.stringify(a, ['l', 'r'])",
        "const a = []; a.length = 2 ** 32 - 1; JSON.stringify(a)",
        "const a = []; a.length = 2 ** 32 - 1; for (const x of a) ;",
        "new Set(Array.prototype.values.call({ length: 2 ** 53 - 1 }))",
        LONG + "for (;;) a === b",
        LONG + "let n = 0; while (a === b) n++",
        LONG + "Array(1e6).fill(0).map(x => a === b)",
        LONG + "for (const k in Array(1e5).fill(0)) a === b",
        LONG + "[...Array(1e5)].forEach(function () { a === b })",
        LONG + "Array(1e5).fill(a).indexOf(b + 'x')\nArray(1e5).fill(a).includes(b.slice(1) + 'b')",
        LONG + "[...Array(500).fill(a), ...Array(500).fill(b)].sort()",
        "const s = 'a'.repeat(1e6); for (;;) s.replaceAll('a', 'bb')",
        "const s = 'a'.repeat(1e5); for (;;) s.split('')",
        "Array(1e4).fill('9'.repeat(1e6)).map(Number)",
        "Math.max(...Array(6e4).fill('9'.repeat(1e6)))",
        "Array(1e4).fill('é'.repeat(1e6)).map(''.toLowerCase.call.bind(''.toLowerCase))",
    ],
)
def test_what_takes_too_long_is_stopped(source: str) -> None:
    error = fault(source)
    assert error.code in (TOO_SLOW, TOO_LARGE)
    if error.code == TOO_SLOW:
        assert "took longer than 0.03 seconds" in error.message
        assert "WORKFLOWS_LIMIT_EXPRESSION_SECONDS" in error.hint


GIANT = "const a = []; a.length = 2 ** 32 - 1;"
METHODS = [
    "indexOf(1)", "includes(1)", "lastIndexOf(1)", "forEach(x => x)", "map(x => x)", "filter(x => x)", "some(x => x)",
    "every(x => x)", "find(x => x)", "findIndex(x => x)", "findLast(x => x)", "findLastIndex(x => x)", "reduce((x, y) => x, 0)",
    "reduceRight((x, y) => x, 0)", "flatMap(x => x)", "fill(0)", "join('')", "toLocaleString()", "shift()", "unshift(1)",
    "reverse()", "toReversed()", "slice()", "splice(0, 1)", "toSpliced(0, 1)", "copyWithin(1, 0)", "with(0, 1)", "sort()",
    "toSorted()", "flat()", "concat([1])", "toString()",
]  # fmt: skip


@pytest.mark.parametrize("method", METHODS)
def test_a_list_that_is_too_long_is_refused_by(method: str) -> None:
    name, _, arguments = method.partition("(")
    for source in (
        f"{GIANT} a.{method}",
        f"Array.prototype.{name}.call({{ length: 2 ** 53 - 1 }}, {arguments}",
    ):
        if name == "toString" and "call" in source:
            continue
        error = fault(source)
        assert error.code == "javascript"
        assert "RangeError" in error.message
        assert "too many" in error.message


@pytest.mark.parametrize(
    "source",
    [
        "let n = 0; Array.prototype.join.call({ get length() { return n++ ? 2 ** 53 - 1 : 1 } })",
        "Array.prototype.join.call({ length: { valueOf: () => 2 ** 53 - 1 } })",
        "Array.from({ length: 2 ** 53 - 1 })",
        "Array.from({ get length() { return 1e9 } })",
        "[].concat({ length: 2 ** 53 - 1, [Symbol.isConcatSpreadable]: true })",
        GIANT + "JSON.stringify({}, a)",
        GIANT + "a.values().drop(1e9).next()",
        GIANT + "new Set([1]).union({ size: 1, has() {}, keys() { return a.values() } })",
        GIANT + "const s = new Set(); s.keys = () => a.values(); new Set([1]).isDisjointFrom(s).x.y",
        GIANT + "[].concat(a)",
        "String.raw({ raw: { length: 2 ** 53 - 1 } })",
        "'a'.repeat(1e7).indexOf('a'.repeat(5e6) + 'b')",
        "'a'.repeat(1e7).lastIndexOf('b' + 'a'.repeat(5e6))",
        "'a'.repeat(1e7).includes('a'.repeat(5e6) + 'b')",
        "'a'.repeat(1e7).split('a'.repeat(5e6) + 'b')",
        "'a'.repeat(1e7).replace('a'.repeat(5e6) + 'b', '')",
        "'a'.repeat(1e7).replaceAll('a'.repeat(5e6) + 'b', '')",
        "'a'.repeat(1e7).includes({ toString: () => 'a'.repeat(5e6) + 'b' })",
        "String.prototype.includes.call({ length: 0, toString: () => 'a'.repeat(1e7) }, 'a'.repeat(5e6) + 'b')",
        "'a'.repeat(1e7).normalize('NFKD')",
        "'İ'.repeat(1e7).toLowerCase()",
        "'a'.localeCompare('a'.repeat(1e7))",
        "encodeURIComponent('é'.repeat(1e7))",
        "new RegExp('a'.repeat(1e6))",
        "'x'.padStart(2 ** 30)",
        "(function f() { f() })()",
        "JSON.parse('['.repeat(1e6))",
        "const a = []; a.push(a); a",
        "const a = []; a.push(a); a.flat(Infinity)",
        "let d = {}; for (let i = 0; i < 5000; i++) d = { d }; d",
    ],
)
def test_too_much_at_once_is_refused(source: str) -> None:
    assert fault(source, Limits(expression_seconds=1.0)).code == "javascript"


@pytest.mark.parametrize(
    "source",
    [
        "const n = []; for (;;) n.push({ a: 1 })",
        "let s = 'x'; for (;;) s = s + s",
        "let s = 'x'; for (;;) s = `${s}${s}`",
        "const m = new Map(); for (let i = 0; ; i++) m.set(i, {})",
        "'a'.repeat(1e8)",
        "Array(1e6).fill('x'.repeat(1e6)).join('')",
        "[...'a'.repeat(5e6)]",
        "const a = []; a.length = 2 ** 32 - 1; [...a]",
        "Object.assign({}, 'a'.repeat(5e6))",
        "[...'ab'.repeat(2e6).matchAll(/a/g)].length",
        "let o = {}, p = o; for (;;) { p.a = {}; p = p.a }",
    ],
)
def test_what_takes_too_much_memory_is_stopped(source: str) -> None:
    error = fault(source, SMALL)
    assert error.code == TOO_LARGE
    assert "8 MiB" in error.message
    assert "WORKFLOWS_LIMIT_JAVASCRIPT_BYTES" in error.hint


def test_values_that_would_not_fit_are_not_even_sent() -> None:
    error = fault("input.length + input[0]", SMALL, input="x" * 3_000_000)
    assert error.code == TOO_LARGE


def test_code_that_catches_being_out_of_memory_goes_on() -> None:
    source = "let n = 0; for (let i = 0; i < 3; i++) try { 'a'.repeat(1e8) } catch { n++ }\nn"
    assert run(source, SMALL) == 3


def test_limits_are_those_of_the_scope() -> None:
    source = "Array.from({ length: 4e5 }, (_, i) => 'text ' + i).length"
    assert fault(source, SMALL).code == TOO_LARGE
    assert run(source, Limits()) == 400_000
    assert fault(source, SMALL).code == TOO_LARGE


# What others do


@pytest.mark.parametrize(("worked", "allowed"), [(0.0, [1.0, 4.0]), (0.3, [1.0, 4.0]), (0.9, [1.0])])
def test_who_was_stopped_without_having_worked_gets_another_try(
    worked: float, allowed: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine counts what the whole process works, and the clock what the whole machine does."""
    clock, given = [0.0], []

    def stop(context: Any, function: Any, values: Any, seconds: float) -> None:
        given.append(seconds)
        clock[0] += worked
        raise engine.Stopped

    with monkeypatch.context() as patched:
        patched.setattr(engine, "processor_seconds", lambda: clock[0])
        patched.setattr(engine._Context, "run", stop)
        with pytest.raises(ExpressionError, match="longer than 1 seconds"):
            run("input + 1", Limits(expression_seconds=1.0))
    assert given == allowed
    assert run("input + 1", input=1) == 2


def test_memory_that_others_have_left_behind_is_given_back() -> None:
    left = "for (let i = 0; i < 60000; i++) Symbol.for('symbols stay: ' + input + i)\nreturn 1"
    needs = "'a'.repeat(7e6).length"
    for number in range(4):
        assert run(left, SMALL, input="x" * 20 + str(number)) == 1
        assert run(needs, SMALL) == 7_000_000


def test_a_context_is_used_again_and_renewed_from_time_to_time(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    make = engine._Context.__init__

    def counting(context: Any) -> None:
        made.append(context)
        make(context)

    monkeypatch.setattr(engine._Context, "__init__", counting)
    monkeypatch.setattr(engine, "_MAX_RUNS", 100)
    engine._contexts.value = None
    assert [run("input + 1", input=n) for n in range(250)] == list(range(1, 251))
    assert len(made) == 3


def test_only_so_many_compiled_functions_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "_MAX_FUNCTIONS", 5)
    engine._contexts.value = None
    for n in range(20):
        assert run(f"input + {n}", input=1) == n + 1
    context = engine._contexts.value
    assert context is not None
    assert len(context._functions) == 5
    assert run("input + 0", input=1) == 1


def test_legitimate_work_of_some_size_is_done() -> None:
    limits = Limits(expression_seconds=20.0)
    lines = "\n".join(f"src/module_{n}/file_{n}.ts:{n}: error TS{n}" for n in range(20_000))
    source = """
        const rows = input.split('\\n').map(l => l.match(/^(.+?):(\\d+): (\\w+) (.+)$/)).filter(Boolean);
        const byKind = Object.groupBy(rows, r => r[3]);
        ({ rows: rows.length, kinds: Object.keys(byKind), last: rows.at(-1)[1].replaceAll('_', '-'),
           sorted: rows.map(r => r[1]).sort().slice(0, 2), total: rows.reduce((sum, r) => sum + Number(r[2]), 0) })"""
    assert run(source, limits, input=lines) == {
        "rows": 20_000,
        "kinds": ["error"],
        "last": "src/module-19999/file-19999.ts",
        "sorted": ["src/module_0/file_0.ts", "src/module_1/file_1.ts"],
        "total": 199_990_000,
    }
