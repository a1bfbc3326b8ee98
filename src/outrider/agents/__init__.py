"""The agent loop: turns, model steps, tool calls, delegation between agents, budgets and hooks."""
