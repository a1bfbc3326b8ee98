"""Agent Client Protocol (ACP) server for editors, on stdin and stdout."""
