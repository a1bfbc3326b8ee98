"""What the agents of a session did to files, turn by turn, to be looked at, undone and redone."""

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import msgspec

from outrider.agents.turn_state import is_note
from outrider.engine.undo import Undo, write_down
from outrider.errors import ConfigurationError
from outrider.event_bus import EventBus
from outrider.sessions import snapshots as kept
from outrider.sessions.journal import Journal
from outrider.sessions.store import Store
from outrider.types.events import FilesRestoredEvent
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


WITHOUT_TOOLS = "this engine has no built-in tools, and keeps nothing for an undo"
NOTHING = {"undo": "there is nothing to undo", "redo": "there is nothing to redo"}


class Restored(msgspec.Struct, frozen=True, kw_only=True):
    """What an undo or redo did, or (as a preview) would do, to each file. `uncovered` files may have been changed too,
    but were not kept. If nothing can be done at all, `off` says why. `message_id` is where the transcript says it."""

    direction: "kept.Direction"
    actions: "tuple[kept.FileAction, ...]" = ()
    uncovered: tuple[str, ...] = ()
    off: str = ""
    message_id: str = ""

    @property
    def changed(self) -> tuple[str, ...]:
        return kept.Report(self.actions).changed

    @property
    def conflicts(self) -> tuple[str, ...]:
        """Changed by somebody else since, and left alone."""
        return kept.Report(self.actions).conflicts

    @property
    def doubtful(self) -> tuple[str, ...]:
        """Perhaps not changed by an agent at all, and left alone unless that was asked for."""
        return kept.Report(self.actions).doubtful


class FileChanges:
    """Of one session and the agents it called. `own` makes the session ours and gives its journal; looking needs no
    owner. The last turn is what is undone unless `to` names a message or a call: then everything from there on."""

    def __init__(
        self, session_id: str, undo: Undo | None, store: Store, bus: EventBus, own: Callable[[], Awaitable[Journal]]
    ) -> None:
        self.session_id = session_id
        self._undo = undo
        self._store = store
        self._bus = bus
        self._own = own

    async def preview(
        self, direction: "kept.Direction" = "undo", *, to: str | None = None, doubtful: bool = False
    ) -> Restored:
        """What `undo` or `redo` would do, with differences to look at; nothing is touched."""
        found = await self._found()
        if isinstance(found, str) or self._undo is None:
            return Restored(direction=direction, off=str(found))
        changes = await self._chosen(found, direction, to)
        if not changes:
            return Restored(direction=direction, off=NOTHING[direction])
        ids = [changed.id for changed in changes]
        report = await self._undo.places.run(lambda: found.preview(ids, direction, doubtful=doubtful))
        return Restored(direction=direction, actions=report.actions, uncovered=_uncovered(changes))

    async def undo(self, to: str | None = None, *, doubtful: bool = False) -> Restored:
        """Bring files back to what they were. The transcript only grows by it, and the model reads of it."""
        return await self._apply("undo", to, doubtful=doubtful)

    async def redo(self, *, doubtful: bool = False) -> Restored:
        """Take the last undo back, as long as nothing else was changed after it."""
        return await self._apply("redo", None, doubtful=doubtful)

    async def _apply(self, direction: "kept.Direction", to: str | None, *, doubtful: bool) -> Restored:
        found = await self._found()
        if isinstance(found, str) or self._undo is None:
            return Restored(direction=direction, off=str(found))
        journal = await self._own()
        changes = await self._chosen(found, direction, to)
        if not changes:
            return Restored(direction=direction, off=NOTHING[direction])
        ids, origin = [changed.id for changed in changes], kept.Origin(session_id=self.session_id)
        report, done = await self._undo.places.run(
            lambda: found.apply(ids, direction, doubtful=doubtful, origin=origin)
        )
        left = (*report.conflicts, *report.doubtful)
        message_id = await write_down(journal, done, left)
        self._bus.publish(
            FilesRestoredEvent(
                session_id=self.session_id,
                direction=direction,
                files=report.changed,
                left_alone=left,
                message_id=message_id,
            )
        )
        return Restored(
            direction=direction, actions=report.actions, uncovered=_uncovered(changes), message_id=message_id
        )

    async def _found(self) -> "kept.Snapshots | str":
        if self._undo is None:
            return WITHOUT_TOOLS
        stored = await self._store.get(self.session_id)
        await self._undo.look(self.session_id)
        return await self._undo.places.find(Path(stored.workspace_directory or "."))

    async def _chosen(
        self, snapshots: "kept.Snapshots", direction: "kept.Direction", to: str | None
    ) -> "list[kept.ChangeSet]":
        assert self._undo is not None
        changes = await self._undo.places.run(lambda: snapshots.of_session(self.session_id))
        history = History(changes, (await self._store.load(self.session_id)).messages, self.session_id)
        return history.to_undo(to) if direction == "undo" else history.to_redo()


def _uncovered(changes: "Sequence[kept.ChangeSet]") -> tuple[str, ...]:
    return tuple(dict.fromkeys(path for changed in changes for path in changed.uncovered))
