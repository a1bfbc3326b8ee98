"""Skips the tests of this folder if the extra `background` is not installed."""

from tests.fixtures.postgres import postgres_url

__all__ = ["postgres_url"]
