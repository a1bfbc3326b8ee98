"""The engine: opens sessions, runs turns and wires agents, models, tools, permissions and the store together."""
