"""What is done to the tables, inside a transaction that somebody else begins and ends."""
