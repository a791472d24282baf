"""What the exit code of a command means."""

from __future__ import annotations

COMPLETED = 0
FAILED = 1
WRONG_USE = 2
WAITING = 3
INTERRUPTED = 130

_BY_STATUS = {"completed": COMPLETED, "failed": FAILED, "cancelled": FAILED}


def exit_code(status: str) -> int:
    """Of a run that this command does not wait for any longer."""
    return _BY_STATUS.get(status, WAITING)
