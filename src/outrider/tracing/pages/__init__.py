"""Traces as pages for a browser."""
