"""Expression languages behind one interface: parse once, list references, evaluate on a scope.

Nothing here does I/O or knows plans, steps or runs.
"""
