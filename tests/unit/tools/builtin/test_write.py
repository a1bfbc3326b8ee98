"""write: a whole file at once, never over something that the model does not know."""

import asyncio
import errno
import os
import threading
from pathlib import Path

import pytest

from outrider.tools.tool import ToolContext
from tests.unit.tools.builtin.tool_workspace import ToolWorkspace


async def test_a_new_file_is_made_with_its_folders_and_the_usual_mode(workspace: ToolWorkspace):
    mask = os.umask(0o022)
    try:
        output = await workspace.output_of("write", file_path="a/b/c.txt", content="x\ny\n")
    finally:
        os.umask(mask)
    assert output == "Created a/b/c.txt (2 lines)."
    path = workspace.root / "a/b/c.txt"
    assert path.read_text() == "x\ny\n"
    assert path.stat().st_mode & 0o777 == 0o644
    assert workspace.originals == [(path, None)]
    assert workspace.list_files() == ["a", "a/b", "a/b/c.txt"]


async def test_a_file_that_was_not_read_is_not_overwritten(workspace: ToolWorkspace):
    path = workspace.write_file("file", "precious\n")
    assert "was not read in this session" in await workspace.error_of("write", file_path="file", content="x")
    assert path.read_text() == "precious\n"
    await workspace.output_of("read", file_path="file")
    assert "was not read in this session" in await workspace.error_of("write", "other", file_path="file", content="x")
    await workspace.output_of("write", file_path="file", content="x")
    await workspace.output_of("write", file_path="file", content="y")  # what it wrote itself, it knows
    assert path.read_text() == "y"


async def test_a_file_that_changed_since_it_was_read_is_refused_with_a_fresh_view(workspace: ToolWorkspace):
    path = workspace.write_file("file", "a\n")
    await workspace.output_of("read", file_path="file")
    path.write_text("b\n")
    assert "     1\tb" in await workspace.error_of("write", file_path="file", content="x")
    assert path.read_text() == "b\n"


async def test_mode_encoding_mark_and_line_endings_of_the_old_file_stay(workspace: ToolWorkspace):
    path = workspace.write_file("file", "\ufeffä\r\nb\r\n".encode("utf-16-le"))
    path.chmod(0o640)
    await workspace.output_of("read", file_path="file")
    await workspace.output_of("write", file_path="file", content="x\ny\n")
    assert path.read_bytes() == "\ufeffx\r\ny\r\n".encode("utf-16-le")
    assert path.stat().st_mode & 0o777 == 0o640


@pytest.mark.skipif(not hasattr(os, "setxattr"), reason="the system has no extended attributes")
async def test_extended_attributes_stay(workspace: ToolWorkspace):
    path = workspace.write_file("file", "a\n")
    try:
        os.setxattr(path, "user.note", b"kept")
    except OSError:
        pytest.skip("the file system has no extended attributes")
    await workspace.output_of("read", file_path="file")
    await workspace.output_of("write", file_path="file", content="x\n")
    assert os.getxattr(path, "user.note") == b"kept"


async def test_protected_files_are_refused(workspace: ToolWorkspace):
    assert "protected" in await workspace.error_of("write", file_path=".git/config", content="x")
    assert workspace.list_files() == []


async def test_folders_made_for_a_write_that_fails_are_removed(workspace: ToolWorkspace):
    name = "n" * 255 + "/x"
    assert await workspace.error_of("write", file_path=f"new/{name[:200]}{'y' * 100}", content="x")
    assert workspace.list_files() == []


async def test_calls_of_one_session_for_one_file_come_one_after_the_other(workspace: ToolWorkspace):
    workspace.write_file("file", "".join(f"<{number}>\n" for number in range(20)))
    await workspace.output_of("read", file_path="file")
    await asyncio.gather(
        *(workspace.output_of("edit", file_path="file", old_string=f"<{n}>", new_string=f"[{n}]") for n in range(20))
    )
    assert (workspace.root / "file").read_text() == "".join(f"[{number}]\n" for number in range(20))


async def test_a_call_cancelled_while_the_old_content_is_preserved_writes_nothing(workspace: ToolWorkspace):
    path = workspace.write_file("file", "a\n")
    started = asyncio.Event()

    async def keep(original: Path, content: bytes | None) -> None:
        started.set()
        await asyncio.sleep(10)

    workspace.save_original = keep
    edit = next(tool for tool in workspace.tools if tool.name == "edit")
    arguments = {"file_path": "file", "old_string": "a", "new_string": "b"}
    task = asyncio.ensure_future(edit.call(arguments, ToolContext(session_id="s")))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert path.read_text() == "a\n"
    assert workspace.list_files() == ["file"]


async def test_editors_of_sessions_that_are_over_leave_no_threads(tmp_path: Path):
    await ToolWorkspace(tmp_path / "first").output_of("write", file_path="a", content="x")
    before = threading.active_count()
    for number in range(40):
        await ToolWorkspace(tmp_path / f"{number}").output_of("write", file_path="a", content="x")
    assert threading.active_count() - before < 20


async def test_without_links_a_new_file_is_written_whole_and_never_replaces_one(
    workspace: ToolWorkspace, monkeypatch: pytest.MonkeyPatch
):
    made_by_others: list[str] = []

    def link(*arguments: object, **options: object) -> None:
        for name in made_by_others:  # at this moment, as by another process
            (workspace.root / name).write_text("theirs\n")
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", link)
    mask = os.umask(0o022)
    try:
        await workspace.output_of("write", file_path="mine.txt", content="x\n")
    finally:
        os.umask(mask)
    assert (workspace.root / "mine.txt").read_text() == "x\n"
    assert (workspace.root / "mine.txt").stat().st_mode & 0o777 == 0o644
    made_by_others.append("other.txt")
    assert "changed by another process" in await workspace.error_of("write", file_path="other.txt", content="x\n")
    assert (workspace.root / "other.txt").read_text() == "theirs\n"
    assert workspace.list_files() == ["mine.txt", "other.txt"]
