"""Stages between a client and whoever listens: each reads deltas and gives deltas."""
