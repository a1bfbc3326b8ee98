"""Finding files and text: with ripgrep where it is installed, else without it, under the same rules."""
