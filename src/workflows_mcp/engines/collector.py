"""Python's collector of cycles, set for a process that holds runs.

A run is many small objects that live long and hold no cycles. With the thresholds of a script the
collector walks all of them again and again: a block of a run of ten thousand would cost twice what one
of a hundred does. With much larger ones it walks rarely, but then so far that whoever waits for an answer
notices: 200 ms were seen.
"""

from __future__ import annotations

import gc


def collect_rarely() -> None:
    gc.set_threshold(2_000, 10, 100)
