"""The MCP server: toolsets, prompts and resources over the service.

Only `serve` imports it, because the library `mcp` takes long to import.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from workflows_mcp.lazy import exports

if TYPE_CHECKING:
    from workflows_mcp.mcp_server.http import serve_http
    from workflows_mcp.mcp_server.plugin import plugin_directory
    from workflows_mcp.mcp_server.server import serve_stdio

__all__ = ["plugin_directory", "serve_http", "serve_stdio"]

__getattr__ = exports(
    __name__,
    {
        "http": "serve_http",
        "plugin": "plugin_directory",
        "server": "serve_stdio",
    },
)
