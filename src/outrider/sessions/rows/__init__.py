"""What every store does with a row: to write and read it, to find words in it, to count it."""
