"""A tool call as an editor shows it: a title, a kind, where it works, and what it changes."""

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

LONGEST_LINE = 200


def valid(text: str) -> str:
    """Half a surrogate pair, which a model may write, is no text."""
    return text.encode("utf-8", "replace").decode()


def plain(value: Any) -> Any:
    """A value of any depth as JSON can write it."""
    match value:
        case str():
            return valid(value)
        case dict():
            return {valid(str(name)): plain(one) for name, one in value.items()}  # pyright: ignore
        case list() | tuple():
            return [plain(one) for one in value]  # pyright: ignore
        case float() if not math.isfinite(value):
            return str(value)
        case bool() | int() | float() | None:
            return value
        case _:
            return valid(str(value))


def one_line(text: str) -> str:
    line = " ".join(valid(text).split())
    return line if len(line) <= LONGEST_LINE else f"{line[: LONGEST_LINE - 1]}…"


def fenced(text: str) -> str:
    """Text that is no Markdown, for clients that read everything as such; nothing in it can end the fence."""
    longest = max((len(found) for found in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}\n{valid(text)}\n{fence}"


_HUNK = re.compile(r"^@@ -\d+(?:,(?P<old>\d+))? \+(?P<line>\d+)(?:,(?P<new>\d+))? @@")
_NOWHERE = "/dev/null"


class Change(msgspec.Struct, frozen=True):
    """One place of a file: `before` is None in a file that is new."""

    path: str
    before: str | None
    after: str
    line: int | None = None


def changes_of(diff: str, folder: Path) -> list[Change]:
    """The hunks of a unified diff, whose names are relative to `folder`."""
    return list(_hunks(diff.split("\n"), folder))


def _hunks(lines: Sequence[str], folder: Path) -> Iterator[Change]:
    old = new = ""
    position = 0
    while position < len(lines):
        line = lines[position]
        position += 1
        if line.startswith("--- "):
            old = line[4:]
        elif line.startswith("+++ "):
            new = line[4:]
        elif (found := _HUNK.match(line)) is not None:
            before, after, position = _sides(lines, position, int(found["old"] or 1), int(found["new"] or 1))
            path = str(folder / (old if new == _NOWHERE else new))
            yield Change(path, None if old == _NOWHERE else before, after, max(int(found["line"]), 1))


def _sides(lines: Sequence[str], position: int, old: int, new: int) -> tuple[str, str, int]:
    """Both sides of a hunk. Its header says how many lines belong to it: one that is removed may look like a header."""
    before: list[str] = []
    after: list[str] = []
    while position < len(lines) and (len(before) < old or len(after) < new):
        sign, text = lines[position][:1], valid(lines[position][1:])
        if sign != "+":
            before.append(text)
        if sign != "-":
            after.append(text)
        position += 1
    return "\n".join(before), "\n".join(after), position


Content = ContentToolCallContent | FileEditToolCallContent
MOST_OUTPUT = 10_000  # characters of output that are shown while a call runs

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
_WANTED = {"apply_patch": "patch", "shell": "command"}
_SUBJECTS = ("file_path", "path", "command", "pattern", "url", "description", "agent_name", "name", "question", "query")


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """What is said of a call; the protocol says it in three ways."""

    id: str
    title: str
    kind: ToolKind
    status: ToolCallStatus
    content: list[Content]
    locations: list[ToolCallLocation]
    raw_input: dict[str, Any] | None

    def started(self) -> ToolCallStart:
        return ToolCallStart(session_update="tool_call", tool_call_id=self.id, **self._fields())

    def changed(self) -> ToolCallProgress:
        return ToolCallProgress(session_update="tool_call_update", tool_call_id=self.id, **self._fields())

    def asked(self, why: str = "") -> ToolCallUpdate:
        """The call in a question about it, with the reason for the question first."""
        fields = self._fields()
        if why.strip():
            fields["content"] = [_text(why), *self.content]
        return ToolCallUpdate(tool_call_id=self.id, **fields)

    def _fields(self) -> dict[str, Any]:
        names = ("title", "kind", "status", "content", "locations", "raw_input")
        return {name: getattr(self, name) for name in names}


def shown(call: ToolPart, folder: Path, output: str = "", agent: str = "") -> Shown:
    """`output` is what a running call has written so far; `agent` made the call, if it is not the session's own."""
    changes = _changes(call, folder)
    title = _title(call)
    return Shown(
        id=call.id,
        title=f"{one_line(agent)}: {title}" if agent else title,
        kind=_KINDS.get(call.tool, "other"),
        status=_status(call),
        content=[*map(_diff, changes), *_words(call, output, changed=bool(changes))],
        locations=_locations(call, changes, folder),
        raw_input=plain(call.state.input) or None,
    )


def _status(call: ToolPart) -> ToolCallStatus:
    match call.state:
        case ToolPending():
            return "pending"
        case ToolRunning():
            return "in_progress"
        case ToolCompleted():
            return "completed"
        case ToolError():
            return "failed"


def _title(call: ToolPart) -> str:
    given = call.state.input
    if call.tool == "shell" and given.get("command"):
        return one_line(str(given["command"]))
    subject = next((str(given[name]) for name in _SUBJECTS if given.get(name)), "")
    return one_line(f"{call.tool} {subject}")


def _changes(call: ToolPart, folder: Path) -> list[Change]:
    """What was done, once that is known; before it, what is wanted."""
    state, given = call.state, call.state.input
    if isinstance(state, ToolCompleted):
        return changes_of(str(state.metadata.get("diff", "")), folder)
    path = str(folder / valid(str(given.get("file_path") or "")))
    match call.tool:
        case "edit" if "new_string" in given:
            return [Change(path, valid(str(given.get("old_string") or "")), valid(str(given["new_string"])))]
        case "write" if "content" in given:
            return [Change(path, None, valid(str(given["content"])))]
        case _:
            return []


def _words(call: ToolPart, output: str, *, changed: bool) -> list[Content]:
    match call.state:
        case ToolError(error=error):
            return [_text(fenced(error))]
        case ToolCompleted(output=text):
            return [] if changed or call.tool == "todo" else [_text(fenced(text))]
        case ToolRunning():
            return [_text(fenced(output[-MOST_OUTPUT:]))] if output.strip() else []
        case ToolPending(input=given):
            return [] if changed else [_text(fenced(text)) for text in _wanted(call.tool, given)]


def _wanted(tool: str, given: dict[str, Any]) -> list[str]:
    """What will run, nothing left out: the title has no room for all of it."""
    wanted = given.get(_WANTED.get(tool, ""))
    return [str(wanted)] if wanted else []


def _locations(call: ToolPart, changes: list[Change], folder: Path) -> list[ToolCallLocation]:
    if changes:
        return [ToolCallLocation(path=change.path, line=change.line) for change in changes]
    given = call.state.input
    path = given.get("file_path") or (given.get("path") if call.tool in _KINDS else None)
    if not isinstance(path, str):
        return []
    line = given.get("offset") if call.tool == "read" else None
    return [ToolCallLocation(path=valid(str(folder / path)), line=line if isinstance(line, int) and line > 0 else None)]


def _diff(change: Change) -> FileEditToolCallContent:
    return acp.tool_diff_content(change.path, change.after, change.before)


def _text(text: str) -> ContentToolCallContent:
    return acp.tool_content(acp.text_block(valid(text)))


_DOCUMENTS = ("image/", "application/pdf", "text/")


def parts_of(prompt: Sequence[ContentBlock]) -> list[TextPart | FilePart]:
    """Raises ConfigurationError for a prompt that says nothing, and for what no model is sent."""
    parts = [_part(block) for block in prompt]
    if not any(isinstance(part, FilePart) or part.text.strip() for part in parts):
        raise ConfigurationError("the prompt is empty")
    return parts


def block_of(part: TextPart | FilePart) -> ContentBlock | None:
    """What a person sees of a part; None for what was written for the model only."""
    match part:
        case TextPart(synthetic=True):
            return None
        case TextPart(text=text):
            return acp.text_block(valid(text)) if text else None
        case FilePart(mime=mime, url=url):
            head, _, content = url.partition(",")
            if mime.startswith("image/") and head.endswith(";base64"):
                return acp.image_block(content, mime)
            name = valid(part.filename or "file")
            return acp.resource_link_block(name, "data:" if url.startswith("data:") else valid(url), mime_type=mime)


def _part(block: ContentBlock) -> TextPart | FilePart:
    match block:
        case TextContentBlock():
            return TextPart(valid(block.text))
        case ImageContentBlock():
            return FilePart(block.mime_type, f"data:{block.mime_type};base64,{block.data}")
        case ResourceContentBlock():
            return TextPart(f"[{valid(block.name)}]({_place(block.uri)})")
        case EmbeddedResourceContentBlock():
            return _embedded(block)
        case AudioContentBlock():
            raise ConfigurationError("sound cannot be sent to the model; write it, or attach a file")
        case _:
            assert_never(block)


def _embedded(block: EmbeddedResourceContentBlock) -> TextPart | FilePart:
    resource = block.resource
    if isinstance(resource, TextResourceContents):
        return TextPart(f"{_place(resource.uri)}:\n{valid(resource.text)}", synthetic=True)
    mime = resource.mime_type or "application/octet-stream"
    if not mime.startswith(_DOCUMENTS):
        raise ConfigurationError(f"{_place(resource.uri)} is {mime}; only images, PDF and text can be attached")
    return FilePart(mime, f"data:{mime};base64,{resource.blob}", _place(resource.uri).rpartition("/")[2])


def _place(uri: str) -> str:
    """A file by its path, as tools name it; anything else as it is."""
    address = urlsplit(valid(uri))
    return unquote(address.path) if address.scheme == "file" else valid(uri)
