"""The embedded engine: all runs in one SQLite file, which several processes may share."""
