"""What the agents of a session did to files, turn by turn, to be looked at, undone and redone."""

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import msgspec

from outrider.app.undo.history import History
from outrider.app.undo.notes import write_down
from outrider.app.undo.undo import Undo
from outrider.bus import EventBus
from outrider.sessions import snapshots as kept
from outrider.sessions.journal import Journal
from outrider.sessions.store import Store
from outrider.types.events import FilesRestoredEvent

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
