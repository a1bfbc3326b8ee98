"""The durable engine is an extra: without it there is nothing to test here."""

from tests.fixtures.postgres import postgres_url

__all__ = ["postgres_url"]
