"""HTTP transport for all vendors: connections, pool, timeouts, server-sent events, retries and rate limits."""
