"""What tests of every folder may ask for."""

from __future__ import annotations

from support.temporal import temporal_address, temporal_server

__all__ = ["temporal_address", "temporal_server"]
