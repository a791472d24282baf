"""What a step does: one class in one file for each type, found through the entry point group
`workflows_mcp.steps`. Steps reach the world only through the handles that policy gives them."""
