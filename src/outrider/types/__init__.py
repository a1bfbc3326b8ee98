"""Frozen values: no I/O, no vendor."""
