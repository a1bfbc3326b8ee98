"""Undo and redo of what tools did to files."""
