"""The `read` tool: returns text by lines, and images and PDF files as attachments."""

import base64
from typing import Any, BinaryIO

from outrider.errors import ToolFailure
from outrider.tools.definitions import argument_aliases, load_prompt
from outrider.tools.tool import Tool, ToolContext, ToolResult
from outrider.tools.workspace_files import (
    UNSAVED_NOTE,
    FileLines,
    FileLocation,
    ReadBounds,
    SeenVersions,
    WorkspaceFiles,
    read_lines,
)
from outrider.types.tool_state import Attachment

MAX_ATTACHMENT = 10 * 1024 * 1024
# Slightly less than the runner's output cap, so that the runner never cuts the middle of a file.
READ_BOUNDS = ReadBounds(lines=1_990, characters=28_000)
_MAGIC_BYTES = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"%PDF-", "application/pdf"),
)
ALIASES = {"path": "file_path", "filename": "file_path", "filePath": "file_path", "start_line": "offset"}


def read_tool(files: WorkspaceFiles, ledger: SeenVersions) -> Tool:
    def read(
        file_path: str,
        context: ToolContext,
        offset: int | None = None,
        limit: int | None = None,
    ) -> ToolResult:
        first_line, bounds = max(offset or 1, 1), _bounds_for(limit)
        if (folder := files.locate_folder(file_path)) is not None:
            return ToolResult(files.list_folder(folder), title=folder.display)
        location = files.locate(file_path, "read")
        with files.open_current(location) as (file, unsaved):
            kind = media_type(file.read(16))
            file.seek(0)
            if kind is not None:
                return _attach_file(location, file, kind)
            lines = read_lines(file, first_line, bounds)
        if lines is None:
            raise ToolFailure(f"{location.display} is a binary file, which cannot be shown as text")
        if lines.version is not None:
            ledger.record(context.session_id, location.real, lines.version)
        note = f"\n\n({UNSAVED_NOTE})" if unsaved else ""
        return ToolResult(_format_lines(lines) + note, title=location.display, metadata=_result_metadata(lines))

    return Tool(
        read,
        description=load_prompt(__file__, "read"),
        read_only=True,
        repeatable=True,
        path_parameters=("file_path",),
        path_operation="read",
        preprocess_args=argument_aliases(ALIASES),
    )


def media_type(start: bytes) -> str | None:
    if start[:4] == b"RIFF" and start[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for magic, kind in _MAGIC_BYTES if start.startswith(magic)), None)


def _bounds_for(limit: int | None) -> ReadBounds:
    if limit is not None and limit < 1:
        raise ToolFailure(f"`limit` is the number of lines and at least 1, got {limit}")
    return ReadBounds(min(limit or READ_BOUNDS.lines, READ_BOUNDS.lines), READ_BOUNDS.characters)


def _attach_file(location: FileLocation, file: BinaryIO, kind: str) -> ToolResult:
    content = file.read(MAX_ATTACHMENT + 1)
    if len(content) > MAX_ATTACHMENT:
        raise ToolFailure(f"{location.display} is larger than {MAX_ATTACHMENT:,} bytes, too large to attach")
    name = location.parts[-1]
    attachment = Attachment(kind, base64.b64encode(content).decode(), name=name)
    return ToolResult(
        f"{location.display} ({kind}, {len(content):,} bytes) is attached.", (attachment,), location.display
    )


def _format_lines(lines: FileLines) -> str:
    if lines.total == 0:
        return "(the file is empty)"
    if not lines.lines:
        raise ToolFailure(f"the file has only {lines.total} lines; line {lines.first} is beyond its end")
    text = "\n".join(f"{number:6}\t{line}" for number, line in enumerate(lines.lines, lines.first))
    last_line = lines.first + len(lines.lines) - 1
    if lines.truncated:
        total = f"of {lines.total}" if lines.total is not None else "of a very large file"
        text += f"\n\n(lines {lines.first}-{last_line} {total}; read on with offset {last_line + 1})"
    if lines.encoding.label != "utf-8":
        text += f"\n\n(the file is in {lines.encoding.label}; it stays so when you change it)"
    return text


def _result_metadata(lines: FileLines) -> dict[str, Any]:
    return {"first": lines.first, "lines": len(lines.lines), "total": lines.total, "encoding": lines.encoding.name}
