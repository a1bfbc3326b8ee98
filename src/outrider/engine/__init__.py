"""The engine and what one session consists of at run time."""
