"""What the fault tests share."""

from tests.fixtures.postgres import postgres_url

__all__ = ["postgres_url"]
