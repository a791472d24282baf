"""Settings from the environment and `workflows.toml`, and which project files the user trusts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workflows_mcp.lazy import exports
from workflows_mcp.settings.http import Address, HttpSettings, NamedToken, in_url, is_loopback, read_address
from workflows_mcp.settings.model import (
    LEVELS,
    STATE_ACCESS,
    Settings,
    load_settings,
    read_names,
    read_toolsets,
    settings_needing_trust,
)
from workflows_mcp.settings.trust import TRUSTED, VARIABLE, Trust, trust_of

if TYPE_CHECKING:
    from workflows_mcp.settings.agents import PRESETS, AgentCommand, find_agent

__all__ = [
    "LEVELS",
    "PRESETS",
    "STATE_ACCESS",
    "TRUSTED",
    "VARIABLE",
    "Address",
    "AgentCommand",
    "HttpSettings",
    "NamedToken",
    "Settings",
    "Trust",
    "find_agent",
    "in_url",
    "is_loopback",
    "load_settings",
    "read_address",
    "read_names",
    "read_toolsets",
    "settings_needing_trust",
    "trust_of",
]

__getattr__ = exports(__name__, {"agents": "PRESETS AgentCommand find_agent"})
