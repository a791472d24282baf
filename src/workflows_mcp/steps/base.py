"""The base of step types: one class declares names, typed inputs and outputs, and what the step does.

    class Reverse(Step):
        '''Reverses a text.'''

        name = "Reverse"

        class Inputs(StepInputs):
            text: str = Field(description="What to reverse")

        class Outputs(StepOutputs):
            reversed: str = ""

        def run(self, inputs: Inputs, context: StepContext) -> StepResult:
            return StepResult({"reversed": inputs.text[::-1]})

The server performs a step with `run`; an agent performs a step with `ask`. Schema, documentation, validation
and capability checks derive from the class. A step type does not know plans, runs or engines.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, model_validator

from workflows_mcp.errors import WorkflowsError
from workflows_mcp.expressions import Code, Refusal
from workflows_mcp.values import Value

if TYPE_CHECKING:
    from workflows_mcp.policy import World

Performer = Literal["server", "agent", "human"]
SecurityLevel = Literal["safe", "trusted", "privileged"]
Capability = Literal["run_commands", "read_files", "write_files", "network", "modify_state"]


class StepInputs(BaseModel):
    """The inputs of a step type. Unknown names are rejected; a number is accepted as text."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True, coerce_numbers_to_str=True)

    other_names: ClassVar[Mapping[str, str]] = {}
    """Other spellings of inputs: {"options": "choices"}."""

    @model_validator(mode="before")
    @classmethod
    def _by_one_name(cls, given: Any) -> Any:
        return by_one_name(given, cls.other_names)


def by_one_name(given: Any, other_names: Mapping[str, str]) -> Any:
    """Rename keys in other spellings. Raises ValueError if a value is given under both names."""
    for other, name in other_names.items():
        if isinstance(given, dict) and other in given:
            if name in given:
                raise ValueError(f"'{name}' and '{other}' are the same: give one of them")
            given = {name if key == other else key: value for key, value in given.items()}
    return given


class StepOutputs(BaseModel):
    """The outputs of a step type, with the defaults for a step that was skipped or could not run."""

    model_config = ConfigDict(extra="allow")


@dataclass(frozen=True, slots=True)
class StepContext:
    """What `Step.run` gets: the run that it belongs to, and its only access to the world."""

    run_id: str
    key: str
    """The id of this attempt; unique in the store, and the same after a restart."""
    world: World
    config: dict[str, Value] = field(default_factory=dict)
    """The keys of the step other than its inputs, such as the declared outputs of a Shell block."""
    code: dict[str, Code] = field(default_factory=dict)
    """The code inputs, with the values in them kept apart from their text."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """The outputs of a step that ran. `ok` is false if it failed, as a command with exit code 1."""

    outputs: dict[str, Value]
    ok: bool = True
    message: str | None = None
    tokens: int = 0
    """The tokens that an agent used for it, if a program performed it and reports them."""


class StepStopped(asyncio.CancelledError):
    """Raised by a cancelled step that has outputs, such as what a command had printed by then."""

    def __init__(self, outputs: dict[str, Value]) -> None:
        super().__init__()
        self.outputs = outputs


@dataclass(frozen=True, slots=True)
class Question:
    """What an agent is asked to do, and the JSON Schema of its result."""

    type: str
    instructions: str
    parameters: dict[str, Value]
    result_schema: dict[str, Value]
    main_field: str | None = None
    """The field of the result that a bare value stands for: "yes" for {"response": "yes"}."""
    for_user: str = ""
    """The text for the user, if the client can ask the user without the agent."""
    agent_may_answer: bool = False
    """Whether a question with a text for the user need not be put to the user."""
    describes_result: bool = False
    """Whether the instructions describe the result in full: then the schema is not sent to agents."""


class Step:
    """Base of all step types: what a type declares, and what it does.

    A type needs `name`, and `run` (the server performs it) or `ask` (an agent performs it). Everything else
    has a default. Instances have no state: one instance serves all runs.
    """

    # Declarations

    name: ClassVar[str]
    """The name of the type in plans, and in dialects that `dialect_names` does not list otherwise."""
    aliases: ClassVar[tuple[str, ...]] = ()
    """Other names of the type in definitions: ExecuteWorkflow is also `Workflow`."""
    dialect_names: ClassVar[Mapping[str, str]] = {}
    """The name in each dialect that has the type; empty: `name`, in every dialect."""
    dialect_config: ClassVar[Mapping[str, dict[str, Value]]] = {}
    """Entries of `StepContext.config` for the steps of a dialect, by dialect."""
    dialect_performers: ClassVar[Mapping[str, Performer]] = {}
    """Who performs the step in a dialect where that is somebody else than `performer`."""
    performer: ClassVar[Performer] = "server"
    """Who performs the step, unless the definition or `performer_for` says otherwise."""
    Inputs: ClassVar[type[StepInputs]] = StepInputs
    """The inputs, with types, defaults and descriptions."""
    Outputs: ClassVar[type[StepOutputs]] = StepOutputs
    """The outputs, with the defaults for a step that did not run."""
    result_output: ClassVar[str] = ""
    """The output that is the result as a whole; empty: the result is an object of all outputs."""
    result_fields: ClassVar[tuple[str, ...]] = ()
    """Fields that the result always has, if it is an object."""
    takes_output_specs: ClassVar[bool] = False
    """Whether a block of this type may declare `outputs` of its own, as Shell does."""
    level: ClassVar[SecurityLevel] = "safe"
    """The security level that the settings must allow."""
    capabilities: ClassVar[frozenset[Capability]] = frozenset()
    """What the step needs of the world; the settings can deny each."""
    code_inputs: ClassVar[frozenset[str]] = frozenset()
    """Inputs that hold code: `StepContext.code` keeps the values in it apart from its text."""
    literal_inputs: ClassVar[frozenset[str]] = frozenset()
    """Inputs whose own language uses `{{ }}`: a dialect with such expressions does not evaluate them."""
    timeout_input: ClassVar[str | None] = None
    """The input with the timeout in seconds; a `timeout` of the block takes precedence."""
    may_fail: ClassVar[bool] = False
    """Whether a step that ran to its end can have failed, as a command with exit code 1."""
    on_interrupt: ClassVar[Literal["repeat", "ask", "fail"]] = "repeat"
    """What to do with a step that a crash interrupted, unless the block says otherwise."""

    @property
    def summary(self) -> str:
        """The first paragraph of the docstring."""
        return (inspect.getdoc(type(self)) or "").split("\n\n", 1)[0].replace("\n", " ")

    # Checks when a definition is loaded

    def performer_for(self, inputs: Mapping[str, Value], dialect: str) -> Performer:
        """Return who performs a step that does not say; `inputs` are as written in the definition."""
        return self.dialect_performers.get(dialect, self.performer)

    def result_output_in(self, dialect: str) -> str:
        """Return `result_output` for a dialect."""
        return self.result_output

    def refusals(self, name: str, texts: tuple[str, ...], inputs: Mapping[str, Value]) -> Iterable[Refusal]:
        """Return the values that cannot stand in the code input `name`; `texts` is the code around them."""
        return ()

    def check_literals(self, inputs: dict[str, Value]) -> list[tuple[str, WorkflowsError, int]]:
        """Check inputs without references beyond their types: (input, error, position in its text) each."""
        return []

    def check_config(self, config: dict[str, Value]) -> list[tuple[tuple[str | int, ...], str, str]]:
        """Check the keys of the block other than its inputs: (path, message, hint) for each problem."""
        return []

    def output_defaults(self, config: dict[str, Value]) -> dict[str, Value]:
        """Return the outputs of a step that did not run; the keys are all outputs there are."""
        return self.Outputs().model_dump()

    # Performed by the server

    @property
    def can_run(self) -> bool:
        """Whether the server can perform the step."""
        return type(self).run is not Step.run

    def changes_world(self, inputs: dict[str, Value]) -> bool:
        """Return whether a repetition could be noticed: then the start is stored before the step runs."""
        return True

    def run(self, inputs: Any, context: StepContext) -> StepResult | Awaitable[StepResult]:
        """Perform the step. Short work may be a plain function; anything that waits is a coroutine.

        Raises StepError if the step could not run. A cancelled coroutine must stop everything it started.
        """
        raise TypeError(f"{self.name} is not performed by the server")

    # Performed by an agent

    @property
    def can_ask(self) -> bool:
        """Whether an agent can perform the step."""
        return type(self).ask is not Step.ask

    def ask(self, inputs: Any) -> Question:
        """Return what the agent is asked to do."""
        raise TypeError(f"{self.name} is not performed by an agent")

    def ask_alone(self, inputs: Any) -> Question:
        """Return what a program is asked that performs the step without an agent around it."""
        return self.ask(inputs)

    def credit(self, result: StepResult, agent: str, tokens: int) -> StepResult:
        """Return the result of a program, with the agent that it is and the tokens that it used."""
        return replace(result, tokens=tokens)

    def normalize_result(self, inputs: Any, result: Value) -> Value:
        """Rewrite a result for the schema, which is checked next: "yes" becomes true."""
        return result

    def rejection_message(self, inputs: Any, result: Value) -> str:
        """Return the author's message for a result that does not match the schema, if there is one."""
        return ""

    def parse_result(self, inputs: Any, result: Any) -> StepResult:
        """Turn a result that matches the schema into outputs."""
        return StepResult(dict(result))

    def apply_config(self, result: StepResult, config: Mapping[str, Value]) -> StepResult:
        """Adjust a parsed result by the keys of the step other than its inputs, such as `on_error: fail`."""
        return result

    # Answered by `on_timeout`

    @property
    def takes_default_answer(self) -> bool:
        """Whether `on_timeout` may give an answer, used if nobody answers in time."""
        return type(self).default_answer is not Step.default_answer

    def default_answer(
        self, inputs: Mapping[str, Value], value: Value, *, dynamic: bool = False
    ) -> dict[str, Value]:
        """Return the outputs for the answer `value`; `inputs` are as written in the definition.

        Raises ValueError if `value` can never be the answer. A `dynamic` value is known only at run time.
        """
        raise TypeError(f"{self.name} takes no answer from the definition")
