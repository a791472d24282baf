"""`python -m bench [part …]`: durability, sharing, loading, starting, shell, reactive, memory, process,
protocol, hooks, http, temporal; none: all."""

from __future__ import annotations

import sys

from bench import (
    durability,
    hooks,
    http,
    loading,
    memory,
    process,
    protocol,
    reactive,
    sharing,
    shell,
    starting,
    temporal,
)

PARTS = {
    "durability": durability.run,
    "sharing": sharing.run,
    "loading": loading.run,
    "starting": starting.run,
    "shell": shell.run,
    "reactive": reactive.run,
    "memory": memory.run,
    "process": process.run,
    "protocol": protocol.run,
    "hooks": hooks.run,
    "http": http.run,
    "temporal": temporal.run,
}

if __name__ == "__main__":
    for name in sys.argv[1:] or PARTS:
        PARTS[name]()
