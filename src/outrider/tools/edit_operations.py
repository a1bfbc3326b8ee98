"""Performs the tools `edit`, `write` and `apply_patch` on the files of one transaction. Loaded with the first edit."""

from typing import assert_never

from outrider.errors import ToolFailure
from outrider.tools.edit_transaction import FileRevision, RevisionSet
from outrider.tools.text import patch as patches
from outrider.tools.text.encoding import TextEncoding, detect_encoding, split_lines
from outrider.tools.text.replace import TextDiff, TextReplacement, current_view, diff_texts, number_lines, replace_text
from outrider.tools.tool import ToolResult
from outrider.types.tool_declaration import FileOperation

_MAX_LISTED = 10


def apply_edit(revisions: RevisionSet, path: str, old: str, new: str, *, everywhere: bool) -> ToolResult:
    """Replaces a string in a file. Raises ToolFailure if the string does not occur exactly once, or if the file
    changed."""
    revision = revisions.open(path, "edit")
    name = revision.location.display
    if not revision.before and not old and new:
        revision.set_text(new, TextEncoding() if revision.before is None else revision.encoding)
        verb = "Created" if revision.before is None else "Filled"
        return ToolResult(f"{verb} {name} ({len(new.splitlines())} lines).", title=name)
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
    line_numbers = ", ".join(map(str, replaced.lines[:_MAX_LISTED])) + (
        ", …" if len(replaced.lines) > _MAX_LISTED else ""
    )
    count = len(replaced.lines)
    message = (
        f"Edited {name} at line {line_numbers}."
        if count == 1
        else f"Edited {name} in {count} places (lines {line_numbers})."
    )
    if replaced.tolerated:
        first_line = max(replaced.lines[0] - 2, 1)
        lines = split_lines(replaced.text)[first_line - 1 : replaced.lines[0] + 20]
        message += f" The text there had other {replaced.tolerated}; it reads now:\n{number_lines(lines, first_line)}"
    metadata = {"diff": changed.text, "added": changed.added, "removed": changed.removed}
    return ToolResult(message, title=name, metadata=metadata)


def write_file(revisions: RevisionSet, path: str, content: str) -> ToolResult:
    """Writes a whole file. Raises ToolFailure if it exists and was changed or not read."""
    revision = revisions.open(path, "write")
    name = revision.location.display
    encoding, before = _check_known(revisions, revision)
    if before is not None and _uses_only_crlf(before) and "\r" not in content:
        content = content.replace("\n", "\r\n")
    revision.set_text(content.removeprefix("\ufeff") if encoding.bom else content, encoding)
    if revision.after == revision.before:
        return ToolResult(f"{name} holds exactly this already; nothing was written.", title=name)
    changed = diff_texts(name, before, content)
    verb = "Created" if revision.before is None else "Overwrote"
    metadata = {"diff": changed.text, "added": changed.added, "removed": changed.removed}
    return ToolResult(f"{verb} {name} ({len(content.splitlines())} lines).", title=name, metadata=metadata)


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


def apply_patch_text(revisions: RevisionSet, patch: str) -> ToolResult:
    """Performs the operations of a patch. Raises ToolFailure if one of them does not match its file."""
    for operation in patches.parse_operations(patch):
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
            "diff": "\n".join(diff.text for _, diff in changed)[:100_000],
            "added": sum(diff.added for _, diff in changed),
            "removed": sum(diff.removed for _, diff in changed),
            "files": [revision.location.real for revision, _ in changed],
        },
    )


def _add_file(revision: FileRevision, text: str) -> None:
    if revision.after is not None:
        raise ToolFailure(f"{revision.location.display} exists already; update it instead. Nothing was written")
    revision.set_text(text, TextEncoding())


def _open_existing(revisions: RevisionSet, path: str, op: FileOperation) -> FileRevision:
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


def _update_file(revisions: RevisionSet, operation: patches.UpdateFile) -> None:
    revision = _open_existing(revisions, operation.path, "rename_source" if operation.move_to else "edit")
    if operation.hunks:
        try:
            text = patches.apply_hunks(revision.text, operation.hunks, tolerant=revision.seen)
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
