"""What the user may say to Outrider itself: commands, which an editor offers after a slash."""

from collections.abc import Sequence
from typing import Literal

from acp.schema import AvailableCommand, AvailableCommandsUpdate

from outrider.app.engine import Engine
from outrider.types.parts import PartBase, TextPart

Name = Literal["compact", "undo", "redo"]
COMMANDS: dict[Name, str] = {
    "compact": "Put a summary in place of old messages",
    "undo": "Bring files back to what they were before the last turn",
    "redo": "Make the changes again that were undone last",
}


def offered() -> AvailableCommandsUpdate:
    commands = [AvailableCommand(name=name, description=words) for name, words in COMMANDS.items()]
    return AvailableCommandsUpdate(session_update="available_commands_update", available_commands=commands)


def named(parts: Sequence[PartBase]) -> Name | None:
    """The command that this is, if it is one and nothing else."""
    if len(parts) != 1 or not isinstance(parts[0], TextPart):
        return None
    said = parts[0].text.strip()
    return next((name for name in COMMANDS if said == f"/{name}"), None)


async def carry_out(name: Name, engine: Engine, session_id: str) -> str:
    """What came of it, in words."""
    match name:
        case "compact":
            part = await engine.compact(session_id)
            return (
                f"Summed up: {part.tokens_before} → {part.tokens_after} tokens." if part else "Nothing to sum up yet."
            )
        case "undo":
            return await _restored(engine, session_id, "undo")
        case "redo":
            return await _restored(engine, session_id, "redo")


async def _restored(engine: Engine, session_id: str, direction: Literal["undo", "redo"]) -> str:
    changes = engine.file_changes(session_id)
    restored = await (changes.undo() if direction == "undo" else changes.redo())
    done = f"Brought back: {', '.join(restored.changed)}." if restored.changed else restored.off or "Nothing changed."
    left = (
        f" Left alone, since somebody else changed them: {', '.join(restored.conflicts)}." if restored.conflicts else ""
    )
    return f"{done}{left}"
