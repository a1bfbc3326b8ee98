"""A desk for every test."""

from pathlib import Path

import pytest

from tests.unit.tools.builtin.desk import Desk


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path / "ws")
