"""Implements JavaScript in `{{ }}`, the language of the reactive dialect."""
