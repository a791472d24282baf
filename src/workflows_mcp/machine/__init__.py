"""The interpreter: `apply(event) -> commands`, pure, the same under every engine.

A run's state is the fold of its events. Read in this order: `events`, `commands`, `state`, `machine`.
"""
