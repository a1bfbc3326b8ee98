"""What a command line really does: parsed with a real grammar, walked to every command in it."""
