"""Where people write: many lines, history, completion, pasted texts and files."""
