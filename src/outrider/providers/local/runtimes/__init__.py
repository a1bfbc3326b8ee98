"""What computes an embedded model's answers, and how it is shared."""
