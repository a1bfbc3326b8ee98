"""What the screen knows of a session: entries folded from events, what goes on now, what runs beside."""
