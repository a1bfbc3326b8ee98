"""The API endpoints, one table per subject."""
