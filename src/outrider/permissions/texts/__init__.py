"""Text that people and terminals are shown: secrets hidden, control characters taken out."""
