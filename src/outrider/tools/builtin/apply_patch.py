"""The `apply_patch` tool: applies a patch to several files in one transaction."""

from typing import TYPE_CHECKING, assert_never

from outrider.errors import ToolFailure
from outrider.tools.edit_transaction import FileEditor, FileRevision, RevisionSet
from outrider.tools.text.diff import TextDiff, current_view, diff_texts
from outrider.tools.text.encoding import TextEncoding, detect_encoding
from outrider.tools.tool import Tool, ToolContext, ToolResult, argument_aliases, load_prompt
from outrider.types.tool_declaration import KNOWN_NAMES

if TYPE_CHECKING:
    from outrider.tools.text import patch as patches

ALIASES = {"input": "patch", "patchText": "patch", "patch_text": "patch", "diff": "patch"}


def apply_patch_tool(editor: FileEditor) -> Tool:
    async def apply_patch(patch: str, context: ToolContext) -> ToolResult:
        from outrider.tools.text import patch as patches  # loaded with the first patch, also below

        return await editor.apply_plan(
            context, lambda revisions: _apply_operations(revisions, patches.parse_patch(patch))
        )

    return Tool(
        apply_patch,
        description=load_prompt(__file__),
        preprocess_args=argument_aliases(ALIASES),
        previews=True,
        declares=KNOWN_NAMES["apply_patch"],
    )


def _apply_operations(revisions: RevisionSet, operations: list["patches.FileOperation"]) -> ToolResult:
    from outrider.tools.text import patch as patches

    for operation in operations:
        match operation:
            case patches.AddFile():
                _add_file(revisions.open(operation.path, "create"), operation.text)
            case patches.DeleteFile():
                _open_existing(revisions, operation.path, "delete").after = None
            case patches.UpdateFile():
                _update_file(revisions, operation)
            case _:
                assert_never(operation)
    changed = [(revision, _revision_diff(revision)) for revision in revisions.changed_revisions()]
    summary = "\n".join(f"{_status_letter(revision)} {revision.location.display}" for revision, _ in changed)
    return ToolResult(
        f"Done:\n{summary}" if changed else "The files hold all of this already; nothing was written.",
        title=", ".join(revision.location.display for revision, _ in changed)[:200],
        metadata={
            "diff": "\n".join(one.text for _, one in changed)[:100_000],
            "added": sum(one.added for _, one in changed),
            "removed": sum(one.removed for _, one in changed),
            "files": [revision.location.real for revision, _ in changed],
        },
    )


def _add_file(revision: FileRevision, text: str) -> None:
    if revision.after is not None:
        raise ToolFailure(f"{revision.location.display} exists already; update it instead. Nothing was written")
    revision.set_text(text, TextEncoding())


def _open_existing(revisions: RevisionSet, path: str, op: str) -> FileRevision:
    revision = revisions.open(path, op)
    if revision.after is None:
        raise ToolFailure(f"{revision.location.display} does not exist. Nothing was written")
    if revision.stale:
        revisions.record_seen(revision)
        encoding = detect_encoding(revision.after)
        view = current_view(encoding.decode(revision.after)) if encoding else "(a binary file)"
        raise ToolFailure(
            f"{revision.location.display} was changed since you read it. Nothing was written. It holds now:\n{view}"
        )
    return revision


def _update_file(revisions: RevisionSet, operation: "patches.UpdateFile") -> None:
    from outrider.tools.text.patch import apply_hunks

    revision = _open_existing(revisions, operation.path, "rename_source" if operation.move_to else "edit")
    if operation.hunks:
        try:
            text = apply_hunks(revision.text, operation.hunks, tolerant=revision.seen)
        except ToolFailure as failure:
            raise ToolFailure(f"{revision.location.display}: {failure.message}") from failure
        revision.set_text(text, revision.encoding)
    if operation.move_to:
        target = revisions.open(operation.move_to, "create")
        if target.after is not None:
            raise ToolFailure(f"{target.location.display} exists already. Nothing was written")
        target.after, revision.after = revision.after, None
        target.mode = revision.mode


def _revision_diff(revision: FileRevision) -> TextDiff:
    return diff_texts(revision.location.display, _decode_text(revision.before), _decode_text(revision.after))


def _decode_text(content: bytes | None) -> str | None:
    encoding = detect_encoding(content or b"")
    return content if content is None else encoding.decode(content) if encoding else "(binary)"


def _status_letter(revision: FileRevision) -> str:
    return "A" if revision.before is None else "D" if revision.after is None else "M"
