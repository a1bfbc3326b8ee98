"""What the model reads about the files of an interrupted call."""

import os
from hashlib import sha256
from pathlib import Path

import pytest

from outrider.tools.runner import describe_touched_files
from outrider.types.parts import ToolPart
from outrider.types.tool_state import ToolPending


def call(**given: object) -> ToolPart:
    return ToolPart("c", "write", ToolPending(dict(given), phase="ready"))


def test_a_file_is_named_with_its_size_and_hash(tmp_path: Path):
    (tmp_path / "a.txt").write_text("abc")
    text = describe_touched_files(call(file_path="a.txt", content="abc"), tmp_path)
    assert text == f"a.txt now has 3 bytes, sha256 {sha256(b'abc').hexdigest()}."


def test_a_file_that_is_not_there_is_reported_not_to_be(tmp_path: Path):
    assert describe_touched_files(call(path="b.txt"), tmp_path) == "b.txt does not exist now."


@pytest.mark.parametrize("path", ["/etc/hostname", "../x", "link", "pipe", ".", "nul\0", 7])
def test_what_is_outside_or_no_plain_file_is_not_looked_at(path: object, tmp_path: Path):
    (tmp_path / "link").symlink_to("/etc/hostname")
    os.mkfifo(tmp_path / "pipe")
    assert describe_touched_files(call(file_path=path), tmp_path) == ""
    assert describe_touched_files(call(command="rm x"), tmp_path) == ""
