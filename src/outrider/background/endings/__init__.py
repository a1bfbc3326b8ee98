"""What a run leaves behind at its end, and who is told."""
