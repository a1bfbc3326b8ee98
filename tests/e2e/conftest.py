"""What end-to-end tests share: one browser."""

from collections.abc import AsyncIterator

import pytest_asyncio

from tests.fixtures.browser import BROWSER


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[None]:
    """A fixture, and not started with the first page, because its processes outlive the test."""
    from playwright.async_api import async_playwright

    BROWSER.start()
    async with async_playwright() as driver:
        BROWSER.connection = await driver.chromium.connect_over_cdp(BROWSER.address)
        yield
    BROWSER.close()
