"""The engine over HTTP: JSON, server-sent events and one web page. Nothing here knows more than the engine does."""
