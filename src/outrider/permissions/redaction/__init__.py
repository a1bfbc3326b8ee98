"""Redacts secrets before values are stored, published, logged or shown."""
