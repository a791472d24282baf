"""Toolsets: each module has a table of tools, each tool a few lines over the service."""
