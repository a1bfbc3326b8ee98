"""A headless run: one prompt, worked on to its end."""
