"""What a workspace adds: project files, skills, MCP servers, trust."""
