"""The HTTP server: exposes the engine as a JSON API with server-sent events, and serves the web page."""
