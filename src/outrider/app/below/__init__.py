"""The sessions below a session: those that its agents open, and those beside their work."""
