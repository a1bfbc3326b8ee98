"""The overlay layer of a session: no link in it can direct a change to a file outside."""

from pathlib import Path

import pytest

from outrider.processes.sandbox.overlay import merge_into_layer, remove_from_layer


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    (tmp_path / "layer").mkdir()
    (tmp_path / "upper" / "cache").mkdir(parents=True)
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "profile").write_text("mine")
    (tmp_path / "layer" / "cache").symlink_to(folder)
    return folder


def test_a_merge_replaces_a_link_in_its_way(tmp_path: Path, outside: Path):
    (tmp_path / "upper" / "cache" / "profile").write_text("new")
    merge_into_layer(tmp_path / "upper", tmp_path / "layer", "cache/profile")
    assert (outside / "profile").read_text() == "mine"
    assert not (tmp_path / "layer" / "cache").is_symlink()
    assert (tmp_path / "layer" / "cache" / "profile").read_text() == "new"


def test_a_removal_does_not_follow_a_link(tmp_path: Path, outside: Path):
    remove_from_layer(tmp_path / "layer", "cache/profile", is_folder=False)
    assert (outside / "profile").read_text() == "mine"
    remove_from_layer(tmp_path / "layer", "cache", is_folder=False)
    assert not (tmp_path / "layer" / "cache").is_symlink()
    assert (outside / "profile").exists()


def test_a_folder_stays_where_the_workspace_has_one(tmp_path: Path):
    (tmp_path / "build" / "deep").mkdir(parents=True)
    remove_from_layer(tmp_path, "build", is_folder=True)
    assert (tmp_path / "build").is_dir()
    remove_from_layer(tmp_path, "build", is_folder=False)
    assert not (tmp_path / "build").exists()
    remove_from_layer(tmp_path, "missing/file", is_folder=False)
