"""The state of a run: plain data that can be stored as a whole.

A `Record` is what a run knows of one block. A `Scope` is one running workflow: its inputs and its records. A
called workflow is a scope inside the record of the block that called it; so are the items of a block that
runs for each of them. A `Frame` is an operation under way; its address is the path of block ids from the
root of the run: `deploy`, or `ci/test` for the block `test` of the workflow that the block `ci` calls, or
`build/2` for an item. `lifecycle` has the transitions of records and frames.

An `Execution` is one execution of a step: its address, its attempt, and the event that opened it. All that
belongs to an execution is derived from it: the directory of its files, its live output, its messages and
traces. Two executions of one run never share it; an execution that is repeated after a restart keeps it.

    Execution("build/2", "1", 14).key          # 'build/2#1': the key of commands and reports
    Execution("build/2", "1", 14).file_name    # 'build.2-1-14-9f86d081'
"""

from __future__ import annotations

import hashlib
import re
from typing import Literal

import msgspec

from workflows_mcp.plan import Plan
from workflows_mcp.values import Value

_NAME_CHARS = 60
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]+")


class Execution(msgspec.Struct, frozen=True, order=True):
    address: str
    """The path of block or step ids from the root of the run, with the items of loops."""
    attempt: str = "1"
    event: int = 0
    """The number of the event that opened it; 0 if an earlier version did not store it."""

    @property
    def key(self) -> str:
        return key_of(self.address, self.attempt)

    @property
    def file_name(self) -> str:
        """A readable name for a file or directory; no two executions of a run have the same one."""
        digest = hashlib.sha256(self.key.encode("utf-8", "surrogatepass")).hexdigest()[:8]
        readable = _UNSAFE.sub(".", self.address)[-_NAME_CHARS:].strip(".")
        return f"{readable}-{_UNSAFE.sub('.', self.attempt)[-_NAME_CHARS:]}-{self.event}-{digest}"


def key_of(address: str, attempt: str) -> str:
    return f"{address}#{attempt}"


def address_of(key: str) -> tuple[str, str]:
    address, _, attempt = key.rpartition("#")
    return address, attempt


RunStatus = Literal["running", "completed", "failed", "cancelled"]

BlockStatus = Literal["pending", "running", "completed", "failed", "skipped", "paused"]

EndStatus = Literal["completed", "failed", "skipped"]

Outcome = Literal["success", "failure", "n/a"]

FrameKind = Literal["step", "agent", "gate", "verify", "budget", "call", "plan", "each", "retry", "wait"]
"""What an operation waits for. `gate`: the decision of a person. `verify`: a command that checks a result.
`budget`: agents have done as much as they may, until a person allows more."""

Via = Literal["mcp", "form", "terminal", "token", "command", "page"]


TERMINAL = frozenset({"completed", "failed", "skipped"})


class Fault(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why something failed. `workflow`, `path` and `offset` lead to the place in its definition."""

    code: str
    message: str
    hint: str = ""
    address: str = ""
    workflow: str = ""
    path: tuple[str | int, ...] = ()
    offset: int = 0


class Identity(msgspec.Struct, frozen=True, omit_defaults=True):
    """Who answered, and by which way."""

    name: str
    """A user, a named token, or a client."""
    via: Via = "mcp"
    client: str = ""
    """The program, if it is known: claude-code."""
    human: bool = False
    """Whether a person answered."""

    def __str__(self) -> str:
        way = {"mcp": "by MCP", "form": "in a form", "terminal": "on the terminal", "token": "with a token"}
        through = f" of {self.client}" if self.client and self.via in ("form", "mcp", "token") else ""
        return f"{self.name} {way.get(self.via, f'by {self.via}')}{through}"


class Checked(msgspec.Struct, frozen=True, omit_defaults=True):
    """The evidence of one check of a result."""

    check: str
    passed: bool
    round: int = 1
    """Which result it was: 1 is the first one."""
    message: str = ""
    """Why it failed, or what is worth knowing."""
    seconds: float = 0.0
    exit_code: int | None = None
    changed: list[str] = []
    """Files that the command changed, although it should only check."""


class Submitted(msgspec.Struct, omit_defaults=True):
    """A result that is being checked."""

    outputs: dict[str, Value]
    message: str | None = None
    failures: list[str] = []
    """What has to be fixed, as far as it is known."""


class Record(msgspec.Struct, omit_defaults=True):
    status: BlockStatus = "pending"
    outcome: Outcome = "n/a"
    inputs: dict[str, Value] = {}
    outputs: dict[str, Value] = {}
    message: str | None = None
    fault: Fault | None = None
    started_at: float | None = None
    completed_at: float | None = None
    attempts: int = 1
    """How often it has been tried."""
    scope: Scope | None = None
    """The scope inside: the called workflow, or the items of a for_each block."""
    code: dict[str, tuple[list[str], list[Value]]] = {}
    """The inputs that are code, with texts and values apart, if what they read can change meanwhile."""
    places: list[list[str | int] | None] = []
    """For each change, the state path that the result is written to; None if it depends on the result."""
    written_by_agent: bool = msgspec.field(default=False, name="settled")
    """The agent has written the result to the state already."""
    replaced: dict[str, Value] = {}
    """The rendered templates of an agent step, by template."""
    by: Identity | None = None
    """Who answered it."""
    tokens: int = 0
    """The tokens that agents reported for it, with all its attempts."""
    rejections: int = 0
    """How many of its results were rejected by its checks, in this attempt."""
    feedback: list[str] = []
    """Why the last result was rejected: what has to be fixed."""
    checks: list[Checked] = []
    """The evidence: all checks of its results."""
    submitted: Submitted | None = None
    """The result that is being checked."""
    confirmed: bool = False
    """A person has allowed its fan-out."""


class Loop(msgspec.Struct, omit_defaults=True):
    """A loop that is under way."""

    count: int = 0
    """How often its body has started."""
    items: list[Value] | None = None


class Message(msgspec.Struct, omit_defaults=True):
    """A message to the user."""

    event: int
    """The position in the journal at which it was sent."""
    text: str
    address: str
    task: str = msgspec.field(default="", name="part")
    """The address of the task whose agent passes it on; empty: the agent of the run."""


MARKS = 50
"""How many marks of a run are kept, and how many tokens of updates."""


class Mark(msgspec.Struct, omit_defaults=True):
    """A checkpoint that a user or an agent has set."""

    event: int
    at: float
    reason: str = ""
    step: str = ""


class Scope(msgspec.Struct, omit_defaults=True):
    workflow: str
    inputs: dict[str, Value] = {}
    started_at: float = 0.0
    records: dict[str, Record] = {}
    each: list[str | int] | None = None
    """The keys of the items of a for_each block, in order; then the records are the items."""
    by_key: bool = False
    """The items are the entries of an object, not of a list."""
    named: bool = True
    """The items are called by their keys in addresses, not by their positions."""
    items: list[Value] | None = None
    """The items themselves, if the state that they came from can change meanwhile."""
    limit: int | None = None
    """How many items may be under way at once."""
    state: dict[str, Value] = {}
    variables: dict[str, Value] = {}
    """Names beside inputs and state: the item of a task."""
    visits: dict[str, int] = msgspec.field(default_factory=dict, name="rounds")
    """How often a step has been reached, if more than once."""
    jumps: dict[str, int] = {}
    """How often each goto has jumped since the loop around it started its round."""
    result: Value = None
    """The value of the `return` that was reached."""
    loops: dict[str, Loop] = {}
    """Those that are under way, by their heads."""
    failure: Fault | None = None
    """Why it failed, while its failure steps run."""
    tries: int = 1
    """How often it has started."""
    at_end: bool = False
    """Its last step has ended; detached items have not."""
    prompt: str = ""
    """For items that agents do: the prompt that replaces the standard one."""


class Frame(msgspec.Struct, omit_defaults=True):
    """An operation under way. `deadline` is the time at which its timeout ends it."""

    kind: FrameKind
    since: float
    attempt: str = "1"
    """The attempt; inside a retried call it is prefixed with the call's attempt: `2.1`."""
    timeout: float | None = None
    deadline: float | None = None
    stopping: str = ""
    """Why the step is being stopped; its report is awaited."""
    interruptions: int = 0
    """How often the step was interrupted by the end of its process, and repeated."""
    after_interruption: bool = msgspec.field(default=False, name="cut_off")
    """The step was interrupted, and the agent is asked what to do about it."""
    agent: str = ""
    """For items that each go to an agent of its own: the kind of agent."""
    event: int = 0
    """The number of the event that opened it."""
    answered: bool = False
    """For items that agents do: one of the agents has answered something."""
    parked: float = 0.0
    """For how many seconds of its time the run was parked."""
    check: int = -1
    """Which check of the step runs."""
    headless: str = ""
    """The agent of the settings whose command performs the step, or the items."""
    budget: str = ""
    """What is used up, and the address of that budget: `agent_steps@`, `agent_steps@review`."""

    @property
    def on_server(self) -> bool:
        """Whether the server runs something that may have to be stopped."""
        return self.kind in ("step", "verify")

    def seconds(self, now: float) -> float:
        """How long it has been under way, without the time for which the run was parked."""
        return now - self.since - self.parked

    def execution(self, address: str) -> Execution:
        """What identifies this execution of the step at `address`."""
        return Execution(address, self.attempt, self.event)


class Spent(msgspec.Struct, omit_defaults=True):
    """What agents have done in the scope of a budget, and what a person has allowed beyond it."""

    agent_steps: int = 0
    sub_agents: int = 0
    tokens: int = 0
    raised: dict[str, float] = {}
    """The new limits."""


class RunState(msgspec.Struct, omit_defaults=True):
    run_id: str
    workflow: str
    root: Scope
    workspace: str = ""
    limits: dict[str, int | float] = {}
    forked_from: str = ""
    seed: str = ""
    """The seed of random values: a fork had that of the original run up to the fork."""
    status: RunStatus = "running"
    started_at: float = 0.0
    changed_at: float = 0.0
    ended_at: float | None = None
    frames: dict[str, Frame] = {}
    outputs: dict[str, Value] = {}
    result: Value = None
    fault: Fault | None = None
    plans: dict[str, Plan] = {}
    """Workflows that were loaded during the run, because a call names them by an expression."""
    sources: dict[str, str] = {}
    messages: list[Message] = []
    """Messages that the user may not have seen."""
    dropped_messages: int = msgspec.field(default=0, name="untold")
    marks: list[Mark] = []
    update_tokens: list[str] = msgspec.field(default_factory=list, name="tokens")
    """The tokens of the last updates of the state from outside, so that none is applied twice."""
    answer_tokens: list[str] = msgspec.field(default_factory=list, name="answers")
    """The tokens of the last answers that were accepted."""
    superseded_by: str = ""
    """The fork that continues in its place."""
    parked: float | None = None
    """When the run was parked: nothing of it continues until it is resumed."""
    context_full: bool = False
    """It is parked because the context of its agent was nearly full, or the steps for that case run."""
    by: Identity | None = None
    """Who started it."""
    agents: dict[str, str] = {}
    """The agents that a command of the settings performs, by name; `*` is every one: {"@task": "claude"}."""
    spent: dict[str, Spent] = {}
    """By the address of the budget; empty: the run's own."""
    refusals: int = 0
    """How many attempts to leave the process were refused."""
    done: int = 0
    events: int = 0
    """How many events have been applied: the position of the run in its journal."""

    def mark(self, at: float, reason: str, step: str) -> None:
        self.marks = [*self.marks[1 - MARKS :], Mark(self.events, at, reason, step)]

    @property
    def idle(self) -> bool:
        """Whether the server has nothing to do: the run is parked, or an agent must answer first."""
        if self.parked is not None:
            return True
        return self.waits_for_agents and all(frame.deadline is None for frame in self.frames.values())

    @property
    def waits_for_agents(self) -> bool:
        """Whether all that is under way is asked of agents, with or without a timeout."""
        kinds = ("agent", "gate", "budget", "call", "each")
        return all(frame.kind in kinds for frame in self.frames.values())

    @property
    def waits_for_people(self) -> bool:
        """Whether something under way needs a decision that only a person can make."""
        return any(frame.kind in ("gate", "budget") for frame in self.frames.values())


def task_id(state: RunState, address: str) -> str:
    """Return the id of the task at an address, such as wf_1.review@2.0; without one, of the run."""
    scope: Scope | None = state.root
    names = [state.run_id]
    for name in address.split("/") if address else ():
        visits = scope.visits.get(name, 1) if scope is not None else 1
        names.append(f"{name}@{visits}" if visits > 1 else name)
        record = scope.records.get(name) if scope is not None else None
        scope = record.scope if record is not None else None
    return ".".join(names)


def record_at(state: RunState, address: str) -> Record | None:
    """Return the record of the block at an address; None if the run has not reached it."""
    around, _, name = address.rpartition("/")
    scope = scope_at(state, around)
    return scope.records.get(name) if scope is not None else None


def scope_at(state: RunState, address: str) -> Scope | None:
    """Return the scope inside the block at an address; without an address, the run's own."""
    scope: Scope | None = state.root
    for name in address.split("/") if address else ():
        record = scope.records.get(name) if scope is not None else None
        scope = record.scope if record is not None else None
    return scope
