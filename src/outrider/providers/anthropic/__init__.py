"""Anthropic Messages API client, also for compatible servers and Vertex."""
