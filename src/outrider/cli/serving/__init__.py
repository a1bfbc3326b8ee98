"""Commands that serve other programs, until those have enough."""
