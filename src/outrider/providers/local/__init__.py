"""A provider that runs a language model inside this process, without an API key or server."""
