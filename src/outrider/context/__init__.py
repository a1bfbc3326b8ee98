"""Pure functions from a transcript to a request: lowering, token estimates, compaction, system prompts."""
