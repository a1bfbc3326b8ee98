"""The changes of a session beside its transcript: which of them belong to a turn, and which can be redone."""

from collections.abc import Sequence

from outrider.agents.ends import is_note
from outrider.errors import ConfigurationError
from outrider.sessions import snapshots as kept
from outrider.types.messages import Message
from outrider.types.parts import FilePart, TextPart, ToolPart


class History:
    """What an agent changed that the session called counts as changed by the call of that agent."""

    def __init__(self, changes: "Sequence[kept.ChangeSet]", messages: Sequence[Message], session_id: str) -> None:
        self._changes = changes
        self._session_id = session_id
        self._messages = {message.id: number for number, message in enumerate(messages)}
        self._calls = {
            name: number
            for number, message in enumerate(messages)
            for call in message.get_parts_by_type(ToolPart)
            for name in (call.id, call.call_id)
        }
        self._turns: list[int] = []
        for message in messages:
            self._turns.append((self._turns[-1] if self._turns else 0) + _begins_turn(message))

    def to_undo(self, to: str | None) -> "list[kept.ChangeSet]":
        """Of the last turn that changed anything; or from a message or call on."""
        applied = [one for one in self._changes if not one.undone and self._place(one) is not None]
        if to is None:
            last = max((self._turn(one) for one in applied), default=0)
            return [one for one in applied if self._turn(one) == last]
        if to in self._messages:
            return [one for one in applied if (self._place(one) or 0) >= self._messages[to]]
        if to not in self._calls:
            raise ConfigurationError(f"there is no message or call {to!r} in this session")
        first = next((number for number, one in enumerate(applied) if to in self._names(one)), len(applied))
        return applied[first:]

    def to_redo(self) -> "list[kept.ChangeSet]":
        """What the last undo took back, unless something was changed or redone after it."""
        undone: list[kept.ChangeSet] = []
        for one in self._changes:
            match one.origin.kind:
                case "undo":
                    undone.append(one)
                case "redo":
                    del undone[-1:]
                case "call":
                    undone.clear()
        by_id = {one.id: one for one in self._changes}
        return [by_id[name] for name in undone[-1].origin.earlier if name in by_id] if undone else []

    def _names(self, one: "kept.ChangeSet") -> tuple[str, ...]:
        """The call of this session in whose course it was changed."""
        origin = one.origin
        if origin.session_id == self._session_id:
            return origin.part_id, origin.call_id
        return tuple(caller.call_id for caller in origin.callers if caller.session_id == self._session_id)

    def _place(self, one: "kept.ChangeSet") -> int | None:
        if one.origin.kind != "call":
            return None
        return next((self._calls[name] for name in self._names(one) if name in self._calls), None)

    def _turn(self, one: "kept.ChangeSet") -> int:
        place = self._place(one)
        return 0 if place is None else self._turns[place]


def _begins_turn(message: Message) -> bool:
    """Something that the user said or gave, not what was added on the way."""
    said = any(not part.synthetic for part in message.get_parts_by_type(TextPart))
    return message.role == "user" and not is_note(message) and (said or bool(message.get_parts_by_type(FilePart)))
