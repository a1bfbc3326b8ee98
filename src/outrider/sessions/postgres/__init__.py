"""The Postgres store: connection pool, notifications, schema, queries and search."""
