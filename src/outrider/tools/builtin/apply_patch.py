"""Applies a patch to several files: the whole of it, or nothing."""

from typing import assert_never

from outrider.errors import ToolFailure
from outrider.tools.context import ToolContext
from outrider.tools.edit_transaction import Editor, Revision, Revisions
from outrider.tools.text import patch as patches
from outrider.tools.text.diff import Difference, difference, fresh_view
from outrider.tools.text.encoding import Encoding, detect
from outrider.tools.tool import Tool, ToolResult, argument_aliases, prompt_beside

ALIASES = {"input": "patch", "patchText": "patch", "patch_text": "patch", "diff": "patch"}


def apply_patch_tool(editor: Editor) -> Tool:
    async def apply_patch(patch: str, context: ToolContext) -> ToolResult:
        return await editor.change(context, lambda revisions: _apply(revisions, patches.read_patch(patch)))

    return Tool(apply_patch, description=prompt_beside(__file__), preprocess_args=argument_aliases(ALIASES))


def _apply(revisions: Revisions, wishes: list["patches.FileOperation"]) -> ToolResult:
    for wish in wishes:
        match wish:
            case patches.AddFile():
                _add(revisions.open(wish.path, "create"), wish.text)
            case patches.DeleteFile():
                _existing(revisions, wish.path, "delete").after = None
            case patches.UpdateFile():
                _update(revisions, wish)
            case _:
                assert_never(wish)
    changed = [(revision, _difference(revision)) for revision in revisions.changed()]
    told = "\n".join(f"{_letter(revision)} {revision.place.shown}" for revision, _ in changed)
    return ToolResult(
        f"Done:\n{told}" if changed else "The files hold all of this already; nothing was written.",
        title=", ".join(revision.place.shown for revision, _ in changed)[:200],
        metadata={
            "diff": "\n".join(one.text for _, one in changed)[:100_000],
            "added": sum(one.added for _, one in changed),
            "removed": sum(one.removed for _, one in changed),
            "files": [revision.place.real for revision, _ in changed],
        },
    )


def _add(revision: Revision, text: str) -> None:
    if revision.after is not None:
        raise ToolFailure(f"{revision.place.shown} exists already; update it instead. Nothing was written")
    revision.write(text, Encoding())


def _existing(revisions: Revisions, path: str, op: str) -> Revision:
    revision = revisions.open(path, op)
    if revision.after is None:
        raise ToolFailure(f"{revision.place.shown} does not exist. Nothing was written")
    if revision.stale:
        revisions.saw(revision)
        encoding = detect(revision.after)
        view = fresh_view(encoding.decode(revision.after)) if encoding else "(a binary file)"
        raise ToolFailure(
            f"{revision.place.shown} was changed since you read it. Nothing was written. It holds now:\n{view}"
        )
    return revision


def _update(revisions: Revisions, wish: "patches.UpdateFile") -> None:
    revision = _existing(revisions, wish.path, "rename_source" if wish.move_to else "edit")
    if wish.hunks:
        try:
            text = patches.apply_hunks(revision.text, wish.hunks, tolerant=revision.seen)
        except ToolFailure as failure:
            raise ToolFailure(f"{revision.place.shown}: {failure.message}") from failure
        revision.write(text, revision.encoding)
    if wish.move_to:
        target = revisions.open(wish.move_to, "create")
        if target.after is not None:
            raise ToolFailure(f"{target.place.shown} exists already. Nothing was written")
        target.after, revision.after = revision.after, None
        target.mode = revision.mode


def _difference(revision: Revision) -> Difference:
    return difference(revision.place.shown, _text(revision.before), _text(revision.after))


def _text(content: bytes | None) -> str | None:
    encoding = detect(content or b"")
    return content if content is None else encoding.decode(content) if encoding else "(binary)"


def _letter(revision: Revision) -> str:
    return "A" if revision.before is None else "D" if revision.after is None else "M"
