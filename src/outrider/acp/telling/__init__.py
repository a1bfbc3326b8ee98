"""What the engine knows in the protocol's words; pure functions and one fold."""
