"""What of a session is on its way into its store."""
