"""The plan: what a workflow means, whatever dialect it was written in.

Control is a small closed set of operations; work is one open operation, `Do`: carry out this step with
these inputs. Plans are frozen plain data. Templates and conditions stay in them as source text and are
compiled when a plan is prepared for running, so a plan can be written down, hashed and sent elsewhere.

`at` leads to the value in the document that an operation was made from, so that an error at run time
can be shown in the file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Literal, TypeAlias

import msgspec

from workflows_mcp.values import Value, kind_and_value

SEMANTICS = 3

"""Raised when the meaning of plans changes; a run keeps the rules that it started with.

2: a reactive workflow that is ended from outside cleans up before; one that begins anew has another chance;
fallbacks are made of templates.

3: every dialect records its version; `$SCRATCH` is a directory of the step's own; white space around a single
expression makes it text; keys of mappings are templates; in a graph, `${name}` without a dot is a reference
outside of commands; a goto counts its jumps, anew in every round of a loop around it, and a loop whose
max_iterations is reached fails unless it says `on_limit: continue`; a block with `required: false` also runs
after a timeout, and after a block that could not be run and says `on_failure: continue`; messages of tasks
go to the agent of the run.

Tasks and results (3): a task fails that takes none of its several inputs from its item; the only input of a
reactive task is its item; fields of a result that the step type does not document come after the state; exit
ends open tasks; a question to the user fails in a task of a sub-agent; lists of errors
begin empty; a state that is nested too deeply is refused."""


FAIL = "Fail"

"""The step type that fails on purpose: nothing handles its failure."""

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

"""What the answer to a resume can contain beside the step to do."""

MOST_SECONDS = 1_000_000_000

"""Longer than that, nobody means it."""


OnFailure = Literal["fail", "continue"]

OnInterrupt = Literal["repeat", "ask", "fail"]

OnLimit = Literal["fail", "continue"]

OnTimeout = Literal["fail", "continue"]

ChangeOperation = Literal["set", "append", "increment", "merge"]

ComputedOnError = Literal["null", "use_fallback", "propagate", "ignore"]

InputType = Literal["string", "number", "integer", "float", "boolean", "list", "object", "any"]


class Do(msgspec.Struct, frozen=True, tag="do", omit_defaults=True):
    """Carry out a step, on the server or by the agent."""

    step: str
    inputs: dict[str, Value] = {}
    by: Literal["server", "agent"] = "server"
    code: tuple[str, ...] = ()
    """Inputs that are code: values in them stay apart from the text."""
    timeout: Value = None
    """Seconds, or a template of them."""
    config: dict[str, Value] = {}
    """What the step type was told beside its inputs, e.g. the declared outputs of a Shell block."""
    defaults: dict[str, Value] = {}
    """The outputs of a block that was skipped or could not run; its keys are the outputs there are."""
    may_fail: bool = False
    """Whether the step can have been carried out and still have failed."""
    documented: tuple[str, ...] = ()
    """Fields of its result that its type documents: in a state_update, they go before the state."""
    result_output: str = msgspec.field(default="", name="gives")
    """The output that is the result as a whole; all outputs together where it is empty."""
    literal: tuple[str, ...] = ()
    """Inputs that are taken as they are written: what looks like an expression is the step's own language."""


class Call(msgspec.Struct, frozen=True, tag="call", omit_defaults=True):
    """Run another workflow inside this run, in a scope of its own."""

    workflow: Value
    """A name, or a template of one."""
    inputs: Value = {}
    timeout: Value = None
    of_item: bool = False
    """The inputs are the item that it is called for: the only input of the workflow, or by its keys."""
    on_complete: bool = msgspec.field(default=False, name="leads_on")
    """The steps right behind it are for its success: where it is skipped or fails, it goes to `goes_to`."""


class Branch(msgspec.Struct, frozen=True, tag="branch"):
    """Go on with the next step if the test holds, else with the step at `otherwise`."""

    test: str
    otherwise: int


class Jump(msgspec.Struct, frozen=True, tag="jump", omit_defaults=True):
    """Go on with the step at `target`, at most so many times."""

    target: int
    most: Value
    on_limit: OnLimit = "fail"
    """What happens instead of one more jump: the step fails, or the next one follows."""


class SetState(msgspec.Struct, frozen=True, tag="set"):
    """Fields of the state get new values, in order; all of them or none."""

    updates: dict[str, Value]


class Return(msgspec.Struct, frozen=True, tag="return"):
    """The workflow ends here, with this value."""

    value: Value = None


class Wait(msgspec.Struct, frozen=True, tag="wait", omit_defaults=True):
    """Let time pass."""

    seconds: Value
    message: Value = None


class While(msgspec.Struct, frozen=True, tag="while", omit_defaults=True):
    """The head of a loop: go on with the next step as long as the test holds, else at `otherwise`. The last
    step of the body goes to the head."""

    test: str
    otherwise: int
    most: Value = None
    """How often the body is carried out at most."""
    on_limit: OnLimit = "fail"
    """What happens when the test still holds after that: the step fails, or the loop ends."""


class Each(msgspec.Struct, frozen=True, tag="each", omit_defaults=True):
    """The head of a loop over items: go on with the next step for each of them, then at `otherwise`."""

    items: Value
    otherwise: int
    item: str = "item"
    """What the steps of the body call the item, and its position."""
    index: str = "index"


class Leave(msgspec.Struct, frozen=True, tag="leave", omit_defaults=True):
    """Go on at `target`: at the head of a loop (continue), or behind it (break)."""

    target: int
    loop: int = -1
    """The head of the loop that is left for good."""


class Change(msgspec.Struct, frozen=True, omit_defaults=True):
    """A new value at a place in the state."""

    path: tuple[Value, ...]
    """Keys from the outside in, the first `raw` or `state`; each is one key, or a template of one."""
    operation: ChangeOperation = "set"
    value: Value = None
    has_value: bool = False
    """Without a value it is the result of the step; for a step that has none, null, or 1 to increment by."""
    transform: str = ""
    """JavaScript that makes the value of `input` (and `result`), or a template."""
    at: tuple[str | int, ...] = ()
    """Where it stands, from the node on."""


class UpdateState(msgspec.Struct, frozen=True, tag="update"):
    """Places in the state get new values, in order; all of them or none."""

    changes: tuple[Change, ...]


class Tell(msgspec.Struct, frozen=True, tag="tell"):
    """A message for the user; it rides with whatever the agent is handed next."""

    message: Value


class Checkpoint(msgspec.Struct, frozen=True, tag="checkpoint"):
    """Marks where the run is: somebody means to come back to this place."""

    parameters: Value
    """As the tool takes them: `reason`, and `workflow_id`, which must be this run."""


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
    """What a reader of a plan calls it: the step type, or the kind of operation."""
    return do.step if isinstance(do, Do) else _KINDS[type(do)]


class Need(msgspec.Struct, frozen=True, array_like=True):
    """A dependency: the index of the node in its graph, and whether it must have succeeded."""

    node: int
    required: bool = True
    watched: bool = False
    """The condition of the block asks how it went, and so decides alone."""


class ForEach(msgspec.Struct, frozen=True, omit_defaults=True):
    """The block is carried out once for each item; `${each.value}` and `${each.key}` are the item."""

    items: Value
    """A list or an object, or a template of one."""
    max_parallel: Value = None
    """How many items may be under way at once."""
    condition: str | None = None
    """A condition that looks at the item: it decides for each one. One that does not is the block's."""
    agent: str = ""
    """Who carries the items out: each one is a task that is handed to an agent of its own."""
    task_id: Value = None
    """What the task of an item is called, or a template of it; without one its `id`, or its position."""
    prompt: Value = None
    """What sub-agents are told in place of the standard prompt."""
    wait: bool = True
    """Whether the steps behind it wait until all items are done; the end of the workflow does in any case."""
    fail_fast: bool = False
    """The first item that fails ends the others."""
    tolerate_failures: bool = msgspec.field(default=False, name="puts_up")
    """Items may fail, and the workflow goes on with what came of all of them; that the items cannot be begun
    is a failure of the step all the same."""
    errors_to: tuple[Value, ...] = ()
    """Where in the state the errors of items are collected."""


class Node(msgspec.Struct, frozen=True, omit_defaults=True):
    """A block: an operation with an id, dependencies and a condition."""

    id: str
    do: Operation
    at: tuple[str | int, ...] = ()
    needs: tuple[Need, ...] = ()
    condition: str | None = None
    on_failure: OnFailure | None = None
    tolerated: bool = False
    """The workflow looks at how this block went, so its failure is not the workflow's."""
    tolerated_by: tuple[str, ...] = ()
    """The blocks that do."""
    wave: int = 0
    order: int = 0
    retry: dict[str, Value] | None = None
    """When and how often a block that failed is tried again; `plan.retry` reads it."""
    for_each: ForEach | None = None
    on_interrupt: OnInterrupt = "repeat"
    """What becomes of a step that a crash has cut off."""
    on_timeout: OnTimeout = "fail"
    """Whether the workflow continues after a timeout for which there is no further try."""
    timeout_answer: dict[str, Value] | None = None
    """The outputs of a question that nobody answers in time, or templates of them."""
    goes_to: int = -1
    """In a sequence: the step that follows; -1 is the next one in the list."""
    reads: tuple[str, ...] | None = None
    """The fields of the state that it may see; None is all of them."""
    output_to: str = ""
    """The field of the state that its result goes to."""
    error_to: str = ""
    """The field of the state that says why it failed; null after a success."""
    loops: tuple[int, ...] = ()
    """The heads of the loops that it is inside of, the outermost first."""
    changes: tuple[Change, ...] = ()
    """What its result changes in the state."""
    error_changes: tuple[Change, ...] = ()
    """What changes in the state when it has failed for good."""
    fallback: Value = None
    """The result of a step that has failed for good, and then counts as done; or a template of it."""
    has_fallback: bool = False


def fails_on_purpose(node: Node) -> bool:
    return isinstance(node.do, Do) and node.do.step == FAIL


class Steps(msgspec.Struct, frozen=True, tag="sequence", omit_defaults=True):
    """Steps one after the other. Nested lists are laid out flat: a branch and the end of a list say where it
    goes on."""

    nodes: tuple[Node, ...]


class Graph(msgspec.Struct, frozen=True, tag="graph", omit_defaults=True):
    """Blocks that start as soon as what they depend on is done."""

    nodes: tuple[Node, ...]


class InputSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    type: InputType = "any"
    description: str = ""
    required: bool = True
    default: Value = None
    has_default: bool = False
    rules: dict[str, Value] = {}
    """What a value must be beyond its type; `plan.input_rules` reads it."""
    aliases: tuple[str, ...] = ()
    """Other names that it may be given by."""


class Computed(msgspec.Struct, frozen=True, omit_defaults=True):
    """A field of the state that follows from others."""

    sources: tuple[str, ...] = ()
    """Paths such as `raw.files` and `computed.valid_files`."""
    many: bool = False
    """`input` is the list of all sources, not the only one."""
    transform: str = ""
    """JavaScript: an expression, a body with `return`, or statements that end in an expression."""
    on_error: ComputedOnError = "null"
    fallback: Value = None
    validate: str = ""
    """JavaScript over `output`: whether it is what it should be."""
    static: bool = False
    """It is `value`, and never changes."""
    value: Value = None


class Plan(msgspec.Struct, frozen=True, omit_defaults=True):
    """A workflow, ready to be run. `key` is the hash of its content and its name in a store."""

    name: str
    dialect: str
    body: Graph | Steps
    inputs: dict[str, InputSpec] = {}
    outputs: dict[str, Value] = {}
    description: str = ""
    tags: tuple[str, ...] = ()
    prompt: bool = False
    """Clients are offered a prompt of its own that carries it out."""
    version: str = ""
    file: str = ""
    secrets: tuple[str, ...] = ()
    """The names of the secrets that it refers to."""
    secrets_required: bool = False
    """They must be there when it starts, and not only when a step that uses them is reached."""
    initial_state: dict[str, Value] = {}
    tasks: tuple[Plan, ...] = ()
    """Workflows of the same file that only this one calls; they are named `workflow#task`."""
    computed: dict[str, Computed] = {}
    raw_types: dict[str, str] = {}
    """What the fields of `raw` are declared to be."""
    known: tuple[str, ...] = ()
    """Fields that its state can have: what was not written yet is undefined, and no mistake."""
    config: dict[str, Value] = {}
    open_inputs: bool = False
    """Inputs that are not declared are taken as well."""
    shares_state: bool = False
    """Of a task: its state is that of the workflow around it."""
    given: dict[str, Value] = {}
    """Of a task: values that are known beside its item, made of templates when it begins."""
    on_failure: int = -1
    """Where in the body the steps begin that are carried out when it has failed; -1: there are none."""
    tries: int = 1
    """How often the workflow as a whole is carried out before it has failed."""
    errors_to: tuple[Value, ...] = ()
    """Where in the state the errors of its steps are collected."""
    imports: tuple[str, ...] = ()
    """Files that the workflows and tasks that it names are looked for in first."""
    on_resume: dict[str, Value] = {}
    """What going on with it after a failure means, and what the answer to a resume contains."""
    on_context_full: str = ""
    """The task with the steps that run when the agent reports that its context is nearly full."""
    orchestrator: tuple[str, ...] = ()
    """What the author tells the agent that carries it out, beside the standard prompt."""
    fail_fast: bool = False
    """The first failure that nobody handles ends the workflow at once, with all that is under way in it."""
    elicitation: bool | None = None
    """Whether the user is asked directly what the user is asked; None: the server's setting decides."""
    semantics: int = 1
    """The rules it was compiled for. Graph and stateful plans without it are older than version 3."""


class Bundle(msgspec.Struct, frozen=True):
    """A plan with every plan that it can call by a fixed name: what a run is pinned to."""

    main: str
    plans: dict[str, Plan]
    """By workflow name."""
    sources: dict[str, str] = {}
    """The text that each plan was read from, so that an error at run time can show its line."""

    @property
    def every_plan(self) -> dict[str, Plan]:
        """All plans by name, with the tasks that they bring with them."""
        tasks = {task.name: task for plan in self.plans.values() for task in plan.tasks}
        return {**self.plans, **tasks}

    @property
    def secrets(self) -> list[str]:
        """The names of the secrets that any of the plans refers to."""
        return sorted({name for plan in self.every_plan.values() for name in plan.secrets})


# ----------------------------------------------------------------------------------------------------
# The items of a block with `for_each`: their keys, what they are called, and the block that each one is.


EACH = ("key", "value", "index", "count")

"""What `${each.…}` has."""

NO_ITEMS: dict[str, Value] = {"results": [], "count": 0, "failed_keys": [], "skipped_keys": []}

"""The outputs of a block with `for_each` that did not run; the keys are all outputs there are."""

OF_TASK = ("item", "index", "total", "is_first", "is_last", "task_id", "workflow_id", "context", "parent")

"""What a task knows beside the fields of its item."""

_NAME = re.compile(r"[\w-]{1,64}")


def keys_of(items: list[Value] | dict[str, Value]) -> list[str | int]:
    return list(items) if isinstance(items, dict) else list(range(len(items)))


def inputs_of_item(
    plan: Plan, item: Value, known: Mapping[str, Value] = MappingProxyType({})
) -> dict[str, Value]:
    """The inputs of a task for one item: by the keys of the item, or the item as its only input.

    `known` are the variables of a reactive task, among them the fields of its item.
    """
    if plan.dialect == "reactive":
        given = {name: known[name] for name in plan.inputs if name in known}
        alone = _from_item(plan) if plan.semantics >= 3 and not isinstance(item, dict) else []
        return {**given, alone[0]: item} if len(alone) == 1 else given
    if isinstance(item, dict) and any(name in item for name in plan.inputs):
        return {name: item[name] for name in plan.inputs if name in item}
    return {next(iter(plan.inputs)): item} if len(plan.inputs) == 1 else {}


def unbound_item(plan: Plan, item: Value) -> tuple[str, str] | None:
    """Why a task takes none of its several inputs from an item, and how to bind them; None if it does."""
    names = _from_item(plan)
    if len(names) < 2 or all(plan.inputs[name].has_default for name in names):
        return None
    reactive = plan.dialect == "reactive"
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
    """Whether all keys can stand in addresses; else the items are called by their positions there."""
    return all(isinstance(key, int) or _NAME.fullmatch(key) for key in keys)


def name_of_item(keys: Sequence[str | int], position: int, named: bool) -> str:
    """What an item is called in addresses."""
    return str(keys[position]) if named else str(position)


def names_of_items(keys: Sequence[str | int], named: bool) -> list[str]:
    return [str(key) for key in keys] if named else [str(position) for position in range(len(keys))]


def item_node(node: Node, name: str) -> Node:
    """The block that one item is."""
    assert node.for_each is not None
    condition = node.for_each.condition
    return msgspec.structs.replace(node, id=name, needs=(), for_each=None, condition=condition)
