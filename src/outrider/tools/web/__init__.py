"""Pages of the web for models: fetched within limits, from public addresses only, and turned into text."""
