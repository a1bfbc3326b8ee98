"""Sessions: the transcript, the stores that persist it, leases, inbox, approvals, export and undo."""
