"""A program with an empty home for every test."""

from pathlib import Path

import pytest

from tests.e2e.cli.program import Program


@pytest.fixture
def program(tmp_path: Path) -> Program:
    for folder in ("home", "workspace"):
        (tmp_path / folder).mkdir()
    (tmp_path / "workspace" / "notes.txt").write_text("remember the milk\n")
    return Program(tmp_path / "home", tmp_path / "workspace")
