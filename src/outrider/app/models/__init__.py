"""Providers as a program uses them: what the environment says of them, what connects to them, what they cost."""
