"""edit: only the intended text changes; an ambiguous edit is refused."""

import os
from pathlib import Path

import pytest

from tests.unit.tools.builtin.tool_workspace import ToolWorkspace


async def edited(workspace: ToolWorkspace, content: bytes, old: str, new: str, **options: object) -> bytes:
    path = workspace.write_file("file", content)
    await workspace.output_of("read", file_path="file")
    await workspace.output_of("edit", file_path="file", old_string=old, new_string=new, **options)
    return path.read_bytes()


@pytest.mark.parametrize(
    ("before", "old", "new", "after"),
    [
        (b"a\nb\nc\n", "b", "x", b"a\nx\nc\n"),
        (b"a\nb\nc", "c", "x\ny", b"a\nb\nx\ny"),
        (b"a\r\nb\r\nc\r\n", "a\nb\n", "a\nx\ny\n", b"a\r\nx\r\ny\r\nc\r\n"),
        (b"a\r\nb\nc\n", "b", "x\ny", b"a\r\nx\ny\nc\n"),
        (b"a\nb\r\nc\n", "b", "x\ny", b"a\nx\r\ny\r\nc\n"),
        (b"a\rb\rc", "a\nb", "x\ny\nz", b"x\ry\rz\rc"),
        (b"a\r\nb\r\n", "a\r\nb\r\n", "a\nb\n", b"a\nb\n"),
        (b"\xef\xbb\xbfa\nb\n", "a", "\u00e9", b"\xef\xbb\xbf\xc3\xa9\nb\n"),
        ("\ufeffa\r\nb\r\n".encode("utf-16-le"), "a\nb", "x\ny\nz", "\ufeffx\r\ny\r\nz\r\n".encode("utf-16-le")),
        ("\ufeffab\n".encode("utf-16-be"), "b", "€", "\ufeffa€\n".encode("utf-16-be")),
        ("plain text\n".encode("utf-16-le"), "text", "words", "plain words\n".encode("utf-16-le")),
        (b"caf\xe9 one\n", "one", "\u00fcber", b"caf\xe9 \xfcber\n"),
        (b"\x80 caf\xe9 one\n", "one", "\u20ac", b"\x80 caf\xe9 \x80\n"),
        ("é é é ".encode() + b"\xff one\n", "one", "ü", "é é é ".encode() + b"\xff \xc3\xbc\n"),
        (b"a\r\r\nb\r\n", "b", "x\ny", b"a\r\r\nx\r\ny\r\n"),
    ],
)
async def test_encoding_line_endings_and_marks_stay(
    workspace: ToolWorkspace, before: bytes, old: str, new: str, after: bytes
):
    assert await edited(workspace, before, old, new) == after


@pytest.mark.parametrize(
    ("before", "old", "new", "after"),
    [
        # trailing whitespace of lines that stay is stored
        (b"def f():  \n    a = 1\t\n    b = 2\n", "def f():\n    a = 1\n    b = 2\n",
         "def f():\n    a = 1\n    b = 3\n",
         b"def f():  \n    a = 1\t\n    b = 3\n"),
        # indented deeper in the file
        (b"class A:\n    def f(self):\n        return 1\n", "def f(self):\n    return 1",
         "def f(self):\n    x = 2\n    return x",
         b"class A:\n    def f(self):\n        x = 2\n        return x\n"),
        # less deep in the file
        (b"def f():\n    return 1\n", "    def f():\n        return 1\n", "    def f():\n        return 2\n",
         b"def f():\n    return 2\n"),
        # tabs in the file, blanks in the call
        (b"if a:\n\tif b:\n\t\tc()\nend\n", "if a:\n    if b:\n        c()\n",
         "if a:\n    if b:\n        c()\n        d()\n",
         b"if a:\n\tif b:\n\t\tc()\n\t\td()\nend\n"),
        # whole lines can go
        (b"a  \nb\n", "a\nb\n", "", b""),
        # the missing line ending of the last line stays missing
        (b"x\n  a\n  b", "a\nb", "a\nc", b"x\n  a\n  c"),
    ],
)  # fmt: skip
async def test_other_whitespace_is_tolerated_in_whole_lines(
    workspace: ToolWorkspace, before: bytes, old: str, new: str, after: bytes
):
    assert await edited(workspace, before, old, new) == after


@pytest.mark.parametrize(
    ("before", "old", "message"),
    [
        (b"a\na\n", "a", "found 2 times (lines 1, 2)"),
        (b"aaa", "aa", "found 2 times"),
        (b"  a \n  b\nx\n  a \n  b\n", "a\nb", "with other whitespace it fits lines 1, 4"),
        (b"hello world\n", "hello there", "The nearest text is:\n     1\thello world"),
        (b"one\n", "     1\tone", "line numbers"),
        (b"say \xe2\x80\x9chi\xe2\x80\x9d\n", 'say "hi"', "not in the file"),
        (b"a\n", "", "old_string is empty"),
        (b"if a:\n\tb\n    c\n", "if a:\n    b\n    c\n  d", "not in the file"),
    ],
)
async def test_what_is_not_beyond_doubt_is_refused(workspace: ToolWorkspace, before: bytes, old: str, message: str):
    path = workspace.write_file("file", before)
    await workspace.output_of("read", file_path="file")
    assert message in await workspace.error_of("edit", file_path="file", old_string=old, new_string="z")
    assert path.read_bytes() == before
    assert workspace.originals == []


async def test_replace_all_changes_every_occurrence_with_the_ending_of_its_place(workspace: ToolWorkspace):
    assert await edited(workspace, b"a\r\nb\na\nc", "a", "x\ny", replace_all=True) == b"x\r\ny\r\nb\nx\ny\nc"
    assert await edited(workspace, b"aaaa", "aa", "b", replace_all=True) == b"bb"


async def test_a_file_that_changed_since_it_was_read_is_refused_with_a_fresh_view_and_then_edited(
    workspace: ToolWorkspace,
):
    path = workspace.write_file("file", "a\nb\n")
    await workspace.output_of("read", file_path="file")
    path.write_text("a\nb\nnew\n")
    refusal = await workspace.error_of("edit", file_path="file", old_string="b", new_string="x")
    assert "was changed since you read it" in refusal
    assert "     3\tnew" in refusal
    assert path.read_text() == "a\nb\nnew\n"
    await workspace.output_of("edit", file_path="file", old_string="b", new_string="x")
    assert path.read_text() == "a\nx\nnew\n"


async def test_a_file_that_was_only_touched_is_not_reported_as_changed(workspace: ToolWorkspace):
    path = workspace.write_file("file", "a\n")
    await workspace.output_of("read", file_path="file")
    os.utime(path, (1, 1))
    await workspace.output_of("edit", file_path="file", old_string="a", new_string="x")


async def test_of_a_long_file_the_fresh_view_shows_the_lines_around_the_place(workspace: ToolWorkspace):
    path = workspace.write_file("file", "".join(f"line {number}\n" for number in range(5_000)))
    await workspace.output_of("read", file_path="file")
    path.write_text(path.read_text().replace("line 4000\n", "line 4000 changed\n"))
    refusal = await workspace.error_of("edit", file_path="file", old_string="line 4001", new_string="x")
    assert "line 4000 changed" in refusal
    assert len(refusal) < 6_000


async def test_an_unread_file_is_edited_only_where_the_text_matches_exactly(workspace: ToolWorkspace):
    path = workspace.write_file("file", "  a  \n  b\n")
    assert "not in the file" in await workspace.error_of("edit", file_path="file", old_string="a\nb", new_string="a\nc")
    await workspace.output_of("edit", file_path="file", old_string="  b", new_string="  c")
    assert path.read_text() == "  a  \n  c\n"


async def test_a_tolerant_edit_reports_it_and_shows_the_location(workspace: ToolWorkspace):
    workspace.write_file("file", "x\n    a = 1\n    b = 2\n")
    await workspace.output_of("read", file_path="file")
    output = await workspace.output_of("edit", file_path="file", old_string="a = 1\nb = 2", new_string="a = 1\nb = 3")
    assert "other indentation" in output
    assert "     3\t    b = 3" in output


async def test_an_empty_old_string_creates_a_file(workspace: ToolWorkspace):
    await workspace.output_of("edit", file_path="new/file", old_string="", new_string="a\n")
    assert (workspace.root / "new/file").read_text() == "a\n"
    assert workspace.originals == [(workspace.root / "new/file", None)]


async def test_mode_and_links_stay_and_a_second_name_is_refused(workspace: ToolWorkspace):
    path = workspace.write_file("file", "a\n")
    path.chmod(0o751)
    (workspace.root / "link").symlink_to("file")
    await workspace.output_of("edit", file_path="link", old_string="a", new_string="b")
    assert (workspace.root / "link").is_symlink()
    assert path.read_text() == "b\n"
    assert path.stat().st_mode & 0o7777 == 0o751
    os.link(path, workspace.root / "second")
    assert "2 names (hard links)" in await workspace.error_of("edit", file_path="file", old_string="b", new_string="c")
    assert path.read_text() == "b\n"
    assert workspace.list_files() == ["file", "link", "second"]


async def test_characters_that_the_encoding_lacks_are_refused(workspace: ToolWorkspace):
    path = workspace.write_file("file", b"caf\xe9\n")
    assert "latin-1, which has no character \\u2192" in await workspace.error_of(
        "edit", file_path="file", old_string="caf", new_string="→"
    )
    workspace.write_file("other", "a")
    assert "no character \\ud800" in await workspace.error_of(
        "edit", file_path="other", old_string="a", new_string="\ud800"
    )
    assert path.read_bytes() == b"caf\xe9\n"


@pytest.mark.parametrize("content", [b"a\0b", b"\x00\x01\x02\x03", bytes(range(256)) * 10])
async def test_a_binary_file_is_refused(workspace: ToolWorkspace, content: bytes):
    path = workspace.write_file("file", content)
    assert "binary" in await workspace.error_of("edit", file_path="file", old_string="a", new_string="b")
    assert path.read_bytes() == content


async def test_the_old_content_is_preserved_before_anything_is_written(workspace: ToolWorkspace):
    path = workspace.write_file("file", "a\n")
    await workspace.output_of("edit", file_path="file", old_string="a", new_string="b")
    assert workspace.originals == [(path, b"a\n")]


async def test_an_edit_whose_old_content_cannot_be_preserved_is_refused(workspace: ToolWorkspace):
    path = workspace.write_file("file", "a\n")
    workspace.saving_error = OSError("no room")
    refusal = await workspace.error_of("edit", file_path="file", old_string="a", new_string="b")
    assert "could not be stored for undo (no room). Nothing was written" in refusal
    assert path.read_text() == "a\n"
    assert workspace.list_files() == ["file"]


async def test_names_that_other_agents_use_are_understood(workspace: ToolWorkspace):
    path = workspace.write_file("file", "a\n")
    await workspace.output_of("edit", path="file", old_str="a", new_str="b")
    assert path.read_text() == "b\n"


async def test_a_file_that_changes_between_plan_and_writing_is_not_overwritten(
    workspace: ToolWorkspace, tmp_path: Path
):
    path = workspace.write_file("file", "a\n")

    async def keep(original: Path, content: bytes | None) -> None:
        path.write_text("somebody else's\n")

    workspace.save_original = keep
    refusal = await workspace.error_of("edit", file_path="file", old_string="a", new_string="b")
    assert "changed by another process" in refusal
    assert path.read_text() == "somebody else's\n"
    assert workspace.list_files() == ["file"]
