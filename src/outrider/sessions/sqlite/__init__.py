"""The SQLite store: connections, the write thread, schema, queries, search, check and repair."""
