"""Puts values into shell commands as words, never as syntax."""
