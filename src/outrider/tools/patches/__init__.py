"""Patches as models write them, and their way into files."""
