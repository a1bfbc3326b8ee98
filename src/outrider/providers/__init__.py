"""Provider clients: one contract for models that are called over HTTP or run inside the process."""
