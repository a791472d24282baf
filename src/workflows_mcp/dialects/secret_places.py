"""Where a secret may stand: in what the server does, and nowhere where somebody would see it."""

from __future__ import annotations

from workflows_mcp.expressions.base import Reference
from workflows_mcp.plan.model import Call, Do, Operation


def misplaced_secret(do: Operation, reference: Reference, part: str | int, is_input: bool) -> tuple[str, str]:
    """What is wrong with a secret in this part of a step, and what to do; both empty if nothing is.
    `is_input`: the part is one that the type of the step takes."""
    if len(reference.path) != 2:
        return "a secret is named by one word", "e.g. {{ secrets.GITHUB_TOKEN }}"
    if isinstance(do, Call) and part == "inputs":
        return "", ""
    if isinstance(do, Do) and do.by == "server" and is_input:
        return "", ""
    hint = "a secret can be given to steps that the server carries out (run_on: server), and to workflows"
    return f"a secret cannot be part of '{part}' here", hint
