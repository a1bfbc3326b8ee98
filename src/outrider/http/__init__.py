"""The HTTP/1.1 client of the program: connections, pool, timeouts, redirects, server-sent events."""
