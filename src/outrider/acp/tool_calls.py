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
from outrider.types.parts import FilePart, TextPart, ToolPart
from outrider.types.tool_state import ToolCompleted, ToolError, ToolPending, ToolRunning

MAX_LINE_LENGTH = 200


def replace_surrogates(text: str) -> str:
    """Replaces unpaired surrogates, which models may return and UTF-8 cannot encode."""
    return text.encode("utf-8", "replace").decode()


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
    text_line = " ".join(replace_surrogates(text).split())
    return text_line if len(text_line) <= MAX_LINE_LENGTH else f"{text_line[: MAX_LINE_LENGTH - 1]}…"


def fence_text(text: str) -> str:
    """Wraps plain text in a Markdown code fence that is longer than any fence in it, because clients render all text as
    Markdown."""
    longest = max((len(found) for found in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}\n{replace_surrogates(text)}\n{fence}"


_HUNK_HEADER = re.compile(r"^@@ -\d+(?:,(?P<old>\d+))? \+(?P<line>\d+)(?:,(?P<new>\d+))? @@")
_DEV_NULL = "/dev/null"


class FileHunk(msgspec.Struct, frozen=True):
    """One changed region of a file; `before` is None in a new file."""

    path: str
    before: str | None
    after: str
    line: int | None = None


def parse_diff(diff: str, folder: Path) -> list[FileHunk]:
    """Returns the hunks of a unified diff, whose paths are relative to `folder`."""
    return list(_parse_hunks(diff.split("\n"), folder))


def _parse_hunks(lines: Sequence[str], folder: Path) -> Iterator[FileHunk]:
    old = new = ""
    position = 0
    while position < len(lines):
        line = lines[position]
        position += 1
        if line.startswith("--- "):
            old = line[4:]
        elif line.startswith("+++ "):
            new = line[4:]
        elif (found := _HUNK_HEADER.match(line)) is not None:
            before, after, position = _read_hunk(lines, position, int(found["old"] or 1), int(found["new"] or 1))
            path = str(folder / (old if new == _DEV_NULL else new))
            yield FileHunk(path, None if old == _DEV_NULL else before, after, max(int(found["line"]), 1))


def _read_hunk(lines: Sequence[str], position: int, old: int, new: int) -> tuple[str, str, int]:
    """Returns both sides of a hunk and the next position. It counts lines as the header states, because a removed line
    may look like a header."""
    before: list[str] = []
    after: list[str] = []
    while position < len(lines) and (len(before) < old or len(after) < new):
        sign, text = lines[position][:1], replace_surrogates(lines[position][1:])
        if sign != "+":
            before.append(text)
        if sign != "-":
            after.append(text)
        position += 1
    return "\n".join(before), "\n".join(after), position


ToolCallContent = ContentToolCallContent | FileEditToolCallContent
MAX_OUTPUT_CHARS = 10_000  # characters of live output

_KINDS: dict[str, ToolKind] = {
    "apply_patch": "edit",
    "edit": "edit",
    "glob": "search",
    "grep": "search",
    "list": "read",
    "process": "execute",
    "read": "read",
    "shell": "execute",
    "skill": "read",
    "todo": "think",
    "web_fetch": "fetch",
    "write": "edit",
}
_BODY_FIELDS = {"apply_patch": "patch", "shell": "command"}
_SUBJECT_FIELDS = (
    "file_path",
    "path",
    "command",
    "pattern",
    "url",
    "description",
    "agent_name",
    "name",
    "question",
    "query",
)


class ToolCallView(msgspec.Struct, frozen=True, kw_only=True):
    """The displayed fields of a call, which three protocol messages share."""

    id: str
    title: str
    kind: ToolKind
    status: ToolCallStatus
    content: list[ToolCallContent]
    locations: list[ToolCallLocation]
    raw_input: dict[str, Any] | None

    def to_start(self) -> ToolCallStart:
        return ToolCallStart(session_update="tool_call", tool_call_id=self.id, **self._common_fields())

    def to_progress(self) -> ToolCallProgress:
        return ToolCallProgress(session_update="tool_call_update", tool_call_id=self.id, **self._common_fields())

    def to_permission_update(self, why: str = "") -> ToolCallUpdate:
        """Returns the call for a permission request, with the reason as the first content block."""
        fields = self._common_fields()
        if why.strip():
            fields["content"] = [_text_block(why), *self.content]
        return ToolCallUpdate(tool_call_id=self.id, **fields)

    def _common_fields(self) -> dict[str, Any]:
        names = ("title", "kind", "status", "content", "locations", "raw_input")
        return {name: getattr(self, name) for name in names}


def view_tool_call(call: ToolPart, folder: Path, output: str = "", agent: str = "") -> ToolCallView:
    """Returns the view of a call. `output` is what a running call has written so far; `agent` is set for calls of child
    sessions."""
    hunks = _file_hunks(call, folder)
    title = _call_title(call)
    return ToolCallView(
        id=call.id,
        title=f"{to_single_line(agent)}: {title}" if agent else title,
        kind=_KINDS.get(call.tool, "other"),
        status=_call_status(call),
        content=[*map(_diff_content, hunks), *_text_content(call, output, changed=bool(hunks))],
        locations=_call_locations(call, hunks, folder),
        raw_input=to_json_value(call.state.input) or None,
    )


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


def _call_title(call: ToolPart) -> str:
    call_input = call.state.input
    if call.tool == "shell" and call_input.get("command"):
        return to_single_line(str(call_input["command"]))
    subject = next((str(call_input[name]) for name in _SUBJECT_FIELDS if call_input.get(name)), "")
    return to_single_line(f"{call.tool} {subject}")


def _file_hunks(call: ToolPart, folder: Path) -> list[FileHunk]:
    """Returns the diff of a completed call; before that, the requested change."""
    state, call_input = call.state, call.state.input
    if isinstance(state, ToolCompleted):
        return parse_diff(str(state.metadata.get("diff", "")), folder)
    path = str(folder / replace_surrogates(str(call_input.get("file_path") or "")))
    match call.tool:
        case "edit" if "new_string" in call_input:
            return [
                FileHunk(
                    path,
                    replace_surrogates(str(call_input.get("old_string") or "")),
                    replace_surrogates(str(call_input["new_string"])),
                )
            ]
        case "write" if "content" in call_input:
            return [FileHunk(path, None, replace_surrogates(str(call_input["content"])))]
        case _:
            return []


def _text_content(call: ToolPart, output: str, *, changed: bool) -> list[ToolCallContent]:
    match call.state:
        case ToolError(error=error):
            return [_text_block(fence_text(error))]
        case ToolCompleted(output=text):
            return [] if changed or call.tool == "todo" else [_text_block(fence_text(text))]
        case ToolRunning():
            return [_text_block(fence_text(output[-MAX_OUTPUT_CHARS:]))] if output.strip() else []
        case ToolPending(input=call_input):
            return [] if changed else [_text_block(fence_text(text)) for text in _requested_body(call.tool, call_input)]


def _requested_body(tool: str, call_input: dict[str, Any]) -> list[str]:
    """Returns the complete command or patch, because the title truncates it."""
    body = call_input.get(_BODY_FIELDS.get(tool, ""))
    return [str(body)] if body else []


def _call_locations(call: ToolPart, changes: list[FileHunk], folder: Path) -> list[ToolCallLocation]:
    if changes:
        return [ToolCallLocation(path=change.path, line=change.line) for change in changes]
    call_input = call.state.input
    path = call_input.get("file_path") or (call_input.get("path") if call.tool in _KINDS else None)
    if not isinstance(path, str):
        return []
    line = call_input.get("offset") if call.tool == "read" else None
    return [
        ToolCallLocation(
            path=replace_surrogates(str(folder / path)), line=line if isinstance(line, int) and line > 0 else None
        )
    ]


def _diff_content(change: FileHunk) -> FileEditToolCallContent:
    return acp.tool_diff_content(change.path, change.after, change.before)


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
            head, _, content = url.partition(",")
            if mime.startswith("image/") and head.endswith(";base64"):
                return acp.image_block(content, mime)
            name = replace_surrogates(part.filename or "file")
            return acp.resource_link_block(
                name, "data:" if url.startswith("data:") else replace_surrogates(url), mime_type=mime
            )


def _part_from_block(block: ContentBlock) -> TextPart | FilePart:
    match block:
        case TextContentBlock():
            return TextPart(replace_surrogates(block.text))
        case ImageContentBlock():
            return FilePart(block.mime_type, f"data:{block.mime_type};base64,{block.data}")
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
        return TextPart(f"{_resource_path(resource.uri)}:\n{replace_surrogates(resource.text)}", synthetic=True)
    mime = resource.mime_type or "application/octet-stream"
    if not mime.startswith(_ATTACHABLE_TYPES):
        raise ConfigurationError(f"{_resource_path(resource.uri)} is {mime}; only images, PDF and text can be attached")
    return FilePart(mime, f"data:{mime};base64,{resource.blob}", _resource_path(resource.uri).rpartition("/")[2])


def _resource_path(uri: str) -> str:
    """Returns the path of a file URI, as tools name files; any other URI unchanged."""
    address = urlsplit(replace_surrogates(uri))
    return unquote(address.path) if address.scheme == "file" else replace_surrogates(uri)
