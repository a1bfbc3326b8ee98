"""Programs that show the engine at work."""
