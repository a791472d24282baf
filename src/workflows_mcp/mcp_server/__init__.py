"""The MCP server: toolsets over the service. Imported only when something is served: `mcp` is heavy."""
