"""Recorded traffic with providers, kept without secrets and played back offline."""
