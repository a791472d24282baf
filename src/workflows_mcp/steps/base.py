"""A step type is one class: names, typed inputs and outputs, what it needs of the world, and `run`.

Schema, documentation, validation and capability checks derive from the class. A step that the server
carries out has `run`; one that is handed to the agent has `ask`. A step type must not know plans, runs
or engines.

    class Reverse(Step):
        '''Reverses a text.'''

        name = "Reverse"

        class Inputs(StepInputs):
            text: str = Field(description="What to reverse")

        class Outputs(StepOutputs):
            reversed: str = ""

        def run(self, inputs: Inputs, context: StepContext) -> StepResult:
            return StepResult({"reversed": inputs.text[::-1]})
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, model_validator

from workflows_mcp.errors import WorkflowsError
from workflows_mcp.expressions import Code, Refusal
from workflows_mcp.values import Value

if TYPE_CHECKING:
    from workflows_mcp.policy import World

Performer = Literal["server", "agent"]
SecurityLevel = Literal["safe", "trusted", "privileged"]
Capability = Literal["run_commands", "read_files", "write_files", "network", "modify_state"]


class StepInputs(BaseModel):
    """What a step takes: unknown names are refused, a number where text is wanted is taken as text."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True, coerce_numbers_to_str=True)

    other_names: ClassVar[Mapping[str, str]] = {}
    """Further spellings of inputs that are understood, and what they stand for: {"options": "choices"}."""

    @model_validator(mode="before")
    @classmethod
    def _by_one_name(cls, given: Any) -> Any:
        return by_one_name(given, cls.other_names)


def by_one_name(given: Any, other_names: Mapping[str, str]) -> Any:
    """Values under the names that they are known by. Raises ValueError where one is given twice."""
    for other, name in other_names.items():
        if isinstance(given, dict) and other in given:
            if name in given:
                raise ValueError(f"'{name}' and '{other}' are the same: give one of them")
            given = {name if key == other else key: value for key, value in given.items()}
    return given


class StepOutputs(BaseModel):
    """What a step gives; the defaults are the outputs of a block that was skipped or could not run."""

    model_config = ConfigDict(extra="allow")


@dataclass(frozen=True, slots=True)
class StepContext:
    """Who runs this step, and the only way for it to reach the world."""

    run_id: str
    key: str
    """Names this try of this step; unique in the store, the same after a restart."""
    world: World
    config: dict[str, Value] = field(default_factory=dict)
    """What the definition says of the step beside its inputs (the declared outputs of a Shell block)."""
    code: dict[str, Code] = field(default_factory=dict)
    """The inputs that are code, with their values kept apart from the text."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """How it went. `ok` false: the step was carried out, and what it did failed (a non-zero exit)."""

    outputs: dict[str, Value]
    ok: bool = True
    message: str | None = None


class StepStopped(asyncio.CancelledError):
    """A step was ended from outside, like any cancelled coroutine; it says what there was by then."""

    def __init__(self, outputs: dict[str, Value]) -> None:
        super().__init__()
        self.outputs = outputs


@dataclass(frozen=True, slots=True)
class Question:
    """What an agent is asked to do, and the JSON Schema of the result that it hands back."""

    type: str
    instructions: str
    parameters: dict[str, Value]
    result_schema: dict[str, Value]
    main_field: str | None = None
    """A bare value that is submitted is taken as this field of the result."""
    for_user: str = ""
    """What the user is shown, where it can be put to the user without the agent."""
    says_result: bool = False
    """Whether the instructions describe the result in full: then agents are not sent the schema as well."""


class Step:
    """Base of all step types. Instances carry no state: one serves all runs."""

    name: ClassVar[str]
    aliases: ClassVar[tuple[str, ...]] = ()
    offered: ClassVar[Mapping[str, str]] = {}
    """What the type is called in each dialect that has it; empty: its own name, in every dialect."""
    by: ClassVar[Performer] = "server"
    """Who carries it out where neither the definition nor the dialect says."""
    Inputs: ClassVar[type[StepInputs]] = StepInputs
    Outputs: ClassVar[type[StepOutputs]] = StepOutputs

    level: ClassVar[SecurityLevel] = "safe"
    capabilities: ClassVar[frozenset[Capability]] = frozenset()

    code_inputs: ClassVar[frozenset[str]] = frozenset()
    """Inputs that hold code; `context.code` has their text and values apart, the input itself the text."""
    literal_inputs: ClassVar[frozenset[str]] = frozenset()
    """Inputs in a language of their own with `{{ }}` in it: a dialect whose expressions are written so too
    takes them as they stand, so that no value ever becomes part of the text."""
    timeout_input: ClassVar[str | None] = None
    """The input, in seconds, after which the step is stopped; a `timeout` of the block goes before it."""
    may_fail: ClassVar[bool] = False
    """Whether a step that was carried out can still have failed (completed, failure)."""
    on_interrupt: ClassVar[Literal["repeat", "ask", "fail"]] = "repeat"
    """What becomes of a step that a crash has cut off, where the block does not say."""
    takes_output_specs: ClassVar[bool] = False
    """Whether a block of this type may declare `outputs` of its own (Shell)."""
    result_fields: ClassVar[tuple[str, ...]] = ()
    """The fields that its `result` always has, if that is an object."""
    result_output: ClassVar[str] = ""
    """The output that is the result as a whole (Do.gives); empty: all outputs together are."""
    told: ClassVar[Mapping[str, dict[str, Value]]] = {}
    """What steps of a dialect are told beside their inputs (Do.config), by dialect."""

    @property
    def can_run(self) -> bool:
        """Whether the server can carry it out."""
        return type(self).run is not Step.run

    @property
    def can_ask(self) -> bool:
        """Whether an agent can carry it out."""
        return type(self).ask is not Step.ask

    def usually_by(self, inputs: Mapping[str, Value], dialect: str) -> Performer:
        """Who carries it out where the definition does not say; `inputs` as they stand in it."""
        return self.by

    def refusals(self, name: str, texts: tuple[str, ...], inputs: Mapping[str, Value]) -> Iterable[Refusal]:
        """The values that cannot stand in an input that holds code: `texts` are what is around them."""
        return ()

    def result_output_in(self, dialect: str) -> str:
        """The output that is the whole result, where the dialect overrides `result_output`."""
        return self.result_output

    def changes_world(self, inputs: dict[str, Value]) -> bool:
        """Whether repeating the step could be noticed: then the disk is waited for before it starts."""
        return True

    def run(self, inputs: Any, context: StepContext) -> StepResult | Awaitable[StepResult]:
        """Carry the step out. Short work may be a plain function; anything that waits is a coroutine.

        Raises StepError when it could not be carried out. A coroutine that is cancelled must leave
        nothing of what it started behind.
        """
        raise TypeError(f"{self.name} is not carried out by the server")

    def ask(self, inputs: Any) -> Question:
        """What the agent is handed, for a step that it carries out."""
        raise TypeError(f"{self.name} is not handed to an agent")

    def understood(self, inputs: Any, result: Value) -> Value:
        """The agent's result as it is meant: what says the same in other words, "yes" for true, is put into
        the words of the schema, which it is checked against next."""
        return result

    def refused(self, inputs: Any, result: Value) -> str:
        """What the agent is told, in the step's own words, of a result that does not fit the schema; empty:
        only what the schema says of it."""
        return ""

    def answered(self, inputs: Any, result: Any) -> StepResult:
        """The outputs that the agent's result, already checked against the schema, amounts to."""
        return StepResult(dict(result))

    def judged(self, result: StepResult, config: Mapping[str, Value]) -> StepResult:
        """What an agent's result amounts to with what the definition says of the step beside its inputs."""
        return result

    @property
    def takes_default_answer(self) -> bool:
        """Whether `on_timeout` may give the answer that is taken when nobody answers in time."""
        return type(self).default_answer is not Step.default_answer

    def default_answer(
        self, inputs: Mapping[str, Value], value: Value, *, dynamic: bool = False
    ) -> dict[str, Value]:
        """The outputs when `value` is taken as the answer; `inputs` as they stand in the definition.

        Raises ValueError where it could never be the answer. A `dynamic` value is known only later.
        """
        raise TypeError(f"{self.name} takes no answer from the definition")

    def output_defaults(self, config: dict[str, Value]) -> dict[str, Value]:
        """The outputs of a block of this type that did not run; the keys are all outputs there are."""
        return self.Outputs().model_dump()

    def check_literals(self, inputs: dict[str, Value]) -> list[tuple[str, WorkflowsError, int]]:
        """What is wrong with inputs that hold no references, beyond their types: the name of the input, the
        error, and the position in its text."""
        return []

    def check_config(self, config: dict[str, Value]) -> list[tuple[tuple[str | int, ...], str, str]]:
        """Problems of what the block says beside its inputs: (path, message, hint) each."""
        return []

    @property
    def summary(self) -> str:
        return (inspect.getdoc(type(self)) or "").split("\n\n", 1)[0].replace("\n", " ")
