"""How entries of a conversation look: pure functions from values to lines of styled text."""
