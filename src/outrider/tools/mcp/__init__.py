"""MCP: servers that bring tools, resources and prompts, each behind its own connection; the SDK is loaded when used."""
