"""Sessions on their way: exported, imported, and shared as a page."""
