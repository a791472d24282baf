"""The JSON Schema of workflow files: it takes what the loader takes, and refuses common mistakes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match
from pydantic import BaseModel, BeforeValidator, Field, model_validator

from support.plans import bare
from support.steps import registry_of
from workflows_mcp.dialects import document as documents
from workflows_mcp.dialects import graph, load, reactive, stateful
from workflows_mcp.dialects.schema import workflow_schema
from workflows_mcp.dialects.yaml.source import read_document
from workflows_mcp.errors import DefinitionError
from workflows_mcp.plan import retry
from workflows_mcp.plan.inputs import RULES
from workflows_mcp.plan.model import Do
from workflows_mcp.steps.base import Step, StepInputs
from workflows_mcp.steps.registry import StepRegistry, default_registry
from workflows_mcp.steps.shell import KEYS as OUTPUT_KEYS

ROOT = Path(__file__).resolve().parents[2]
BESIDE = ROOT.parent / "shared" / "corpus"
CORPUS = Path(os.environ.get("WORKFLOWS_CORPUS", BESIDE))
ERR = ROOT / "tests" / "testdata" / "err"
FOLDERS = [
    ROOT / "src" / "workflows_mcp" / "library" / "templates",
    ROOT / "examples",
    CORPUS / "graph",
    CORPUS / "reactive",
]
FILES = sorted(path for folder in FOLDERS for path in folder.rglob("*.yaml"))

SCHEMA = workflow_schema(default_registry())
VALIDATOR = Draft202012Validator(SCHEMA)


def problem(document: Any, validator: Any = VALIDATOR) -> str:
    """Where the schema sees the mistake that explains most, and what it says; empty if it sees none."""
    error = best_match(validator.iter_errors(document))
    if error is None:
        return ""
    return f"{'.'.join(map(str, error.absolute_path))}: {error.message}"


def block(**keys: Any) -> dict[str, Any]:
    """A workflow of one block."""
    return {"blocks": [{"id": "b", "type": "Shell", "inputs": {"command": "true"}, **keys}]}


def is_loaded(document: Any, registry: StepRegistry) -> bool:
    """Whether the loader takes it; JSON is YAML."""
    try:
        load(json.dumps(document), file="w.yaml", registry=registry)
    except DefinitionError:
        return False
    return True


@pytest.mark.rows("X12")
def test_it_is_a_schema() -> None:
    Draft202012Validator.check_schema(SCHEMA)
    assert SCHEMA["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    json.dumps(SCHEMA)


@pytest.mark.rows("X12")
def test_it_knows_and_describes_every_key() -> None:
    definitions = SCHEMA["$defs"]
    retry_keys = definitions["retry"]["anyOf"][0]["properties"]
    for properties, keys in [
        (definitions["blocks_workflow"]["properties"], graph.WORKFLOW),
        (definitions["reactive_workflow"]["properties"], reactive.WORKFLOW),
        (definitions["reactive_task"]["properties"], reactive.TASK),
        (definitions["steps_workflow"]["properties"], stateful.WORKFLOW),
        (definitions["task"]["properties"], stateful.TASK),
        (definitions["input"]["properties"]["validation"]["properties"], tuple(RULES)),
        (definitions["block"]["properties"], graph.BLOCK),
        (definitions["input"]["properties"], documents.INPUT),
        (definitions["dependency"]["properties"], graph.DEPENDENCY),
        (definitions["shell_output"]["properties"], OUTPUT_KEYS),
        (retry_keys, retry.RETRY_KEYS),
    ]:
        assert set(properties) == set(keys)
        for key in set(keys) - {"inputs", "retry"}:
            assert properties[key].get("description"), key


@pytest.mark.rows("X12", "G26")
def test_every_step_type_is_in_it_with_its_inputs() -> None:
    registry = default_registry()
    others = {"Workflow", "gate"}
    assert set(SCHEMA["$defs"]["block"]["properties"]["type"]["enum"]) == {*registry.names(), *others}
    for name in registry.names():
        step = registry.get(name)
        schema = SCHEMA["$defs"][f"{name}.inputs"]
        assert schema["description"].replace("\n", " ").startswith(step.summary)
        for field_name, field in step.Inputs.model_fields.items():
            assert schema["properties"][field.alias or field_name]["description"] == field.description
    assert SCHEMA["$defs"]["Shell.inputs"]["required"] == ["command"]


def limited_steps() -> list[tuple[str, str, dict[str, Any]]]:
    """Every type of step with a limit that is an input of its type: definition, type, what the schema says."""
    found = []
    for definition, dialect in (("step", "stateful"), ("reactive_step", "reactive")):
        for branch in SCHEMA["$defs"][definition]["allOf"]:
            kind = branch["if"]["properties"]["type"]["const"]
            step = default_registry().find(kind, dialect)
            if step is not None and step.timeout_input is not None:
                found.append((dialect, kind, branch["then"]["properties"][step.timeout_input]))
    return found


SCALES = {"stateful": ("Seconds", 1), "reactive": ("Milliseconds", 1000)}
HEADS: dict[str, dict[str, Any]] = {
    "stateful": {"initial_state": {}},
    "reactive": {"default_state": {"raw": {}}},
}
TAKEN = {
    "shell": {"command": "true"},
    "shell_command": {"command": "true"},
    "agent_shell_command": {"command": "true"},
    "delegate": {"instructions": "look"},
}


@pytest.mark.rows("X12")
@pytest.mark.parametrize(
    ("dialect", "kind", "said"), limited_steps(), ids=lambda it: it if isinstance(it, str) else ""
)
def test_how_long_a_step_may_take_is_what_the_schema_says_in_the_unit_that_it_says(
    dialect: str, kind: str, said: dict[str, Any]
) -> None:
    unit, scale = SCALES[dialect]
    assert said["description"].startswith(f"{unit} ")
    taken = TAKEN.get(kind) or {"tool" if dialect == "stateful" else "method": "look"}

    def limit(**given: Any) -> float | None:
        """What a step is given, in seconds."""
        beside: dict[str, Any] = {"needs_state": []} if dialect == "stateful" else {}
        document = {
            "name": "w",
            **HEADS[dialect],
            "steps": [{"id": "a", "type": kind, **taken, **beside, **given}],
        }
        [node] = load(json.dumps(document), file="w.yaml", registry=default_registry()).plan.body.nodes
        assert isinstance(node.do, Do)
        inputs = default_registry().get(node.do.step).Inputs.model_validate(bare(node.do.inputs))
        seconds: float | None = inputs.timeout  # type: ignore[attr-defined]
        assert bare(node.do.timeout) in (None, seconds), "the server ends it, or nobody but the agent does"
        return seconds

    default = said.get("default")
    assert limit() == (None if default is None else default / scale)
    assert limit(timeout=2 * scale) == 2


@pytest.mark.rows("X12")
@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_every_workflow_that_loads_fits(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    load(text, file=path.name, registry=default_registry())
    assert problem(read_document(text, path.name).value) == ""


@pytest.mark.rows("X12")
@pytest.mark.parametrize(
    "name",
    [
        "bad_depends_on", "bad_id", "bad_on_failure", "bad_output_specs", "bad_repetition",
        "block_not_a_mapping", "blocks_empty", "blocks_not_a_list", "inputs_not_a_mapping", "many_problems",
        "missing_step_inputs", "neither_blocks_nor_steps", "unknown_block_type",
        "unknown_input_type", "unknown_keys_everywhere", "wrong_defaults", "wrong_dialect", "wrong_literals",
    ],
)  # fmt: skip
def test_mistakes_that_need_no_knowledge_of_the_whole_file_are_seen(name: str) -> None:
    assert problem(read_document((ERR / "graph" / f"{name}.yaml").read_text(), name).value)


@pytest.mark.rows("X12")
@pytest.mark.parametrize(
    "name",
    [
        "agents", "condition_without_steps", "foreach_mistakes", "goto_mistakes", "input_rules", "missing_keys",
        "misspelt_keys", "misspelt_types", "needs_state", "not_a_list_of_steps", "outputs_to_nowhere", "prompts",
        "run_on", "state_access", "tasks_not_a_mapping", "workflow_calls",
    ],
)  # fmt: skip
def test_mistakes_in_steps_are_seen_too(name: str) -> None:
    assert problem(read_document((ERR / "stateful" / f"{name}.yaml").read_text(), name).value)


@pytest.mark.rows("X12")
@pytest.mark.parametrize(
    "name",
    [
        "beside_the_wrapper", "computed_fields", "default_state", "documents", "error_handling",
        "error_handling_as_text", "failures_of_steps", "ids", "loops", "malformed_expressions", "missing_keys",
        "misspelt_keys", "misspelt_types", "no_steps", "not_steps", "parallel", "paths", "state_not_a_mapping",
        "state_schema", "tasks", "tasks_not_a_mapping", "tools", "types_of_other_dialects", "user_inputs",
        "workflow_tries", "wrapped",
    ],
)  # fmt: skip
def test_mistakes_in_reactive_files_are_seen_too(name: str) -> None:
    assert problem(read_document((ERR / "reactive" / f"{name}.yaml").read_text(), name).value)


def reactive_step(**keys: Any) -> dict[str, Any]:
    """A reactive workflow of one step."""
    return {"default_state": {"raw": {}}, "steps": [keys]}


def computed(**keys: Any) -> dict[str, Any]:
    schema = {"raw": {"n": "number"}, "computed": {"c": {"from": "raw.n", "transform": "input", **keys}}}
    return {"state_schema": schema, "steps": [{"type": "exit"}]}


@pytest.mark.rows("X12")
@pytest.mark.parametrize(
    ("document", "says"),
    [
        (reactive_step(type="shell", command="x"), "steps.0.type: 'shell' is not one of ['conditional'"),
        (reactive_step(type="shell_command", comand="x"), "steps.0: "),
        (reactive_step(type="shell_command", command="x", output_format="xml"), "steps.0.output_format: "),
        (reactive_step(type="shell_command", command="x", on_error="ignore"), "steps.0.on_error: "),
        (
            reactive_step(type="shell_command", command="x", state_update={"path": "n"}),
            "steps.0.state_update",
        ),
        (reactive_step(type="state_update", path="computed.n", value=1), "steps.0.path: "),
        (reactive_step(type="state_update", value=1), "steps.0: "),
        (reactive_step(type="mcp_call", mcp={"metod": "x"}), "steps.0.mcp: "),
        (reactive_step(type="mcp_call", named="x"), "steps.0: "),
        (reactive_step(type="while", condition="x"), "steps.0: "),
        (
            reactive_step(type="while", condition="x", max_iterations=0, body=[{"type": "exit"}]),
            "steps.0.max_i",
        ),
        (reactive_step(type="foreach", items=3, steps=[{"type": "break"}]), "steps.0.items: "),
        (reactive_step(type="foreach", items=[1], steps=[{"type": "brake"}]), "steps.0.steps"),
        (reactive_step(type="user_message", message="x", on_error="retry"), "steps.0.on_error: "),
        (computed(on_error="use_falback"), "state_schema.computed.c.on_error: "),
        (computed(**{"from": "n"}), "state_schema.computed.c.from: "),
        ({"default_state": {"n": 1}, "steps": [{"type": "exit"}]}, "default_state: Additional properties"),
        ({"dialect": "reactive"}, ": {'dialect': 'reactive'} is not valid under any"),
        ({"workflow": reactive_step(type="exti")}, "workflow.steps.0.type: 'exti' is not one of"),
        ({"workflow": reactive_step(type="exit"), "name": "x"}, ": 'name' does not match any of the regexes"),
    ],
    ids=lambda it: it if isinstance(it, str) else "",
)
def test_a_mistake_in_a_reactive_file_is_seen_where_it_is(document: dict[str, Any], says: str) -> None:
    assert not is_loaded(document, default_registry())
    assert problem(document).startswith(says)


def step(**keys: Any) -> dict[str, Any]:
    """A workflow of one step."""
    return {"steps": [{"id": "s", "needs_state": [], **keys}]}


@pytest.mark.rows("X12")
@pytest.mark.parametrize(
    ("document", "says"),
    [
        (step(type="shel", command="x"), "steps.0.type: 'shel' is not one of ['condition'"),
        (step(type="shell", comand="x"), "steps.0: "),
        (step(type="shell", command=["x"]), "steps.0.command: "),
        (step(type="goto", target="a"), "steps.0: 'max_iterations' is a required property"),
        (step(type="foreach", items=3, task="t", output_to="o"), "steps.0.items: "),
        (
            step(type="return", value=1, when="x"),
            "steps.0: Additional properties are not allowed ('when' was",
        ),
        (
            step(type="condition", **{"if": "x", "then": [{"id": "t", "type": "wat"}]}),
            "steps.0.then.0.type: 'wat'",
        ),
        ({**step(type="wait", duration_seconds=1), "task": {}}, ": 'task' does not match any of the regexes"),
        ({**step(type="wait", duration_seconds=1), "tasks": {"t": {}}}, "tasks.t: 'steps' is a required"),
        ({"dialect": "stateful"}, ": 'steps' is a required property"),
    ],
    ids=lambda it: it if isinstance(it, str) else "",
)
def test_a_mistake_in_a_step_is_seen_where_it_is(document: dict[str, Any], says: str) -> None:
    assert not is_loaded(document, default_registry())
    assert problem(document).startswith(says)


@pytest.mark.rows("X12")
@pytest.mark.parametrize(
    ("document", "says"),
    [
        ({**block(), "output": {}}, ": 'output' does not match any of the regexes: '^x-'"),
        (block(depend_on=["a"]), "blocks.0: Additional properties are not allowed ('depend_on' was"),
        (block(type="Shel"), "blocks.0.type: 'Shel' is not one of ['CreateFile'"),
        (
            block(inputs={"command": "x", "timout": 1}),
            "blocks.0.inputs: Additional properties are not allowed",
        ),
        (block(inputs={"comand": "x"}), "blocks.0.inputs: "),
        (block(inputs={}), "blocks.0.inputs: 'command' is a required property"),
        (block(inputs=None), "blocks.0.inputs: None is not of type 'object'"),
        ({"blocks": [{"id": "b", "type": "Shell"}]}, "blocks.0: 'inputs' is a required property"),
        ({"blocks": [{"type": "Prompt", "inputs": {"prompt": "?"}}]}, "blocks.0: 'id' is a required"),
        (block(inputs={"command": "x", "timeout": "soon"}), "blocks.0.inputs.timeout: 'soon' "),
        (block(inputs={"command": "x", "timeout": 0}), "blocks.0.inputs.timeout: 0 is less than"),
        (block(inputs={"command": ["x"]}), "blocks.0.inputs.command: ['x'] is not of type"),
        (block(inputs={"command": "x", "shell": "maybe"}), "blocks.0.inputs.shell: "),
        (block(inputs={"command": "x", "env": ["A=1"]}), "blocks.0.inputs.env: "),
        (block(inputs={"command": "x", "unsafe": "yes"}), "blocks.0.inputs.unsafe: "),
        (block(depends_on=[{"blok": "a"}]), "blocks.0.depends_on.0: "),
        (block(depends_on=[{"block": "a", "required": "no"}]), "blocks.0.depends_on.0.required: "),
        (block(on_failure="ignore"), "blocks.0.on_failure: 'ignore' is not one of"),
        (block(timeout=-1), "blocks.0.timeout: -1 is less than"),
        (block(id="two words"), "blocks.0.id: 'two words' does not match"),
        (block(condition=["x"]), "blocks.0.condition: "),
        (block(outputs={"stdout": {"path": "x"}}), "blocks.0.outputs: "),
        (
            block(outputs={"n": {"path": "x", "type": "intt"}}),
            "blocks.0.outputs.n.type: 'intt' is not one of",
        ),
        (block(type="Prompt", inputs={"prompt": "?"}, outputs={"n": {"path": "x"}}), "blocks.0.outputs: "),
        (block(retry={"attempt": 3}), "blocks.0.retry: "),
        (block(retry={"attempts": 0}), "blocks.0.retry"),
        (block(retry={"on": ["sometimes"]}), "blocks.0.retry.on"),
        (block(for_each="linux"), "blocks.0.for_each: "),
        (block(max_parallel=2), "blocks.0: 'for_each' is a dependency of 'max_parallel'"),
        (block(for_each=[1], for_each_mode="random"), "blocks.0.for_each_mode: "),
        ({**block(), "inputs": {"n": "itn"}}, "inputs.n: 'itn' is not one of"),
        (
            {**block(), "inputs": {"n": {"type": "int", "default": [1]}}},
            "inputs.n.default: [1] is not of type",
        ),
        ({**block(), "inputs": {"n": {"requierd": True}}}, "inputs.n: Additional properties"),
        ({"name": "x"}, ": 'blocks' is a required property"),
        ({"blocks": []}, "blocks: [] "),
    ],
    ids=lambda it: it if isinstance(it, str) else "",
)
def test_a_common_mistake_is_seen_where_it_is(document: dict[str, Any], says: str) -> None:
    assert not is_loaded(document, default_registry())
    assert problem(document).startswith(says)


@pytest.mark.rows("X12")
@pytest.mark.parametrize(
    "document",
    [
        block(
            inputs={"command": "x", "timeout": "${inputs.n}", "shell": "${inputs.b}", "env": "${inputs.e}"}
        ),
        block(inputs={"command": 7, "timeout": "30", "shell": "no", "env": {"A": 1, "B": None}}),
        block(inputs={"command": "x", "continue-on-error": True}),
        block(inputs={"command": "x", "continue_on_error": True}),
        block(type="CreateFile", inputs={"path": "f", "content": {"a": 1}, "mode": 755}),
        block(type="CreateFile", inputs={"path": "f", "content": None, "permissions": "0644"}),
        block(type="ReadFile", inputs={"path": "f", "mode": "${inputs.s}"}),
        block(type="Workflow", inputs={"workflow": "x", "inputs": "${inputs.e}"}),
        block(outputs={"n": {"path": "$SCRATCH/n", "type": "int", "required": False, "description": 1}}),
        block(id="prüfung-1"),
        block(id=1),
        block(condition=True, timeout="${inputs.n}", on_interrupt="ask", name=["any"], outputs=None),
        block(retry=3),
        block(retry="${inputs.n}"),
        block(retry={"attempts": "5", "delay": "${inputs.n}", "on": [75, "timeout"], "within": None}),
        block(for_each=["a"], max_parallel="2", for_each_mode="sequential"),
        block(for_each="${inputs.e}", max_parallel="${inputs.n}"),
        {**block(depends_on=None), "tags": "one", "version": 1.10, "author": {"a": 1}, "x-mine": [1]},
        {**block(), "dialect": "graph", "outputs": {"a": [{"deep": "${inputs.n}"}]}, "description": None},
    ],
)
def test_whatever_the_loader_takes_fits(document: dict[str, Any]) -> None:
    document = {
        **document,
        "inputs": {"n": {"type": "number"}, "b": "bool", "e": None, "s": {"type": "str", "default": None}},
    }
    assert is_loaded(document, default_registry())
    assert problem(document) == ""


LITERALS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 800),
    st.floats(-2, 1e6, allow_nan=False),
    st.sampled_from(
        ["", "x", "true", "Yes", "off", "1", "1.5", "1e3", "0644", "raw", "text", "binary", "-x"]
    ),
    st.sampled_from(["${HOME}", "utf-8", "fail", "graph", "timeout"]),
)
EXPRESSIONS = st.sampled_from(["${inputs.any}", "a ${inputs.any} b", "\\${inputs.any}"])
VALUES = EXPRESSIONS | st.recursive(
    LITERALS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
    max_leaves=4,
)


@st.composite
def workflows(draw: st.DrawFn) -> dict[str, Any]:
    """A workflow of one block with values of any type in known places."""
    registry = default_registry()
    step = registry.get(draw(st.sampled_from(registry.names())))
    spellings = {it for name, field in step.Inputs.model_fields.items() for it in (name, field.alias or name)}
    needed = {name: "x" for name, field in step.Inputs.model_fields.items() if field.is_required()}
    inputs = draw(st.dictionaries(st.sampled_from(sorted(spellings)), VALUES, max_size=3))
    keys = set(graph.BLOCK) - {"id", "type", "inputs"}
    made: dict[str, Any] = {"id": "b", "type": step.name, "inputs": {**needed, **inputs}}
    made |= draw(st.dictionaries(st.sampled_from(sorted(keys)), VALUES, max_size=2))
    document = {"inputs": {"any": None}, "blocks": [made]}
    rest = set(graph.WORKFLOW) - {"blocks", "inputs"}
    document |= draw(st.dictionaries(st.sampled_from(sorted(rest)), VALUES, max_size=1))
    if draw(st.booleans()):
        spec = st.dictionaries(st.sampled_from(["type", "default", "required", "description"]), VALUES)
        document["inputs"] = {"any": None, "other": draw(VALUES | spec)}
    return document


@pytest.mark.rows("X12")
@pytest.mark.slow
@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(workflows())
def test_nothing_that_loads_is_refused(document: dict[str, Any]) -> None:
    if is_loaded(document, default_registry()):
        assert problem(document) == ""


class Place(BaseModel):
    city: str = Field(min_length=2)
    size: int = 0


class ByPost(BaseModel):
    kind: Literal["post"]
    stamps: int


class ByMail(BaseModel):
    kind: Literal["mail"]


class Deliver(Step):
    """Delivers something.

    It takes a while.
    """

    name = "Deliver"
    aliases = ("Send",)

    class Inputs(StepInputs):
        what: str = Field(alias="thing", description="What is delivered")
        to: Place = Field(description="Where to")
        how: ByPost | ByMail = Field(ByMail(kind="mail"), discriminator="kind", description="By which way")
        stars: list[Annotated[int, Field(ge=1, le=5)]] = Field(default_factory=list, description="Stars")
        speed: Annotated[float, BeforeValidator(lambda given: 1.0 if given == "slow" else given)] = 2.0


@pytest.mark.rows("X12", "G26")
def test_a_step_type_of_somebody_else_is_in_it_at_once() -> None:
    registry = registry_of(Deliver())
    schema = workflow_schema(registry)
    Draft202012Validator.check_schema(schema)
    validator = Draft202012Validator(schema)

    def said(inputs: dict[str, Any], kind: str = "Deliver") -> str:
        document = {"inputs": {"x": None}, "blocks": [{"id": "b", "type": kind, "inputs": inputs}]}
        found = problem(document, validator)
        assert bool(found) or is_loaded(document, registry) or "${" in json.dumps(inputs)
        return found

    good: dict[str, Any] = {"thing": "x", "to": {"city": "Ulm"}}
    assert schema["$defs"]["Deliver.inputs"]["description"] == "Delivers something.\n\nIt takes a while."
    assert said(good) == said(good, "Send") == said({"what": "x", "to": {"city": "Bonn"}}) == ""
    assert said({"what": "x", "to": "${inputs.x}"}) == ""
    assert (
        said({**good, "to": {"city": "${inputs.x}", "size": "${inputs.x}"}, "stars": [1, "${inputs.x}"]})
        == ""
    )
    assert said({**good, "how": {"kind": "post", "stamps": 2}}) == said({**good, "how": "${inputs.x}"}) == ""
    assert said({**good, "speed": "slow"}) == said({**good, "speed": 3}) == ""
    assert said({"to": {"city": "Ulm"}}) == "blocks.0.inputs: 'thing' is a required property"
    assert said({**good, "too": 1}).startswith("blocks.0.inputs: Additional properties")
    assert said({**good, "to": {"city": "U"}}).startswith("blocks.0.inputs.to.city: ")
    assert said({**good, "stars": [6]}).startswith("blocks.0.inputs.stars.0: 6 is greater than")
    assert said({**good, "how": {"kind": "post"}}).startswith("blocks.0.inputs.how: ")
    assert said({**good, "speed": ["fast"]}).startswith("blocks.0.inputs.speed: ")
    assert said(good, "Shell").startswith("blocks.0.type: 'Shell' is not one of")


class Loose(Step):
    """Takes what it can make sense of."""

    name = "Loose"

    class Inputs(StepInputs):
        number: int = 0

        @model_validator(mode="before")
        @classmethod
        def _words(cls, given: Any) -> Any:
            return {"number": 1} if given == {"number": "one"} else given


@pytest.mark.rows("X12", "G26")
def test_what_the_code_of_a_step_type_lets_through_fits() -> None:
    registry = registry_of(Loose())
    validator = Draft202012Validator(workflow_schema(registry))
    document = {"blocks": [{"id": "b", "type": "Loose", "inputs": {"number": "one"}}]}
    assert is_loaded(document, registry)
    assert problem(document, validator) == ""


class BrokenPoint:
    name = "Missing"
    value = "missing.steps:Missing"

    def load(self) -> Any:
        raise ImportError("no module named missing")


@pytest.mark.rows("G26")
def test_a_step_type_that_cannot_be_loaded_does_not_take_the_others_away() -> None:
    registry = StepRegistry([BrokenPoint()], [Deliver()])  # type: ignore[list-item]
    assert workflow_schema(registry)["$defs"]["block"]["properties"]["type"]["enum"] == ["Deliver", "Send"]
