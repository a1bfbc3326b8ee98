"""Model clients, model pricing, session recording, and models that run in this process."""
