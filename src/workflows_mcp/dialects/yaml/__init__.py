"""Reads YAML 1.2, and finds the place of each value in the file."""
