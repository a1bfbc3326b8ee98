"""How a turn comes to its end: by itself, or because it goes round in circles."""
