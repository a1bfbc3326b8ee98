"""Outrider for other agents: an MCP server that lets them run an agent, and look for what was said."""
