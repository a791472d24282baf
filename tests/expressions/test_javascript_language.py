"""The language of the reactive dialect: what its expressions give, and what they read."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from workflows_mcp.errors import ExpressionError
from workflows_mcp.expressions.javascript.language import JavaScript
from workflows_mcp.expressions.language import MISSING, UNSET, Code, Reference
from workflows_mcp.limits import Limits
from workflows_mcp.plan.references import LANGUAGES
from workflows_mcp.values import secret_mark

LANGUAGE = JavaScript()
NOW = 1755613800.0  # 2025-08-19 14:30:00 UTC


def value(source: str, **scope: Any) -> Any:
    return LANGUAGE.template(source).evaluate({"__now__": NOW, "__seed__": "run-1", **scope})


def transformed(source: str, given: Any = None, **scope: Any) -> Any:
    return LANGUAGE.transform(source).evaluate({"input": given, **scope})


def fault(source: str, **scope: Any) -> ExpressionError:
    with pytest.raises(ExpressionError) as caught:
        value(source, **scope)
    return caught.value


def paths(source: str) -> list[str]:
    references = LANGUAGE.transform(source).references
    return [str(reference) + ("?" if reference.optional else "") for reference in references]


class Space:
    """A namespace of which the names that were asked for are known."""

    def __init__(self, **parts: Any) -> None:
        self.parts = parts
        self.asked: list[str | int] = []

    def lookup(self, name: str | int) -> Any:
        self.asked.append(name)
        return self.parts.get(str(name), MISSING)

    def names(self) -> list[str]:
        return list(self.parts)

    def plain(self) -> Any:
        self.asked.append("*")
        return self.parts


# Templates


@pytest.mark.parametrize(
    ("source", "scope", "expected"),
    [
        ("{{ item }}", {"item": "a.ts"}, "a.ts"),
        ("{{ item | path_to_key }}", {"item": "src/a-b.ts"}, "src_a_b_ts"),
        ("{{ user_target_input.substring(7) }}", {"user_target_input": "branch main"}, "main"),
        ("{{ user_target_input.startsWith('commit ') }}", {"user_target_input": "commit 1"}, True),
        ("{{ user_target_input == 'HEAD' }}", {"user_target_input": "HEAD"}, True),
        ("{{ valid_files.join(' ') }}", {"valid_files": ["a", "b"]}, "a b"),
        ("{{ valid_files }}", {"valid_files": ["a"]}, ["a"]),
        ("{{ summary.completed }}/{{ summary.total_files }}", {"summary": {"completed": 1, "total_files": 3}}, "1/3"),
        ("{{ quality_score.overall >= 80 }}", {"quality_score": {"overall": 79.5}}, False),
        ("{{ inputs.retries || 3 }}", {"inputs": {}}, 3),
        ("{{ inputs.retries || 3 }}", {"inputs": {"retries": 5}}, 5),
        ("{{ inputs.branch || 'main' }}", {"inputs": {"branch": ""}}, "main"),
        ("{{ file_results[item].ts_check?.errors?.length > 0 }}", {"item": "a.ts", "file_results": {"a.ts": {"ts_check": {"errors": [1]}}}}, True),
        ("{{ file_results[item].ts_check?.errors?.length > 0 }}", {"item": "a.ts", "file_results": {"a.ts": {}}}, False),
        ("{{ file_results[item].iteration < 5 }}", {"item": "a.ts", "file_results": {"a_ts": {"iteration": 2}}}, True),
        ("{{ a ? 2 : b ? 1 : 0 }}", {"a": 0, "b": 1}, 1),
        ("{{ !item.valid && item.attempts < 3 }}", {"item": {"valid": False, "attempts": 1}}, True),
        ("{{ {a: 1}.a }}", {}, 1),
        ("{{ {a: {b: 1}}}}", {}, {"a": {"b": 1}}),
        ('{{ "}}" }}', {}, "}}"),
        ("{{ `${x}` }}", {"x": 5}, "5"),
        ("{{ `a${`b${x}}}`}` }}", {"x": 5}, "ab5}}"),
        ("{{ a ? {b:{c:1}} : 2 }}", {"a": True}, {"b": {"c": 1}}),
        ("{{ /}}/.test(x) }}", {"x": "}}"}, True),
        ("{{ a / b / c }}", {"a": 12, "b": 3, "c": 2}, 2),
        ("{{ /* }} */ a // }}\n }}", {"a": 1}, 1),
        ("{{ dir }}/**/*.{ts,tsx}", {"dir": "src"}, "src/**/*.{ts,tsx}"),
        ("{{ '{{' }} and {{ '}}' }}", {}, "{{ and }}"),
        ("{{ n }}\n", {"n": 1}, 1),
        ("\n  {{ n }}  \n", {"n": 1}, "\n  1  \n"),
        ("{{ n }}.", {"n": 1}, "1."),
        ("no expression }} at all", {}, "no expression }} at all"),
    ],
)  # fmt: skip
def test_a_template_gives(source: str, scope: dict[str, Any], expected: Any) -> None:
    result = value(source, **scope)
    assert result == expected
    assert type(result) is type(expected)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (True, "true"),
        (False, "false"),
        (None, ""),
        (UNSET, ""),
        (3, "3"),
        (2.0, "2"),
        (1.5, "1.5"),
        (-0.0, "0"),
        (1e21, "1e+21"),
        (1e20, "100000000000000000000"),
        (1e-7, "1e-7"),
        (0.00001, "0.00001"),
        (-1.5e-5, "-0.000015"),
        (12345678901234567890, "12345678901234567890"),
        ("text", "text"),
        ([1, "a", None, 2.0], '[1,"a",null,2]'),
        ({"a": {"b": 1e-7}}, '{"a":{"b":1e-7}}'),
    ],
)
def test_inside_other_text_a_value_is_spelled_as_javascript_does(given: Any, text: str) -> None:
    assert value("<{{ x }}>", x=given) == f"<{text}>"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("undefined", None),
        ("null", None),
        ("0 / 0", None),
        ("1 / 0", None),
        ("[undefined, NaN, -Infinity, -0]", [None, None, None, 0]),
        ("({a: undefined, b: 1})", {"b": 1}),
        ("10 / 4", 2.5),
        ("10 / 5", 2),
        ("0.1 + 0.2", 0.30000000000000004),
        ("2 ** 62 * 1", 4611686018427388000),
        ("[2 ** 64 * 1]", [2.0**64]),
        ("new Set([1, 1, 2])", [1, 2]),
        ("new Map([['a', 1]])", {"a": 1}),
        ("[1, 2].values().map(x => x * 2)", [2, 4]),
        ("new Error('no')", {"name": "Error", "message": "no"}),
        ("new Date(0)", "1970-01-01T00:00:00.000Z"),
        ("'half \\ud83d of a character'", "half � of a character"),
        ("'\\u0000'", "\0"),
    ],
)
def test_a_result_is_json_data(source: str, expected: Any) -> None:
    result = value("{{ " + source + " }}")
    assert result == expected
    assert type(result) is type(expected)


@pytest.mark.parametrize("source", ["x => x", "Symbol('a')", "Math.max"])
def test_a_result_that_is_no_value_is_an_error(source: str) -> None:
    assert "which is not a value" in fault("{{ " + source + " }}").message


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("'a/b.ts' | path_to_key", "a_b_ts"),
        ("[1, {a: 2}] | json", '[1,{"a":2}]'),
        ("'abc' | length", 3),
        ("{a: 1} | length", 1),
        ("undefined | length", 0),
        ("' a ' | trim | upper", "A"),
        ("['a', 'b'] | join(', ')", "a, b"),
        ("'a b' | split", ["a", "b"]),
        ("'a-b-c' | replace('-', '+')", "a+b+c"),
        ("null | default('none')", "none"),
        ("missing | default('none')", "none"),
        ("missing | default('none') | upper", "NONE"),
        ("0 | default(5)", 0),
        ("[3, 1, 2] | sort | first", 1),
        ("[{n: 2}, {n: 1}] | sort('n') | last", {"n": 2}),
        ("[1, 1, 2] | unique | sum", 3),
        ("{a: 1, b: 2} | keys", ["a", "b"]),
        ("{a: 1, b: 2} | values | max", 2),
        ("2.345 | round(1)", 2.3),
        ("'raw.' + 'a.ts' | path_to_key", "raw.a_ts"),
        ("['a'].concat(['b']) | join('') | upper", "AB"),
        ("['a', 'b'].map(x => x | upper) | join('')", "AB"),
        ("`a${'b' | upper}` | lower", "ab"),
        ("[1, 2] | length > 1", True),
        ("5 | 2", 7),
        ("5 || 2", 5),
    ],
)
def test_filters_take_what_stands_before_them_and_any_other_bar_is_javascripts(
    source: str, expected: Any
) -> None:
    assert value("{{ " + source + " }}") == expected


# Paths are looked up without JavaScript

VALUES: list[Any] = [
    None, UNSET, True, False, 0, 5, 2.0, 1.5, -0.0, "", "text", "😀x", [], [1, 2.0], [[1], {"b": 1}], {}, {"b": 1},
    {"b": None}, {"b": {"c": [1, "x"]}}, {"b": [{"c": 2}]}, {"length": 3}, {"0": "zero", "1": {"c": 4}}, {"b_c": 7},
    {"b.c": 1, "b_c": 2}, {"constructor": 5}, {"toString": 1}, {"b": "text"}, {"b": {"length": 0}},
]  # fmt: skip
PATHS = [
    "a", "a.b", "a.length", "a[0]", "a[1]", "a.b.c", "a?.b", "a?.b.c", "a.b?.c", "a.b.length", "a['b']", "a[k]",
    "a?.[k]", "a['b.c']", "a.constructor", "a.b[0].c", "a[1].c", "!a", "!!a", "!a.b", "!a.length", "a[n]", "a.b[n]",
]  # fmt: skip


@pytest.mark.parametrize("path", PATHS)
def test_a_path_that_is_looked_up_gives_what_javascript_gives(path: str) -> None:
    for given in VALUES:
        for key in ("b", "b.c", "toString"):
            scope = {"a": given, "k": key, "n": 0}
            outcomes: list[tuple[Any, Any]] = []
            for source in (
                f"{{{{ {path} }}}}",
                f"{{{{ ((a, k, n) => {path})(a, k, n) }}}}",
                f"{{{{ [{path}][0] }}}}",
            ):
                try:
                    result = value(source, **scope)
                    outcomes.append((result, type(result)))
                except ExpressionError as error:
                    outcomes.append((error.code, error.message.split(" in `")[0]))
            assert outcomes[0] == outcomes[1] == outcomes[2], (path, given, key)


def test_a_path_hands_out_the_value_itself_and_keeps_large_numbers_exact() -> None:
    state = {"list": [1, 2], "id": 12345678901234567891}
    assert value("{{ state.list }}", state=state) is state["list"]
    assert value("{{ state.id }}", state=state) == 12345678901234567891


def test_of_large_objects_only_what_is_read_is_given_to_javascript() -> None:
    huge = {"text": "x" * 30_000_000, "count": 3, "files": ["a", "b"], "by_file": {"a_ts": {"n": 1}}}
    scope = {"raw": huge, "item": "a.ts"}
    assert value("{{ raw.count + raw.files.length }}", **scope) == 5
    assert value("{{ raw.by_file[item].n + 1 }}", **scope) == 2
    assert value("{{ raw.text.length > 5 }}", **scope) is True


def test_what_changes_one_path_changes_those_that_lead_on_from_it() -> None:
    assert value("{{ x.list.push(4) && x.list.length }}", x={"list": [1]}) == 2
    assert value("{{ x.list.push(4) && x }}", x={"list": [1]}) == {"list": [1, 4]}
    assert transformed("input.a.b = 5; input.a.b += 1; input", {"a": {"b": 1}}) == {"a": {"b": 6}}
    assert transformed("input.a.n++; delete input.a.x; input.a", {"a": {"n": 1, "x": 2}}) == {"n": 2}


def test_a_key_that_is_not_there_is_found_under_its_other_spelling() -> None:
    results = {"src_a_ts": {"ok": True}, "b.ts": {"ok": 1}, "b_ts": {"ok": 2}}
    assert value("{{ results[item].ok }}", results=results, item="src/a.ts") is True
    assert value("{{ results[item].ok }}", results=results, item="b.ts") == 1
    assert value("{{ results['src/a.ts'].ok }}", results=results) is True
    assert value("{{ results['src/a.ts'].ok.nope === undefined }}", results=results) is True
    assert value("{{ results[item]?.ok ?? 'none' }}", results=results, item="c.ts") == "none"
    source = "input.map(f => results[f]?.ok ?? null)"
    assert transformed(source, ["src/a.ts", "b.ts", "c.ts"], results=results) == [True, 1, None]
    assert transformed("input.map(f => 'own' in results[f])", ["src/a.ts"], results=results) == [False]


# Conditions


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ has_errors && retry_count < 5 }}", True),
        ("has_errors && retry_count < 5", True),
        ("(\n  has_errors &&\n  retry_count > 5\n)", False),
        ("{{ !has_errors }}", False),
        ("empty_list", True),
        ("empty_text", False),
        ("zero", False),
        ("nothing", False),
        ("not_yet", False),
        ("!not_yet", True),
        ("files.length", True),
        ("{ a: 1 }", True),
    ],
)
def test_a_condition_is_true_or_false(source: str, expected: bool) -> None:
    scope = {
        "has_errors": True,
        "retry_count": 2,
        "empty_list": [],
        "empty_text": "",
        "zero": 0,
        "nothing": None,
        "not_yet": UNSET,
        "files": ["a"],
    }
    assert LANGUAGE.condition(source).evaluate(scope) is expected


@pytest.mark.parametrize(
    ("source", "message", "offset"),
    [
        ("", "empty", 0),
        ("{{ a }} && {{ b }}", "text with expressions in it", 11),
        ("a == {{ b }}", "text with expressions in it", 5),
        ("{{ a }} text", "text with expressions in it", 0),
        ("a &&", "cannot be read", 4),
        ("{{ }}", "no expression", 0),
    ],
)
def test_a_condition_that_is_none_is_refused_when_it_is_read(source: str, message: str, offset: int) -> None:
    with pytest.raises(ExpressionError, match=message) as caught:
        LANGUAGE.condition(source)
    assert (caught.value.code, caught.value.offset) == ("syntax", offset)


# Code and pieces


def test_the_values_of_a_command_are_kept_apart_from_its_text() -> None:
    code = LANGUAGE.code("cat {{ path }} {{ n + 1 }}; echo '{x}'")
    assert code.evaluate({"path": "a b; rm", "n": 1}) == Code(("cat ", " ", "; echo '{x}'"), ("a b; rm", 2))
    assert [reference.path for reference in code.references] == [("path",), ("n",)]
    assert LANGUAGE.code("ls").evaluate({}) == Code(("ls",), ())


def test_the_pieces_of_a_template_are_its_expressions_as_they_are_written() -> None:
    assert LANGUAGE.pieces("a {{x}} b {{ {y: 1}.y }}") == ("{{x}}", "{{ {y: 1}.y }}")
    assert LANGUAGE.pieces("a") == ()


# References


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("summary.completed + inputs.retries", ["summary.completed", "inputs.retries"]),
        ("files[item]", ["files", "item"]),
        ("files[0].name", ["files[0].name"]),
        ("raw['a b'].c", ["raw.a b.c"]),
        ("files.filter(f => f.size > limits.size).length", ["files", "limits.size"]),
        ("test_results.files?.includes(file)", ["test_results.files?", "file"]),
        ("file_batches?.findIndex(b => b)", ["file_batches?"]),
        ("typeof x === 'undefined' || (y ?? z)", ["x?", "y?", "z"]),
        ("const { a, b: [c] } = input, d = e;\na + b + c + d", ["input", "e", "b"]),
        ("function f(a, b = c) { return a + b + f }\nf(1)", ["c"]),
        ("try { g(1) } catch (e) { e.message }\nreturn h", ["g", "h"]),
        ("for (const [k, v] of Object.entries(input)) { k + v + w }\nreturn 1", ["input", "w"]),
        ("for (const x of [a, b]) x\nif (of) { of.c }", ["a", "b", "of", "of.c"]),
        ("({ a, b: c, [d]: e, ...f, g(h) { return h + i } })", ["a", "c", "d", "e", "f", "i"]),
        ("items.filter(item => item.ok).length && item.ready", ["items", "item.ready"]),
        ("x => y => x + y + z", ["z"]),
        ("({ a = b }) => a + c", ["b", "c"]),
        ("Math.max(JSON.parse(a), parseInt(b)) + now() + uuid()", ["a", "b"]),
        ("`a ${b.c} ${`${d}`}`", ["b.c", "d"]),
        ("a.b.c(d).e", ["a.b", "d"]),
        ("this.x + global.y", ["this.x", "global.y"]),
        ("input.map(function () { return this.x })", ["input"]),
        ("a ? b : { c: d }", ["a", "b", "d"]),
        ("l: for (;;) { break l }\nreturn m", ["m"]),
        ("class A { m(p) { return p + q } static s = t }\nnew A()", ["q", "t"]),
        ("x | upper | join(y)", ["x", "y"]),
        ("x | default(y)", ["x?", "y"]),
        ("/a b/.test(c) / d", ["c", "d"]),
        ("(() => { var x = 1; return x })() + x", ["x"]),
        ("(function f() { return f })() ?? f", ["f"]),
        ("a.b?.[c[0].d].e + this[f].g", ["a.b?", "c[0].d", "this", "f"]),
    ],
)
def test_the_references_are_the_paths_that_are_read_from_outside(source: str, expected: list[str]) -> None:
    assert paths(source) == expected


def test_a_reference_knows_its_place() -> None:
    expression = LANGUAGE.template("Hello {{ inputs.name }}, {{ n ?? 1 }}")
    assert expression.references == (Reference(("inputs", "name"), 9), Reference(("n",), 28, optional=True))


def test_of_a_namespace_only_the_names_that_are_read_are_looked_up() -> None:
    space = Space(a=1, b=[2], c=Space(d=3))
    assert value("{{ space.a + space.b[0] + space.c.d }}", space=space) == 6
    assert set(space.asked) == {"a", "b", "c"}
    assert value("{{ space.nope === undefined }}", space=space) is True
    assert value("{{ Object.keys(space).length }}", space=Space(a=1, b=2)) == 2
    assert value("{{ space }}", space=Space(a=1)) == {"a": 1}
    assert value("{{ space[k] }}", space=Space(a=1), k="a") == 1


# Names that are not there


def test_a_name_that_has_no_value_yet_is_undefined() -> None:
    assert value("{{ x }}", x=UNSET) is None
    assert value("{{ x === undefined }}", x=UNSET) is True
    assert value("{{ x?.y ?? 'none' }}", x=UNSET) == "none"
    assert "cannot read property 'y' of undefined" in fault("{{ x.y }}", x=UNSET).message


def test_a_name_that_does_not_exist_is_an_error_with_the_nearest_one() -> None:
    error = fault("{{ 1 + retry_cuont }}", retry_count=1)
    assert (error.code, error.offset) == ("undefined", 7)
    assert error.message == "there is no 'retry_cuont'"
    assert "did you mean 'retry_count'" in error.hint
    assert "__now__" not in error.hint


def test_a_name_that_is_asked_about_need_not_exist() -> None:
    assert value("{{ typeof x }}") == "undefined"
    assert value("{{ x ?? 1 }}") == 1
    assert value("{{ x?.y.z }}") is None
    assert fault("{{ (x ?? 1) + x }}").code == "undefined"


@pytest.mark.parametrize(
    "source", ["_x", "__limits__", "__now__", "__left", "__filters", "x => __tick()", "(__p0) => 1"]
)
def test_private_names_cannot_be_read(source: str) -> None:
    error = fault("{{ " + source + " }}", _x=1, __limits__=Limits())
    assert error.code in ("undefined", "syntax")


def test_words_of_javascript_can_be_read_as_members() -> None:
    error = fault("{{ package }}", package=1)
    assert error.code == "syntax"
    assert "raw.package" in error.hint
    assert value("{{ raw.package + raw.class }}", raw={"package": 1, "class": 2}) == 3


# Transforms


@pytest.mark.rows("R5")
@pytest.mark.parametrize(
    ("source", "given", "expected"),
    [
        ("input.split('\\n').filter(l => l.trim())", "a\n\nb\n", ["a", "b"]),
        ("{\n  total: input.length,\n  first: input[0] // the first\n}\n", ["x"], {"total": 1, "first": "x"}),
        ("{}", 1, {}),
        ("{ a: 1 };", 1, {"a": 1}),
        ("input.a;", {"a": 1}, 1),
        ("return input.a", {"a": 1}, 1),
        ("try {\n  return JSON.parse(input);\n} catch (e) {\n  return { error: 'Parse failed', raw: input };\n}", "[", {"error": "Parse failed", "raw": "["}),
        ("const n = input.length;\n{ n: n }", [1], {"n": 1}),
        ("const n = input.length\n{ n, m: n + 1 }", [1], {"n": 1, "m": 2}),
        ("const n = 1\nconst m = n +\n  1\nm\n  + 1", None, 3),
        ("if (!input) return [];\ninput.map(x => x + 1)", [1], [2]),
        ("if (!input) return [];\ninput.map(x => x + 1)", None, []),
        ("function twice(x) { return x * 2 }\ntwice(input)", 4, 8),
        ("let sum = 0; for (const x of input) sum += x; sum", [1, 2], 3),
        ("let sum = 0; for (const x of [...input, 3]) sum += x; sum", [1, 2], 6),
        ("let sum = 0; for (const [x] of [[1], [2]]) sum += x; sum", None, 3),
        ("let all = ''; for (const { x } of (input)) for (const of of `<${x}>`) all += of; all", [{"x": "a"}], "<a>"),
        ("let sum = 0; for (let i = 0; i < input.length; i++) { sum += input[i] } sum", [1, 2], 3),
        ("let i = 0; while (i < 5) i++; i", None, 5),
        ("let i = 0; do { i++ } while (i < 5); i", None, 5),
        ("for (const key in input) if (key > 'a') return key", {"a": 1, "b": 2}, "b"),
        ("switch (input) { case 1: return 'one'; default: return 'other' }", 1, "one"),
        ("l: for (;;) { for (;;) { break l } } 5", None, 5),
        ("class A { #n = 1; get n() { return this.#n } m(a = 1) { return a + this.n } }\nnew A().m()", None, 2),
        ("const { a, b: { c = 5, ...rest } = {} } = input; ({ a, c, rest })", {"a": 1, "b": {"d": 2}}, {"a": 1, "c": 5, "rest": {"d": 2}}),
        ("const [x, , y = 3] = input; x + y", [1, 2], 4),
        ("[...new Set(input.map(e => e.type))]", [{"type": "a"}, {"type": "a"}], ["a"]),
        ("input.map(function (x) { return this.k + x }, { k: 5 })", [1], [6]),
        ("function* g() { yield 1; yield 2 }\n[...g()]", None, [1, 2]),
        ("input?.[0]?.x ?? 'none'", [], "none"),
        ("input.x ||= 3; input", {}, {"x": 3}),
        ("`${input.map(x => `<${x}>`).join('')}`", [1, 2], "<1><2>"),
        ("input.toSorted((a, b) => b - a).at(-1)", [2, 1, 3], 1),
        ("Object.groupBy(input, x => x % 2 ? 'odd' : 'even')", [1, 2, 3], {"odd": [1, 3], "even": [2]}),
        ("input.flat(2).concat([4], 5).reverse()", [1, [2, [3]]], [5, 4, 3, 2, 1]),
        ("'a-b-c'.replaceAll('-', '+').replace(/b/, x => x.toUpperCase())", None, "a+B+c"),
        ("'a-b'.replaceAll('-', \"[$&$`$'$$]\")", None, "a[-ab$]b"),
        ("Math.max(...input) + Math.min(...input)", [3, 1, 2], 4),
        ("input.sort()", ["b", 10, 9, None, "a"], [10, 9, "a", "b", None]),
        ("JSON.stringify(input, ['a', 'b'], 1)", {"a": {"b": 1, "c": 2}}, '{\n "a": {\n  "b": 1\n }\n}'),
        ("return", None, None),
    ],
)  # fmt: skip
def test_a_transform_is_an_expression_a_body_or_statements_that_end_in_one(
    source: str, given: Any, expected: Any
) -> None:
    assert transformed(source, given) == expected


@pytest.mark.rows("R5")
def test_a_transform_sees_the_flat_state_beside_its_input() -> None:
    source = "input.map(file => ({ path: file, tested: test_results.files?.includes(file), batch: file_batches?.length }))"
    result = transformed(source, ["a", "b"], test_results={"files": ["a"]}, file_batches=UNSET)
    assert result == [{"path": "a", "tested": True}, {"path": "b", "tested": False}]


@pytest.mark.rows("R5")
@pytest.mark.parametrize(
    ("source", "message", "offset"),
    [
        ("", "empty", 0),
        ("// nothing", "empty", 0),
        ("const x = 5;", "returns no value", 0),
        ("if (input) { 'a' } else { 'b' }", "returns no value", 0),
        ("input.map(x => x +)", "unexpected token", 18),
        ("const a = 1;\nconst b = = 2;\nb", "unexpected token", 23),
        ("input.map((x => x)", r"'\(' is not closed", 9),
        ("input)", r"'\)' closes nothing", 5),
        ("1) + (2", r"'\)' closes nothing", 1),
        ("input['a]", "not closed", 6),
        ("`a ${input", "not closed", 0),
        ("/* input", "comment is not closed", 0),
        ("async () => 1", "asynchronous", 0),
        ("await input", "asynchronous", 0),
        ("import('fs')", "import is not supported", 0),
        ("with (input) { x }", "cannot be read", 0),
        ("10n ** 2n", "BigInt", 0),
    ],
)
def test_a_transform_that_cannot_be_read_is_refused_when_it_is_read(
    source: str, message: str, offset: int
) -> None:
    with pytest.raises(ExpressionError, match=message) as caught:
        LANGUAGE.transform(source)
    assert (caught.value.code, caught.value.offset) == ("syntax", offset)


@pytest.mark.rows("R6")
def test_a_result_is_checked_before_it_becomes_json() -> None:
    valid = "typeof output === 'number' && !isNaN(output)"
    divided = LANGUAGE.transform("input[0] / input[1]", valid)
    assert divided.evaluate({"input": [6, 3]}) == 2
    assert divided.evaluate({"input": [1, 0]}) is None  # Infinity is a number, which JSON does not have
    with pytest.raises(ExpressionError, match="not valid") as caught:
        divided.evaluate({"input": [0, 0]})
    assert caught.value.code == "javascript"
    assert LANGUAGE.transform("input", "output < most").evaluate({"input": 1, "most": 2}) == 1
    assert [reference.path for reference in divided.references] == [("input", 0), ("input", 1)]
    with pytest.raises(ExpressionError, match=r"of undefined in `output\.x\.y`"):
        LANGUAGE.transform("input", "output.x.y").evaluate({"input": 1})


# Errors


@pytest.mark.parametrize(
    ("source", "offset"),
    [
        ("text {{ a + }}", 12),
        ("{{ a b }}", 5),
        ("'é😀' {{ 'é😀' + (a b) }}", 18),
        ("{{ a }} {{ b. }}", 14),
        ("{{ x | upper + }}", 15),
        ("{{ l.map(x => x + ) }}", 18),
    ],
)
def test_the_place_of_what_cannot_be_read_is_told(source: str, offset: int) -> None:
    error = fault(source)
    assert (error.code, error.offset) == ("syntax", offset)


@pytest.mark.parametrize(
    ("source", "message", "offset"),
    [
        ("{{ a.b.c }}", "cannot read property 'c' of undefined", 3),
        ("text\n {{ a.nope() }}", "not a function", 11),
        ("é {{ [1].map(x => null.y) }}", "cannot read property 'y' of null", 18),
        ("{{ 1 }} {{ a.x | upper }} {{ JSON.parse('{') }}", "SyntaxError", 34),
    ],
)
def test_the_place_where_it_went_wrong_is_told(source: str, message: str, offset: int) -> None:
    error = fault(source, a={})
    assert message in error.message
    assert (error.code, error.offset) == ("javascript", offset)


def test_of_several_lines_the_one_is_shown_where_it_went_wrong() -> None:
    with pytest.raises(ExpressionError, match=r"in `return x\.y\.z;`") as caught:
        transformed("const x = input;\nreturn x.y.z;", {})
    assert caught.value.offset == 24


@pytest.mark.parametrize("thrown", ["'plain text'", "new TypeError('wrong')", "{ code: 5 }", "undefined"])
def test_what_an_expression_throws_is_told(thrown: str) -> None:
    with pytest.raises(ExpressionError, match=r"plain text|TypeError: wrong|\{\"code\":5\}|undefined in"):
        transformed(f"throw {thrown}")


@pytest.mark.parametrize(
    ("source", "hint"),
    [
        ("{{ a and b }}", "&&"),
        ("{{ a or b }}", "||"),
        ("{{ not a }}", "!"),
        ("{{ a if b else c }}", "?"),
        ("{{ a == None }}", "null"),
        ("{{ a.b.c }}", "?."),
        ("{{ process.env }}", "outside"),
        ("{{ a", "}}"),
        ("a {{ }} b", "{{ '{{' }}"),
    ],
)
def test_common_mistakes_get_a_hint(source: str, hint: str) -> None:
    assert hint in fault(source, a={}, b=1, c=1).hint


def test_a_rendered_text_has_a_limit() -> None:
    limits = Limits(expression_chars=100)
    error = fault("{{ x }}{{ x }}", x="a" * 60, __limits__=limits)
    assert error.code == "too_large"
    assert "WORKFLOWS_LIMIT_EXPRESSION_CHARS" in error.hint


# Secrets


def test_the_mark_of_a_secret_goes_through() -> None:
    mark = secret_mark("KEY")
    scope = {"secrets": Space(KEY=mark), "held": {"token": mark}}
    assert value("{{ secrets.KEY }}", **scope) == mark
    assert value("Bearer {{ secrets.KEY }}", **scope) == f"Bearer {mark}"
    assert value("{{ 'Bearer ' + secrets.KEY }}", **scope) == f"Bearer {mark}"
    assert value("{{ [held.token.slice(0)] }}", **scope) == [mark]


@pytest.mark.parametrize(
    "source",
    [
        "{{ '⟦sec' + 'ret:KEY⟧' }}",
        "{{ ['⟦', 'secret:KEY⟧'].join('') }}",
        "⟦sec{{ rest }}",
        "{{ open }}{{ close }}",
        "{{ open + close }}",
        "{{ {['\\u27e6secret:KEY⟧']: 1} }}",
        "{{ String.fromCharCode(0x27e6) + 'secret:KEY⟧' }}",
        "⟦secret:KEY⟧{{ one }}",
    ],
)
def test_a_mark_that_was_put_together_is_none(source: str) -> None:
    result = value(source, rest="ret:KEY⟧", open="⟦secret:", close="KEY⟧", one=1)
    assert "⟦secret:KEY⟧" not in str(result)


# The language as a whole


def test_it_is_the_language_of_the_reactive_dialect() -> None:
    language = LANGUAGES["javascript"]
    assert language.is_dynamic("a {{ b }}")
    assert not language.is_dynamic("a { b }")
    assert language.output("{{ a }}").evaluate({"a": [1]}) == [1]


def test_the_parser_and_the_engine_are_imported_when_they_are_first_needed() -> None:
    program = (
        "import sys\n"
        "from workflows_mcp.expressions.javascript.language import JavaScript\n"
        "assert JavaScript().template('text').evaluate({}) == 'text'\n"
        "assert 'tree_sitter' not in sys.modules\n"
        "assert JavaScript().template('{{ a.b }} {{ !c }}').evaluate({'a': {'b': 1}, 'c': 0}) == '1 true'\n"
        "assert '_quickjs' not in sys.modules\n"
        "assert JavaScript().template('{{ a + 1 }}').evaluate({'a': 1}) == 2\n"
        "assert '_quickjs' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
