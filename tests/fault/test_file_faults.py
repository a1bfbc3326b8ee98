"""Faults of files that tools read and change: contents stay complete, and the model is informed."""

import asyncio
import contextlib
import errno
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from outrider import Tool, ToolContext, ToolPart, ToolPending
from outrider.tools.builtin.glob import glob_tool, list_tool
from outrider.tools.builtin.grep import grep_tool
from outrider.tools.runner import ToolRunner
from outrider.tools.tool import tools_by_name
from tests.unit.tools.builtin.tool_workspace import ToolWorkspace


@contextlib.contextmanager
def small_disk(folder: Path, kilobytes: int) -> Iterator[Path]:
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k,mode=700", "tmpfs", str(folder)]
    if shutil.which("mount") is None or os.geteuid() != 0:
        pytest.skip("only root can make a small disk")
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"may not mount a small disk here: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder: Path, leave: int) -> None:
    """Fill the disk but for so many bytes."""
    with (folder / "filler").open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError as error:
            assert error.errno == errno.ENOSPC
        file.truncate(max(0, file.tell() - leave))


@pytest.mark.parametrize("tool", ["edit", "write", "apply_patch"])
async def test_sf_041_a_full_disk_leaves_the_old_file_whole_and_no_rest(tmp_path: Path, tool: str):
    with small_disk(tmp_path / "disk", 1024) as disk:
        workspace = ToolWorkspace(disk)
        old = b"line\n" * 20_000
        path = workspace.write_file("file", old)
        await workspace.output_of("read", file_path="file", limit=1)
        fill(disk, 4096)
        arguments = {
            "edit": {"file_path": "file", "old_string": "line", "new_string": "other", "replace_all": True},
            "write": {"file_path": "file", "content": "x" * 200_000},
            "apply_patch": {"patch": _patch_of("x" * 200_000)},
        }[tool]
        error = await workspace.error_of(tool, **arguments)
        assert "the disk is full" in error
        assert path.read_bytes() == old
        assert workspace.list_files() == ["file", "filler"]
        (disk / "filler").unlink()
        await workspace.output_of(tool, **arguments)  # with room again it works


def _patch_of(text: str) -> str:
    """A small change first, then a file for which there is no room."""
    update = ["*** Update File: file", "@@", "-line", "+first", "*** End of File"]
    return "\n".join(["*** Begin Patch", *update, "*** Add File: new/large", f"+{text}", "*** End Patch"])


async def test_sf_052_a_workspace_that_is_deleted_moved_or_replaced_is_a_failure_of_each_call(tmp_path: Path):
    workspace = ToolWorkspace(tmp_path / "ws")
    workspace.tools += [list_tool(workspace.files), glob_tool(workspace.files), grep_tool(workspace.files)]
    workspace.write_file("file", "a\n")
    calls = {
        "read": {"file_path": "file"},
        "write": {"file_path": "new", "content": "x"},
        "edit": {"file_path": "file", "old_string": "a", "new_string": "b"},
        "apply_patch": {"patch": "*** Begin Patch\n*** Add File: n\n+x\n*** End Patch"},
        "list": {},
        "glob": {"pattern": "*"},
        "grep": {"pattern": "a"},
    }
    workspace.root.rename(tmp_path / "moved")
    for tool, arguments in calls.items():
        assert "does not exist any more" in await workspace.error_of(tool, **arguments)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "file").write_text("secret a\n")
    workspace.root.symlink_to(tmp_path / "elsewhere")
    for tool, arguments in calls.items():
        assert "replaced by a link" in await workspace.error_of(tool, **arguments)
    assert (tmp_path / "elsewhere" / "file").read_text() == "secret a\n"
    assert (tmp_path / "moved" / "file").read_text() == "a\n"
    workspace.root.unlink()
    (tmp_path / "moved").rename(workspace.root)
    assert "\ta" in await workspace.output_of("read", file_path="file")  # the session continues where it was


async def test_sf_052_a_folder_swapped_for_a_link_while_a_change_is_stored_has_no_effect_outside(tmp_path: Path):
    workspace = ToolWorkspace(tmp_path / "ws")
    workspace.write_file("src/file", "a\n")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("a\n")

    async def keep(path: Path, content: bytes | None) -> None:
        (workspace.root / "src").rename(workspace.root / "was")
        (workspace.root / "src").symlink_to(outside)

    workspace.save_original = keep
    assert await workspace.error_of("edit", file_path="src/file", old_string="a", new_string="b")
    assert (outside / "file").read_text() == "a\n"
    assert list(outside.iterdir()) == [outside / "file"]


def raises() -> None:
    raise RuntimeError("broken")


def hangs() -> bytes:
    """Blocks in a system call, which cannot be cancelled."""
    read, write = os.pipe()
    os.set_blocking(read, True)
    _pipes.append((read, write))
    return os.read(read, 1)


_pipes: list[tuple[int, int]] = []


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (raises, "RuntimeError: broken"),
        (lambda: None, "(no output)"),
        (lambda: "x" * 50_000_000, "of 50,000,000 characters"),
        (lambda: {1, 2}, "[1,2]"),
        (lambda: object(), "cannot be written as JSON"),  # noqa: PLW0108  a class is no function
        (lambda: b"\xff\xfe", "\ufffd"),
        (hangs, "timed out after 0.2 s"),
    ],
)
async def test_sf_080_every_behavior_of_a_tool_is_one_bounded_result(function, message: str):
    async def record(part: ToolPart) -> None:
        pass

    tool = Tool(function, name="t", timeout=0.2 if function is hangs else None)
    part = await ToolRunner(tools_by_name([tool]), record).run(
        ToolPart("c", "t", ToolPending({}, phase="ready")), ToolContext()
    )
    text = getattr(part.state, "output", None) or part.state.error  # pyright: ignore[reportAttributeAccessIssue]
    assert message in text
    assert len(text) < 40_000
    for _, write in _pipes:
        os.write(write, b"x")
    while _pipes:
        for end in _pipes.pop():
            os.close(end)


async def test_sf_082_a_file_without_any_rights_is_refused_or_has_its_mode_afterwards(tmp_path: Path):
    workspace = ToolWorkspace(tmp_path / "ws")
    path = workspace.write_file("file", "a\n")
    path.chmod(0)
    part = await workspace.call("edit", file_path="file", old_string="a", new_string="b")
    path.chmod(0o600 if part.state.status == "error" else path.stat().st_mode)
    assert path.stat().st_mode & 0o777 in {0, 0o600}
    assert path.read_text() == ("b\n" if part.state.status == "completed" else "a\n")


async def test_sf_082_a_file_of_gigabytes_is_refused_before_it_is_read(tmp_path: Path):
    workspace = ToolWorkspace(tmp_path / "ws")
    path = workspace.write_file("file", "a\n")
    os.truncate(path, 2 * 1024**3)
    assert "are not changed" in await workspace.error_of("edit", file_path="file", old_string="a", new_string="b")
    assert "are not changed" in await workspace.error_of("write", file_path="file", content="b")
    assert path.stat().st_size == 2 * 1024**3


async def test_sf_082_a_read_only_file_of_another_is_refused(tmp_path: Path):
    """As root nothing is read-only; the check applies to other users."""
    if os.geteuid() == 0:
        pytest.skip("root may write everything")
    workspace = ToolWorkspace(tmp_path / "ws")
    workspace.write_file("file", "a\n").chmod(0o444)
    assert "is read-only" in await workspace.error_of("edit", file_path="file", old_string="a", new_string="b")


async def test_sf_083_a_file_changed_between_read_and_edit_is_refused_with_a_fresh_view(tmp_path: Path):
    workspace = ToolWorkspace(tmp_path / "ws")
    path = workspace.write_file("file", "one\ntwo\n")
    await workspace.output_of("read", file_path="file")
    path.write_text("one\ntwo\nthree\n")
    error = await workspace.error_of("edit", file_path="file", old_string="two", new_string="2")
    assert "was changed since you read it" in error
    assert "     3\tthree" in error
    assert path.read_text() == "one\ntwo\nthree\n"


async def test_sf_084_of_two_sub_agents_that_edit_one_file_the_second_sees_a_mismatch(tmp_path: Path):
    workspace = ToolWorkspace(tmp_path / "ws")
    path = workspace.write_file("file", "one\ntwo\n")
    await workspace.output_of("read", "first", file_path="file")
    await workspace.output_of("read", "second", file_path="file")
    ended = await asyncio.gather(
        workspace.call("edit", "first", file_path="file", old_string="one", new_string="1"),
        workspace.call("edit", "second", file_path="file", old_string="two", new_string="2"),
    )
    assert sorted(part.state.status for part in ended) == ["completed", "error"]
    late = "second" if ended[0].state.status == "completed" else "first"
    old, new = ("two", "2") if late == "second" else ("one", "1")
    await workspace.output_of("edit", late, file_path="file", old_string=old, new_string=new)  # after the fresh view
    assert path.read_text() == "1\n2\n"


async def test_sf_084_engines_in_two_processes_lose_no_update(tmp_path: Path):
    """Two editors that share nothing: a change that lands between the plan and the writing is noticed."""
    one, other = ToolWorkspace(tmp_path / "ws"), ToolWorkspace(tmp_path / "ws")
    path = one.write_file("file", "a\nb\n")

    async def keep(original: Path, content: bytes | None) -> None:
        await other.output_of("edit", file_path="file", old_string="a", new_string="A")

    one.save_original = keep
    assert "another process" in await one.error_of("edit", file_path="file", old_string="b", new_string="B")
    assert path.read_text() == "A\nb\n"
