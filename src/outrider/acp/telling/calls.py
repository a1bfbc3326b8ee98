"""A tool call as an editor shows it: a title, a kind, where it works, and what it changes."""

from pathlib import Path
from typing import Any

import acp
import msgspec
from acp.schema import (
    ContentToolCallContent,
    FileEditToolCallContent,
    ToolCallLocation,
    ToolCallProgress,
    ToolCallStart,
    ToolCallStatus,
    ToolCallUpdate,
    ToolKind,
)

from outrider.acp.telling.diffs import Change, changes_of
from outrider.acp.telling.texts import fenced, one_line, plain, valid
from outrider.types.parts import ToolPart
from outrider.types.tool_state import ToolCompleted, ToolError, ToolPending, ToolRunning

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
