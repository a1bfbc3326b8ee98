"""What a store in a Postgres database is made of."""
