"""Agents of this engine at work for agents of another process."""
