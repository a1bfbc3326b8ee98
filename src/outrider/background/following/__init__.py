"""A run as it goes on, seen from anywhere: its own session, and those of the agents that it calls."""
