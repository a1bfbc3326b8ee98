"""OpenAI clients for Chat Completions and Responses, which many other servers also implement."""
