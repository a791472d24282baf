"""A reactive document becomes the plan that it means: a flat list of nodes, and a state that follows from itself."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from support.plans import Branch, Call, Change, Each, ForEach, Node, Return, Tell, Wait, While, bare, unplaced
from workflows_mcp.dialects import Definition, load, locate
from workflows_mcp.dialects.reactive_state import WrongPath, read_path
from workflows_mcp.dialects.schema import workflow_schema
from workflows_mcp.dialects.yaml.source import read_document
from workflows_mcp.errors import DefinitionError, Problem
from workflows_mcp.expressions.javascript.language import JavaScript
from workflows_mcp.limits import Limits
from workflows_mcp.plan import model
from workflows_mcp.plan.model import Computed, Do, Expr, InputSpec, Leave, Operation, Plan, UpdateState
from workflows_mcp.steps.registry import default_registry
from workflows_mcp.values import Value

BESIDE = Path(__file__).resolve().parents[3] / "shared" / "corpus"
CORPUS = Path(os.environ.get("WORKFLOWS_CORPUS", BESIDE)) / "reactive"
REAL = sorted(CORPUS.glob("*.yaml"))
VALIDATOR = Draft202012Validator(workflow_schema(default_registry()))
STATE = "default_state: {raw: {n: 0, files: [], results: {}}, state: {phase: 1}}"


def read(text: str, **how: Any) -> Definition:
    """The definition; what the loader takes, the schema for editors takes too."""
    definition = load(text, file="some/flow.yaml", registry=default_registry(), **how)
    assert [error.message for error in VALIDATOR.iter_errors(read_document(text, "x").value)] == []
    return definition


def plan_of(steps: str, rest: str = STATE) -> Plan:
    return read(f"name: w\n{rest}\nsteps:\n{steps}").plan


def nodes(steps: str, rest: str = STATE) -> dict[str, model.Node]:
    return {node.id: unplaced(node) for node in plan_of(steps, rest).body.nodes}


def node(step: str, rest: str = STATE) -> model.Node:
    [only] = nodes(f"  - {step}", rest).values()
    return only


def work(step: str, rest: str = STATE) -> Do:
    do = node(step, rest).do
    assert isinstance(do, Do)
    return do


def found(text: str, **how: Any) -> list[Problem]:
    """All problems, warnings too."""
    try:
        return read(text, **how).warnings
    except DefinitionError as error:
        return error.problems


def said(steps: str, rest: str = STATE) -> list[str]:
    text = f"name: w\n{rest}\nsteps:\n{steps}"
    return [f"{'warning: ' if it.warning else ''}{it.message}" for it in found(text)]


def flow(steps: str) -> list[tuple[str, int]]:
    """Where each step goes on."""
    return [(it.id, it.goes_to) for it in plan_of(steps).body.nodes]


# The document


@pytest.mark.rows("R2", "R4")
def test_what_a_workflow_says_of_itself_is_in_the_plan() -> None:
    definition = read(
        'name: "release:prepare"\nversion: 1.10\ndescription: Prepares\ntags: [ops]\nauthor: me\nx-mine: 1\n'
        'imports: ["shared/a.yaml", "shared/b.yaml"]\nconfig: {most: 3}\n'
        "inputs: {service: {type: string, required: true}, any: }\n"
        "default_state: {raw: {log: [], at: '{{ now() }}'}, state: {phase: 1}}\n"
        "state_schema: {raw: {log: list, note: {type: text, description: x}}, state: {phase: int}}\n"
        "on_resume: {retry_failed_steps: true, skip_completed_steps: false}\n"
        "steps: [{type: exit}]\n"
    )
    plan = definition.plan
    assert (plan.name, plan.version, plan.description) == ("release:prepare", "1.10", "Prepares")
    assert (plan.tags, plan.dialect, plan.file) == (("ops",), "reactive", "some/flow.yaml")
    assert plan.imports == ("shared/a.yaml", "shared/b.yaml")
    assert plan.config == {"most": 3}
    assert plan.inputs == {"service": InputSpec("string"), "any": InputSpec(required=False)}
    assert plan.open_inputs
    assert plan.initial_state == {"raw": {"log": [], "at": "{{ now() }}"}, "state": {"phase": 1}}
    assert plan.raw_types == {"log": "array", "note": "string"}
    assert plan.known == ("any", "at", "log", "note", "phase", "service")
    assert plan.on_resume == {"retry_failed_steps": True, "skip_completed_steps": False}
    assert definition.warnings == []


def test_a_workflow_without_state_has_an_empty_one() -> None:
    plan = plan_of("  - {type: exit}", "dialect: reactive")
    assert (plan.initial_state, plan.known) == ({"raw": {}, "state": {}}, ())


WRAPPED = """# all of it below one key
x-anchors: {n: &n 1}
workflow:
  name: "shared:check"
  default_state: {raw: {n: *n}}
  steps:
    - {id: tell, type: user_message, message: "{{ n }} {{ nn }}"}
"""


@pytest.mark.rows("R2")
def test_the_whole_may_stand_below_one_key_and_places_stay_right() -> None:
    definition = read(WRAPPED)
    assert (definition.plan.name, definition.plan.initial_state["raw"]) == ("shared:check", {"n": 1})
    [warning] = definition.warnings
    assert str(warning.place) == "some/flow.yaml:7:59"
    [tell] = definition.plan.body.nodes
    place = locate(WRAPPED, "f.yaml", (*tell.at, "message"))
    assert place is not None
    assert (place.line, place.column) == (7, 48)


@pytest.mark.rows("R4")
def test_computed_fields_say_what_they_come_from() -> None:
    computed = """
state_schema:
  computed:
    one: {from: raw.files, transform: input.length}
    many: {from: [raw.files, computed.one], transform: "input[0]"}
    list_of_one: {from: [raw.n], transform: "input[0]"}
    by_name: {transform: "one + n"}
    careful: {from: raw.n, transform: input, on_error: ignore, validate: "output > 1"}
    fallen: {from: raw.n, transform: input, fallback: []}
    strict: {from: state.phase, transform: input, on_error: propagate}
    fixed: {static: true, value: {a: [b]}, type: object, description: Never changes}
"""
    plan = plan_of("  - {type: exit}", STATE + computed)
    assert plan.computed == {
        "one": Computed(("raw.files",), transform="input.length"),
        "many": Computed(("raw.files", "computed.one"), True, "input[0]"),
        "list_of_one": Computed(("raw.n",), True, "input[0]"),
        "by_name": Computed(transform="one + n"),
        "careful": Computed(("raw.n",), transform="input", on_error="ignore", validate="output > 1"),
        "fallen": Computed(("raw.n",), transform="input", on_error="use_fallback", fallback=[]),
        "strict": Computed(("state.phase",), transform="input", on_error="propagate"),
        "fixed": Computed(static=True, value={"a": ["b"]}),
    }


@pytest.mark.rows("R4")
def test_a_computed_field_may_come_from_what_a_step_writes() -> None:
    assert (
        said(
            "  - {type: shell_command, command: make, state_update: {path: raw.later}}",
            "inputs: {given: string}\nstate_schema:\n  computed:\n"
            "    a: {from: raw.later, transform: input}\n    b: {from: raw.given, transform: input}",
        )
        == []
    )


@pytest.mark.rows("R4", "R7")
def test_fields_that_only_a_run_knows_are_nobodys_mistake() -> None:
    computed = "state_schema:\n  computed: {a: {from: raw.later, transform: input}}"
    write = '  - {type: state_update, path: "raw.{{ inputs.name }}", value: 1}'
    assert said(write, computed) == []
    assert said(write.replace("{{ inputs.name }}", "other"), computed) == [
        "'a' is computed from 'raw.later', which nothing declares or writes"
    ]


@pytest.mark.rows("R7")
def test_every_field_that_can_ever_be_there_is_known() -> None:
    plan = plan_of(
        """
  - {type: state_update, path: raw.a.b, value: 1}
  - {type: state_update, updates: [{path: state.c, value: 1}, {path: "raw.d[0]", value: 1}]}
  - {type: shell_command, command: x, state_update: [{path: raw.e}], error_state_update: {path: raw.f}}
  - {type: parallel_foreach, items: [], sub_agent_task: t, on_sub_agent_error: {error_state_path: raw.g}}
  - {type: conditional, condition: "{{ true }}", then: [{type: state_update, path: raw.h, value: 1}]}""",
        "sub_agent_tasks:\n  t: {steps: [{type: state_update, path: raw.i, value: 1}]}\n"
        "error_handling:\n  error_collection: {state_path: raw.j}\n"
        "  on_failure: [{type: state_update, path: raw.k, value: 1}]",
    )
    assert plan.known == tuple("abcdefghijk"[:1] + "cdefghijk")
    assert plan.tasks[0].known == plan.known


# What a step is called


@pytest.mark.rows("R13")
def test_a_step_is_called_what_its_author_calls_it_or_by_its_place() -> None:
    steps = """
  - {type: user_message, message: a}
  - id: choose
    type: conditional
    condition: "{{ n }}"
    then:
      - {type: user_message, message: b}
      - {id: same, type: user_message, message: c}
    else:
      - {id: same, type: user_message, message: d}
      - {id: "mark_{{ n }}", type: user_message, message: e}
  - {id: "{{ n }}", type: sequential, steps: [{type: exit, when: "{{ n }}"}, {id: last, type: exit}]}
"""
    assert list(nodes(steps)) == [
        "0-user_message",
        "choose",
        "choose-then-0-user_message",
        "choose-then-1-same",
        "choose-else-0-same",
        "mark",
        "2-sequential-steps-0-exit",
        "last",
    ]


@pytest.mark.rows("R13")
def test_an_id_that_looks_like_a_place_is_still_the_only_one() -> None:
    steps = "  - {type: wait, duration_seconds: 1}\n  - {id: 0-wait, type: exit}\n"
    assert list(nodes(steps)) == ["0-wait-2", "0-wait"]


# Control


@pytest.mark.rows("R13")
def test_a_conditional_is_a_branch_and_its_lists_are_laid_out_flat() -> None:
    steps = """
  - id: c
    type: conditional
    condition: n > 1
    then: [{id: t1, type: wait, duration_seconds: 1}, {id: t2, type: wait, duration_seconds: 1}]
    else: [{id: e, type: wait, duration_seconds: 1}]
  - {id: end, type: exit}
"""
    assert flow(steps) == [("c", 4), ("t1", -1), ("t2", 4), ("e", -1), ("end", -1)]
    assert nodes(steps)["c"].do == Branch("n > 1", 3)


@pytest.mark.rows("R13")
def test_a_loop_is_a_head_that_its_body_goes_back_to() -> None:
    steps = """
  - id: w
    type: while
    condition: "{{ n < 3 }}"
    max_iterations: 5
    body:
      - id: each
        type: foreach
        items: "{{ files }}"
        variable_name: file
        index_name: at
        steps:
          - {id: skip, type: continue, when: "{{ file.done }}"}
          - {id: stop, type: break, when: "{{ at > 3 }}"}
          - {id: tell, type: user_message, message: "{{ file }}"}
      - id: again
        type: conditional
        condition: "{{ n }}"
        then: [{id: leave, type: break}]
  - {id: end, type: exit}
"""
    made = nodes(steps)
    assert list(made) == ["w", "each", "skip", "stop", "tell", "again", "leave", "end"]
    assert made["w"].do == While("{{ n < 3 }}", 7, 5)
    assert made["each"].do == Each("{{ files }}", 5, "file", "at")
    assert made["skip"].do == Leave(1)
    assert made["stop"].do == Leave(5, 1)
    assert made["leave"].do == Leave(7, 0)
    assert {it.id: it.goes_to for it in made.values()} == {
        "w": 7, "each": 5, "skip": -1, "stop": -1, "tell": 1, "again": 0, "leave": 0, "end": -1,
    }  # fmt: skip
    assert {it.id: it.loops for it in made.values()} == {
        "w": (), "each": (0,), "skip": (0, 1), "stop": (0, 1), "tell": (0, 1), "again": (0,), "leave": (0,), "end": (),
    }  # fmt: skip


@pytest.mark.rows("R13")
@pytest.mark.parametrize(("kind", "rest"), [("while", 'condition: "{{ n }}"'), ("foreach", "items: [1]")])
@pytest.mark.parametrize("key", ["body", "steps"])
def test_the_body_of_a_loop_may_be_called_body_or_steps(kind: str, rest: str, key: str) -> None:
    assert [
        it.goes_to for it in nodes(f"  - {{type: {kind}, {rest}, {key}: [{{type: break}}]}}").values()
    ] == [2, 0]


def test_sequential_is_only_its_steps_unless_it_has_a_condition() -> None:
    inner = "steps: [{id: a, type: exit, when: n}, {id: b, type: exit}]"
    assert flow(f"  - {{type: sequential, {inner}}}") == [("a", -1), ("b", -1)]
    made = nodes(f"  - {{id: s, type: sequential, when: n, {inner}}}\n  - {{id: c, type: exit}}")
    assert {it.id: it.goes_to for it in made.values()} == {"s": 3, "a": -1, "b": -1, "c": -1}
    assert (made["s"].do, bare(made["s"].condition)) == (Branch("true", 3), "n")


@pytest.mark.rows("R13", "R14")
def test_the_other_control_steps() -> None:
    assert node("{id: e, type: exit}") == Node("e", Return(), ("steps", 0))
    assert node('{type: user_message, message: "{{ n }}"}').do == Tell("{{ n }}")
    assert node("{type: wait, duration_seconds: 1.5, message: Soon}").do == Wait(1.5, "Soon")
    assert bare(node("{type: exit, when: '{{ n }}', name: Ends, description: it}").condition) == "{{ n }}"
    assert node("{type: user_message, message: x, on_error: continue}").on_failure == "continue"


@pytest.mark.rows("R13")
def test_steps_that_are_never_come_to_are_told() -> None:
    steps = """
  - type: while
    condition: "{{ n }}"
    body:
      - {id: out, type: break}
      - {id: lost, type: exit}
  - {id: fine, type: exit, when: "{{ n }}"}
  - {id: end, type: exit}
  - {id: behind, type: user_message, message: x}
  - {id: further, type: user_message, message: x}
"""
    assert said(steps) == [
        "warning: step 'lost' is never reached: 'out' always leaves the loop",
        "warning: step 'behind' is never reached: 'end' always ends the workflow",
    ]


# Changes of the state


@pytest.mark.rows("R8", "R14")
@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("raw.count", ("raw", "count")),
        ("state.phase", ("state", "phase")),
        ("raw.results.{{ item }}", ("raw", "results", "{{ item }}")),
        ("raw.r.{{ item | path_to_key }}.hints", ("raw", "r", "{{ item | path_to_key }}", "hints")),
        ("raw.files[{{ index }}].attempts", ("raw", "files", "{{ index }}", "attempts")),
        ("raw.files[ 0 ].n", ("raw", "files", 0, "n")),
        ("raw.x.0.y", ("raw", "x", "0", "y")),
        ('raw.x["a.b"]["c d"].e', ("raw", "x", "a.b", "c d", "e")),
        ("raw.x['a.b']", ("raw", "x", "a.b")),
        ("raw.x[key]", ("raw", "x", "key")),
        ("raw.batch_{{ id }}_done.at", ("raw", "batch_{{ id }}_done", "at")),
        ('raw.x["pre {{ id }}.ts"]', ("raw", "x", "pre {{ id }}.ts")),
        ("raw.{{ a }}{{ b }}.{{ a }}", ("raw", "{{ a }}{{ b }}", "{{ a }}")),
        ('raw.x.{{ y["a.b"].c || "]." }}.z', ("raw", "x", '{{ y["a.b"].c || "]." }}', "z")),
        ("raw.größe-1.$x", ("raw", "größe-1", "$x")),
    ],
)
def test_a_path_is_keys_and_an_expression_is_one_of_them(text: str, keys: tuple[Value, ...]) -> None:
    assert read_path(text, JavaScript()) == keys


@pytest.mark.rows("R7", "R14")
@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("count", "write raw.count"),
        ("results.count", "a path to write starts with raw. or state.: raw.results.count"),
        ("computed.count", "write the field that it is computed from"),
        ("inputs.count", "inputs never change"),
        ("raw", "name a field of it: raw.name"),
        ("raw.", "separate keys by dots"),
        (".raw.x", "separate keys by dots"),
        ("raw[]", "separate keys by dots"),
        ("raw.[0]", "separate keys by dots"),
        ("raw.a b", "separate keys by dots"),
        ('raw.x["a]', "separate keys by dots"),
        ("raw.{a}", "separate keys by dots"),
    ],
)
def test_a_path_that_cannot_be_written_says_what_to_write(text: str, hint: str) -> None:
    with pytest.raises(WrongPath) as caught:
        read_path(text, JavaScript())
    assert caught.value.hint.startswith(hint)


@pytest.mark.rows("R8", "R14")
@pytest.mark.parametrize(
    ("step", "changes"),
    [
        ("path: raw.n, value: 5", [Change(("raw", "n"), value=5, has_value=True)]),
        ("path: raw.n, value: null", [Change(("raw", "n"), has_value=True)]),
        ("path: raw.n, operation: increment", [Change(("raw", "n"), "increment")]),
        ("path: raw.n, operation: merge, value: {a: 1}", [Change(("raw", "n"), "merge", {"a": 1}, True)]),
        ("path: raw.n, value: '{{ n }}', transform: input + 1",
         [Change(("raw", "n"), value="{{ n }}", has_value=True, transform="input + 1")]),
        ("updates: [{path: raw.a, value: 1}, {path: 'raw.b[0]', operation: append, value: 2}]",
         [Change(("raw", "a"), value=1, has_value=True),
          Change(("raw", "b", 0), "append", 2, True)]),
    ],
)  # fmt: skip
def test_a_state_update_is_changes(step: str, changes: list[model.Change]) -> None:
    assert node(f"{{type: state_update, {step}}}").do == UpdateState(tuple(changes))


@pytest.mark.rows("R14")
def test_the_result_and_the_failure_of_any_step_change_the_state() -> None:
    made = node(
        "{type: shell_command, command: x, state_update: [{path: raw.a}, {path: raw.b, transform: '{{ result.x }}'}],"
        " error_state_update: {path: raw.errors, operation: append, value: '{{ error.message }}'}}"
    )
    assert made.changes == (
        Change(("raw", "a")),
        Change(("raw", "b"), transform="{{ result.x }}"),
    )
    error = Change(("raw", "errors"), "append", "{{ error.message }}", True)
    assert made.error_changes == (error,)


# Steps that are carried out


@pytest.mark.rows("R9")
def test_a_shell_command_is_run_by_the_server() -> None:
    do = work('{type: shell_command, command: "echo {{ n }}", output_format: lines, timeout: 1500}')
    assert (do.step, do.by, do.inputs["command"].kind, do.result_output) == (
        "Shell",
        "server",
        "code",
        "result",
    )
    assert (bare(do.inputs), bare(do.timeout)) == ({"command": "echo {{ n }}", "timeout": 1.5}, 1.5)
    assert do.settings["output_format"] == "lines"
    assert work("{type: shell_command, command: x}").settings["output_format"] == "text"
    assert work("{type: shell_command, command: x, run_on: agent}").by == "agent"


@pytest.mark.rows("R10", "R12")
def test_what_only_an_agent_can_do_is_handed_to_it() -> None:
    do = work(
        "{type: agent_shell_command, command: x, reason: It asks, timeout: 600000, output_format: json}"
    )
    assert (do.step, do.by, bare(do.timeout)) == ("AgentShell", "agent", 600)
    assert bare(do.inputs) == {"command": "x", "reason": "It asks", "timeout": 600, "output_format": "json"}
    ask = work("{type: user_input, prompt: Who?, type: choice, validation: {choices: [a, b]}}")
    assert (ask.step, bare(ask.inputs["prompt_type"])) == ("UserInput", "choice")


@pytest.mark.rows("R11")
@pytest.mark.parametrize(
    "step",
    ["mcp: {method: lint, params: {files: '{{ files }}'}}", "method: lint, params: {files: '{{ files }}'}"],
)
def test_a_tool_is_named_below_mcp_or_in_the_step(step: str) -> None:
    do = work(f"{{type: mcp_call, {step}, timeout: 2000}}")
    assert (do.step, do.by, do.result_output) == ("MCPCall", "agent", "result")
    assert bare(do.inputs) == {"tool": "lint", "parameters": {"files": "{{ files }}"}, "timeout": 2}


@pytest.mark.rows("R11")
@pytest.mark.parametrize(
    ("step", "column"),
    [("mcp: {method: lint, params: {a: 1}}", 50), ("method: lint, params: {a: 1}", 44)],
)
def test_what_a_tool_is_given_is_found_where_it_is_written(step: str, column: int) -> None:
    text = f"steps:\n  - {{type: mcp_call, {step}}}"
    [call] = read(text).plan.body.nodes
    place = locate(text, "f.yaml", (*call.at, "parameters"))
    assert place is not None
    assert (place.line, place.column) == (2, column)


def test_a_step_type_of_any_dialect_is_there_by_its_own_name() -> None:
    made = node("{type: ReadFile, path: '{{ n }}.txt', timeout: 500, state_update: {path: raw.text}}")
    assert isinstance(made.do, Do)
    assert (made.do.step, bare(made.do.inputs), bare(made.do.timeout)) == (
        "ReadFile",
        {"path": "{{ n }}.txt"},
        0.5,
    )


@pytest.mark.rows("R9")
@pytest.mark.parametrize(
    ("step", "retry", "on_failure"),
    [
        ("on_error: fail", None, None),
        ("on_error: continue", None, "continue"),
        ("on_error: retry", {"attempts": 4, "delay": 1, "backoff": 1}, None),
        ("on_error: retry, retry_count: 2, retry_delay: 500", {"attempts": 3, "delay": 0.5, "backoff": 1}, None),
        ("on_error: retry, retry_count: '{{ n }}', retry_delay: '{{ n * 2 }}'",
         {"attempts": "{{ (n) + 1 }}", "delay": "{{ (n * 2) / 1000 }}", "backoff": 1}, None),
    ],
)  # fmt: skip
def test_what_becomes_of_a_failure(step: str, retry: dict[str, Value] | None, on_failure: str | None) -> None:
    made = node(f"{{type: shell_command, command: x, {step}}}")
    assert (bare(made.retry), made.on_failure, made.fallback) == (retry, on_failure, None)


@pytest.mark.rows("R9")
@pytest.mark.parametrize("on_error", ["continue", "retry"])
def test_a_fallback_is_the_result_of_a_step_that_failed(on_error: str) -> None:
    made = node(f"{{type: shell_command, command: x, on_error: {on_error}, fallback_value: {{ok: false}}}}")
    assert bare(made.fallback) == {"ok": False}
    assert node("{type: shell_command, command: x, fallback_value: null}").fallback == Expr(None)


def test_times_may_be_expressions_in_milliseconds() -> None:
    assert (
        bare(work("{type: shell_command, command: x, timeout: '{{ n || 5 }}'}").timeout)
        == "{{ (n || 5) / 1000 }}"
    )


# Other workflows, and tasks


@pytest.mark.rows("R2")
def test_an_included_workflow_is_a_call_and_what_follows_its_success_is_behind_it() -> None:
    steps = """
  - id: check
    type: include_workflow
    workflow: "shared:check"
    inputs: {files: "{{ files }}"}
    timeout: 60000
    state_update: {path: raw.results}
    on_error: continue
    on_complete:
      - {id: note, type: state_update, path: raw.n, value: "{{ total_issues }}"}
      - {id: tell, type: user_message, message: done}
  - {id: plain, type: include_workflow, workflow: "{{ n }}"}
"""
    made = nodes(steps)
    assert made["check"].do == Call("shared:check", {"files": "{{ files }}"}, 60, on_complete=True)
    assert [(it.id, it.goes_to) for it in made.values()] == [
        ("check", 3),
        ("note", -1),
        ("tell", -1),
        ("plain", -1),
    ]
    assert made["check"].changes == (Change(("raw", "results")),)
    assert made["plain"].do == Call("{{ n }}")


TASKS = """
sub_agent_tasks:
  process:
    description: Does it
    inputs: {task: "{{ item }}", fixed: {type: fast, a: 1}, size: {type: integer, default: 3}, kind: string}
    steps:
      - {id: mark, type: state_update, path: "raw.results.{{ task_id }}", value: begun}
    error_handling:
      return_on_error: true
      cleanup_on_error: [{type: state_update, path: "raw.results.{{ task_id }}", value: failed}]
  apart:
    state_schema: {raw: {own: array}, computed: {many: {from: raw.own, transform: input.length}}}
    steps: [{type: state_update, path: raw.other, value: "{{ own }}"}]
"""


@pytest.mark.rows("R15", "R16")
def test_a_parallel_foreach_hands_out_a_task_for_each_item() -> None:
    step = (
        "{type: parallel_foreach, items: '{{ files }}', max_parallel: 5, sub_agent_task: process, timeout: 5000,"
        " sub_agent_prompt_override: 'Do {{ n }}', wait_for_all: false}"
    )
    made = node(step, STATE + TASKS)
    assert made.do == Call("w#process", timeout=5, of_item=True)
    assert made.for_each == ForEach("{{ files }}", 5, agent="@task", prompt="Do {{ n }}", wait=False)
    assert (made.retry, made.on_failure) == (None, None)


@pytest.mark.rows("R16")
@pytest.mark.parametrize(
    ("said_of_it", "retry", "tolerate_failures", "fail_fast", "errors_to"),
    [
        ("{strategy: continue}", None, True, False, ()),
        ("continue", None, True, False, ()),
        ("{strategy: fail_all}", None, False, True, ()),
        (
            "{strategy: retry_failed, max_retries: 2}",
            {"attempts": 3, "delay": 0, "on": "any"},
            False,
            False,
            (),
        ),
        ("{strategy: retry_failed}", {"attempts": 4, "delay": 0, "on": "any"}, False, False, ()),
        ("{collect_errors: true}", None, False, False, ("raw", "sub_agent_errors")),
        ("{error_state_path: raw.e.x}", None, False, False, ("raw", "e", "x")),
        ("{error_state_path: raw.e, collect_errors: false}", None, False, False, ()),
    ],
)
def test_what_becomes_of_tasks_that_fail(
    said_of_it: str, retry: Value, tolerate_failures: bool, fail_fast: bool, errors_to: tuple[Value, ...]
) -> None:
    step = f"{{type: parallel_foreach, items: [], sub_agent_task: process, on_sub_agent_error: {said_of_it}}}"
    made = node(step, STATE + TASKS)
    assert made.for_each is not None
    assert (bare(made.retry), made.on_failure, made.for_each.tolerate_failures) == (
        retry,
        None,
        tolerate_failures,
    )
    assert (made.for_each.fail_fast, tuple(bare(made.for_each.errors_to) or ())) == (fail_fast, errors_to)


@pytest.mark.rows("R16")
def test_a_task_is_a_plan_that_shares_the_state_unless_it_declares_one() -> None:
    plan = plan_of("  - {type: exit}", STATE + "\nconfig: {most: 1}" + TASKS)
    process, apart = plan.tasks
    assert (process.name, process.description, process.shares_state) == ("w#process", "Does it", True)
    assert bare(process.given) == {"task": "{{ item }}", "fixed": {"type": "fast", "a": 1}}
    assert process.inputs == {
        "size": InputSpec("integer", "", False, 3, True),
        "kind": InputSpec("string", required=False),
    }
    assert (process.on_failure, process.initial_state, process.config) == (1, {}, {"most": 1})
    assert [it.id for it in process.body.nodes] == ["mark", "cleanup_on_error-0-state_update"]
    assert process.body.nodes[0].goes_to == 2, "behind all: the cleanup is for failures only"
    assert process.known == plan.known
    assert (apart.shares_state, apart.initial_state) == (False, {"raw": {}, "state": {}})
    assert (apart.known, list(apart.computed), apart.raw_types) == (
        ("other", "own"),
        ["many"],
        {"own": "array"},
    )


@pytest.mark.rows("R16")
def test_a_file_may_have_nothing_but_tasks() -> None:
    tell = "{type: user_message, message: '{{ raw.of_the_others }} {{ computed.too }} {{ name }}'}"
    definition = read(f"name: shared:tasks\nsub_agent_tasks: {{t: {{steps: [{tell}]}}}}")
    assert definition.plan.body.nodes == ()
    assert [task.name for task in definition.plan.tasks] == ["shared:tasks#t"]
    assert definition.warnings == []


@pytest.mark.rows("R2")
def test_a_task_that_is_not_in_a_file_with_imports_is_one_of_those() -> None:
    made = node(
        "{type: parallel_foreach, items: [1], sub_agent_task: elsewhere}", "imports: [shared/tasks.yaml]"
    )
    assert made.do == Call("#elsewhere", of_item=True)


# Failures of the whole


@pytest.mark.rows("R18")
def test_steps_for_a_failure_are_laid_out_behind_the_others() -> None:
    plan = plan_of(
        "  - {id: a, type: wait, duration_seconds: 1}\n  - {id: b, type: wait, duration_seconds: 1}",
        "error_handling:\n  on_failure:\n    - {type: user_message, message: '{{ error.message }}'}\n"
        "    - {type: exit}",
    )
    assert [(it.id, it.goes_to) for it in plan.body.nodes] == [
        ("a", -1), ("b", 4), ("on_failure-0-user_message", -1), ("on_failure-1-exit", -1),
    ]  # fmt: skip
    assert plan.on_failure == 2
    assert plan_of("  - {type: exit}").on_failure == -1


@pytest.mark.rows("R18")
@pytest.mark.parametrize(
    ("handling", "tries", "errors_to"),
    [
        ("on_error: checkpoint_and_fail", 1, ()),
        ("on_error: retry_workflow", 2, ()),
        ("on_error: retry_workflow, max_retries: 3", 4, ()),
        ("error_collection: {enabled: true}", 1, ("raw", "workflow_errors")),
        ("error_collection: {enabled: false, state_path: raw.e}", 1, ()),
        ("error_collection: {state_path: state.e, include_stack_traces: false}", 1, ("state", "e")),
    ],
)
def test_what_becomes_of_a_workflow_that_fails(
    handling: str, tries: int, errors_to: tuple[Value, ...]
) -> None:
    plan = plan_of("  - {type: exit}", f"error_handling: {{{handling}}}")
    assert (plan.tries, plan.errors_to) == (tries, errors_to)


@pytest.mark.rows("R18")
def test_a_workflow_that_goes_on_does_so_after_every_step_that_says_nothing_else() -> None:
    steps = """
  - {id: a, type: shell_command, command: x}
  - {id: b, type: shell_command, command: x, on_error: fail}
  - {id: c, type: parallel_foreach, items: [], sub_agent_task: t, on_sub_agent_error: {strategy: fail_all}}
  - {id: d, type: user_message, message: x}
"""
    rest = "error_handling: {on_error: continue}\nsub_agent_tasks: {t: {steps: [{id: e, type: exit}]}}"
    plan = plan_of(steps, rest)
    assert {it.id: it.on_failure for it in plan.body.nodes} == {
        "a": "continue",
        "b": None,
        "c": None,
        "d": "continue",
    }
    assert plan.tasks[0].body.nodes[0].on_failure is None


# What is looked at beyond one step


@pytest.mark.rows("R4")
def test_what_is_local_to_a_transform_makes_no_circle() -> None:
    computed = """
state_schema:
  computed:
    a: {from: raw.files, transform: "const b = input; return b.map(a => a.length)"}
    b: {from: computed.a, transform: "raw.b"}
"""
    assert said("  - {type: exit}", STATE + computed) == [
        "warning: raw.b: nothing declares or writes the field 'b'"
    ]


@pytest.mark.rows("R7")
def test_names_that_nobody_can_know_here_are_not_told() -> None:
    include = "  - {type: include_workflow, workflow: other}\n"
    assert said(include + "  - {type: user_message, message: '{{ left_by_it }}'}") == []
    task = "\nsub_agent_tasks: {t: {steps: [{type: user_message, message: '{{ of_the_item }} {{ context.x }}'}]}}"
    assert said("  - {type: parallel_foreach, items: [1], sub_agent_task: t}", STATE + task) == []
    update = "{path: raw.n, value: '{{ applied_count }}'}"
    assert said(f"  - {{type: mcp_call, method: x, state_update: {update}}}") == []
    assert (
        said("  - {type: user_message, message: '{{ inputs.anything }} {{ workflow_id }} {{ typeof x }}'}")
        == []
    )


@pytest.mark.rows("R9")
def test_secrets_of_a_workflow_are_known() -> None:
    plan = plan_of('  - {type: shell_command, command: "curl {{ secrets.TOKEN }}"}')
    assert plan.secrets == ("TOKEN",)


def test_a_workflow_has_as_many_steps_as_it_may() -> None:
    steps = "  - {type: conditional, condition: n, then: [{type: exit}, {type: exit}]}"
    limits = Limits(steps_per_workflow=2)
    problems = found(f"{STATE}\nsteps:\n{steps}", limits=limits)
    assert [it.message for it in problems if not it.warning] == ["there are 3 steps, at most 2 are allowed"]


def operations(plan: Plan) -> list[type[Operation]]:
    return [type(node.do) for part in (plan, *plan.tasks) for node in part.body.nodes]


@pytest.mark.rows("R2", "R4", "R13")
@pytest.mark.skipif(not REAL, reason="no corpus of workflows beside this repository")
@pytest.mark.parametrize("path", REAL, ids=[path.stem for path in REAL])
def test_every_real_workflow_is_read(path: Path) -> None:
    definition = read(path.read_text(encoding="utf-8"))
    assert definition.plan.dialect == "reactive"
    assert operations(definition.plan)
    assert definition.warnings == []
