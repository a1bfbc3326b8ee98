"""From records to a tree of spans."""
