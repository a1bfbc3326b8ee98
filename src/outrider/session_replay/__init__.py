"""Replays stored sessions offline, runs variants of them, and compares sessions."""
