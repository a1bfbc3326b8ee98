"""Text functions without file access: encodings, line endings, replacement, patches and diffs."""
