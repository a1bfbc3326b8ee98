"""Replaces a text in a file: exactly where it stands, or not at all."""

from typing import Annotated

from outrider.errors import ToolFailure
from outrider.tools.context import ToolContext
from outrider.tools.edit_transaction import Editor, Revision, Revisions
from outrider.tools.text.diff import difference, fresh_view, numbered
from outrider.tools.text.encoding import Encoding, split_lines
from outrider.tools.text.replace import Replaced, replace_text
from outrider.tools.tool import Tool, ToolResult, argument_aliases, prompt_beside

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
_LISTED = 10


def edit_tool(editor: Editor) -> Tool:
    async def edit(
        file_path: str,
        old_string: str,
        new_string: str,
        context: ToolContext,
        replace_all: Annotated[bool, "every occurrence"] = False,  # noqa: FBT002
    ) -> ToolResult:
        return await editor.change(
            context, lambda revisions: _edit(revisions, file_path, old_string, new_string, everywhere=replace_all)
        )

    return Tool(edit, description=prompt_beside(__file__), preprocess_args=argument_aliases(ALIASES))


def _edit(revisions: Revisions, path: str, old: str, new: str, *, everywhere: bool) -> ToolResult:
    revision = revisions.open(path, "edit")
    name = revision.place.shown
    if not revision.before and not old and new:
        revision.write(new, Encoding() if revision.before is None else revision.encoding)
        done = "Created" if revision.before is None else "Filled"
        return ToolResult(f"{done} {name} ({len(new.splitlines())} lines).", title=name)
    text = revision.text
    if revision.stale:
        revisions.saw(revision)
        raise ToolFailure(
            f"{name} was changed since you read it. Nothing was written. It holds now:\n{fresh_view(text, old)}"
        )
    # Only who has read the file can mean a text that stands there with other whitespace.
    replaced = replace_text(text, old, new, everywhere=everywhere, tolerant=revision.seen)
    revision.write(replaced.text, revision.encoding)
    return _told(revision, text, replaced)


def _told(revision: Revision, before: str, replaced: Replaced) -> ToolResult:
    name = revision.place.shown
    changed = difference(name, before, replaced.text)
    where = ", ".join(map(str, replaced.lines[:_LISTED])) + (", …" if len(replaced.lines) > _LISTED else "")
    count = len(replaced.lines)
    told = f"Edited {name} at line {where}." if count == 1 else f"Edited {name} in {count} places (lines {where})."
    if replaced.overlooked:
        first = max(replaced.lines[0] - 2, 1)
        piece = split_lines(replaced.text)[first - 1 : replaced.lines[0] + 20]
        told += f" The text there had other {replaced.overlooked}; it reads now:\n{numbered(piece, first)}"
    metadata = {"diff": changed.text, "added": changed.added, "removed": changed.removed}
    return ToolResult(told, title=name, metadata=metadata)
