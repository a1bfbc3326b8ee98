"""The Anthropic Messages API, and the servers that speak it."""
