"""The MCP server: a thin door over a workspace and its gate."""
