"""Commands that change what was: files go back and forth, a long session becomes short."""

from typing import Literal

from outrider.tui.commands.stage import Stage
from outrider.tui.rendering.words import count, plural

_MOST_SHOWN = 30
_DONE = {"undo": "taken back", "redo": "made again"}


async def undo(stage: Stage, _: str) -> None:
    await _move(stage, "undo")


async def redo(stage: Stage, _: str) -> None:
    await _move(stage, "redo")


async def compact(stage: Stage, _: str) -> None:
    if not stage.helm.session_id:
        stage.tell("there is nothing to shorten yet")
        return
    stage.tell("what was said so far is being summarised")
    part = await stage.helm.engine.compact(stage.helm.session_id)
    if part is None:
        stage.tell("there is nothing to shorten yet")
    elif part.tokens_before and part.tokens_after:
        stage.tell(f"{count(part.tokens_before)} tokens became {count(part.tokens_after)}", "good")


async def _move(stage: Stage, direction: Literal["undo", "redo"]) -> None:
    """Every file is shown with what would happen to it before anything does."""
    if not stage.helm.session_id:
        stage.tell(f"there is nothing to {direction} yet")
        return
    changes = stage.helm.engine.file_changes(stage.helm.session_id)
    found = await changes.preview(direction)
    if found.off or not found.changed:
        stage.tell(found.off or "every file was changed since by somebody else, or is as it should be", "warn")
        return
    shown = "\n\n".join(
        f"**{one.action}** `{one.path}`" + (f"\n\n```diff\n{one.diff}\n```" if one.diff else "")
        for one in found.actions[:_MOST_SHOWN]
    )
    if not await stage.confirm(f"{direction.capitalize()} {plural(len(found.changed), 'file')}?", shown, direction):
        return
    done = await (changes.undo() if direction == "undo" else changes.redo())
    left = f"; left alone: {', '.join(done.conflicts + done.doubtful)}" if done.conflicts or done.doubtful else ""
    stage.tell(f"{_DONE[direction]}: {', '.join(done.changed) or 'nothing'}{left}", "warn" if left else "good")
