"""Fragments of documented workflows, made into whole ones: a test adds what a fragment leaves out, and no more."""

from __future__ import annotations

import re
from textwrap import dedent, indent


def piece(block: str, heading: str) -> str:
    """The part of a block of fragments below a comment that begins so."""
    parts = re.split(r"\n\n(?=# )", block.strip("\n"))
    (found,) = [part for part in parts if part.startswith(f"# {heading}")]
    return found + "\n"


def workflow(steps: str, *parts: str, name: str = "documented:fragment") -> str:
    """A workflow of these steps, and of further parts such as `default_state`."""
    return "\n".join([f'name: "{name}"', *(dedent(part).strip("\n") for part in parts), "steps:", steps])


def inside(steps: str, depth: int = 4) -> str:
    """Steps as they stand inside of others."""
    return indent(dedent(steps).strip("\n"), " " * depth)
