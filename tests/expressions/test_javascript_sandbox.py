"""JavaScript reaches nothing but its scope, leaves nothing behind, and gives the same for the same scope."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from typing import Any

import pytest

from workflows_mcp.errors import ExpressionError
from workflows_mcp.expressions.javascript.language import JavaScript
from workflows_mcp.expressions.javascript.syntax import GLOBALS

pytestmark = pytest.mark.rows("R5")

LANGUAGE = JavaScript()
NOW = 1755613800.0  # 2025-08-19 14:30:00 UTC


def run(source: str, **scope: Any) -> Any:
    return LANGUAGE.transform(source).evaluate({"input": None, **scope})


def timed(source: str, **scope: Any) -> Any:
    return run(source, **{"__now__": NOW, "__seed__": "one", **scope})


# No host


@pytest.mark.parametrize(
    "name",
    [
        "globalThis", "window", "self", "process", "require", "module", "console", "print", "std", "os", "fetch", "XMLHttpRequest",
        "setTimeout", "queueMicrotask", "Promise", "Proxy", "Function", "performance", "WeakRef", "FinalizationRegistry",
        "SharedArrayBuffer", "Atomics", "Uint8Array", "ArrayBuffer", "BigInt", "InternalError", "navigator", "gc", "scriptArgs",
    ],
)  # fmt: skip
def test_there_is_no_host(name: str) -> None:
    with pytest.raises(ExpressionError, match=f"there is no '{name}'"):
        run(f"{name}.x")
    assert run(f"typeof {name}") == "undefined"


@pytest.mark.parametrize(
    "source",
    [
        "eval('1')",
        "(0, eval)('1')",
        "new Function('return 1')()",
        "(() => {}).constructor('return 1')()",
        "(function* () {}).constructor('yield 1')",
        "[].map.constructor('return 1')()",
        "''.constructor.constructor('return this')()",
        "Object.getPrototypeOf(function () {}).constructor('return 1')()",
        "Reflect.construct((() => {}).constructor, ['return 1'])()",
        "now.constructor('return 1')()",
        "import('os')",
        "import.meta",
        "(async () => {}).constructor('return 1')()",
        "for await (const x of []) {}",
        "async function f() {}\nf()",
        "({ async f() { return 1 } }).f()",
    ],
)
def test_no_code_is_made_from_text_and_none_runs_later(source: str) -> None:
    with pytest.raises(ExpressionError):
        run(source)


@pytest.mark.parametrize(
    "source",
    [
        "(function () { return this })()",
        "(function () { return this }).call()",
        "(function () { return (() => this)() })()",
        "({ f() { return this } }).f.call(undefined)",
    ],
)
def test_a_function_has_no_global_object(source: str) -> None:
    assert run(source) is None


@pytest.mark.parametrize(
    "source",
    [
        "1 }); let leaked = 1; (function () { return (2",
        "1\n) } ; (",
        "a /* */ ) + ( b",
        "`${1}`) ; (`",
        "x <!-- ) \n",
        "x <!-- `\n1 <!-- `",
        "1 /*\n*/ --> x",
        "x\n--> x",
        "<!-- x\n1",
        "1 + <a>`</a> + 1 + `",
        "'\0'",
        "'\ud800'",
    ],
)
def test_an_expression_cannot_break_out_of_its_function(source: str) -> None:
    with pytest.raises(ExpressionError):
        run(source, a=1, b=1)
    assert run("typeof leaked") == "undefined"


@pytest.mark.parametrize(
    "source",
    [
        "typeof __left",
        "\\u005f_left",
        "typeof _\\u{5f}left",
        "({ _\\u005fleft })",
        "__left = 1e9; input",
        "({ __left } = { __left: 1e9 })",
        "const { a: __left } = { a: 1e9 }; 1",
        "const x = function () {} /__left/ 1; x",
        "({}) /__left/ 1",
        "if (1) { } [1] /__left/ 1",
        "// \u2028 typeof __left",
        "// \r typeof __left",
        "'a\\\n' + typeof __left",
        "/[/\\]`]/.test(1) + typeof __left + `",
        "`${`${typeof __left}`}`",
        "function f(a = __tick()) { return a }\nf()",
        "class __filters {}\n1",
    ],
)
def test_what_counts_the_steps_cannot_be_named(source: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        run(source)
    assert caught.value.code == "syntax"


# Nothing is left behind

ROOTS = ", ".join(sorted(GLOBALS - {"undefined", "NaN", "Infinity", "arguments"}))
INSTANCES = """[].values(), ''[Symbol.iterator](), ''.matchAll(/a/g), new Map().entries(), new Set().values(),
    Iterator.from({ next() {} }), [].values().map(x => x), function () {}, function* () {}, /a/,
    new Date(0), new Error(), Symbol(), 1, '', true, [], {}, new Map(), new Set(), new WeakMap(), new WeakSet()"""


def test_everything_that_expressions_share_is_frozen() -> None:
    source = f"""
        const instances = [{INSTANCES}].map(Object);
        const left = [{ROOTS}, ...instances.map(one => Object.getPrototypeOf(one)),
            Object.getPrototypeOf(Object.getPrototypeOf((function* () {{}})()))];
        const seen = new Set(), open = [];
        while (left.length) {{
            const next = left.pop();
            if (next === null || !['object', 'function'].includes(typeof next) || seen.has(next)) continue;
            seen.add(next);
            if (!Object.isFrozen(next)) open.push(String(next.name ?? next));
            left.push(Object.getPrototypeOf(next));
            for (const key of Reflect.ownKeys(next)) {{
                const found = Object.getOwnPropertyDescriptor(next, key);
                left.push(found.value, found.get, found.set);
            }}
        }}
        ({{ open, many: seen.size > 300 }})"""
    assert run(source) == {"open": [], "many": True}


@pytest.mark.parametrize(
    "source",
    [
        "Object.prototype.x = 1",
        "({}).__proto__.x = 1",
        "[].__proto__.x = 1",
        "''.__proto__.x = 1",
        "(() => 1).__proto__.x = 1",
        "/a/.__proto__.x = 1",
        "Math.x = 1",
        "JSON.parse = () => 1",
        "Array.prototype.map = () => 1",
        "Array.prototype[Symbol.iterator] = 1",
        "delete Array.prototype.map; throw 1",
        "Object.defineProperty(Object.prototype, 'x', { get() { return 1 } })",
        "Object.setPrototypeOf(Array.prototype, { x: 1 })",
        "Object.getPrototypeOf([].values()).next = 1",
        "Object.getPrototypeOf(Object.getPrototypeOf((function* () {})())).x = 1",
        "Error.stackTraceLimit = 1",
        "Error.prepareStackTrace = () => 1; throw 1",
        "Error.prototype.toString = () => 'x'",
        "RegExp.prototype.exec = () => 1",
        "Symbol.prototype.x = 1",
        "now.x = 1",
        "uuid.x = 1",
        "Date.now = () => 0",
        "Object.getPrototypeOf(results).x = 1",
        "undeclared = 1",
        "var x; (function () { y = 1 })()",
    ],
)
def test_what_an_expression_would_leave_behind_is_an_error(source: str) -> None:
    with pytest.raises(ExpressionError):
        timed(source + "\nresults[input]", results={"a_b": 1}, input="a.b")
    assert run("[({}).x, [].x, ''.x, Math.x, typeof x, [1].map(n => n + 1)]") == [
        None,
        None,
        None,
        None,
        "undefined",
        [2],
    ]


def test_own_objects_can_be_changed_at_will() -> None:
    source = """
        class Wrong extends Error { constructor(m) { super(m); this.name = 'Wrong' } }
        const o = {};
        o.toString = () => 'own'; o.constructor = 5; o.hasOwnProperty = 1; o.valueOf = 2;
        const e = new Error(); e.message = 'said';
        ({ text: String(o), five: o.constructor, error: String(new Wrong('x')), said: e.message,
           counted: ['constructor', 'a', 'a'].reduce((all, w) => ({ ...all, [w]: 1 }), {}) })"""
    assert run(source) == {
        "text": "own",
        "five": 5,
        "error": "Wrong: x",
        "said": "said",
        "counted": {"constructor": 1, "a": 1},
    }


def test_no_evaluation_sees_what_another_one_has_done() -> None:
    source = """
        const r = /a/g, cache = (input.seen ??= []);
        cache.push(r.test('aa'), r.lastIndex);
        String.raw`x`.length + cache.length"""
    value: dict[str, Any] = {}
    assert [run(source, input=value), run(source, input=value)] == [3, 3]
    assert value == {}
    assert run("RegExp.$1 ?? RegExp.lastMatch ?? RegExp['$&'] ?? 'none'") == "none"


def test_what_is_read_of_the_scope_cannot_be_changed_in_it() -> None:
    state = {"list": [3, 1, 2], "deep": {"a": 1}}
    assert run("state.list.sort(); state.deep.a = 2; delete state.deep; state.list", state=state) == [1, 2, 3]
    assert state == {"list": [3, 1, 2], "deep": {"a": 1}}


def test_threads_do_not_share_anything() -> None:
    results: list[Any] = []

    def work(number: int) -> None:
        results.extend(run("input.map(x => x * n)", input=[1, 2], n=number) for _ in range(50))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(tuple, results)) == sorted(
        (number, number * 2) for number in range(4) for _ in range(50)
    )


# The same for the same


def test_time_is_what_the_scope_says_and_stands_still() -> None:
    assert timed("now()") == "2025-08-19T14:30:00Z"
    assert timed("now()", __now__=NOW + 0.25) == "2025-08-19T14:30:00.250Z"
    assert timed("[Date.now(), +new Date(), new Date().getHours()]") == [1755613800000, 1755613800000, 14]
    assert timed("Date()") == "Tue Aug 19 2025 14:30:00 GMT+0000 (Coordinated Universal Time)"


def test_chance_follows_from_the_seed() -> None:
    source = "[uuid(), uuid(), Math.random(), Math['random']()]"
    first = timed(source)
    assert timed(source) == first
    assert timed(source, __seed__="two") != first
    assert first[0] != first[1]
    assert re.fullmatch(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", first[0])
    assert 0 <= first[2] < 1
    numbers = timed("Array.from({ length: 1000 }, () => Math.random())")
    assert len(set(numbers)) == 1000
    assert 0.45 < sum(numbers) / 1000 < 0.55


@pytest.mark.parametrize("source", ["now()", "uuid()", "new Date()", "Date.now()", "Math.random()", "Date()"])
def test_a_transform_has_neither_time_nor_chance(source: str) -> None:
    with pytest.raises(ExpressionError, match="the same for the same input"):
        run(source)


def test_there_is_one_time_zone_whatever_the_machine_has() -> None:
    source = """[new Date(2024, 0, 1).toISOString(), new Date('2024-07-01T10:00').toISOString(),
        new Date('2024-07-01').getDate(), new Date('2024-07-01T10:00:00+02:00').getHours(),
        new Date(0).getTimezoneOffset(), new Date(0).toLocaleString(), String(new Date(NaN)),
        new Date(0).toString(), (d => { d.setHours(5); return d.toISOString() })(new Date(0)),
        Date.parse('2024-01-01 00:00') - Date.UTC(2024, 0, 1)]"""
    program = (
        "import json, sys\n"
        "from workflows_mcp.expressions.javascript.language import JavaScript\n"
        "print(json.dumps(JavaScript().transform(sys.argv[1]).evaluate({})))"
    )
    for zone in ("America/New_York", "Asia/Kolkata"):
        done = subprocess.run(
            [sys.executable, "-c", program, source],
            env={**os.environ, "TZ": zone, "LANG": "de_DE.UTF-8"},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.strip() == (
            '["2024-01-01T00:00:00.000Z", "2024-07-01T10:00:00.000Z", 1, 8, 0, "1/1/1970, 12:00:00 AM", '
            '"Invalid Date", "Thu Jan 01 1970 00:00:00 GMT+0000 (Coordinated Universal Time)", '
            '"1970-01-01T05:00:00.000Z", 0]'
        )


def test_numbers_and_texts_have_no_locale_and_sorting_is_stable() -> None:
    assert run("[(1234.5).toLocaleString(), 'ä'.localeCompare('z') > 0, 'I'.toLocaleLowerCase('tr')]") == [
        "1234.5",
        True,
        "i",
    ]
    many = [{"key": n % 3, "n": n} for n in range(300)]
    by_key = run("input.sort((a, b) => a.key - b.key)", input=many)
    assert by_key == sorted(many, key=lambda one: one["key"])
