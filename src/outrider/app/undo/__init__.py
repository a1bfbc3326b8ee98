"""Undo and redo of what agents did to files: kept around every call that may write, and taken back on request."""
