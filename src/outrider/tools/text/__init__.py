"""Text without files: encodings, line endings, finding and replacing, differences."""
