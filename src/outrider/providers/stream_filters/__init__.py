"""Filters over a stream of deltas."""
