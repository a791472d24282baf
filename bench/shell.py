"""What a Shell block costs beyond the process that it starts."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

from bench.durability import steps_a_second
from bench.measure import median, row, seconds, title, verdict
from bench.workflows import chain

BLOCKS = 200


def run() -> None:
    title(f"A Shell block beside a raw subprocess, chain of {BLOCKS}, median of 5 rounds")
    text = chain("Shell", BLOCKS)
    command = ["/bin/sh", "-c", "true"]

    def raw() -> None:
        for _ in range(BLOCKS):
            subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=True)

    theirs, ours = [], []
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as temporary:
        for _ in range(5):
            theirs.append(seconds(raw) / BLOCKS)
            ours.append(1 / steps_a_second(Path(temporary), text, BLOCKS))
    row("raw subprocess", f"{median(theirs) * 1e3:.2f} ms")
    row("Shell block, durable", f"{median(ours) * 1e3:.2f} ms")
    overhead = median([our - their for our, their in zip(ours, theirs, strict=True)]) * 1e3
    row("overhead", f"{overhead:.2f} ms", verdict(overhead, 1, at_least=False))
