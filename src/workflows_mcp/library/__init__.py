"""Finds definition files by name, and bundles a workflow with all workflows that it calls."""

from __future__ import annotations

from workflows_mcp.library.catalog import BUILT_IN, Catalog, Entry, WorkflowSummary

__all__ = ["BUILT_IN", "Catalog", "Entry", "WorkflowSummary"]
