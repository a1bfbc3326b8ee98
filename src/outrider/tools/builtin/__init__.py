"""Built-in tools: one module and one prompt file each. The engine's tool registry lists them."""
