"""What end-to-end tests share: programs are forked from a process that has loaded them, and there is one browser."""

from collections.abc import Iterator

import pytest

from tests.fixtures.browser import BROWSER
from tests.fixtures.warm_start import warm_starts


@pytest.fixture(scope="session", autouse=True)
def programs_start_warm() -> Iterator[None]:
    with warm_starts():
        yield


@pytest.fixture(scope="session")
def browser() -> Iterator[None]:
    """A fixture, and not started with the first page, because its processes outlive the test."""
    BROWSER.start()
    yield
    BROWSER.close()
