"""Compiles the text of a workflow to a checked plan, in any of the three dialects.

definition = load(text, file="deploy.yaml", registry=default_registry(), limits=limits)
definition.plan
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from workflows_mcp.lazy import exports

if TYPE_CHECKING:
    from workflows_mcp.dialects.definition import Definition, check_bundle, load, place_problems
    from workflows_mcp.dialects.schema import schema_overview, schema_part, workflow_schema
    from workflows_mcp.dialects.yaml.source import locate, read_document

__all__ = [
    "Definition",
    "check_bundle",
    "load",
    "locate",
    "place_problems",
    "read_document",
    "schema_overview",
    "schema_part",
    "workflow_schema",
]

__getattr__ = exports(
    __name__,
    {
        "definition": "Definition check_bundle load place_problems",
        "schema": "schema_overview schema_part workflow_schema",
        "yaml.source": "locate read_document",
    },
)
