"""`python -m bench [part …]`: durability, loading, starting, shell, memory; all of them without arguments."""

from __future__ import annotations

import sys

from bench import durability, loading, memory, shell, starting

PARTS = {
    "durability": durability.run,
    "loading": loading.run,
    "starting": starting.run,
    "shell": shell.run,
    "memory": memory.run,
}

if __name__ == "__main__":
    for name in sys.argv[1:] or PARTS:
        PARTS[name]()
