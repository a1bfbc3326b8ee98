"""What end-to-end tests share: one browser."""

from collections.abc import Iterator

import pytest

from tests.fixtures.browser import BROWSER


@pytest.fixture(scope="session")
def browser() -> Iterator[None]:
    """A fixture, and not started with the first page, because its processes outlive the test."""
    BROWSER.start()
    yield
    BROWSER.close()
