"""Watchers of an engine: they listen to its bus, and nothing waits for them."""
