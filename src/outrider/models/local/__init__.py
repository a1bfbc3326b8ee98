"""Models that run inside this process."""
