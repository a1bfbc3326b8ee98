"""Folders of a workspace are opened one component after the other, without following links."""

import os
from pathlib import Path

import pytest

from outrider._posix import nearest_folder, open_folder


def test_a_folder_is_opened_below_its_root(tmp_path: Path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "file").touch()
    with open_folder(str(tmp_path), ["a", "b"]) as folder:
        assert os.stat("file", dir_fd=folder)


def test_missing_folders_are_made_and_named_on_request_only(tmp_path: Path):
    (tmp_path / "a").mkdir()
    with pytest.raises(FileNotFoundError), open_folder(str(tmp_path), ["a", "b"]):
        pass
    made: list[str] = []
    with open_folder(str(tmp_path), ["a", "b", "c"], made):
        assert made == [f"{tmp_path}/a/b", f"{tmp_path}/a/b/c"]


HAS_PROC = Path("/proc/self/fd").exists()
ABOVE = pytest.param("above", marks=pytest.mark.skipif(not HAS_PROC, reason="SKIPPED: the check needs /proc"))


@pytest.mark.parametrize("linked", ["root", "inside", ABOVE])
def test_no_link_is_followed(tmp_path: Path, linked: str):
    (tmp_path / "real" / "root" / "inside").mkdir(parents=True)
    root = tmp_path / "real" / "root"
    if linked == "root":
        root = tmp_path / "root"
        root.symlink_to(tmp_path / "real" / "root")
    elif linked == "above":
        (tmp_path / "above").symlink_to(tmp_path / "real")
        root = tmp_path / "above" / "root"
    else:
        (root / "inside").rmdir()
        (tmp_path / "outside").mkdir()
        (root / "inside").symlink_to(tmp_path / "outside")
    with pytest.raises(OSError, match=r"Not a directory|replaced by a link"), open_folder(str(root), ["inside"]):
        pass


def test_the_nearest_folder_exists_and_is_not_behind_a_link(tmp_path: Path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "link").symlink_to(tmp_path)
    assert nearest_folder(str(tmp_path), ["a", "b", "c"]) == ["a", "b"]
    assert nearest_folder(str(tmp_path), ["a", "link", "a"]) == ["a"]
    assert nearest_folder(str(tmp_path), ["x"]) == []
