"""The interactive terminal application, built with Textual on top of the engine's client interface and events."""
