"""Textual widgets of the main screen, and modal screens."""
