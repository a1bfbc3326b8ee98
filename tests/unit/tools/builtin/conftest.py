"""A workspace for every test."""

from pathlib import Path

import pytest

from tests.unit.tools.builtin.tool_workspace import ToolWorkspace


@pytest.fixture
def workspace(tmp_path: Path) -> ToolWorkspace:
    return ToolWorkspace(tmp_path / "ws")
