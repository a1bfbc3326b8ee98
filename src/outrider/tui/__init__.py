"""The interactive terminal application: a screen over an engine and its events."""
