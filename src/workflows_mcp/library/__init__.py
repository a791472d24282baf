"""Finding workflows: which there are, where each comes from, and what a run of one is pinned to."""
