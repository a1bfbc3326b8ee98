"""All that knows the MCP SDK: loaded when the first server is connected."""
