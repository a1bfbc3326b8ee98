"""Settings and the environment, read once, at the door."""
