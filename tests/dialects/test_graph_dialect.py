"""A graph document becomes the plan that it means."""

from __future__ import annotations

from typing import Annotated, Any

import pytest
from pydantic import BeforeValidator, Field, model_validator

from support.plans import Call, Do, bare, unplaced
from workflows_mcp.dialects import Definition, load
from workflows_mcp.errors import DefinitionError
from workflows_mcp.plan import model
from workflows_mcp.plan.model import InputSpec, Need, Node
from workflows_mcp.steps.base import Step, StepInputs, StepOutputs
from workflows_mcp.steps.registry import StepRegistry
from workflows_mcp.values import Value


class Part(StepInputs):
    size: int


class Command(Step):
    """Has everything that a step type can have."""

    name = "Command"
    aliases = ("Cmd",)
    code_inputs = frozenset(["command"])
    timeout_input = "timeout"
    may_fail = True
    takes_output_specs = True

    class Inputs(StepInputs):
        command: str
        timeout: int = Field(120, gt=0, description="Seconds before it is stopped")
        env: dict[str, str] = Field(default_factory=dict)
        keep_going: bool = Field(False, alias="keep-going")
        retries: int | None = None
        names: list[Annotated[str, BeforeValidator(str)]] | None = None

    class Outputs(StepOutputs):
        exit_code: int = 0
        stdout: str = ""

    def output_defaults(self, config: dict[str, Value]) -> dict[str, Value]:
        return super().output_defaults(config) | dict.fromkeys(config.get("outputs", {}))


class Text(Step):
    """Plain."""

    name = "Text"

    class Inputs(StepInputs):
        text: str = ""
        data: Any = None

    class Outputs(StepOutputs):
        text: str = ""


class Either(Step):
    """Checks its inputs as a whole."""

    name = "Either"

    class Inputs(StepInputs):
        one: str = ""
        other: str = ""
        nested: dict[str, Part] = Field(default_factory=dict)

        @model_validator(mode="after")
        def _one_of_them(self) -> Either.Inputs:
            if not self.one and not self.other:
                raise ValueError("give one or other")
            return self


class Ask(Step):
    """Handed to the agent."""

    name = "Ask"
    performer = "agent"

    class Inputs(StepInputs):
        prompt: str

    class Outputs(StepOutputs):
        response: str = ""


class ExecuteWorkflow(Step):
    """Calls."""

    name = "ExecuteWorkflow"
    aliases = ("Workflow",)

    class Inputs(StepInputs):
        workflow: str
        inputs: dict[str, Any] | str = Field(default_factory=dict)
        timeout_ms: int | None = None


REGISTRY = StepRegistry(steps=[Command(), Either(), Text(), Ask(), ExecuteWorkflow()])


def read(text: str, file: str = "some/work.yaml") -> Definition:
    return load(text, file=file, registry=REGISTRY)


def nodes(blocks: str, rest: str = "") -> dict[str, Node]:
    return {node.id: unplaced(node) for node in read(f"blocks:\n{blocks}\n{rest}").plan.body.nodes}


def block(text: str, rest: str = "") -> Node:
    [node] = nodes(text, rest).values()
    return node


def problems(text: str) -> list[str]:
    with pytest.raises(DefinitionError) as caught:
        read(text)
    return [problem.message for problem in caught.value.problems]


def test_a_document_gives_its_name_its_words_and_its_outputs() -> None:
    definition = read(
        "name: deploy\ndescription: Brings it out\nversion: 1.10\nauthor: Ada\ntags: [a, 2]\ndialect: graph\n"
        "x-own: [anything]\nblocks:\n  - {id: a, type: Text}\n"
        "outputs:\n  said: ${blocks.a.outputs.text}\n  all: [1, '${blocks.a.text}']\n"
    )
    plan = definition.plan
    assert (plan.name, plan.dialect, plan.description) == ("deploy", "graph", "Brings it out")
    assert (plan.version, plan.tags, plan.file) == ("1.10", ("a", "2"), "some/work.yaml")
    assert bare(plan.outputs) == {"said": "${blocks.a.outputs.text}", "all": [1, "${blocks.a.text}"]}
    assert definition.text.startswith("name: deploy")
    assert definition.warnings == []


def test_a_workflow_without_a_name_is_called_as_its_file() -> None:
    assert read("blocks:\n  - {id: a, type: Text}\n", "dir/nightly.build.yaml").plan.name == "nightly.build"


@pytest.mark.rows("G17")
@pytest.mark.parametrize(
    ("written", "spec"),
    [
        ("string", InputSpec("string")),
        ("{type: str}", InputSpec("string")),
        ("int", InputSpec("integer")),
        ("{type: bool, default: 'true'}", InputSpec("boolean", "", False, True, True)),
        ("{type: array, default: '[1]'}", InputSpec("list", "", False, [1], True)),
        ("{type: dict, required: false}", InputSpec("object", "", False)),
        ("{type: float, default: 5}", InputSpec("float", "", False, 5.0, True)),
        ("{type: number, default: 5, required: true}", InputSpec("number", "", False, 5, True)),
        ("{type: string, default: null}", InputSpec("string", "", False, None, True)),
        ("{description: 7}", InputSpec("any", "7")),
        ("", InputSpec("any")),
    ],
)
def test_inputs_are_declared_long_or_short(written: str, spec: InputSpec) -> None:
    plan = read(f"inputs:\n  x: {written}\nblocks:\n  - {{id: a, type: Text}}\n").plan
    assert plan.inputs == {"x": spec}


@pytest.mark.rows("G3")
def test_a_block_becomes_a_step_with_its_inputs_apart_from_its_code() -> None:
    node = block("  - {id: go, type: Cmd, inputs: {command: 'echo $HOME', env: {A: b}}, description: x}")
    assert node.at == ("blocks", 0)
    assert node.do == Do(
        "Command",
        {"command": "echo $HOME", "env": {"A": "b"}},
        code=("command",),
        timeout=120,
        defaults={"exit_code": 0, "stdout": ""},
        may_fail=True,
    )


def test_a_step_of_the_agent_is_marked_so() -> None:
    do = block("  - {id: ask, type: Ask, inputs: {prompt: Go on?}}").do
    assert isinstance(do, model.Do)
    assert (do.by, do.timeout, do.defaults) == ("agent", None, {"response": ""})


@pytest.mark.rows("G10")
@pytest.mark.parametrize(
    ("block_timeout", "input_timeout", "expected"),
    [
        ("", "", 120),
        ("", "timeout: 30", 30),
        ("", "timeout: '${inputs.t}'", "${inputs.t}"),
        ("timeout: 0.5", "timeout: 30", 0.5),
        ("timeout: '45'", "", 45),
        ("timeout: '${inputs.t}'", "timeout: 30", "${inputs.t}"),
    ],
)
def test_the_timeout_of_the_block_goes_before_that_of_the_step(
    block_timeout: str, input_timeout: str, expected: Value
) -> None:
    written = f"  - {{id: a, type: Command, inputs: {{command: x, {input_timeout}}}, {block_timeout}}}"
    made = block(written, "inputs: {t: integer}").do
    assert isinstance(made, model.Do)
    assert bare(made.timeout) == expected


@pytest.mark.rows("G11")
def test_outputs_that_a_block_declares_are_outputs_that_can_be_read() -> None:
    node = block(
        "  - {id: a, type: Command, inputs: {command: x}, outputs: {report: {type: json, path: r}}}",
        "outputs: {r: '${blocks.a.report}', s: '${blocks.a.outputs.report.deep[0]}'}",
    )
    assert isinstance(node.do, model.Do)
    assert node.do.settings == {"outputs": {"report": {"type": "json", "path": "r"}}}
    assert node.do.defaults == {"exit_code": 0, "stdout": "", "report": None}


@pytest.mark.rows("G16")
@pytest.mark.parametrize("kind", ["Workflow", "ExecuteWorkflow"])
def test_a_call_is_an_operation_of_the_plan(kind: str) -> None:
    inputs = "{workflow: helper, inputs: {n: 1}, timeout_ms: 1500}"
    assert block(f"  - {{id: a, type: {kind}, inputs: {inputs}}}").do == Call("helper", {"n": 1}, 1.5)
    assert block(f"  - {{id: a, type: {kind}, inputs: {inputs}, timeout: 9}}").do == Call(
        "helper", {"n": 1}, 9
    )
    assert block(f"  - {{id: a, type: {kind}, inputs: {{workflow: helper}}}}").do == Call("helper")


def test_a_call_may_take_its_name_and_all_its_inputs_from_elsewhere() -> None:
    node = block(
        "  - {id: a, type: Workflow, inputs: {workflow: '${inputs.w}', inputs: '${inputs.all}'}}",
        "inputs: {w: string, all: object}",
    )
    assert node.do == Call("${inputs.w}", "${inputs.all}")


def test_a_reference_cannot_be_divided_by_a_thousand() -> None:
    inputs = "{workflow: w, timeout_ms: '${inputs.t}'}"
    text = f"inputs: {{t: integer}}\nblocks:\n  - {{id: a, type: Workflow, inputs: {inputs}}}"
    assert problems(text) == ["'timeout_ms' must be a number, it cannot be a reference"]


@pytest.mark.rows("G7")
@pytest.mark.parametrize(
    ("written", "needs"),
    [
        ("b", (Need(1),)),
        ("[b, c]", (Need(1), Need(2))),
        ("[{block: b, required: false}, c]", (Need(1, False), Need(2))),
        ("[{block: b}]", (Need(1),)),
        ("[7]", (Need(3),)),
        ("[]", ()),
        ("", ()),
    ],
)
def test_dependencies_are_ids_or_say_whether_they_are_required(written: str, needs: tuple[Need, ...]) -> None:
    found = nodes(
        f"  - id: a\n    type: Text\n    depends_on: {written}\n"
        "  - {id: b, type: Text}\n  - {id: c, type: Text}\n  - {id: 7, type: Text}"
    )
    assert found["a"].needs == needs


@pytest.mark.parametrize("twice", ["[{block: b, required: false}, b]", "[b, {block: b, required: false}]"])
def test_a_dependency_that_is_listed_twice_is_required_if_it_is_once_and_is_warned_of(twice: str) -> None:
    definition = read(
        f"blocks:\n  - {{id: b, type: Text}}\n  - id: a\n    type: Text\n    depends_on: {twice}\n"
    )
    assert definition.plan.body.nodes[1].needs == (Need(0, True),)
    [warning] = definition.warnings
    assert warning.warning
    assert str(warning).startswith("some/work.yaml:5:")
    assert "warning: 'b' appears twice" in str(warning)


def test_a_default_that_looks_like_a_template_is_warned_of() -> None:
    definition = read(
        "inputs:\n  a: string\n  b: {type: string, default: 'x${inputs.a}'}\n"
        "blocks:\n  - {id: a, type: Text}\n"
    )
    assert definition.plan.inputs["b"].default == "x${inputs.a}"
    assert [warning.code for warning in definition.warnings] == ["literal_default"]


@pytest.mark.rows("G6")
def test_a_condition_is_kept_as_text_and_a_truth_value_is_one() -> None:
    found = nodes(
        "  - {id: a, type: Text, condition: true}\n"
        "  - {id: b, type: Text, condition: \"'x' in ['x']\", on_failure: continue}"
    )
    assert bare(found["a"].condition) == "true"
    assert bare(found["b"].condition) == "'x' in ['x']"
    assert (found["a"].on_failure, found["b"].on_failure) == (None, "continue")


@pytest.mark.rows("G1", "G2")
def test_blocks_get_their_wave_and_their_place_in_the_order() -> None:
    found = nodes(
        "  - {id: last, type: Text, depends_on: [left, right]}\n"
        "  - {id: right, type: Text, depends_on: [first]}\n"
        "  - {id: left, type: Text, depends_on: [first]}\n"
        "  - {id: first, type: Text}"
    )
    assert {name: (node.wave, node.order) for name, node in found.items()} == {
        "first": (0, 0),
        "right": (1, 1),
        "left": (1, 2),
        "last": (2, 3),
    }


@pytest.mark.rows("G3")
def test_a_block_may_read_what_it_depends_on_through_others() -> None:
    found = nodes(
        "  - {id: a, type: Text}\n"
        "  - {id: b, type: Text, depends_on: [a]}\n"
        "  - {id: c, type: Text, depends_on: [b], inputs: {data: {x: ['${blocks.a.outputs.text}']}}}"
    )
    assert found["c"].needs == (Need(1),)


@pytest.mark.rows("G3", "G4", "G9")
@pytest.mark.parametrize(
    "reference",
    [
        "inputs.n",
        "inputs",
        "metadata.workflow_name",
        "metadata.start_time",
        "metadata.run_id",
        "metadata.execution_id",
        "metadata.status",
        "metadata",
        "blocks.go.outputs.stdout",
        "blocks.go.stdout",
        "blocks['go'].outputs['stdout']",
        "blocks.go.inputs.command",
        "blocks.go.outputs",
        "blocks.go",
        "blocks.go.succeeded",
        "blocks.go.failed",
        "blocks.go.skipped",
        "blocks.go.status",
        "blocks.go.outcome",
        "blocks.go.metadata.execution_time_ms",
        "blocks.go.metadata.wave",
        "blocks.go.metadata.message",
        "blocks.call.outputs.anything",
        "blocks.call.anything",
        "blocks.call.blocks.inner.outputs.x",
    ],
)
def test_every_kind_of_reference_is_known(reference: str) -> None:
    read(
        "inputs: {n: integer}\nblocks:\n  - {id: go, type: Command, inputs: {command: x}}\n"
        "  - {id: call, type: Workflow, inputs: {workflow: w}}\n"
        f'  - {{id: use, type: Text, depends_on: [go, call], inputs: {{text: "a ${{{reference}}} b"}}}}\n'
    )


TOLERANCE = {
    "nobody looks": ("", False),
    "an output reads what it printed": ("outputs: {o: '${blocks.a.outputs.stdout}'}", False),
    "an output reads its exit code": ("outputs: {o: '${blocks.a.outputs.exit_code}'}", False),
    "an output reads it by its short name": ("outputs: {o: 'x ${blocks.a.exit_code}'}", False),
    "an output asks whether it succeeded": ("outputs: {o: ['${blocks.a.succeeded}']}", False),
    "an output reads its metadata": ("outputs: {o: '${blocks.a.metadata.outcome}'}", False),
    "an output reads how long it took": ("outputs: {o: '${blocks.a.metadata.execution_time_ms}'}", False),
    "an output reads all of it": ("outputs: {o: '${blocks.a}'}", False),
    "a block needs it": ("  - {id: b, type: Text, depends_on: [a]}", False),
    "a block comes after it": ("  - {id: b, type: Text, depends_on: [{block: a, required: false}]}", True),
    "a condition asks for its status": (
        "  - {id: b, type: Text, depends_on: [a], condition: \"${blocks.a.status} == 'failed'\"}",
        True,
    ),
    "a condition quotes it": (
        "  - {id: b, type: Text, depends_on: [a], condition: \"'${blocks.a.failed}' == 'True'\"}",
        True,
    ),
    "an input holds its outcome": (
        "  - {id: b, type: Text, depends_on: [a], inputs: {data: {x: ['${blocks.a.outcome}']}}}",
        True,
    ),
    "what it would skip is looked at": (
        "  - {id: b, type: Text, depends_on: [a]}\n"
        "  - {id: c, type: Text, depends_on: [{block: b, required: false}]}",
        True,
    ),
    "only some of what it would skip is looked at": (
        "  - {id: b, type: Text, depends_on: [a]}\n  - {id: d, type: Text, depends_on: [a]}\n"
        "  - {id: c, type: Text, depends_on: [{block: b, required: false}]}",
        False,
    ),
}


@pytest.mark.rows("G7")
@pytest.mark.parametrize(("rest", "tolerated"), TOLERANCE.values(), ids=TOLERANCE.keys())
def test_a_failure_is_the_workflows_own_unless_it_looks_at_it(rest: str, tolerated: bool) -> None:
    found = nodes("  - {id: a, type: Command, inputs: {command: x}}\n" + rest)
    assert found["a"].tolerated is tolerated


def test_scalars_that_are_wanted_as_text_are_taken_as_they_are_written() -> None:
    node = block("  - {id: a, type: Command, inputs: {command: 007, env: {A: 1.10, B: true, C: 0x1F}}}")
    assert isinstance(node.do, model.Do)
    assert bare(node.do.inputs) == {"command": "007", "env": {"A": "1.10", "B": "true", "C": "0x1F"}}


def test_they_are_taken_so_beside_expressions_and_where_the_step_would_convert_them_itself() -> None:
    node = block(
        "  - id: a\n    type: Command\n"
        "    inputs: {command: x, names: [3.10, n], env: {A: '${inputs.a}', B: 3.10}}",
        "inputs: {a: string}",
    )
    assert isinstance(node.do, model.Do)
    assert bare(node.do.inputs["env"]) == {"A": "${inputs.a}", "B": "3.10"}
    assert bare(node.do.inputs["names"]) == ["3.10", "n"]


def test_numbers_that_are_wanted_as_numbers_stay_numbers() -> None:
    node = block("  - {id: a, type: Command, inputs: {command: x, retries: 012, timeout: 1e1}}")
    assert isinstance(node.do, model.Do)
    assert (bare(node.do.inputs["retries"]), bare(node.do.timeout)) == (12, 10.0)


def test_a_name_with_a_dash_and_its_other_spelling_are_both_taken() -> None:
    for name in ("keep-going", "keep_going"):
        node = block(f"  - {{id: a, type: Command, inputs: {{command: x, {name}: true}}}}")
        assert isinstance(node.do, model.Do)
        assert bare(node.do.inputs[name]) is True
        [message] = problems(f"blocks:\n  - {{id: a, type: Command, inputs: {{command: x, {name}: [1]}}}}")
        assert message == f"'{name}' must be true or false, not list [1]"


def test_values_with_expressions_are_not_checked_for_their_type_before_they_are_known() -> None:
    node = block(
        "  - {id: a, type: Command, inputs: {command: x, timeout: '${inputs.t}', env: '${inputs.e}'}}",
        "inputs: {t: integer, e: object}",
    )
    assert isinstance(node.do, model.Do)
    assert bare(node.do.timeout) == "${inputs.t}"


def test_a_check_of_all_inputs_together_waits_until_all_are_known() -> None:
    block("  - {id: a, type: Either, inputs: {other: '${inputs.t}'}}", "inputs: {t: string}")
    assert problems("blocks:\n  - {id: a, type: Either}") == ["the inputs of Either: give one or other"]
    [message] = problems("blocks:\n  - {id: a, type: Either, inputs: {one: x, nested: {b: {}}}}")
    assert message == "'nested.b': field required"


def test_a_name_of_the_shell_is_an_error_outside_of_commands() -> None:
    [message] = problems("blocks:\n  - {id: a, type: Command, inputs: {command: x, timeout: '${SECONDS}'}}")
    assert message == "${SECONDS}: there is no 'SECONDS'"


def test_what_could_be_one_of_several_types_is_one_problem() -> None:
    [message] = problems("blocks:\n  - {id: a, type: Workflow, inputs: {workflow: w, inputs: [1]}}")
    assert message == "'inputs' must be a mapping or must be text, not list [1]"


def test_anchors_and_merges_are_part_of_the_language() -> None:
    first, second = read(
        "x-base: &base {type: Cmd, inputs: {command: make}}\n"
        "blocks:\n  - {<<: *base, id: a}\n  - {<<: *base, id: b, inputs: {command: test}}\n"
    ).plan.body.nodes
    assert isinstance(first.do, model.Do)
    assert isinstance(second.do, model.Do)
    assert bare(first.do.inputs) == {"command": "make"}
    assert bare(second.do.inputs) == {"command": "test"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "there is no workflow in this file"),
        ("- a\n", "a workflow is a mapping, not list"),
        ("just text\n", "a workflow is a mapping, not text"),
        ("dialect: functional\nsteps: []\n", "there is no dialect 'functional'"),
        ("dialect: graph\n", "'blocks' is empty"),
    ],
)
def test_what_is_no_workflow_of_a_known_dialect_is_told_so(text: str, message: str) -> None:
    assert problems(text) == [message]


def test_blocks_settle_the_dialect_and_steps_beside_them_are_an_unknown_key() -> None:
    assert problems("blocks:\n  - {id: a, type: Text}\nsteps: []\n") == ["a workflow has no key 'steps'"]
