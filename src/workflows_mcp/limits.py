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
    for_each_items: int = 10_000
    """How many items one block may be carried out for."""
    captured_bytes: int = MIB
    """How much of each output stream of a command is kept; what is cut is said in its place."""
    file_bytes: int = 10 * MIB
    """How large a file may be that a step reads or that a command leaves as an output."""
    stored_bytes: int = 32 * 1024
    """How large a value may be before it is written apart, once, however often it is passed on."""
    preview_chars: int = 4000
    """How much of one text an answer to an agent carries; the rest is read in slices."""
    answer_chars: int = 40_000
    """How large the outputs in one answer may be together before the long ones are previewed harder."""
    expression_seconds: float = 5.0
    """How long one template may take to render."""
    expression_chars: int = 2_000_000
    """How long a rendered template may be."""
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
    checkpoint_days: float = 30.0
    """How long a checkpoint is kept; a question that a run still waits for is kept in any case."""

    @property
    def of_a_run(self) -> dict[str, int]:
        """Those that decide how a run goes. It keeps the ones that it was started with."""
        return {"call_depth": self.call_depth, "for_each_items": self.for_each_items}

    def setting(self, name: str) -> str:
        """What a user sets to change the limit `name`."""
        assert name in {field.name for field in fields(self)}
        return f"WORKFLOWS_LIMIT_{name.upper()}"


DEFAULT_LIMITS = Limits()
