"""Implementations of the CLI commands, one module per command; each is imported only when its command runs."""
