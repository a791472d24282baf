"""New ids of runs, the one place that makes them."""

from __future__ import annotations

import os


def new_run_id() -> str:
    return f"wf_{os.urandom(6).hex()}"
