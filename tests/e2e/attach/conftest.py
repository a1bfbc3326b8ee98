"""A folder for a server in every test; the server ends with the test."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.e2e.attach.socket_server import Serving

pytest.importorskip("uvicorn", reason="the extra `server` is not installed")


@pytest.fixture
async def serving(tmp_path: Path) -> AsyncIterator[Serving]:
    place = Serving(tmp_path)
    yield place
    await place.end()
