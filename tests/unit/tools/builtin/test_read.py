"""read: returns lines of text files, attachments, and an explanation for other files."""

import base64
import os
import socket
from pathlib import Path

import pytest

from outrider import ToolCompleted
from tests.unit.tools.builtin.tool_workspace import ToolWorkspace

PNG = b"\x89PNG\r\n\x1a\n" + bytes(20)


async def test_lines_are_numbered_and_a_range_can_be_chosen(workspace: ToolWorkspace):
    workspace.write_file("file", "a\nb\nc\nd\n")
    assert await workspace.output_of("read", file_path="file") == "     1\ta\n     2\tb\n     3\tc\n     4\td"
    assert await workspace.output_of("read", file_path="file", offset=2, limit=2) == (
        "     2\tb\n     3\tc\n\n(lines 2-3 of 4; read on with offset 4)"
    )


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("\ufeffä\r\nb".encode("utf-16-le"), "utf-16-le with BOM"),
        (b"\xef\xbb\xbf\xc3\xa4\nb", "utf-8 with BOM"),
        (b"\xe4\nb", "latin-1"),
        (b"\xe4\nb \x80", "cp1252"),
        ("\ufeffä\nb".encode("utf-32-be"), "utf-32-be with BOM"),
    ],
)
async def test_the_encoding_is_found_and_named(workspace: ToolWorkspace, content: bytes, text: str):
    workspace.write_file("file", content)
    output = await workspace.output_of("read", file_path="file")
    assert output.startswith("     1\tä\n     2\tb")
    assert f"(the file is in {text};" in output


async def test_an_old_macintosh_file_has_lines_too(workspace: ToolWorkspace):
    workspace.write_file("file", b"a\rb\r")
    assert await workspace.output_of("read", file_path="file") == "     1\ta\n     2\tb"


async def test_wrong_bytes_in_a_utf8_file_are_shown_as_such(workspace: ToolWorkspace):
    workspace.write_file("file", "äöü".encode() + b"\xff\n")
    assert "äöü\ufffd" in await workspace.output_of("read", file_path="file")


async def test_an_empty_file_is_reported_and_a_position_beyond_the_end_is_an_error(workspace: ToolWorkspace):
    workspace.write_file("empty", b"")
    assert await workspace.output_of("read", file_path="empty") == "(the file is empty)"
    workspace.write_file("file", "a\n")
    assert "has only 1 lines" in await workspace.error_of("read", file_path="file", offset=9)


@pytest.mark.parametrize(
    ("start", "kind"),
    [(PNG, "image/png"), (b"%PDF-1.7\n", "application/pdf"), (b"RIFF\0\0\0\0WEBPVP8 ", "image/webp")],
)
async def test_images_and_pdf_are_attached_under_any_name(workspace: ToolWorkspace, start: bytes, kind: str):
    workspace.write_file("thing.txt", start)
    part = await workspace.call("read", file_path="thing.txt")
    assert isinstance(part.state, ToolCompleted)
    (attachment,) = part.state.attachments
    assert attachment.mime_type == kind
    assert base64.b64decode(attachment.data or "") == start


@pytest.mark.parametrize("content", [b"\0\1\2" * 100, b"ELF\0", bytes(range(128, 256)) + bytes(range(32)) * 4])
async def test_a_binary_file_is_refused_with_a_message(workspace: ToolWorkspace, content: bytes):
    workspace.write_file("file", content)
    assert "binary file" in await workspace.error_of("read", file_path="file")


async def test_a_long_line_is_cut_and_a_long_file_comes_in_pieces(workspace: ToolWorkspace):
    workspace.write_file("line", "x" * 1_000_000 + "\nshort\n")
    output = await workspace.output_of("read", file_path="line")
    assert len(output) < 2_200
    assert "998,000 more characters in this line" in output
    assert output.endswith("     2\tshort")
    workspace.write_file("file", "".join(f"line {number}\n" for number in range(1, 10_001)))
    output = await workspace.output_of("read", file_path="file")
    assert len(output) < 30_000
    assert "of 10000; read on with offset" in output
    offset = int(output.rpartition("offset ")[2].rstrip(")"))
    assert f"\tline {offset}\n" in await workspace.output_of("read", file_path="file", offset=offset)


async def test_a_file_of_gigabytes_is_read_in_bounded_memory(workspace: ToolWorkspace):
    path = workspace.write_file("file", "first\nsecond\n" + "text\n" * 20_000)
    with path.open("r+b") as file:
        file.seek(50 * 1024 * 1024)
        file.write(b"\nlast\n")
    assert "     2\tsecond" in await workspace.output_of("read", file_path="file", limit=2)
    with path.open("ab") as file:
        file.truncate(3 * 1024**3)
    output = await workspace.output_of("read", file_path="file", limit=2)
    assert "of a very large file" in output


def special(folder: Path, kind: str) -> str:
    path = folder / kind
    match kind:
        case "fifo":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
        case "socket":
            with socket.socket(socket.AF_UNIX) as plug:
                plug.bind(str(path))
        case "dangling":
            path.symlink_to("nowhere")
        case "circle":
            path.symlink_to("circle")
        case "device":
            path.symlink_to("/dev/zero")
        case "outside":
            path.symlink_to("/etc/hosts")
    return kind


@pytest.mark.parametrize("kind", ["fifo", "folder", "socket", "dangling", "circle", "device", "outside", "missing"])
@pytest.mark.parametrize("tool", ["read", "write", "edit", "apply_patch"])
async def test_what_is_no_file_is_refused_at_once(tmp_path: Path, tool: str, kind: str):
    workspace = ToolWorkspace(Path(os.path.relpath(tmp_path / "w")))
    name = special(workspace.root, kind)
    arguments = {
        "read": {"file_path": name},
        "write": {"file_path": name + "/x" if kind in {"missing", "dangling", "folder"} else name, "content": "x"},
        "edit": {"file_path": name, "old_string": "a", "new_string": "b"},
        "apply_patch": {"patch": f"*** Begin Patch\n*** Delete File: {name}\n*** End Patch"},
    }[tool]
    if (tool == "write" and kind in {"missing", "dangling", "folder"}) or (tool, kind) == ("read", "folder"):
        return
    assert await workspace.error_of(tool, **arguments)


@pytest.mark.parametrize(
    "path",
    ["", "\0", "a\0b", "x" * 300, "x/" * 3_000, "../out", "/etc/passwd", "~root", "file:///etc/passwd", "\x1b[31m\n",
     "a\ud800", "/proc/self/mem", "/dev/stdin", ".", "/", "a/../.."],
)  # fmt: skip
@pytest.mark.parametrize("tool", ["read", "write", "edit"])
async def test_unusual_paths_are_refused_with_a_message(workspace: ToolWorkspace, tool: str, path: str):
    if (tool, path) == ("read", "."):
        return
    arguments = {"read": {}, "write": {"content": "x"}, "edit": {"old_string": "a", "new_string": "b"}}[tool]
    if tool == "write" and path == "\x1b[31m\n":
        return  # a strange name, and a possible one
    error = await workspace.error_of(tool, file_path=path, **arguments)
    assert "\x1b" not in error
    assert "Traceback" not in error


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("read", {}), ("read", {"file_path": None}), ("read", {"file_path": 7}), ("read", {"file_path": ["a"]}),
        ("read", {"file_path": "a", "offset": "x"}), ("read", {"file_path": "a", "limit": 0}),
        ("read", {"file_path": "a", "limit": -1}), ("read", {"file_path": "a", "extra": 1}),
        ("write", {"file_path": "a"}), ("write", {"file_path": "a", "content": None}),
        ("write", {"file_path": "a", "content": {"a": 1}}), ("write", {"file_path": "a", "content": "\ud800"}),
        ("edit", {"file_path": "a", "old_string": "a"}),
        ("edit", {"file_path": "a", "old_string": 1, "new_string": "b"}),
        ("edit", {"file_path": "a", "old_string": "a", "new_string": "b", "replace_all": "perhaps"}),
        ("apply_patch", {}), ("apply_patch", {"patch": 1}), ("apply_patch", {"patch": ""}),
        ("apply_patch", {"patch": "nonsense"}), ("apply_patch", {"patch": "\0" * 1000}),
    ],
)  # fmt: skip
async def test_wrong_arguments_are_answered_precisely_and_change_nothing(
    workspace: ToolWorkspace, tool: str, arguments: dict
):
    workspace.write_file("a", "a\na\n")
    assert await workspace.error_of(tool, **arguments)
    assert (workspace.root / "a").read_text() == "a\na\n"
    assert workspace.list_files() == ["a"]


async def test_a_missing_file_names_its_neighbours(workspace: ToolWorkspace):
    workspace.write_file("settings.toml", "")
    error = await workspace.error_of("read", file_path="setting.toml")
    assert error == "setting.toml does not exist; did you mean settings.toml?"


async def test_stored_outputs_next_to_the_workspace_may_be_read_but_not_written(tmp_path: Path):
    outputs = tmp_path / "outputs"
    outputs.mkdir()
    (outputs / "1.txt").write_text("long output")
    workspace = ToolWorkspace(tmp_path / "ws", readable=[outputs])
    assert "long output" in await workspace.output_of("read", file_path=str(outputs / "1.txt"))
    assert await workspace.error_of("edit", file_path=str(outputs / "1.txt"), old_string="long", new_string="x")


async def test_a_place_outside_is_used_when_it_was_granted_and_only_that_place(tmp_path: Path):
    (tmp_path / "a").write_text("a\n")
    (tmp_path / "b").write_text("b\n")
    workspace = ToolWorkspace(tmp_path / "ws", granted=lambda found, op: found.real_path == str(tmp_path / "a"))
    assert "\ta" in await workspace.output_of("read", file_path=str(tmp_path / "a"))
    await workspace.output_of("edit", file_path="../a", old_string="a", new_string="c")
    assert (tmp_path / "a").read_text() == "c\n"
    assert "may not be used without approval" in await workspace.error_of("read", file_path="../b")


async def test_a_folder_is_listed(workspace: ToolWorkspace):
    workspace.write_file("src/a.py", "a")
    assert await workspace.output_of("read", file_path="src") == "a.py (1 bytes)"
    assert "src/" in await workspace.output_of("read", file_path=".")
