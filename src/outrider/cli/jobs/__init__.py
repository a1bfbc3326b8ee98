"""Runs that go on when the terminal is closed."""
