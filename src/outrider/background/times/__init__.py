"""When runs begin: again and again at times of the day, or after another run."""
