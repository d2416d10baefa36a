"""Tools for agents, by the Model Context Protocol (MCP). Import only if the extra `mcp` is installed."""
