"""A stateful document becomes the plan that it means: a flat list of nodes that say where it goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest
from jsonschema import Draft202012Validator
from pydantic import Field, model_validator

from support.plans import Branch, Call, Do, ForEach, Jump, Node, Return, SetState, Wait, bare, unplaced
from workflows_mcp.dialects import Definition, check_bundle, load
from workflows_mcp.dialects.recognition import dialect_of
from workflows_mcp.dialects.schema import workflow_schema
from workflows_mcp.dialects.yaml.source import read_document
from workflows_mcp.errors import DefinitionError, Problem
from workflows_mcp.limits import Limits
from workflows_mcp.plan import model
from workflows_mcp.plan.model import Bundle, InputSpec, Plan
from workflows_mcp.steps.base import Question, Step, StepContext, StepInputs, StepOutputs, StepResult
from workflows_mcp.steps.registry import StepRegistry, default_registry
from workflows_mcp.values import Value

TESTDATA = Path(__file__).parents[1] / "testdata"


class Command(Step):
    """Can be carried out by the server and by an agent."""

    name = "Shell"
    dialect_names: ClassVar[dict[str, str]] = {"graph": "Shell", "stateful": "shell"}
    code_inputs = frozenset(["command"])
    timeout_input = "timeout"
    may_fail = True
    dialect_config: ClassVar[dict[str, dict[str, Value]]] = {"stateful": {"exit_code_is_a_result": True}}

    class Inputs(StepInputs):
        command: str
        timeout: float = Field(120, gt=0)
        working_dir: str = ""
        env: dict[str, str] = Field(default_factory=dict)

    class Outputs(StepOutputs):
        exit_code: int = 0
        stdout: str = ""

    def performer_for(self, inputs: Any, dialect: str) -> Any:
        return "agent" if dialect == "stateful" else "server"

    def run(self, inputs: Any, context: StepContext) -> StepResult:
        return StepResult({})

    def ask(self, inputs: Any) -> Question:
        return Question("shell", "", {}, {})


class Tool(Step):
    """Its result is one of its outputs."""

    name = "MCPCall"
    dialect_names: ClassVar[dict[str, str]] = {"stateful": "mcp_call"}
    performer = "agent"
    result_output = "result"

    class Inputs(StepInputs):
        tool: str
        parameters: dict[str, Any] = Field(default_factory=dict)
        timeout: float = 30

    class Outputs(StepOutputs):
        result: Value = None

    run = Command.run
    ask = Command.ask


class Ask(Step):
    """Has inputs that must fit each other."""

    name = "UserPrompt"
    dialect_names: ClassVar[dict[str, str]] = {"stateful": "prompt"}
    performer = "agent"

    class Inputs(StepInputs):
        message: str
        prompt_type: str
        options: list[str] = Field(default_factory=list)

        @model_validator(mode="after")
        def _has_options(self) -> Ask.Inputs:
            if self.prompt_type == "choice" and not self.options:
                raise ValueError("a choice needs options")
            return self

    ask = Command.ask


class Hand(Step):
    """Is handed to an agent by name."""

    name = "Delegate"
    dialect_names: ClassVar[dict[str, str]] = {"stateful": "delegate"}
    performer = "agent"

    class Inputs(StepInputs):
        instructions: str
        agent: str | None = None
        timeout: float = 300

    ask = Command.ask


class Read(Step):
    """Belongs to no dialect, so every dialect has it."""

    name = "ReadFile"
    on_interrupt = "ask"

    class Inputs(StepInputs):
        path: str

    run = Command.run


REGISTRY = StepRegistry(steps=[Command(), Tool(), Ask(), Hand(), Read()])


VALIDATOR = Draft202012Validator(workflow_schema(REGISTRY))


def read(text: str, **how: Any) -> Definition:
    """The definition; what the loader takes, the schema for editors takes too."""
    definition = load(text, file="some/flow.yaml", registry=REGISTRY, **how)
    assert [error.message for error in VALIDATOR.iter_errors(read_document(text, "x").value)] == []
    return definition


def plan_of(steps: str, rest: str = "initial_state: {n: 0}") -> Plan:
    return read(f"name: w\n{rest}\nsteps:\n{steps}").plan


def nodes(steps: str, rest: str = "initial_state: {n: 0}") -> dict[str, model.Node]:
    return {node.id: unplaced(node) for node in plan_of(steps, rest).body.nodes}


def node(step: str, rest: str = "initial_state: {n: 0}") -> model.Node:
    [only] = nodes(f"  - {step}", rest).values()
    return only


def found(text: str, **how: Any) -> list[Problem]:
    """All problems, warnings too."""
    try:
        return read(text, **how).warnings
    except DefinitionError as error:
        return error.problems


def said(text: str, **how: Any) -> list[str]:
    return [f"{'warning: ' if it.warning else ''}{it.message}" for it in found(text, **how)]


def wait(name: str) -> str:
    return f"{{id: {name}, type: wait, needs_state: [], duration_seconds: 1}}"


def flow(steps: str) -> list[tuple[str, int]]:
    """Where each step goes on; a branch that holds goes on with the next one."""
    return [(it.id, it.goes_to) for it in plan_of(steps).body.nodes]


@pytest.mark.rows("S1")
def test_what_a_workflow_says_of_itself_is_in_the_plan() -> None:
    definition = read(
        "name: deploy\nversion: 1.10\ndescription: Deploys\ntags: [ops, 1]\nauthor: {name: me}\n"
        "dialect: stateful\nx-mine: {a: 1}\ninitial_state: {deployed: false, log: []}\n"
        f"inputs: {{service: {{type: string, required: true}}}}\nsteps: [{wait('a')}]\n"
    )
    plan = definition.plan
    assert (plan.name, plan.version, plan.description, plan.tags) == (
        "deploy",
        "1.10",
        "Deploys",
        ("ops", "1"),
    )
    assert (plan.dialect, plan.file, plan.initial_state) == (
        "stateful",
        "some/flow.yaml",
        {"deployed": False, "log": []},
    )
    assert plan.inputs == {"service": InputSpec("string", required=True)}
    assert definition.warnings == []


@pytest.mark.rows("S1")
def test_a_workflow_without_a_name_is_called_like_its_file() -> None:
    assert read(f"initial_state: {{}}\nsteps: [{wait('a')}]").plan.name == "flow"


@pytest.mark.rows("S1")
def test_an_input_need_not_be_given_unless_it_says_so() -> None:
    plan = plan_of(
        f"  - {wait('a')}",
        "inputs: {a: string, b: {type: number}, c: {type: array, required: true}, d: {default: 1}, e: }",
    )
    assert [name for name, spec in plan.inputs.items() if spec.required] == ["c"]


@pytest.mark.parametrize(
    ("head", "steps", "dialect"),
    [
        ("initial_state: {}", "{id: a, type: foreach}", "stateful"),
        ("tasks: {}", "{id: a, type: mcp_call, tool: x}", "stateful"),
        ("x-a: 1", "{id: a, type: mcp_call, tool: x, needs_state: []}", "stateful"),
        ("x-a: 1", "{id: a, type: shell, command: x}", "stateful"),
        ("x-a: 1", "{id: a, type: shel, command: x}", "stateful"),
        ("dialect: stateful", "{id: a, type: mcp_call, tool: x}", "stateful"),
        ("dialect: stateful\ndefault_state: {}", "{id: a, type: shell_command}", "stateful"),
        ("default_state: {}", "{id: a, type: mcp_call, tool: x}", "reactive"),
        ("state_schema: {}", "{id: a, type: foreach}", "reactive"),
        ("sub_agent_tasks: {}", "{id: a, type: foreach}", "reactive"),
        ("imports: []", "{id: a, type: foreach}", "reactive"),
        ("x-a: 1", "{id: a, type: shell_command, command: x}", "reactive"),
        ("x-a: 1", "{id: a, type: user_message, message: x}", "reactive"),
        ("x-a: 1", "{id: a, type: mcp_call, method: x}", "reactive"),
        ("x-a: 1", "{id: a, type: foreach, steps: [{type: break}]}", "reactive"),
        ("x-a: 1", "{id: a, type: foreach, task: x}", "stateful"),
        ("x-a: 1", "{id: a, type: HttpRequest, method: GET, body: x, steps: 3, needs_state: []}", "stateful"),
        ("initial_state: {}", "{type: shell_command, state_update: {path: raw.a}}", "stateful"),
        ("dialect: reactive\ninitial_state: {}", "{id: a, type: shell}", "reactive"),
    ],
)
def test_the_dialect_is_known_by_what_only_it_has(head: str, steps: str, dialect: str) -> None:
    assert dialect_of(read_document(f"{head}\nsteps: [{steps}]\n", "x").value) == dialect


@pytest.mark.rows("S4")
def test_steps_one_after_the_other_are_nodes_in_their_order() -> None:
    assert flow(f"  - {wait('a')}\n  - {wait('b')}") == [("a", -1), ("b", -1)]
    assert node(wait("a")) == Node("a", Wait(1), ("steps", 0), reads=(), order=0)


@pytest.mark.rows("S4")
def test_a_condition_is_a_branch_and_its_lists_are_laid_out_flat() -> None:
    steps = f"""
  - {wait("a")}
  - id: c
    type: condition
    needs_state: [n]
    if: "{{{{ state.n > 1 }}}}"
    then: [{wait("t1")}, {wait("t2")}]
    else: [{wait("e1")}]
  - {wait("z")}
"""
    assert flow(steps) == [("a", -1), ("c", 5), ("t1", -1), ("t2", 5), ("e1", -1), ("z", -1)]
    branch = nodes(steps)["c"]
    assert branch.do == Branch("{{ state.n > 1 }}", otherwise=4)
    assert branch.reads == ("n",)
    assert nodes(steps)["t2"].at == ("steps", 1, "then", 1)
    assert nodes(steps)["e1"].at == ("steps", 1, "else", 0)


@pytest.mark.rows("S4")
def test_a_condition_without_else_goes_on_behind_its_steps() -> None:
    steps = f"  - {{id: c, type: condition, needs_state: [], if: true, then: [{wait('t')}]}}\n  - {wait('z')}"
    assert nodes(steps)["c"].do == Branch("{{ true }}", otherwise=2)
    assert flow(steps) == [("c", 2), ("t", -1), ("z", -1)]


@pytest.mark.rows("S4")
def test_the_last_step_of_nested_lists_goes_on_behind_all_of_them() -> None:
    inner = (
        f"{{id: d, type: condition, needs_state: [], if: 'true', then: [{wait('t')}], else: [{wait('e')}]}}"
    )
    alone = f"{{id: f, type: condition, needs_state: [], if: 'true', then: [{wait('g')}]}}"
    steps = f"""
  - id: c
    type: condition
    needs_state: []
    if: 'true'
    then: [{wait("a")}, {inner}]
    else: [{alone}]
  - {wait("z")}
"""
    assert flow(steps) == [("c", 7), ("a", -1), ("d", 7), ("t", 7), ("e", 7), ("f", 7), ("g", -1), ("z", -1)]
    assert nodes(steps)["c"].do == Branch("true", 5)
    assert nodes(steps)["d"].do == Branch("true", 4)
    assert nodes(steps)["f"].do == Branch("true", 7)


@pytest.mark.rows("S4")
def test_the_end_of_the_workflow_is_where_the_last_list_goes_on() -> None:
    steps = f"  - {{id: c, type: condition, needs_state: [], if: 'true', then: [{wait('t')}], else: [{wait('e')}]}}"
    assert flow(steps) == [("c", 3), ("t", 3), ("e", -1)]


@pytest.mark.rows("S4")
@pytest.mark.parametrize(
    ("keys", "warned"), [("", True), (", when: inputs.deep", False), (", on_error: continue", False)]
)
def test_what_comes_after_two_returns_is_reached_only_where_the_condition_can_be_passed_by(
    keys: str, warned: bool
) -> None:
    ends = "then: [{id: a, type: return, needs_state: []}], else: [{id: b, type: return, needs_state: []}]"
    text = (
        "inputs: {deep: boolean}\ninitial_state: {}\nsteps:\n"
        f"  - {{id: c, type: condition, needs_state: [], if: 'true', {ends}{keys}}}\n  - {wait('z')}\n"
    )
    never = "warning: step 'z' is never reached: 'c' always ends the workflow"
    assert said(text) == [never] * warned


@pytest.mark.rows("S4")
def test_updates_and_return_values_stay_as_they_are_written() -> None:
    steps = """
  - id: s
    type: set_state
    needs_state: [n]
    updates: {a: "{{ state.n + 1 }}", b: "{{ a * 2 }}", c: {deep: [1, "{{ b }}"]}}
  - {id: r, type: return, needs_state: [a], value: {got: "{{ state.a }}"}}
"""
    found_nodes = nodes(steps)
    assert found_nodes["s"].do == SetState(
        {"a": "{{ state.n + 1 }}", "b": "{{ a * 2 }}", "c": {"deep": [1, "{{ b }}"]}}
    )
    assert found_nodes["r"].do == Return({"got": "{{ state.a }}"})
    assert node("{id: r, type: return, needs_state: []}").do == Return(None)


@pytest.mark.rows("S15")
def test_a_goto_leads_to_a_step_of_its_list_or_of_one_around_it() -> None:
    steps = f"""
  - {wait("a")}
  - id: c
    type: condition
    needs_state: []
    if: "true"
    then:
      - {wait("t")}
      - {{id: out, type: goto, target: a, max_iterations: 3}}
      - {{id: near, type: goto, needs_state: [n], target: t, max_iterations: "{{{{ state.n }}}}"}}
  - {{id: ahead, type: goto, target: z, max_iterations: "2"}}
  - {wait("z")}
"""
    found_nodes = nodes(steps)
    assert found_nodes["out"].do == Jump(0, 3)
    assert found_nodes["near"].do == Jump(2, "{{ state.n }}")
    assert found_nodes["ahead"].do == Jump(6, 2)
    assert found(f"initial_state: {{n: 0}}\nsteps:{steps}") == []


@pytest.mark.rows("S3")
def test_when_output_to_and_on_error_are_of_every_step() -> None:
    made = node(
        "{id: a, type: wait, needs_state: [n], duration_seconds: '{{ state.n }}', message: 'n {{ state.n }}',"
        " when: '{{ state.n > 0 }}', output_to: waited, on_error: continue, name: x, description: y}"
    )
    assert made.do == Wait("{{ state.n }}", "n {{ state.n }}")
    assert (bare(made.condition), made.output_to, made.on_failure) == (
        "{{ state.n > 0 }}",
        "waited",
        "continue",
    )
    assert (
        bare(node("{id: a, type: wait, needs_state: [], duration_seconds: 1, when: false}").condition)
        == "{{ false }}"
    )


@pytest.mark.rows("S3", "S8")
def test_a_command_is_for_the_agent_unless_the_step_says_otherwise() -> None:
    made = node("{id: a, type: shell, needs_state: [n], command: 'echo {{ state.n }}', output_to: b}")
    assert made.do == Do(
        "Shell",
        {"command": "echo {{ state.n }}", "timeout": 30},
        by="agent",
        code=("command",),
        config={"exit_code_is_a_result": True},
        defaults={"exit_code": 0, "stdout": ""},
        may_fail=True,
    )
    here = node(
        "{id: a, type: shell, needs_state: [n], command: ls, run_on: server, timeout: '{{ state.n }}', env: {A: 1},"
        " working_dir: x, retry: 3, on_interrupt: fail}"
    )
    assert isinstance(here.do, model.Do)
    assert (here.do.by, bare(here.do.timeout), bare(here.retry)) == (
        "server",
        "{{ state.n }}",
        {"attempts": 3},
    )
    assert bare(here.do.inputs) == {
        "command": "ls",
        "timeout": "{{ state.n }}",
        "env": {"A": "1"},
        "working_dir": "x",
    }
    assert here.on_interrupt == "fail"
    default = node("{id: a, type: shell, needs_state: [], command: ls, run_on: server}").do
    assert isinstance(default, model.Do)
    assert bare(default.timeout) == 30


@pytest.mark.rows("S7", "S8", "S9")
def test_tools_questions_and_tasks_in_words_are_for_the_agent() -> None:
    tool = node("{id: a, type: mcp_call, needs_state: [], tool: git.pr, parameters: {pr: 1}}").do
    assert isinstance(tool, model.Do)
    assert (tool.step, bare(tool.inputs), tool.by, tool.result_output) == (
        "MCPCall",
        {"tool": "git.pr", "parameters": {"pr": 1}},
        "agent",
        "result",
    )
    asked = node("{id: a, type: prompt, needs_state: [], message: Go?, type: confirm}").do
    assert isinstance(asked, model.Do)
    assert (asked.step, bare(asked.inputs)) == ("UserPrompt", {"message": "Go?", "prompt_type": "confirm"})
    handed = node("{id: a, type: delegate, needs_state: [], instructions: Do it., agent: null}").do
    assert isinstance(handed, model.Do)
    assert (handed.step, bare(handed.inputs), handed.timeout) == (
        "Delegate",
        {"instructions": "Do it."},
        None,
    )
    named = node("{id: a, type: delegate, needs_state: [], instructions: Do it., agent: '@code-reviewer'}").do
    assert isinstance(named, model.Do)
    assert bare(named.inputs["agent"]) == "@code-reviewer"


def test_a_step_type_of_no_dialect_is_carried_out_by_the_server() -> None:
    made = node("{id: a, type: ReadFile, needs_state: [], path: x, timeout: 9, output_to: text}")
    assert made.do == Do("ReadFile", {"path": "x"}, timeout=9)
    assert made.on_interrupt == "ask"


@pytest.mark.rows("S9")
def test_inputs_that_must_fit_each_other_are_checked_although_the_message_is_a_template() -> None:
    text = "inputs: {a: string}\nsteps: [{id: a, type: prompt, needs_state: [], message: '{{ inputs.a }}', prompt_type: %s}]"
    assert said(text % "choice") == ["the inputs of prompt: a choice needs options"]
    assert said(text % "text") == []


@pytest.mark.rows("S1", "S5")
def test_each_task_is_a_plan_of_its_own_that_a_foreach_calls_for_its_items() -> None:
    plan = plan_of(
        "  - {id: each, type: foreach, needs_state: [n], items: '{{ state.n }}', task: look, output_to: seen}",
        "initial_state: {n: []}\n"
        "tasks:\n"
        "  look:\n"
        "    description: Looks at one\n"
        "    inputs: {file: {type: string, required: true}}\n"
        "    initial_state: {size: 0}\n"
        "    steps:\n"
        f"      - {wait('a')}\n"
        "      - {id: r, type: return, needs_state: [size], value: '{{ item }} {{ index }} {{ total }}'}\n",
    )
    [only] = map(unplaced, plan.body.nodes)
    assert only.do == Call("w#look", of_item=True)
    assert only.for_each == ForEach("{{ state.n }}")
    assert only.output_to == "seen"
    [task] = plan.tasks
    assert (task.name, task.dialect, task.file) == ("w#look", "stateful", "some/flow.yaml")
    assert task.description == "Looks at one"
    assert task.inputs == {"file": InputSpec("string", required=True)}
    assert task.initial_state == {"size": 0}
    assert [(it.id, it.at) for it in task.body.nodes] == [
        ("a", ("tasks", "look", "steps", 0)),
        ("r", ("tasks", "look", "steps", 1)),
    ]


@pytest.mark.rows("S5", "S6")
@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ("sequential: true", ForEach([1, 2], 1)),
        ("sequential: false", ForEach([1, 2])),
        ("max_parallel: 4", ForEach([1, 2], 4)),
        ("max_parallel: '{{ inputs.most }}'", ForEach([1, 2], "{{ inputs.most }}")),
        ("max_parallel: 4, sequential: true", ForEach([1, 2], 1)),
        ("agent: '@task'", ForEach([1, 2], agent="@task")),
        ("agent: null", ForEach([1, 2])),
    ],
)
def test_a_foreach_says_how_many_at_once_and_by_whom(keys: str, expected: model.ForEach) -> None:
    rest = f"inputs: {{most: number}}\ntasks: {{t: {{steps: [{wait('a')}]}}}}"
    made = node(
        f"{{id: e, type: foreach, needs_state: [], items: [1, 2], task: t, output_to: o, {keys}, retry: 2}}",
        rest,
    )
    assert made.for_each == expected
    assert bare(made.retry) == {"attempts": 2}


def test_a_step_calls_a_workflow_of_any_dialect() -> None:
    made = node(
        "{id: a, type: workflow, needs_state: [n], workflow: run-tests, inputs: {path: '{{ state.n }}'}, timeout: 60}"
    )
    assert made.do == Call("run-tests", {"path": "{{ state.n }}"}, 60)
    assert node("{id: a, type: workflow, needs_state: [], workflow: x}").do == Call("x", {})


def test_calls_are_checked_where_they_stand() -> None:
    called = load(
        "name: other\ninputs: {size: {type: integer, validation: {max: 3}}, must: string}\n"
        "blocks: [{id: a, type: Shell, inputs: {command: x}}]",
        file="other.yaml",
        registry=REGISTRY,
    )
    text = (
        "name: w\nsteps:\n  - id: c\n    type: workflow\n    needs_state: []\n    workflow: other\n"
        "    inputs: {siz: 1, size: 5}\n  - {id: d, type: workflow, needs_state: [], workflow: othr}\n"
    )
    caller = read(text)
    bundle = Bundle("w", {"w": caller.plan, "other": called.plan})
    with pytest.raises(DefinitionError) as caught:
        check_bundle(bundle, {"w": text, "other": called.text})
    assert [(str(it.place), it.message) for it in caught.value.problems] == [
        ("some/flow.yaml:7:5", "workflow 'other' also needs 'must' (string)"),
        ("some/flow.yaml:7:14", "workflow 'other' has no input 'siz'"),
        ("some/flow.yaml:7:28", "input 'size' of workflow 'other' must be 3 or less, not 5"),
        ("some/flow.yaml:8:56", "there is no workflow 'othr'"),
    ]


def test_a_workflow_may_call_itself_where_something_can_end_it() -> None:
    def circular(steps: str) -> list[str]:
        plan = plan_of(steps)
        try:
            check_bundle(Bundle("w", {"w": plan}), {})
        except DefinitionError as error:
            return [problem.message for problem in error.problems]
        return []

    call = "{id: again, type: workflow, needs_state: [], workflow: w}"
    assert circular(f"  - {call}") == ["the workflows call each other endlessly: w → w"]
    assert circular(f"  - {wait('a')}\n  - {call}") == ["the workflows call each other endlessly: w → w"]
    guarded = f"  - {{id: c, type: condition, needs_state: [n], if: '{{{{ state.n }}}}', then: [{call}]}}"
    assert circular(guarded) == []
    assert circular("  - {id: a, type: workflow, needs_state: [n], workflow: w, when: '{{ state.n }}'}") == []


def test_secrets_go_to_what_the_server_carries_out_and_nowhere_else() -> None:
    plan = plan_of(
        "  - {id: a, type: shell, needs_state: [], command: 'curl {{ secrets.TOKEN }}', run_on: server}\n"
        "  - {id: b, type: workflow, needs_state: [], workflow: x, inputs: {key: '{{ secrets.KEY }}'}}"
    )
    assert plan.secrets == ("KEY", "TOKEN")
    text = (
        "initial_state: {}\nsteps: [{id: a, type: shell, needs_state: [], command: 'x {{ secrets.TOKEN }}'}]"
    )
    assert said(text) == ["secrets.TOKEN: a secret cannot be part of 'command' here"]


# What a step may see


def access(step: str, **how: Any) -> tuple[tuple[str, ...] | None, list[str]]:
    """What the step sees, and what is said of it; `how` goes to the loader."""
    text = f"initial_state: {{a: 1, b: 2, c: 3}}\n{how.pop('head', '')}\nsteps: [{step}]\n"
    definition = read(text, **how)
    return definition.plan.body.nodes[0].reads, [str(it.message) for it in definition.warnings]


@pytest.mark.rows("S2")
def test_a_step_sees_what_it_declares() -> None:
    step = "{id: s, type: set_state, needs_state: %s, updates: {d: '{{ state.a }}'}}"
    assert access(step % "[a, b]") == (("a", "b"), [])
    assert access(step % "['*']") == (None, [])
    assert access(step % "[b, '*']") == (None, [])


@pytest.mark.rows("S2")
def test_what_is_not_declared_is_refused_with_the_line_to_write() -> None:
    text = (
        "initial_state: {a: 1, b: 2, c: 3}\nsteps:\n"
        "  - {id: s, type: shell, needs_state: [a], command: 'x {{ state.a }} {{ state.b }} {{ state.b }}', when: state.c}\n"
        "  - {id: t, type: return, needs_state: [], value: [{deep: '{{ state.a.b[0] }}'}]}\n"
    )
    assert [(it.code, str(it.place)[15:], it.message, it.hint) for it in found(text)] == [
        (
            "undeclared_state",
            "3:73",
            "step 's' reads state.b and does not declare it",
            'write needs_state: ["a", "c", "b"]',
        ),
        (
            "undeclared_state",
            "3:106",
            "step 's' reads state.c and does not declare it",
            'write needs_state: ["a", "c", "b"]',
        ),
        (
            "undeclared_state",
            "4:63",
            "step 't' reads state.a and does not declare it",
            'write needs_state: ["a"]',
        ),
    ]


@pytest.mark.rows("S2")
def test_a_condition_does_not_declare_for_the_steps_inside_of_it() -> None:
    text = (
        "initial_state: {a: 1}\nsteps:\n  - id: c\n    type: condition\n    needs_state: [a]\n    if: state.a\n"
        "    then: [{id: s, type: set_state, needs_state: [], updates: {b: '{{ state.a }}'}}]\n"
    )
    assert said(text) == ["step 's' reads state.a and does not declare it"]


@pytest.mark.rows("S2")
@pytest.mark.parametrize("how", [{"head": "state_access: warn"}, {"state_access": "warn"}])
def test_where_it_is_only_warned_of_the_step_sees_what_it_reads(how: dict[str, str]) -> None:
    step = "{id: s, type: set_state, needs_state: [b], updates: {d: '{{ state.a }}'}}"
    assert access(step, **how) == (("b", "a"), ["step 's' reads state.a and does not declare it"])


@pytest.mark.rows("S2")
def test_what_the_file_says_of_access_goes_before_the_setting() -> None:
    text = "state_access: enforce\ninitial_state: {a: 1}\nsteps: [{id: s, type: return, needs_state: [], value: '{{ state.a }}'}]"
    with pytest.raises(DefinitionError):
        read(text, state_access="warn")


@pytest.mark.rows("S2")
def test_a_step_that_declares_nothing_sees_what_it_reads_with_a_warning() -> None:
    reads, warnings = access("{id: s, type: return, value: '{{ state.a }} {{ state.b }}'}")
    assert reads == ("a", "b")
    assert warnings == ["step 's' does not declare its state; it sees the fields that its expressions name"]
    assert access("{id: s, type: return, value: '{{ state | tojson }}'}")[0] is None
    assert access(f"{wait('a')}, {{id: g, type: goto, target: a, max_iterations: 1}}")[1] == []


@pytest.mark.rows("S2")
def test_the_whole_state_is_what_the_step_declares() -> None:
    assert access("{id: s, type: return, needs_state: [a], value: '{{ state | tojson }}'}") == (("a",), [])


@pytest.mark.rows("S2")
@pytest.mark.parametrize(
    "value",
    [
        "{{ state.nothing | default(1) }}",
        "{{ 1 if state.nothing is defined else 2 }}",
        "{{ state.get('nothing') }}",
        "{{ 'nothing' in state }}",
    ],
)
def test_what_may_be_absent_need_not_be_written_by_anything(value: str) -> None:
    step = f'{{id: s, type: return, needs_state: [nothing], value: "{value}"}}'
    assert access(step) == (("nothing",), [])


@pytest.mark.rows("S2")
def test_a_step_that_runs_only_if_a_field_is_there_may_read_it() -> None:
    text = (
        "steps:\n  - id: run-tests\n    type: shell\n    needs_state: [test_directory]\n"
        "    command: 'cd {{ state.test_directory }} && npm test --coverage'\n    timeout: 120\n"
        "    output_to: test_output\n    when: '{{ state.test_directory is defined }}'\n"
        "  - id: c\n    type: condition\n    needs_state: [other]\n    if: state.other is defined\n"
        "    then: [{id: s, type: return, needs_state: [other], value: '{{ state.other }}'}]\n"
    )
    assert said(text) == []


@pytest.mark.rows("S2")
def test_a_field_that_a_later_round_has_written_is_no_problem() -> None:
    text = (
        "initial_state: {go: true}\nsteps:\n"
        f"  - {wait('start')}\n"
        "  - id: c\n    type: condition\n    needs_state: [go]\n    if: state.go\n"
        "    then: [{id: w, type: set_state, needs_state: [], updates: {x: 1, go: false}}]\n"
        "    else: [{id: r, type: return, needs_state: [x], value: '{{ state.x }}'}]\n"
        "  - {id: again, type: goto, target: start, max_iterations: 2}\n"
    )
    assert said(text) == []


# Limits


@pytest.mark.rows("S14")
def test_a_workflow_has_no_more_steps_than_the_limit() -> None:
    steps = "".join(f"  - {wait(f's{n}')}\n" for n in range(4))
    inner = f"  - {{id: c, type: condition, needs_state: [], if: 'true', then: [{wait('t')}]}}\n"
    text = f"initial_state: {{}}\nsteps:\n{steps}{inner}"
    assert said(text, limits=Limits(steps_per_workflow=6)) == []
    [problem] = found(text, limits=Limits(steps_per_workflow=5))
    assert problem.message == "there are 6 steps, at most 5 are allowed"
    assert "WORKFLOWS_LIMIT_STEPS_PER_WORKFLOW" in problem.hint
    assert problem.place is not None
    assert problem.place.line == 2


@pytest.mark.rows("S14")
@pytest.mark.parametrize(
    ("keys", "refused"),
    [("", True), ("max_parallel: 3", False), ("max_parallel: 4", True), ("sequential: true", False)],
)
def test_a_foreach_has_no_more_children_at_once_than_the_limit(keys: str, refused: bool) -> None:
    text = (
        f"tasks: {{t: {{steps: [{wait('a')}]}}}}\nsteps:\n"
        f"  - {{id: e, type: foreach, needs_state: [], items: [1, 2, 3, 4], task: t, output_to: o, {keys}}}\n"
    )
    problems = found(text, limits=Limits(parallel_children=3))
    assert [problem.code for problem in problems] == ["parallel_children"] * refused
    assert all("WORKFLOWS_LIMIT_PARALLEL_CHILDREN" in problem.hint for problem in problems)


# The complete examples of the specification, as they are written


@pytest.mark.rows("S16")
@pytest.mark.parametrize("name", ["deploy-service", "analyze-codebase", "pr-automation"])
def test_an_example_loads_with_the_stand_ins_too(name: str) -> None:
    text = (TESTDATA / "ok" / "stateful" / f"{name}.yaml").read_text(encoding="utf-8")
    warnings = load(text, file=f"{name}.yaml", registry=REGISTRY).warnings
    assert [it for it in warnings if it.code != "unread_exit_code"] == []  # these are as they were given


@pytest.mark.rows("S16")
def test_interactive_planning_loads_where_undeclared_state_is_a_warning() -> None:
    text = (TESTDATA / "err" / "stateful" / "interactive-planning.yaml").read_text(encoding="utf-8")
    definition = load(f"state_access: warn\n{text}", file="plan.yaml", registry=default_registry())
    assert [it.code for it in definition.warnings] == ["undeclared_state"] * 2
    [approve] = [it for it in definition.plan.body.nodes if it.id == "approve-plan"]
    assert approve.reads == ("final_plan", "user_request")


@pytest.mark.rows("S16")
def test_pr_automation_is_laid_out_as_it_is_meant() -> None:
    text = (TESTDATA / "ok" / "stateful" / "pr-automation.yaml").read_text(encoding="utf-8")
    plan = load(text, file="pr.yaml", registry=REGISTRY).plan
    assert [(it.id, it.goes_to) for it in plan.body.nodes] == [
        ("fetch-pr", -1),
        ("check-size", 9),
        ("request-review", 9),
        ("run-tests", -1),
        ("run-quality-check", -1),
        ("evaluate", -1),
        ("auto-merge-check", 9),
        ("approve-and-merge", 9),
        ("comment-issues", -1),
    ]
    branches = {it.id: it.do.otherwise for it in plan.body.nodes if isinstance(it.do, model.Branch)}
    assert branches == {"check-size": 3, "auto-merge-check": 8}
