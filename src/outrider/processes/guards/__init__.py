"""Guards: the small processes that stand between an engine and its commands, and the way to them."""
