"""`python -m bench [part …]`: durability, loading, starting, shell, memory, protocol; none: all."""

from __future__ import annotations

import sys

from bench import durability, loading, memory, protocol, shell, starting

PARTS = {
    "durability": durability.run,
    "loading": loading.run,
    "starting": starting.run,
    "shell": shell.run,
    "memory": memory.run,
    "protocol": protocol.run,
}

if __name__ == "__main__":
    for name in sys.argv[1:] or PARTS:
        PARTS[name]()
