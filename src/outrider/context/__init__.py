"""What goes into a prompt: pure functions from a transcript to a request."""
