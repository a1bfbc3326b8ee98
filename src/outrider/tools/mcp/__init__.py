"""MCP client: tools, resources and prompts of configured servers. The SDK is imported on first use."""
