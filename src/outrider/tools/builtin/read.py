"""Reads a file: text by lines, images and PDF as attachments."""

import base64
from typing import Annotated, Any, BinaryIO

from outrider.errors import ToolFailure
from outrider.tools.context import ToolContext
from outrider.tools.tool import Tool, ToolResult, argument_aliases, prompt_beside
from outrider.tools.workspace_files import Bounds, Files, Piece, Place, SeenVersions, read_piece
from outrider.types.tool_state import Attachment

LARGEST_ATTACHMENT = 10 * 1024 * 1024
# A little less than the runner shows of an output, so that it is never cut in the middle.
BOUNDS = Bounds(lines=1_990, characters=28_000)
_MAGIC = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"%PDF-", "application/pdf"),
)
ALIASES = {"path": "file_path", "filename": "file_path", "filePath": "file_path", "start_line": "offset"}


def read_tool(files: Files, ledger: SeenVersions) -> Tool:
    def read(
        file_path: str,
        context: ToolContext,
        offset: Annotated[int | None, "first line, from 1"] = None,
        limit: int | None = None,
    ) -> ToolResult:
        first, bounds = max(offset or 1, 1), _bounds(limit)
        place = files.locate(file_path, "read")
        with files.open(place) as file:
            kind = media_type(file.read(16))
            file.seek(0)
            if kind is not None:
                return _attached(place, file, kind)
            piece = read_piece(file, first, bounds)
        if piece is None:
            raise ToolFailure(f"{place.shown} is a binary file, which cannot be shown as text")
        if piece.version is not None:
            ledger.saw(context.session_id, place.real, piece.version)
        return ToolResult(_told(piece), title=place.shown, metadata=_about(piece))

    return Tool(
        read,
        description=prompt_beside(__file__),
        read_only=True,
        repeatable=True,
        preprocess_args=argument_aliases(ALIASES),
    )


def media_type(start: bytes) -> str | None:
    if start[:4] == b"RIFF" and start[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for magic, kind in _MAGIC if start.startswith(magic)), None)


def _bounds(limit: int | None) -> Bounds:
    if limit is not None and limit < 1:
        raise ToolFailure(f"`limit` is the number of lines and at least 1, got {limit}")
    return Bounds(min(limit or BOUNDS.lines, BOUNDS.lines), BOUNDS.characters)


def _attached(place: Place, file: BinaryIO, kind: str) -> ToolResult:
    content = file.read(LARGEST_ATTACHMENT + 1)
    if len(content) > LARGEST_ATTACHMENT:
        raise ToolFailure(f"{place.shown} is larger than {LARGEST_ATTACHMENT:,} bytes, too large to attach")
    name = place.parts[-1]
    attachment = Attachment(kind, base64.b64encode(content).decode(), name=name)
    return ToolResult(f"{place.shown} ({kind}, {len(content):,} bytes) is attached.", (attachment,), place.shown)


def _told(piece: Piece) -> str:
    if piece.total == 0:
        return "(the file is empty)"
    if not piece.lines:
        raise ToolFailure(f"the file has only {piece.total} lines; line {piece.first} is beyond its end")
    text = "\n".join(f"{number:6}\t{line}" for number, line in enumerate(piece.lines, piece.first))
    last = piece.first + len(piece.lines) - 1
    if piece.cut:
        whole = f"of {piece.total}" if piece.total is not None else "of a very large file"
        text += f"\n\n(lines {piece.first}-{last} {whole}; read on with offset {last + 1})"
    if piece.encoding.label != "utf-8":
        text += f"\n\n(the file is in {piece.encoding.label}; it stays so when you change it)"
    return text


def _about(piece: Piece) -> dict[str, Any]:
    return {"first": piece.first, "lines": len(piece.lines), "total": piece.total, "encoding": piece.encoding.name}
