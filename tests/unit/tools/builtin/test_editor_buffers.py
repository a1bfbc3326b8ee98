"""File tools on a workspace whose files are open in an editor."""

import asyncio
import threading
from pathlib import Path

import pytest

from outrider.errors import ToolFailure
from outrider.tools.tool import ToolContext
from tests.unit.tools.builtin.tool_workspace import ToolWorkspace

PATCH = """*** Begin Patch
*** Update File: a.txt
@@
-one
+two
*** Add File: new/b.txt
+fresh
*** Update File: c.txt
@@
-three
+four
*** End Patch"""


class Buffers:
    """An editor in memory, which saves what is written. `locked` are names that it refuses to write."""

    can_read = can_write = True

    def __init__(self) -> None:
        self.unsaved: dict[str, str] = {}
        self.written: list[str] = []
        self.locked: set[str] = set()
        self.ignores_writes = False

        self.includes = lambda _: True

    def read_text(self, path: str) -> str | None:
        if path in self.unsaved:
            return self.unsaved[path]
        return Path(path).read_bytes().decode("utf-8", "replace") if Path(path).exists() else None

    def write_text(self, path: str, text: str) -> None:
        if Path(path).name in self.locked:
            raise ToolFailure("it is locked. Nothing was written")
        if not self.ignores_writes:
            self.written.append(Path(path).name)
            self.unsaved.pop(path, None)
            Path(path).write_bytes(text.encode())


@pytest.fixture
def buffers() -> Buffers:
    return Buffers()


@pytest.fixture
def workspace(tmp_path: Path, buffers: Buffers) -> ToolWorkspace:
    return ToolWorkspace(tmp_path / "workspace", buffers=buffers)


async def test_unsaved_text_is_stored_for_undo_and_line_endings_stay(workspace: ToolWorkspace, buffers: Buffers):
    path = workspace.write_file("a.txt", b"one\r\ntwo\r\n")
    buffers.unsaved[str(path)] = "one\nmine\n"  # editors may use one kind of line ending for all files
    assert "mine" in await workspace.output_of("read", file_path="a.txt")
    await workspace.output_of("edit", file_path="a.txt", old_string="one", new_string="1")
    assert path.read_bytes() == b"1\r\nmine\r\n"
    assert workspace.originals == [(path, b"one\r\nmine\r\n")]
    assert buffers.written == ["a.txt", "a.txt"]


async def test_a_buffer_that_changes_after_it_was_read_is_not_overwritten(workspace: ToolWorkspace, buffers: Buffers):
    path = workspace.write_file("a.txt", "one\n")
    await workspace.output_of("read", file_path="a.txt")
    buffers.unsaved[str(path)] = "one more\n"
    assert "was changed since you read it" in await workspace.error_of(
        "edit", file_path="a.txt", old_string="one", new_string="1"
    )
    assert (path.read_text(), buffers.written) == ("one\n", [])


@pytest.mark.parametrize("content", [b"caf\xe9 one\n", "\ufeffone\n".encode(), "one\n".encode("utf-16")])
async def test_files_that_editors_decode_differently_are_used_from_disk(
    workspace: ToolWorkspace, buffers: Buffers, content: bytes
):
    path = workspace.write_file("a.txt", content)
    await workspace.output_of("read", file_path="a.txt")
    await workspace.output_of("edit", file_path="a.txt", old_string="one", new_string="two")
    assert buffers.written == []
    assert len(path.read_bytes()) == len(content)


async def test_a_patch_that_the_editor_refuses_in_part_is_reverted_in_the_editor(
    workspace: ToolWorkspace, buffers: Buffers
):
    first, last = workspace.write_file("a.txt", "one\n"), workspace.write_file("c.txt", "three\n")
    buffers.locked = {"c.txt"}
    assert "c.txt: it is locked. Nothing was written" in await workspace.error_of("apply_patch", patch=PATCH)
    assert (first.read_text(), last.read_text()) == ("one\n", "three\n")
    assert workspace.list_files() == ["a.txt", "c.txt"]
    buffers.locked = set()
    await workspace.output_of("apply_patch", patch=PATCH)
    assert (first.read_text(), last.read_text()) == ("two\n", "four\n")
    assert (workspace.root / "new" / "b.txt").read_text() == "fresh\n"


async def test_an_editor_that_reports_a_write_and_does_none_fails_the_call(workspace: ToolWorkspace, buffers: Buffers):
    workspace.write_file("a.txt", "one\n")
    buffers.ignores_writes = True
    assert "the user's editor did not write it" in await workspace.error_of(
        "edit", file_path="a.txt", old_string="one", new_string="two"
    )


async def test_a_file_that_the_editor_cannot_read_is_written_by_it_unless_it_is_in_another_folder(
    workspace: ToolWorkspace, buffers: Buffers
):
    path = workspace.write_file("a.txt", "one\n")
    buffers.read_text = lambda _: None  # type: ignore[method-assign]
    await workspace.output_of("edit", file_path="a.txt", old_string="one", new_string="two")
    assert (path.read_text(), buffers.written) == ("two\n", ["a.txt"])
    buffers.includes = lambda _: False
    await workspace.output_of("edit", file_path="a.txt", old_string="two", new_string="three")
    await workspace.output_of("write", file_path="new.txt", content="fresh\n")
    assert (path.read_text(), buffers.written) == ("three\n", ["a.txt"])


@pytest.mark.parametrize("encoding", ["latin-1", "utf-8-sig", "utf-16"])
async def test_unsaved_text_in_another_encoding_is_read_and_not_overwritten(
    workspace: ToolWorkspace, buffers: Buffers, encoding: str
):
    path = workspace.write_file("a.txt", "café one\n".encode(encoding))
    buffers.unsaved[str(path)] = "café one and more\n"
    assert "one and more" in await workspace.output_of("read", file_path="a.txt")
    assert "unsaved changes" in await workspace.error_of("edit", file_path="a.txt", old_string="one", new_string="two")
    assert (path.read_bytes(), buffers.written) == ("café one\n".encode(encoding), [])
    buffers.unsaved[str(path)] = "\u8336\n"  # Latin-1 has no such character
    await workspace.output_of("read", file_path="a.txt")
    assert "unsaved changes" in await workspace.error_of("write", file_path="a.txt", content="two\n")


async def test_a_write_without_an_answer_is_not_reported_as_not_written(workspace: ToolWorkspace, buffers: Buffers):
    def write_text(path: str, text: str) -> None:
        raise ToolFailure("the user's editor does not respond, and may still write the file")

    buffers.write_text = write_text  # type: ignore[method-assign]
    error = await workspace.error_of("write", file_path="a.txt", content="one\n")
    assert "may still write" in error
    assert "Nothing was written" not in error


async def test_links_and_hard_links_are_checked_before_the_editor_writes(workspace: ToolWorkspace, buffers: Buffers):
    outside = workspace.root.parent / "outside.txt"
    outside.write_text("secret\n")
    (workspace.root / "link.txt").symlink_to(outside)
    assert "outside the workspace" in await workspace.error_of("read", file_path="link.txt")
    path = workspace.write_file("a.txt", "one\n")
    (workspace.root / "b.txt").hardlink_to(path)
    assert "hard links" in await workspace.error_of("edit", file_path="a.txt", old_string="one", new_string="two")
    assert buffers.written == []


async def test_names_of_unsaved_files_are_listed_until_they_are_saved(workspace: ToolWorkspace, buffers: Buffers):
    path = workspace.write_file("a.txt", "one\n")
    buffers.unsaved[str(path)] = "mine\n"
    assert workspace.files.list_unsaved() == []  # no tool has used it
    await workspace.output_of("read", file_path="a.txt")
    assert workspace.files.list_unsaved() == ["a.txt"]
    path.write_text(buffers.unsaved.pop(str(path)))
    assert workspace.files.list_unsaved() == []


async def test_a_second_cancellation_does_not_abandon_a_write(workspace: ToolWorkspace, buffers: Buffers):
    started, released = asyncio.Event(), threading.Event()
    loop, write_text = asyncio.get_running_loop(), buffers.write_text

    def write_late(path: str, text: str) -> None:
        loop.call_soon_threadsafe(started.set)
        assert released.wait(20)
        write_text(path, text)

    buffers.write_text = write_late  # type: ignore[method-assign]
    write = next(tool for tool in workspace.tools if tool.name == "write")
    arguments = {"file_path": "a.txt", "content": "one\n"}
    writing = asyncio.ensure_future(write.call(arguments, ToolContext(session_id="s")))
    try:
        await started.wait()
        for _ in range(3):
            writing.cancel()
            await asyncio.sleep(0.01)
            assert not writing.done()
    finally:
        released.set()
    with pytest.raises(asyncio.CancelledError):
        await writing
    assert (workspace.root / "a.txt").read_text() == "one\n"
