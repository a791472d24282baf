"""The limits of the product, each with its default and what it limits.

    WORKFLOWS_LIMIT_PARALLEL_STEPS=20        # or parallel_steps = 20 under [limits] in workflows.toml

The error of an exceeded limit has the limit and the name of its setting.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Limits:
    call_depth: int = 50
    """How deep workflows may call workflows."""
    state_bytes: int = MIB
    """The size of the state of one workflow."""
    state_depth: int = 200
    """The nesting depth of the state of one workflow; more than 200 cannot be stored."""
    loop_iterations: int = 10_000
    """The iterations of a loop without `max_iterations`."""
    messages: int = 200
    """The messages to the user that are stored until an agent passes them on."""
    for_each_items: int = 10_000
    """The items of one block or step with `for_each`."""
    task_depth: int = 5
    """How deep tasks may start tasks."""
    parallel_children: int = 100
    """The children of one `foreach` that run at the same time."""
    pending_actions: int = 50
    """The actions of one run that wait for agents at the same time."""
    step_interruptions: int = 2
    """How often a server may end during one step before the run asks whether to repeat it."""
    steps_per_workflow: int = 1000
    """The steps of a workflow, or of one of its tasks."""
    cached_definitions: int = 100
    """The definitions that are cached; a file that has changed is read again at once."""
    cached_bytes: int = 16 * MIB
    """The size of the texts of all cached definitions."""
    captured_bytes: int = 64 * MIB
    """The output of a command on each of stdout and stderr."""
    file_bytes: int = 10 * MIB
    """The size of a file that a step reads, or that a command leaves as an output."""
    inline_bytes: int = 32 * 1024
    """The size of a value inside an event; a larger one is stored once, apart from the events."""
    preview_chars: int = 4000
    """The part of one text in an answer to an agent; the rest is read in slices."""
    answer_chars: int = 40_000
    """The size of one answer to an agent, before long values are cut further."""
    expression_seconds: float = 5.0
    """The time to render one template."""
    expression_chars: int = 2_000_000
    """The length of a rendered template."""
    javascript_bytes: int = 64 * MIB
    """The memory of one JavaScript expression."""
    document_bytes: int = 16 * MIB
    """The size of a definition file."""
    document_nodes: int = 1_000_000
    """The values in a definition, with its aliases expanded."""
    document_depth: int = 60
    """The nesting depth of a definition."""
    parallel_steps: int = 100
    """The steps that one process runs at the same time."""
    parallel_agents: int = 10
    """The programs of agents that one process runs at the same time."""
    wait_seconds: float = 45.0
    """The longest time that one call waits for a run."""
    action_lease_seconds: float = 300.0
    """The time without a sign of a sub-agent after which another may take over its task."""
    stop_refusals: int = 3
    """How often in a row an agent that does nothing is kept from ending its turn; see docs/clients.md."""
    argument_bytes: int = 10 * MIB
    """The size of one argument of a tool, such as a result; a definition may have `document_bytes`."""
    value_depth: int = 200
    """The nesting depth of a value from an agent."""
    memory_value_bytes: int = MIB
    """The size of one value in the memory."""
    memory_keys: int = 10_000
    """The keys in the memory."""
    checkpoint_days: float = 30.0
    """How long a checkpoint is kept; the question of a waiting run is always kept."""
    run_days: float = 30.0
    """How long a run is kept after its end. Unfinished runs are never deleted."""
    max_ended_runs: int = 1_000_000
    """The ended runs that are kept; the oldest are deleted first."""
    store_bytes: int = 2048 * MIB
    """The size of the store above which the oldest ended runs are deleted."""

    @property
    def of_a_run(self) -> dict[str, int | float]:
        """The limits that change the course of a run. A run keeps those that it was started with."""
        return {name: getattr(self, name) for name in _OF_A_RUN}

    def setting(self, name: str) -> str:
        """Return the environment variable of the limit `name`."""
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
"""Seconds that a call waits for its run by default."""
DEFAULT_LIMITS = Limits()
