"""The `write` tool: writes a complete file; an existing file must have been read in the session."""

from outrider.errors import ToolFailure
from outrider.tools.edit_transaction import FileEditor, FileRevision, RevisionSet
from outrider.tools.text.diff import current_view, diff_texts
from outrider.tools.text.encoding import TextEncoding, detect_encoding
from outrider.tools.tool import Tool, ToolContext, ToolResult, argument_aliases, load_prompt

ALIASES = {"path": "file_path", "filename": "file_path", "filePath": "file_path", "contents": "content"}


def write_tool(editor: FileEditor) -> Tool:
    async def write(file_path: str, content: str, context: ToolContext) -> ToolResult:
        return await editor.apply_plan(context, lambda revisions: _write_file(revisions, file_path, content))

    return Tool(
        write,
        description=load_prompt(__file__),
        preprocess_args=argument_aliases(ALIASES),
        path_parameters=("file_path",),
        path_operation="write",
        previews=True,
    )


def _write_file(revisions: RevisionSet, path: str, content: str) -> ToolResult:
    revision = revisions.open(path, "write")
    name = revision.location.display
    encoding, before = _check_known(revisions, revision)
    if before is not None and _uses_only_crlf(before) and "\r" not in content:
        content = content.replace("\n", "\r\n")
    revision.set_text(content.removeprefix("\ufeff") if encoding.bom else content, encoding)
    if revision.after == revision.before:
        return ToolResult(f"{name} holds exactly this already; nothing was written.", title=name)
    changed = diff_texts(name, before, content)
    done = "Created" if revision.before is None else "Overwrote"
    metadata = {"diff": changed.text, "added": changed.added, "removed": changed.removed}
    return ToolResult(f"{done} {name} ({len(content.splitlines())} lines).", title=name, metadata=metadata)


def _check_known(revisions: RevisionSet, revision: FileRevision) -> tuple[TextEncoding, str | None]:
    """Returns the encoding to use and the old text, if any. Raises ToolFailure if the file changed or was not read."""
    if revision.before is None:
        return TextEncoding(), None
    encoding = detect_encoding(revision.before)
    text = encoding.decode(revision.before) if encoding else ""
    name = revision.location.display
    if revision.stale:
        revisions.record_seen(revision)
        view = current_view(text) if encoding else "(a binary file)"
        raise ToolFailure(f"{name} was changed since you read it. Nothing was written. It holds now:\n{view}")
    if not revision.seen and revision.before:
        raise ToolFailure(f"{name} exists and was not read in this session. Read it first. Nothing was written")
    return encoding or TextEncoding(), text


def _uses_only_crlf(text: str) -> bool:
    return "\r\n" in text and text.count("\r\n") == text.count("\n") == text.count("\r")
