"""Applies a patch to several files: the whole of it, or nothing."""

from typing import assert_never

from outrider.errors import ToolFailure
from outrider.tools.context import ToolContext
from outrider.tools.files.draft import Draft, Drafts
from outrider.tools.files.editor import Editor
from outrider.tools.patches.patch import read_patch
from outrider.tools.patches.placing import apply_hunks
from outrider.tools.patches.wish import AddFile, DeleteFile, UpdateFile, Wish
from outrider.tools.prompt import prompt_beside
from outrider.tools.text.difference import Difference, difference
from outrider.tools.text.encoding import Encoding, detect
from outrider.tools.text.view import fresh_view
from outrider.tools.tool import Tool, ToolResult
from outrider.tools.words import renamed

ALIASES = {"input": "patch", "patchText": "patch", "patch_text": "patch", "diff": "patch"}


def apply_patch_tool(editor: Editor) -> Tool:
    async def apply_patch(patch: str, context: ToolContext) -> ToolResult:
        return await editor.change(context, lambda drafts: _apply(drafts, read_patch(patch)))

    return Tool(apply_patch, description=prompt_beside(__file__), preprocess_args=renamed(ALIASES))


def _apply(drafts: Drafts, wishes: list[Wish]) -> ToolResult:
    for wish in wishes:
        match wish:
            case AddFile():
                _add(drafts.open(wish.path, "create"), wish.text)
            case DeleteFile():
                _existing(drafts, wish.path, "delete").after = None
            case UpdateFile():
                _update(drafts, wish)
            case _:
                assert_never(wish)
    changed = [(draft, _difference(draft)) for draft in drafts.changed()]
    told = "\n".join(f"{_letter(draft)} {draft.place.shown}" for draft, _ in changed)
    return ToolResult(
        f"Done:\n{told}" if changed else "The files hold all of this already; nothing was written.",
        title=", ".join(draft.place.shown for draft, _ in changed)[:200],
        metadata={
            "diff": "\n".join(one.text for _, one in changed)[:100_000],
            "added": sum(one.added for _, one in changed),
            "removed": sum(one.removed for _, one in changed),
            "files": [draft.place.real for draft, _ in changed],
        },
    )


def _add(draft: Draft, text: str) -> None:
    if draft.after is not None:
        raise ToolFailure(f"{draft.place.shown} exists already; update it instead. Nothing was written")
    draft.write(text, Encoding())


def _existing(drafts: Drafts, path: str, op: str) -> Draft:
    draft = drafts.open(path, op)
    if draft.after is None:
        raise ToolFailure(f"{draft.place.shown} does not exist. Nothing was written")
    if draft.stale:
        drafts.saw(draft)
        encoding = detect(draft.after)
        view = fresh_view(encoding.decode(draft.after)) if encoding else "(a binary file)"
        raise ToolFailure(
            f"{draft.place.shown} was changed since you read it. Nothing was written. It holds now:\n{view}"
        )
    return draft


def _update(drafts: Drafts, wish: UpdateFile) -> None:
    draft = _existing(drafts, wish.path, "rename_source" if wish.move_to else "edit")
    if wish.hunks:
        try:
            text = apply_hunks(draft.text, wish.hunks, tolerant=draft.seen)
        except ToolFailure as failure:
            raise ToolFailure(f"{draft.place.shown}: {failure.message}") from failure
        draft.write(text, draft.encoding)
    if wish.move_to:
        target = drafts.open(wish.move_to, "create")
        if target.after is not None:
            raise ToolFailure(f"{target.place.shown} exists already. Nothing was written")
        target.after, draft.after = draft.after, None
        target.mode = draft.mode


def _difference(draft: Draft) -> Difference:
    return difference(draft.place.shown, _text(draft.before), _text(draft.after))


def _text(content: bytes | None) -> str | None:
    encoding = detect(content or b"")
    return content if content is None else encoding.decode(content) if encoding else "(binary)"


def _letter(draft: Draft) -> str:
    return "A" if draft.before is None else "D" if draft.after is None else "M"
