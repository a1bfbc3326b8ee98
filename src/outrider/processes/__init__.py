"""Processes: commands of the operating system, each with all that it starts, and the supervisor that owns them."""
