"""Runs commands as child processes under guard processes, and supervises them."""
