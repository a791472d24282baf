"""New ids, the one place that makes them."""

from __future__ import annotations

import os


def new_run_id() -> str:
    return f"wf_{os.urandom(6).hex()}"


def new_owner_id() -> str:
    """Names a process among those that share a store."""
    return f"{os.getpid()}-{os.urandom(4).hex()}"
