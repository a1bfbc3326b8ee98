"""Static analysis of shell command lines: parse with tree-sitter, expand words, and prove that commands only read."""
