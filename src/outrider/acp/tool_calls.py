"""Converts tool calls and prompts between our parts and the protocol's content blocks."""

import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, assert_never
from urllib.parse import unquote, urlsplit

import acp
import msgspec
from acp.helpers import ContentBlock
from acp.schema import (
    AudioContentBlock,
    ContentToolCallContent,
    EmbeddedResourceContentBlock,
    FileEditToolCallContent,
    ImageContentBlock,
    ResourceContentBlock,
    TextContentBlock,
    TextResourceContents,
    ToolCallLocation,
    ToolCallProgress,
    ToolCallStart,
    ToolCallStatus,
    ToolCallUpdate,
    ToolKind,
)

from outrider.errors import ConfigurationError
from outrider.presentation.diffs import DiffHunk, FileDiff
from outrider.presentation.formats import replace_surrogates, shorten
from outrider.presentation.tool_calls import call_changes, call_kind, call_title, patch_argument
from outrider.types.origins import make_origin
from outrider.types.parts import FilePart, ResourceSource, TextPart, ToolPart
from outrider.types.tool_declaration import CallKind
from outrider.types.tool_state import ToolCompleted, ToolError, ToolPending, ToolRunning, make_data_url, parse_data_url

MAX_LINE_LENGTH = 200


def to_json_value(value: Any) -> Any:
    """Converts a nested value to one that JSON can encode."""
    match value:
        case str():
            return replace_surrogates(value)
        case dict():
            return {replace_surrogates(str(name)): to_json_value(item) for name, item in value.items()}  # pyright: ignore
        case list() | tuple():
            return [to_json_value(item) for item in value]  # pyright: ignore
        case float() if not math.isfinite(value):
            return str(value)
        case bool() | int() | float() | None:
            return value
        case _:
            return replace_surrogates(str(value))


def to_single_line(text: str) -> str:
    return shorten(replace_surrogates(text), MAX_LINE_LENGTH)


def fence_text(text: str, language: str = "") -> str:
    """Wraps plain text in a Markdown code fence that is longer than any fence in it, because clients render all text as
    Markdown."""
    longest = max((len(ticks) for ticks in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{replace_surrogates(text)}\n{fence}"


ToolCallContent = ContentToolCallContent | FileEditToolCallContent
MAX_OUTPUT_CHARS = 10_000  # characters of live output

_KINDS: dict[CallKind, ToolKind] = {
    "read": "read",
    "edit": "edit",
    "search": "search",
    "execute": "execute",
    "fetch": "fetch",
    "think": "think",
    "agent": "other",
    "other": "other",
}


class ToolCallView(msgspec.Struct, frozen=True, kw_only=True):
    """The displayed fields of a call, which three protocol messages share."""

    id: str
    title: str
    kind: ToolKind
    status: ToolCallStatus
    content: list[ToolCallContent]
    locations: list[ToolCallLocation]
    raw_input: dict[str, Any] | None
    raw_output: dict[str, Any] | None = None
    meta: dict[str, Any] | None = None

    def to_start(self) -> ToolCallStart:
        return ToolCallStart(session_update="tool_call", tool_call_id=self.id, **self._common_fields())

    def to_progress(self) -> ToolCallProgress:
        return ToolCallProgress(session_update="tool_call_update", tool_call_id=self.id, **self._common_fields())

    def to_permission_update(self, question: str = "") -> ToolCallUpdate:
        """Returns the call for a permission request, with the question as the first content block. The text of a call
        that has not started is its input, which the question contains."""
        fields = self._common_fields()
        if question.strip():
            blocks = [
                block
                for block in self.content
                if self.status != "pending" or isinstance(block, FileEditToolCallContent)
            ]
            fields["content"] = [_text_block(question), *blocks]
        return ToolCallUpdate(tool_call_id=self.id, **fields)

    def _common_fields(self) -> dict[str, Any]:
        names = ("title", "kind", "status", "content", "locations", "raw_input", "raw_output")
        return {"field_meta": self.meta, **{name: getattr(self, name) for name in names}}


def view_tool_call(call: ToolPart, folder: Path, output: str = "", agent: str = "") -> ToolCallView:
    """Returns the view of a call. `output` is what a running call has written so far; `agent` is set for calls of child
    sessions. Paths of changed files are relative to `folder`."""
    changes = call_changes(call)
    title = to_single_line(call_title(call.tool, call.state.input))
    return ToolCallView(
        id=call.id,
        title=f"{to_single_line(agent)}: {title}" if agent else title,
        kind=_KINDS[call_kind(call)],
        status=_call_status(call),
        content=[*_diff_content(changes, folder), *_text_content(call, output, changes)],
        locations=_call_locations(call, changes, folder),
        raw_input=to_json_value(call.state.input) or None,
        raw_output=_raw_output(call),
    )


def show_planned_changes(view: ToolCallView, changes: Sequence[FileDiff], folder: Path) -> ToolCallView:
    """Returns the view with the exact diff of what an edit would change, if it is known."""
    if not changes:
        return view
    locations = _change_locations(changes, folder)
    return msgspec.structs.replace(view, content=list(_diff_content(changes, folder)), locations=locations)


def _change_locations(changes: Sequence[FileDiff], folder: Path) -> list[ToolCallLocation]:
    return [
        ToolCallLocation(path=_absolute_path(folder, file.path), line=_hunk_line(hunk))
        for file in changes
        for hunk in file.hunks or (DiffHunk(()),)
    ]


def _call_status(call: ToolPart) -> ToolCallStatus:
    match call.state:
        case ToolPending():
            return "pending"
        case ToolRunning():
            return "in_progress"
        case ToolCompleted():
            return "completed"
        case ToolError():
            return "failed"


def _raw_output(call: ToolPart) -> dict[str, Any] | None:
    """Returns the exit code of a command that has ended."""
    state = call.state
    code = state.metadata.get("exit_code") if isinstance(state, ToolCompleted | ToolError) else None
    return {"exit_code": code} if isinstance(code, int) else None


def _diff_content(changes: Sequence[FileDiff], folder: Path) -> Iterator[FileEditToolCallContent]:
    """Yields one block for each hunk, because a block of the protocol has a single hunk. A new file has no old text."""
    for file in changes:
        for hunk in file.hunks:
            old = None if file.old_path is None else replace_surrogates(hunk.old_text)
            yield acp.tool_diff_content(_absolute_path(folder, file.path), replace_surrogates(hunk.new_text), old)


def _text_content(call: ToolPart, output: str, changes: Sequence[FileDiff]) -> list[ToolCallContent]:
    match call.state:
        case ToolError(error=error):
            return [_text_block(fence_text(error))]
        case ToolCompleted(output=text):
            return [] if changes or call.tool == "todo" else [_text_block(fence_text(text))]
        case ToolRunning():
            return [_text_block(fence_text(output[-MAX_OUTPUT_CHARS:]))] if output.strip() else []
        case ToolPending(input=call_input):
            return [_text_block(fence_text(text)) for text in _requested_body(call.tool, call_input, changes)]


def _requested_body(tool: str, call_input: dict[str, Any], changes: Sequence[FileDiff]) -> list[str]:
    """Returns the complete command, because the title truncates it, or a patch that diffs do not show completely, such
    as one that deletes or moves files."""
    if tool == "apply_patch":
        complete = changes and all(file.hunks and (file.old_path or file.path) == file.new_path for file in changes)
        body = "" if complete else patch_argument(call_input)
    else:
        body = call_input.get("command") if tool == "shell" else ""
    return [str(body)] if body else []


def _call_locations(call: ToolPart, changes: Sequence[FileDiff], folder: Path) -> list[ToolCallLocation]:
    if changes:
        return _change_locations(changes, folder)
    call_input = call.state.input
    path = call_input.get("file_path") or (call_input.get("path") if call_kind(call) != "other" else None)
    if not isinstance(path, str):
        return []
    line = call_input.get("offset") if call.tool == "read" else None
    line = line if isinstance(line, int) and line > 0 else None
    return [ToolCallLocation(path=_absolute_path(folder, path), line=line)]


def _hunk_line(hunk: DiffHunk) -> int | None:
    return None if hunk.new_start is None else max(hunk.new_start, 1)


def _absolute_path(folder: Path, path: str) -> str:
    return replace_surrogates(str(folder / path))


def _text_block(text: str) -> ContentToolCallContent:
    return acp.tool_content(acp.text_block(replace_surrogates(text)))


_ATTACHABLE_TYPES = ("image/", "application/pdf", "text/")


def parts_from_prompt(prompt: Sequence[ContentBlock]) -> list[TextPart | FilePart]:
    """Converts a prompt. Raises ConfigurationError if it is empty or contains content that cannot be sent to a
    model."""
    parts = [_part_from_block(block) for block in prompt]
    if not any(isinstance(part, FilePart) or part.text.strip() for part in parts):
        raise ConfigurationError("the prompt is empty")
    return parts


def block_from_part(part: TextPart | FilePart) -> ContentBlock | None:
    """Converts a part for display; None for synthetic text, which is for the model only."""
    match part:
        case TextPart(synthetic=True):
            return None
        case TextPart(text=text):
            return acp.text_block(replace_surrogates(text)) if text else None
        case FilePart(mime=mime, url=url):
            data = parse_data_url(url)
            if mime.startswith("image/") and data is not None and data.is_base64:
                return acp.image_block(data.payload, mime)
            name = replace_surrogates(part.filename or "file")
            return acp.resource_link_block(
                name, "data:" if url.startswith("data:") else replace_surrogates(url), mime_type=mime
            )


def _part_from_block(block: ContentBlock) -> TextPart | FilePart:
    match block:
        case TextContentBlock():
            return TextPart(replace_surrogates(block.text))
        case ImageContentBlock():
            return FilePart(block.mime_type, make_data_url(block.mime_type, block.data))
        case ResourceContentBlock():
            return TextPart(f"[{replace_surrogates(block.name)}]({_resource_path(block.uri)})")
        case EmbeddedResourceContentBlock():
            return _embedded_part(block)
        case AudioContentBlock():
            raise ConfigurationError("audio cannot be sent to the model; write text or attach a file")
        case _:
            assert_never(block)


def _embedded_part(block: EmbeddedResourceContentBlock) -> TextPart | FilePart:
    resource = block.resource
    if isinstance(resource, TextResourceContents):
        path = _resource_path(resource.uri)
        origins = (make_origin("workspace", path),)  # the file that the editor shows
        return TextPart(f"{path}:\n{replace_surrogates(resource.text)}", synthetic=True, origins=origins)
    mime = resource.mime_type or "application/octet-stream"
    if not mime.startswith(_ATTACHABLE_TYPES):
        raise ConfigurationError(f"{_resource_path(resource.uri)} is {mime}; only images, PDF and text can be attached")
    name, source = _resource_path(resource.uri).rpartition("/")[2], ResourceSource(resource.uri)
    return FilePart(mime, make_data_url(mime, resource.blob), name, source)


def _resource_path(uri: str) -> str:
    """Returns the path of a file URI, as tools name files; any other URI unchanged."""
    address = urlsplit(replace_surrogates(uri))
    return unquote(address.path) if address.scheme == "file" else replace_surrogates(uri)
