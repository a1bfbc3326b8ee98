"""Writes a whole file at once; one that the model does not know is not overwritten."""

from outrider.errors import ToolFailure
from outrider.tools.context import ToolContext
from outrider.tools.edit_transaction import Editor, Revision, Revisions
from outrider.tools.text.diff import difference, fresh_view
from outrider.tools.text.encoding import Encoding, detect
from outrider.tools.tool import Tool, ToolResult, argument_aliases, prompt_beside

ALIASES = {"path": "file_path", "filename": "file_path", "filePath": "file_path", "contents": "content"}


def write_tool(editor: Editor) -> Tool:
    async def write(file_path: str, content: str, context: ToolContext) -> ToolResult:
        return await editor.change(context, lambda revisions: _write(revisions, file_path, content))

    return Tool(write, description=prompt_beside(__file__), preprocess_args=argument_aliases(ALIASES))


def _write(revisions: Revisions, path: str, content: str) -> ToolResult:
    revision = revisions.open(path, "write")
    name = revision.place.shown
    encoding, before = _require_known(revisions, revision)
    if before is not None and _all_crlf(before) and "\r" not in content:
        content = content.replace("\n", "\r\n")
    revision.write(content.removeprefix("\ufeff") if encoding.bom else content, encoding)
    if revision.after == revision.before:
        return ToolResult(f"{name} holds exactly this already; nothing was written.", title=name)
    changed = difference(name, before, content)
    done = "Created" if revision.before is None else "Overwrote"
    metadata = {"diff": changed.text, "added": changed.added, "removed": changed.removed}
    return ToolResult(f"{done} {name} ({len(content.splitlines())} lines).", title=name, metadata=metadata)


def _require_known(revisions: Revisions, revision: Revision) -> tuple[Encoding, str | None]:
    """The encoding to write in, and the old text if there was any."""
    if revision.before is None:
        return Encoding(), None
    encoding = detect(revision.before)
    text = encoding.decode(revision.before) if encoding else ""
    name = revision.place.shown
    if revision.stale:
        revisions.saw(revision)
        view = fresh_view(text) if encoding else "(a binary file)"
        raise ToolFailure(f"{name} was changed since you read it. Nothing was written. It holds now:\n{view}")
    if not revision.seen and revision.before:
        raise ToolFailure(f"{name} exists and was not read in this session. Read it first. Nothing was written")
    return encoding or Encoding(), text


def _all_crlf(text: str) -> bool:
    return "\r\n" in text and text.count("\r\n") == text.count("\n") == text.count("\r")
