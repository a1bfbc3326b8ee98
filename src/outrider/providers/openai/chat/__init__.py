"""Chat Completions: the wire format of OpenAI that many other servers speak, each in its own dialect."""
