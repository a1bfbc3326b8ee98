"""Cassettes: record provider traffic without secrets and replay it offline."""
