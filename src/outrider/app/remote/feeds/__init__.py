"""Sessions of a server as they are known here: followed, mirrored, and told as events."""
