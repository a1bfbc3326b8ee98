"""OpenAI's two wire formats, which many other servers speak too: Responses and Chat Completions."""
