"""Settings: files, environment and flags."""
