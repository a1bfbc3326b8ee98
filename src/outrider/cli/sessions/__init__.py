"""Commands about conversations: the sessions that are kept."""
