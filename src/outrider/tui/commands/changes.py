"""Commands that change what was: files go back and forth, a long session becomes short."""

from outrider.tui.commands.stage import Stage


async def undo(stage: Stage, _: str) -> None:
    stage.tell("undo is not connected yet", "warn")


async def redo(stage: Stage, _: str) -> None:
    stage.tell("redo is not connected yet", "warn")


async def compact(stage: Stage, _: str) -> None:
    stage.tell("compaction by hand is not connected yet", "warn")
