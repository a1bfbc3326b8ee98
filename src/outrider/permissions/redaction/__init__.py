"""Secrets are hidden before anything is stored or shown."""
