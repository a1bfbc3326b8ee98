"""Tools that a model can call, and the runner that executes each call to a recorded end."""
