"""The routes, one table per subject."""
