"""Runs driven through the service, on the embedded engine."""

from __future__ import annotations

from support.workspaces import settings, workspace

__all__ = ["settings", "workspace"]
