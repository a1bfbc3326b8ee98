"""Where hooks come in: before and after a call, on a message, on stop."""
