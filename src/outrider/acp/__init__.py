"""Outrider for editors: sessions over the Agent Client Protocol, on standard input and output."""
