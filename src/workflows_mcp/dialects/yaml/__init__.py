"""Reads YAML 1.2 and finds every value again in the file."""
