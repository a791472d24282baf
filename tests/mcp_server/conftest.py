"""Gives tests the fixture `place`: a workspace with a server."""

from __future__ import annotations

from support.served_place import place

__all__ = ["place"]
