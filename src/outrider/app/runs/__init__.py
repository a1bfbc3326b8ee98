"""Runs: agents at work on one message, put together and taken apart again."""
