"""Run a stored session again, and compare."""
