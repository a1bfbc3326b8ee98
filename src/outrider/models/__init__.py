"""Model clients, pricing, and models that run locally."""
