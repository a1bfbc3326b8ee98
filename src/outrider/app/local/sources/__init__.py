"""Where weights come from; a source appends to what is there, and never decides whether the bytes are right."""
