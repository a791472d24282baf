"""A plan is what a workflow means, whatever dialect it is written in.

Control flow is a small closed set of operations. Work is one open operation, `Do`: run this step with these
inputs. Plans are frozen plain data, so a plan can be stored, hashed and sent elsewhere.

What the run evaluates is an `Expr`: its source, its path in the document, and its kind. The path travels with
the source, so that an error can show the line in the file.

    Expr("${inputs.n}", ("blocks", 0, "timeout"))
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, Literal, TypeAlias

import msgspec

from workflows_mcp.values import Value, kind_and_value

SEMANTICS = 3

"""Increased when the meaning of plans changes; a run keeps the rules that it started with.

2: a reactive workflow that is ended from outside runs its cleanup steps first; a workflow that is restarted
has all its tries again; fallback values can be templates.

3: every dialect records its version; each step has its own `$SCRATCH` directory; white space around a single
expression makes it text; keys of mappings are templates; in a graph, `${name}` without a dot is a reference
except in commands; a goto counts its jumps, from zero in each iteration of a loop around it; a loop that
reaches max_iterations fails unless it has `on_limit: continue`; a block with `required: false` also runs
after a timeout, and after a block that could not run and has `on_failure: continue`; messages of tasks
go to the agent of the run.

Tasks and results (3): a task with several inputs fails if it takes none of them from its item; if a reactive
task has only one input, that is its item; the state takes precedence over fields of a result that the step
type does not document; exit ends open tasks; a question to the user fails in a task of a sub-agent; lists of
errors start empty; a state that is nested too deeply is rejected."""


FAIL = "Fail"

"""The step type that fails on purpose; nothing handles its failure."""

CONTEXT_FULL = "on_high_context_usage"

"""The step that runs when the agent reports that its context is nearly full."""

RESUME_PARTS = (
    "workflow_metadata",
    "computed_field_definitions",
    "current_raw_state",
    "computed_state",
    "pending_tasks",
    "historical_data",
    "completed_task_details",
)

"""What the answer to a resume can contain besides the next step."""

MOST_SECONDS = 1_000_000_000

"""The longest time that a definition may state; a longer one is a mistake."""


OnFailure = Literal["fail", "continue"]

OnInterrupt = Literal["repeat", "ask", "fail"]

OnLimit = Literal["fail", "continue"]

OnTimeout = Literal["fail", "continue"]

OnReject = Literal["fail", "continue"]

OnExceeded = Literal["ask", "fail", "stop"]


ChangeOperation = Literal["set", "append", "increment", "merge"]

ComputedOnError = Literal["null", "use_fallback", "propagate", "ignore"]

LanguageName = Literal["dollar", "jinja", "javascript"]

InputType = Literal["string", "number", "integer", "float", "boolean", "list", "object", "any"]


Path = tuple[str | int, ...]

ExprKind = Literal["template", "condition", "output", "code", "transform", "path", "settings", "literal"]


class Expr(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An expression, or a value that may have expressions inside, and its path in the document."""

    source: Value
    at: Path = ()
    kind: ExprKind = "template"
    """How it is read. `code`: values are passed separately, never pasted into the text. `path`: the keys of a
    place in the state. `settings`: its variables belong to the step. `literal`: used as written, because what
    looks like an expression belongs to the step's own language."""


def expr_at(source: Value, at: Path, kind: ExprKind = "template") -> Expr | None:
    """The expression at a path; None if there is nothing to evaluate."""
    return None if source is None else Expr(source, at, kind)


def exprs_in(part: Any) -> Iterator[Expr]:
    """Every expression in a node, or in another part of a plan."""
    if type(part) is Expr:
        yield part
    elif isinstance(part, msgspec.Struct):
        for name in part.__struct_fields__:
            value = getattr(part, name)
            if value is not None and type(value) not in _PLAIN:
                yield from exprs_in(value)
    elif isinstance(part, dict | tuple):
        for value in part.values() if isinstance(part, dict) else part:
            yield from exprs_in(value)


_PLAIN = frozenset({str, int, bool})


class Do(msgspec.Struct, frozen=True, tag="do", omit_defaults=True):
    """Run a step on the server, or ask the agent to do it."""

    step: str
    inputs: dict[str, Expr] = {}
    by: Literal["server", "agent", "human"] = "server"
    """Who performs it. A human step is a gate: no agent can answer it."""
    timeout: Expr | None = None
    """Seconds."""
    config: Expr | None = None
    """Settings of the step besides its inputs, e.g. the declared outputs of a Shell block."""
    defaults: dict[str, Value] = {}
    """The outputs of a block that was skipped or could not run; its keys are the names of all outputs."""
    may_fail: bool = False
    """Whether the step can run to its end and still count as failed, e.g. a command with an exit code."""
    documented: tuple[str, ...] = ()
    """Fields of the result that the step type documents; in a state_update, they take precedence over the
    state."""
    result_output: str = msgspec.field(default="", name="gives")
    """The output that is the result as a whole; if it is empty, the result is all outputs."""

    @property
    def settings(self) -> dict[str, Value]:
        """Its settings as they are written."""
        return self.config.source if self.config is not None else {}


class Call(msgspec.Struct, frozen=True, tag="call", omit_defaults=True):
    """Run another workflow inside this run, in its own scope."""

    workflow: Expr | None
    inputs: Expr = Expr({})
    timeout: Expr | None = None
    of_item: bool = False
    """The item is the inputs: it is the only input of the workflow, or its keys are the names of the
    inputs."""
    on_complete: bool = msgspec.field(default=False, name="leads_on")
    """The next steps run only if the call succeeds; if it is skipped or fails, the run continues at
    `goes_to`."""

    @property
    def name(self) -> Value:
        """The name of the workflow as it is written."""
        return self.workflow.source if self.workflow is not None else None


class Branch(msgspec.Struct, frozen=True, tag="branch"):
    """Continue with the next step if the test holds, else with the step at `otherwise`."""

    test: Expr
    otherwise: int


class Jump(msgspec.Struct, frozen=True, tag="jump", omit_defaults=True):
    """Continue with the step at `target`, at most `most` times."""

    target: int
    most: Expr
    on_limit: OnLimit = "fail"
    """What happens instead of one more jump: the step fails, or the next step runs."""


class SetState(msgspec.Struct, frozen=True, tag="set"):
    """Set fields of the state, in order; all of them or none."""

    updates: dict[str, Expr]


class Return(msgspec.Struct, frozen=True, tag="return"):
    """End the workflow with this value."""

    value: Expr | None = None


class Wait(msgspec.Struct, frozen=True, tag="wait", omit_defaults=True):
    """Wait for a number of seconds."""

    seconds: Expr
    message: Expr | None = None


class While(msgspec.Struct, frozen=True, tag="while", omit_defaults=True):
    """The head of a loop: run the body, which starts at the next step, while the test holds.

    Then continue at `otherwise`. The last step of the body goes back to the head.
    """

    test: Expr
    otherwise: int
    most: Expr | None = None
    """The maximum number of iterations."""
    on_limit: OnLimit = "fail"
    """What happens if the test still holds after that: the step fails, or the loop ends."""


class Each(msgspec.Struct, frozen=True, tag="each", omit_defaults=True):
    """The head of a loop over items: run the body for each item, then continue at `otherwise`."""

    items: Expr
    otherwise: int
    item: str = "item"
    """The names of the item and of its position in the steps of the body."""
    index: str = "index"


class Leave(msgspec.Struct, frozen=True, tag="leave", omit_defaults=True):
    """Continue at `target`: the head of a loop (continue), or the step after it (break)."""

    target: int
    loop: int = -1
    """The head of the loop that a break ends; -1 for a continue."""


class Change(msgspec.Struct, frozen=True, omit_defaults=True):
    """A new value at a place in the state."""

    path: Expr
    """Keys from the outside in, the first `raw` or `state`; each is one key, or a template of one."""
    operation: ChangeOperation = "set"
    value: Expr | None = None
    """Without one, it is the result of the step; if there is no result, null, or 1 for an increment."""
    transform: Expr | None = None
    """It computes the value from `input` and `result`."""


class UpdateState(msgspec.Struct, frozen=True, tag="update"):
    """Change places in the state, in order; all of them or none."""

    changes: tuple[Change, ...]


class Tell(msgspec.Struct, frozen=True, tag="tell"):
    """A message for the user; the next answer to the agent contains it."""

    message: Expr


class Checkpoint(msgspec.Struct, frozen=True, tag="checkpoint"):
    """Mark the position of the run, so that a user can continue from it later."""

    parameters: Expr
    """The parameters of the tool: `reason`, and `workflow_id`, which must be this run."""


Operation: TypeAlias = (
    Do
    | Call
    | Branch
    | Jump
    | SetState
    | Return
    | Wait
    | While
    | Each
    | Leave
    | UpdateState
    | Tell
    | Checkpoint
)


_KINDS: dict[type, str] = {
    Call: "call",
    Branch: "condition",
    Jump: "goto",
    SetState: "set_state",
    Return: "return",
    Wait: "wait",
    While: "while",
    Each: "foreach",
    Leave: "break",
    UpdateState: "state_update",
    Tell: "user_message",
    Checkpoint: "checkpoint",
}


def kind_of_operation(do: Operation) -> str:
    """The step type, or the kind of operation, for display."""
    return do.step if isinstance(do, Do) else _KINDS[type(do)]


REJECTED = "reject"
"""The choice of a gate that does not let the run pass."""

DEFAULT_ATTEMPTS = 3
"""How many results of a step may be rejected by its checks before it fails."""


class Check(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the server checks before it accepts the result of a step: an expression, or a command."""

    text: str
    """The check as it is written."""
    test: Expr | None = None
    """It must hold; `result` is the result."""
    command: Do | None = None
    """It must exit with 0."""
    message: Expr | None = None
    """What to fix if it fails."""


class Budget(msgspec.Struct, frozen=True, omit_defaults=True):
    """How much agents may do in a run, a called workflow or a block."""

    agent_steps: int | None = None
    sub_agents: int | None = None
    tokens: int | None = None
    """As far as agents report them."""
    time: float | None = None
    """Seconds."""
    on_exceeded: OnExceeded = "ask"
    confirm_above: int | None = None
    """A person confirms a fan-out to more sub-agents than this, before any of them starts."""


class Need(msgspec.Struct, frozen=True, array_like=True):
    """A dependency: the index of the node in its graph, and whether it must have succeeded."""

    node: int
    required: bool = True
    watched: bool = False
    """The condition of the block reads the outcome of this dependency, so the condition alone decides."""


class ForEach(msgspec.Struct, frozen=True, omit_defaults=True):
    """Runs the block once for each item; `${each.value}` and `${each.key}` are the item."""

    items: Expr
    """A list or an object."""
    max_parallel: Expr | None = None
    """The maximum number of items that run at the same time."""
    condition: Expr | None = None
    """A condition that reads the item, so it is evaluated for each item. Any other condition is the
    node's."""
    agent: str = ""
    """The kind of sub-agent: each item is a task for its own sub-agent. Empty: there are no sub-agents."""
    prompt: Expr | None = None
    """The prompt for sub-agents, instead of the standard one."""
    wait: bool = True
    """Whether the next steps wait until all items are done; the end of the workflow always waits for them."""
    fail_fast: bool = False
    """The first item that fails ends the others."""
    tolerate_failures: bool = msgspec.field(default=False, name="puts_up")
    """Items may fail: the workflow continues with the results of all of them. If the items cannot be started,
    the step fails nevertheless."""
    errors_to: Expr | None = None
    """The place in the state where the errors of items are collected."""

    @property
    def at_once(self) -> Value:
        """The limit as it is written: a number, a template, or None."""
        return self.max_parallel.source if self.max_parallel is not None else None


class Node(msgspec.Struct, frozen=True, omit_defaults=True):
    """A block: an operation with an id, dependencies and a condition."""

    id: str
    do: Operation
    at: Path = ()
    needs: tuple[Need, ...] = ()
    condition: Expr | None = None
    on_failure: OnFailure | None = None
    tolerated: bool = False
    """Other blocks handle the failure of this one, so it does not fail the workflow."""
    tolerated_by: tuple[str, ...] = ()
    """The blocks that handle it."""
    wave: int = 0
    order: int = 0
    retry: Expr | None = None
    """When and how often a failed block is retried; `plan.retry` reads it."""
    for_each: ForEach | None = None
    on_interrupt: OnInterrupt = "repeat"
    """What happens to a step that a crash has interrupted."""
    on_timeout: OnTimeout = "fail"
    """Whether the workflow continues after a timeout that is not retried."""
    timeout_answer: Expr | None = None
    """The outputs of a question without an answer in time."""
    goes_to: int = -1
    """In a sequence: the step that follows; -1 is the next one in the list."""
    reads: tuple[str, ...] | None = None
    """The fields of the state that it can read; None is all of them."""
    output_to: str = ""
    """The field of the state that stores its result."""
    error_to: str = ""
    """The field of the state that stores its error; null after a success."""
    loops: tuple[int, ...] = ()
    """The heads of the loops around it, the outermost first."""
    changes: tuple[Change, ...] = ()
    """What its result changes in the state."""
    error_changes: tuple[Change, ...] = ()
    """What changes in the state when it has failed and is not retried."""
    fallback: Expr | None = None
    """The result of a step that has failed and is not retried; the step then counts as done."""
    result: dict[str, Value] | None = None
    """The JSON Schema of its result."""
    verify: tuple[Check, ...] = ()
    """What the server checks before it accepts the result of an agent."""
    attempts: int = DEFAULT_ATTEMPTS
    """How many results may be rejected before the step fails."""
    allow_tools: tuple[str, ...] | None = None
    """The tools that the agent may use while the step is pending; None: all."""
    on_reject: OnReject = "fail"
    """What a gate does that a person has rejected."""
    back_to: str = ""
    """The step that runs again when a person rejects the gate, with everything that depends on it."""
    budget: Budget | None = None
    """How much agents may do inside the block."""


def fails_on_purpose(node: Node) -> bool:
    return isinstance(node.do, Do) and node.do.step == FAIL


class Steps(msgspec.Struct, frozen=True, tag="sequence", omit_defaults=True):
    """Steps one after the other, in a flat list: branches and ends of nested lists name the next step."""

    failure_key: ClassVar[str] = "on_error"
    """The key that says what follows a failure."""

    nodes: tuple[Node, ...]


class Graph(msgspec.Struct, frozen=True, tag="graph", omit_defaults=True):
    """Blocks that start as soon as their dependencies are done."""

    failure_key: ClassVar[str] = "on_failure"

    nodes: tuple[Node, ...]


class InputSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    type: InputType = "any"
    description: str = ""
    required: bool = True
    default: Value = None
    has_default: bool = False
    rules: dict[str, Value] = {}
    """What a value must satisfy beyond its type; `plan.inputs` checks it."""
    aliases: tuple[str, ...] = ()
    """Other names of the input."""


class Computed(msgspec.Struct, frozen=True, omit_defaults=True):
    """A field of the state that is computed from other fields."""

    sources: tuple[str, ...] = ()
    """Paths such as `raw.files` and `computed.valid_files`."""
    many: bool = False
    """`input` is the list of all sources, not the value of the only one."""
    transform: str = ""
    """JavaScript: an expression, a body with `return`, or statements that end in an expression."""
    on_error: ComputedOnError = "null"
    fallback: Value = None
    validate: str = ""
    """JavaScript that is true if `output` is valid."""
    static: bool = False
    """The field is always `value`."""
    value: Value = None


class Plan(msgspec.Struct, frozen=True, omit_defaults=True):
    """A workflow that is ready to run. `plan_key` is the hash of its content."""

    name: str
    dialect: str
    body: Graph | Steps = msgspec.field(name="nodes")
    """Plans before expressions had paths have `body` here, so `plan.codec` upgrades them."""
    inputs: dict[str, InputSpec] = {}
    outputs: dict[str, Expr] = {}
    description: str = ""
    tags: tuple[str, ...] = ()
    prompt: bool = False
    """Clients see an MCP prompt that runs this workflow."""
    version: str = ""
    file: str = ""
    secrets: tuple[str, ...] = ()
    """The names of the secrets that it refers to."""
    secrets_required: bool = False
    """All secrets must exist when it starts, not only when a step needs one."""
    initial_state: dict[str, Value] = {}
    tasks: tuple[Plan, ...] = ()
    """Workflows of the same file that only this one calls; their names are `workflow#task`."""
    computed: dict[str, Computed] = {}
    raw_types: dict[str, str] = {}
    """The declared types of the fields of `raw`."""
    known: tuple[str, ...] = ()
    """Fields that its state can have: reading one before it is written gives undefined, not an error."""
    config: dict[str, Value] = {}
    open_inputs: bool = False
    """The workflow also accepts inputs that it does not declare."""
    shares_state: bool = False
    """Of a task: it uses the state of the workflow around it."""
    given: dict[str, Expr] = {}
    """The values of a task besides its item, evaluated when it starts."""
    on_failure: int = -1
    """The index in the body of the first step that runs after the workflow has failed; -1: there is none."""
    tries: int = 1
    """How often the whole workflow runs before it counts as failed."""
    errors_to: tuple[Value, ...] = ()
    """The place in the state where the errors of its steps are collected."""
    imports: tuple[str, ...] = ()
    """Files that are searched first for the workflows and tasks that it names."""
    on_resume: dict[str, Value] = {}
    """What a resume does after a failure, and what the answer to it contains."""
    on_context_full: str = ""
    """The task with the steps that run when the agent reports that its context is nearly full."""
    orchestrator: tuple[str, ...] = ()
    """Instructions of the author for the agent that runs the workflow, added to the standard prompt."""
    fail_fast: bool = False
    """The first failure that nothing handles ends the workflow at once, with everything that is running in
    it."""
    elicitation: bool | None = None
    """Whether questions go directly to the user, without the agent; None: the server's setting decides."""
    semantics: int = 1
    """The version of `SEMANTICS` that it was compiled for; 1 for graph and stateful plans before version
    3."""
    language: LanguageName = "dollar"
    reactive: bool = False
    """Its state has the parts raw, state and computed; steps change it at paths."""
    result: dict[str, Value] | None = None
    """The JSON Schema of the value that a task returns."""
    budget: Budget | None = None
    """How much agents may do in a run of it."""

    @property
    def has_push_back(self) -> bool:
        """Whether a gate of it sends a step back: its expressions can read `rejection`."""
        return any(node.back_to for node in self.body.nodes)


class Bundle(msgspec.Struct, frozen=True):
    """A plan with every plan that it can call by a fixed name; a run is pinned to its bundle."""

    main: str
    plans: dict[str, Plan]
    """By workflow name."""
    sources: dict[str, str] = {}
    """The text of each plan's file, so that an error at run time can show its line."""

    @property
    def every_plan(self) -> dict[str, Plan]:
        """All plans by name, with their tasks."""
        tasks = {task.name: task for plan in self.plans.values() for task in plan.tasks}
        return {**self.plans, **tasks}

    @property
    def is_guarded(self) -> bool:
        """Whether a person has a say in it: it has gates or budgets."""
        return any(
            plan.budget is not None
            or any(
                node.budget is not None or getattr(node.do, "by", "") == "human" for node in plan.body.nodes
            )
            for plan in self.every_plan.values()
        )

    @property
    def secrets(self) -> list[str]:
        """The names of the secrets that any of the plans refers to."""
        return sorted({name for plan in self.every_plan.values() for name in plan.secrets})


# ----------------------------------------------------------------------------------------------------
# The items of a block with `for_each`: their keys, their names, and the node of each item.


EACH = ("key", "value", "index", "count")

"""The fields of `${each.…}`."""

NO_ITEMS: dict[str, Value] = {"results": [], "count": 0, "failed_keys": [], "skipped_keys": []}

"""The outputs of a block with `for_each` that did not run; the keys are the names of all its outputs."""

OF_TASK = ("item", "index", "total", "is_first", "is_last", "task_id", "workflow_id", "context", "parent")

"""The variables of a task besides the fields of its item."""

_NAME = re.compile(r"[\w-]{1,64}")


def keys_of(items: list[Value] | dict[str, Value]) -> list[str | int]:
    return list(items) if isinstance(items, dict) else list(range(len(items)))


def inputs_of_item(
    plan: Plan, item: Value, known: Mapping[str, Value] = MappingProxyType({})
) -> dict[str, Value]:
    """The inputs of a task for one item: taken by the keys of the item, or the item as its only input.

    `known` are the variables of a reactive task, among them the fields of its item.
    """
    if plan.reactive:
        given = {name: known[name] for name in plan.inputs if name in known}
        alone = _from_item(plan) if plan.semantics >= 3 and not isinstance(item, dict) else []
        return {**given, alone[0]: item} if len(alone) == 1 else given
    if isinstance(item, dict) and any(name in item for name in plan.inputs):
        return {name: item[name] for name in plan.inputs if name in item}
    return {next(iter(plan.inputs)): item} if len(plan.inputs) == 1 else {}


def unbound_item(plan: Plan, item: Value) -> tuple[str, str] | None:
    """The message and hint if an item provides none of a task's several inputs; None if it does."""
    names = _from_item(plan)
    if len(names) < 2 or all(plan.inputs[name].has_default for name in names):
        return None
    reactive = plan.reactive
    if isinstance(item, dict) and (reactive or any(name in item for name in names)):
        return None
    task = plan.name.partition("#")[2] or plan.name
    listed = ", ".join(f"'{name}'" for name in names)
    message = f"the task '{task}' takes none of its inputs ({listed}) from the item {kind_and_value(item)}"
    fields = ", ".join(f"{name}: …" for name in names)
    hint = f"make each item an object: {{{fields}}}, or declare one input only: it is the item"
    if reactive:
        hint = f'say which input is the item: inputs: {{{names[0]}: "{{{{ item }}}}"}}, or {hint}'
    return message, hint


def _from_item(plan: Plan) -> list[str]:
    """The inputs of a task that only its item can provide."""
    return [name for name in plan.inputs if name not in plan.known and name not in OF_TASK]


def can_be_names(keys: Sequence[str | int]) -> bool:
    """Whether all keys can be part of an address; if not, items are named by their positions."""
    return all(isinstance(key, int) or _NAME.fullmatch(key) for key in keys)


def name_of_item(keys: Sequence[str | int], position: int, named: bool) -> str:
    """The name of an item in addresses."""
    return str(keys[position]) if named else str(position)


def names_of_items(keys: Sequence[str | int], named: bool) -> list[str]:
    return [str(key) for key in keys] if named else [str(position) for position in range(len(keys))]


def item_node(node: Node, name: str) -> Node:
    """The node of one item."""
    assert node.for_each is not None
    condition = node.for_each.condition
    return msgspec.structs.replace(node, id=name, needs=(), for_each=None, condition=condition, budget=None)
