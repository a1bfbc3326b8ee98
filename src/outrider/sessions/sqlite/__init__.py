"""What a store in a SQLite file is made of."""
