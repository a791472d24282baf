"""The plan: what a workflow means, whatever dialect it was written in.

Control is a small closed set of operations; work is one open operation, `Do`: carry out this step with
these inputs. Plans are frozen plain data. Templates and conditions stay in them as source text and are
compiled when a plan is prepared for running, so a plan can be written down, hashed and sent elsewhere.

`at` leads to the value in the document that an operation was made from, so that an error at run time
can be shown in the file.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from workflows_mcp.values import Value

SEMANTICS = 1
"""Raised when the meaning of plans changes; a run keeps the rules that it started with."""

MOST_SECONDS = 1_000_000_000
"""Longer than that, nobody means it."""

OnFailure = Literal["fail", "continue"]
OnInterrupt = Literal["repeat", "ask", "fail"]
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


class Call(msgspec.Struct, frozen=True, tag="call", omit_defaults=True):
    """Run another workflow inside this run, in a scope of its own."""

    workflow: Value
    """A name, or a template of one."""
    inputs: Value = {}
    timeout: Value = None


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


class Node(msgspec.Struct, frozen=True, omit_defaults=True):
    """A block: an operation with an id, dependencies and a condition."""

    id: str
    do: Do | Call
    at: tuple[str | int, ...] = ()
    needs: tuple[Need, ...] = ()
    condition: str | None = None
    on_failure: OnFailure | None = None
    tolerated: bool = False
    """The workflow looks at how this block went, so its failure is not the workflow's."""
    wave: int = 0
    order: int = 0
    retry: dict[str, Value] | None = None
    """When and how often a block that failed is tried again; `plan.retry` reads it."""
    for_each: ForEach | None = None
    on_interrupt: OnInterrupt = "repeat"
    """What becomes of a step that a crash has cut off."""


class Graph(msgspec.Struct, frozen=True, tag="graph", omit_defaults=True):
    """Blocks that start as soon as what they depend on is done."""

    nodes: tuple[Node, ...]


Operation: TypeAlias = Do | Call | Graph


class InputSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    type: InputType = "any"
    description: str = ""
    required: bool = True
    default: Value = None
    has_default: bool = False


class Plan(msgspec.Struct, frozen=True, omit_defaults=True):
    """A workflow, ready to be run. `key` is the hash of its content and its name in a store."""

    name: str
    dialect: str
    body: Graph
    inputs: dict[str, InputSpec] = {}
    outputs: dict[str, Value] = {}
    description: str = ""
    tags: tuple[str, ...] = ()
    version: str = ""
    file: str = ""
    secrets: tuple[str, ...] = ()
    """The names of the secrets that it refers to."""
    semantics: int = SEMANTICS


class Bundle(msgspec.Struct, frozen=True):
    """A plan with every plan that it can call by a fixed name: what a run is pinned to."""

    main: str
    plans: dict[str, Plan]
    """By workflow name."""
    sources: dict[str, str] = {}
    """The text that each plan was read from, so that an error at run time can show its line."""

    @property
    def secrets(self) -> list[str]:
        """The names of the secrets that any of the plans refers to."""
        return sorted({name for plan in self.plans.values() for name in plan.secrets})
