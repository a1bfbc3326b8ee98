"""The `edit` tool: replaces a text in a file if the match is exact and unambiguous."""

from outrider.errors import ToolFailure
from outrider.tools.edit_transaction import FileEditor, FileRevision, RevisionSet
from outrider.tools.text.diff import current_view, diff_texts, number_lines
from outrider.tools.text.encoding import TextEncoding, split_lines
from outrider.tools.text.replace import TextReplacement, replace_text
from outrider.tools.tool import Tool, ToolContext, ToolResult, argument_aliases, load_prompt

ALIASES = {
    "path": "file_path",
    "filePath": "file_path",
    "filename": "file_path",
    "old_str": "old_string",
    "oldString": "old_string",
    "new_str": "new_string",
    "newString": "new_string",
    "replaceAll": "replace_all",
}
_MAX_LISTED = 10


def edit_tool(editor: FileEditor) -> Tool:
    async def edit(
        file_path: str,
        old_string: str,
        new_string: str,
        context: ToolContext,
        replace_all: bool = False,  # noqa: FBT001, FBT002
    ) -> ToolResult:
        return await editor.apply_plan(
            context, lambda revisions: _apply_edit(revisions, file_path, old_string, new_string, everywhere=replace_all)
        )

    return Tool(
        edit,
        description=load_prompt(__file__),
        preprocess_args=argument_aliases(ALIASES),
        path_parameters=("file_path",),
        path_operation="edit",
        previews=True,
    )


def _apply_edit(revisions: RevisionSet, path: str, old: str, new: str, *, everywhere: bool) -> ToolResult:
    revision = revisions.open(path, "edit")
    name = revision.location.display
    if not revision.before and not old and new:
        revision.set_text(new, TextEncoding() if revision.before is None else revision.encoding)
        done = "Created" if revision.before is None else "Filled"
        return ToolResult(f"{done} {name} ({len(new.splitlines())} lines).", title=name)
    text = revision.text
    if revision.stale:
        revisions.record_seen(revision)
        raise ToolFailure(
            f"{name} was changed since you read it. Nothing was written. It holds now:\n{current_view(text, old)}"
        )
    # Whitespace differences are tolerated only if the model has read the file; otherwise the text is a guess.
    replaced = replace_text(text, old, new, everywhere=everywhere, tolerant=revision.seen)
    revision.set_text(replaced.text, revision.encoding)
    return _format_result(revision, text, replaced)


def _format_result(revision: FileRevision, before: str, replaced: TextReplacement) -> ToolResult:
    name = revision.location.display
    changed = diff_texts(name, before, replaced.text)
    where = ", ".join(map(str, replaced.lines[:_MAX_LISTED])) + (", …" if len(replaced.lines) > _MAX_LISTED else "")
    count = len(replaced.lines)
    message = f"Edited {name} at line {where}." if count == 1 else f"Edited {name} in {count} places (lines {where})."
    if replaced.tolerated:
        first = max(replaced.lines[0] - 2, 1)
        piece = split_lines(replaced.text)[first - 1 : replaced.lines[0] + 20]
        message += f" The text there had other {replaced.tolerated}; it reads now:\n{number_lines(piece, first)}"
    metadata = {"diff": changed.text, "added": changed.added, "removed": changed.removed}
    return ToolResult(message, title=name, metadata=metadata)
