"""What a step may touch: the only place that decides it, and the handles that steps get."""
