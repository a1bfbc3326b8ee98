"""Stream filters: rewrite the deltas of an answer while it streams."""
