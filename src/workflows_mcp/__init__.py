"""workflows-mcp: an MCP server that runs workflows for LLM agents."""

__version__ = "0.1.0"
