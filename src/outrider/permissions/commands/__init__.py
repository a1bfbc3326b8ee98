"""Walks a command line to every simple command in it and proves each one harmless, or says why it cannot."""
