"""Tools: what a model can call, and the runner that brings every call to its end."""
