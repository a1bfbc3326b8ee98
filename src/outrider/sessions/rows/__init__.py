"""Row encoding and queries that all stores share."""
