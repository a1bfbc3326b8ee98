"""What screens hold: an engine with all that belongs to it, of this process or of a server."""
