"""Every limit of the product in one place, each with the setting that changes it.

A limit that is reached gives an error that says the limit and the name of the setting. `Limits` fields
are set by `WORKFLOWS_LIMIT_<NAME>` or `[limits]` in workflows.toml.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Limits:
    call_depth: int = 50
    """How deep workflows may call workflows."""
    state_bytes: int = MIB
    """How large the state of one workflow may be."""
    state_depth: int = 200
    """How deep the state of one workflow may be nested; more than 200 cannot be stored."""
    loop_iterations: int = 10_000
    """How often the body of a loop may be carried out that says no max_iterations."""
    messages: int = 200
    """How many messages to the user are kept until an agent passes them on."""
    for_each_items: int = 10_000
    """How many items one block may be carried out for."""
    task_depth: int = 5
    """How deep tasks may hand out tasks."""
    parallel_children: int = 100
    """How many children of one foreach may be under way at once."""
    pending_actions: int = 50
    """How many actions of one run may wait for agents at once."""
    step_interruptions: int = 2
    """How often the end of its server may cut off one step before the run asks whether to repeat it."""
    steps_per_workflow: int = 1000
    """How many steps a workflow, or one of its tasks, may have."""
    cached_definitions: int = 100
    """How many definitions are kept read; a file that has changed is read again at once."""
    cached_bytes: int = 16 * MIB
    """How large the texts of those definitions may be together."""
    captured_bytes: int = 64 * MIB
    """How much a command may print to each of its output streams."""
    file_bytes: int = 10 * MIB
    """How large a file may be that a step reads or that a command leaves as an output."""
    inline_bytes: int = 32 * 1024
    """How large a value may be before it is written apart, once, however often it is passed on."""
    preview_chars: int = 4000
    """How much of one text an answer to an agent carries; the rest is read in slices."""
    answer_chars: int = 40_000
    """How large the outputs in one answer may be together before the long ones are previewed harder."""
    expression_seconds: float = 5.0
    """How long one template may take to render."""
    expression_chars: int = 2_000_000
    """How long a rendered template may be."""
    javascript_bytes: int = 64 * MIB
    """How much memory one JavaScript expression may take."""
    document_bytes: int = 16 * MIB
    """How large a definition file may be."""
    document_nodes: int = 1_000_000
    """How many values a definition may hold once its aliases are followed."""
    document_depth: int = 60
    """How deep a definition may be nested."""
    parallel_steps: int = 100
    """How many steps one process carries out at once."""
    wait_seconds: float = 45.0
    """The longest that one call waits for a run."""
    action_lease_seconds: float = 300.0
    """How long a sub-agent may be silent before another one may take over its task."""
    argument_bytes: int = 10 * MIB
    """How large one argument of a tool may be, such as a result; a definition may have `document_bytes`."""
    value_depth: int = 200
    """How deep a value may be nested that an agent sends."""
    memory_value_bytes: int = MIB
    """How large a value may be that is remembered beyond a run."""
    memory_keys: int = 10_000
    """How many keys the memory may have."""
    checkpoint_days: float = 30.0
    """How long a checkpoint is kept; a question that a run still waits for is kept in any case."""
    run_days: float = 30.0
    """How long a run is kept after it has ended. Unfinished runs are never deleted."""
    max_ended_runs: int = 1_000_000
    """How many ended runs are kept; the oldest are deleted first."""
    store_bytes: int = 2048 * MIB
    """How large the store of runs may grow before the oldest ended runs are deleted."""

    @property
    def of_a_run(self) -> dict[str, int | float]:
        """Those that decide how a run goes. It keeps the ones that it was started with."""
        return {name: getattr(self, name) for name in _OF_A_RUN}

    def setting(self, name: str) -> str:
        """What a user sets to change the limit `name`."""
        assert name in {field.name for field in fields(self)}
        return f"WORKFLOWS_LIMIT_{name.upper()}"


_OF_A_RUN = (
    "call_depth",
    "for_each_items",
    "loop_iterations",
    "messages",
    "task_depth",
    "parallel_children",
    "pending_actions",
    "step_interruptions",
    "state_bytes",
    "state_depth",
    "expression_seconds",
    "expression_chars",
    "javascript_bytes",
)
DEFAULT_WAIT = 30.0
"""Seconds that a call waits for its run where it does not say how long."""
DEFAULT_LIMITS = Limits()
