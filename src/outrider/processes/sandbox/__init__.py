"""Sandboxes: the operating system's boundary around a command, built from a policy."""
