"""A user with an empty home for every test."""

from pathlib import Path

import pytest

pytest.importorskip("acp", reason="the extra `acp` is not installed")


@pytest.fixture
def editor_home(tmp_path: Path):
    from tests.e2e.acp.editor import EditorHome

    for folder in ("home", "workspace"):
        (tmp_path / folder).mkdir()
    (tmp_path / "workspace" / "notes.txt").write_text("remember the milk\n")
    return EditorHome(tmp_path / "home", tmp_path / "workspace")
