"""Toolsets with the names and shapes of older systems: `graph`, `stateful`, `reactive`."""
