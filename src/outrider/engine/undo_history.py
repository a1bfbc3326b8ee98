"""Preview, undo and redo of the file changes of a session, by turn, message or call."""

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Self

import msgspec

from outrider.agents.turn_state import is_note
from outrider.engine.undo import UndoRecorder, record_change_set
from outrider.errors import ConfigurationError
from outrider.event_bus import EventBus
from outrider.sessions import snapshots as snapshots_api
from outrider.sessions.journal import Journal
from outrider.sessions.store import Store
from outrider.types.events import FilesRestoredEvent
from outrider.types.messages import Message
from outrider.types.parts import FilePart, TextPart

_OUTLINE_PAGE = 200  # messages
_TITLE_CHARS = 120


class SessionOutline:
    """What an undo needs from a transcript: the positions of messages and calls, the turn of each message, and the
    first characters of the input of each turn. `read` loads page by page, because the transcript may be large."""

    def __init__(self) -> None:
        self.messages: dict[str, int] = {}
        self.calls: dict[str, int] = {}
        self.turns: list[int] = []
        self.titles: dict[str, str] = {}

    @classmethod
    async def read(cls, store: Store, session_id: str) -> Self:
        outline, after = cls(), ""
        while True:
            page = await store.load(session_id, after=after, limit=_OUTLINE_PAGE)
            for message in page.messages:
                outline._add(message)
            if page.last or not page.messages:
                return outline
            after = page.messages[-1].id

    def _add(self, message: Message) -> None:
        number = self.messages[message.id] = len(self.turns)
        for call in message.get_calls():
            self.calls[call.id] = self.calls[call.call_id] = number
        begins = _begins_turn(message)
        self.turns.append((self.turns[-1] if self.turns else 0) + begins)
        if begins:
            self.titles[message.id] = " ".join(message.get_text_content().split())[:_TITLE_CHARS]


class ChangeHistory:
    """The recorded changes of a session in order. Changes by a called agent belong to the call of that agent."""

    def __init__(self, changes: "Sequence[snapshots_api.ChangeSet]", outline: SessionOutline, session_id: str) -> None:
        self._changes = changes
        self._session_id = session_id
        self._messages, self._calls, self._turns = outline.messages, outline.calls, outline.turns

    def to_undo(self, to: str | None) -> "list[snapshots_api.ChangeSet]":
        """Returns the changes of the last turn with changes, or all from the message or call `to` on."""
        applied = [
            change_set
            for change_set in self._changes
            if not change_set.undone and self._message_index(change_set) is not None
        ]
        if to is None:
            last_turn = max((self._turn_number(change_set) for change_set in applied), default=0)
            return self._with_parts(
                [change_set for change_set in applied if self._turn_number(change_set) == last_turn]
            )
        if to in self._messages:
            first_message = self._messages[to]
            return self._with_parts(
                [change_set for change_set in applied if (self._message_index(change_set) or 0) >= first_message]
            )
        if to not in self._calls:
            raise ConfigurationError(f"there is no message or call {to!r} in this session")
        first = next(
            (number for number, change_set in enumerate(applied) if to in self._call_names(change_set)), len(applied)
        )
        return self._with_parts(applied[first:])

    def of_turn(self, message_id: str | None) -> "list[snapshots_api.ChangeSet]":
        """Returns the changes of the turn that begins with a message. Without a message, returns all changes, including
        undone changes and the undos."""
        if message_id is None:
            return list(self._changes)
        if message_id not in self._messages:
            raise ConfigurationError(f"there is no message {message_id!r} in this session")
        number = self._turns[self._messages[message_id]]
        calls = [
            change_set for change_set in self._changes if not change_set.undone and change_set.origin.kind == "call"
        ]
        return self._with_parts([change_set for change_set in calls if self._turn_number(change_set) == number])

    def turn_starts(self) -> list[str]:
        """Returns the messages that begin the turns with changes, oldest first."""
        numbers = {
            self._turn_number(change_set) for change_set in self._changes if self._message_index(change_set) is not None
        }
        starts = {self._turns[index]: message_id for message_id, index in reversed(self._messages.items())}
        return [starts[number] for number in sorted(numbers) if number in starts]

    def to_redo(self) -> "list[snapshots_api.ChangeSet]":
        """Returns the changes of the last undo, unless files were changed or redone after it."""
        undone: list[snapshots_api.ChangeSet] = []
        for change_set in self._changes:
            match change_set.origin.kind:
                case "undo" if change_set.origin.earlier:
                    undone.append(change_set)
                case "redo":
                    del undone[-1:]
                case "call" | "undo":
                    undone.clear()
        by_id = {change_set.id: change_set for change_set in self._changes}
        return [by_id[name] for name in undone[-1].origin.earlier if name in by_id] if undone else []

    def _with_parts(self, calls: "list[snapshots_api.ChangeSet]") -> "list[snapshots_api.ChangeSet]":
        """Returns the changes of these calls and the later change sets that undid parts of them. A partial undo is left
        out if another call changed the file in between."""
        chosen, selected = {change_set.id for change_set in calls}, list[snapshots_api.ChangeSet]()
        paths = set[str]()
        for change_set in self._changes:
            is_part = change_set.origin.kind == "undo" and not change_set.origin.earlier
            if change_set.id in chosen or (is_part and not change_set.undone and paths.issuperset(change_set.paths)):
                selected.append(change_set)
                paths.update(change_set.paths)
            elif change_set.origin.kind == "call" and not change_set.undone:
                paths.difference_update(change_set.paths)
        return selected

    def _call_names(self, change_set: "snapshots_api.ChangeSet") -> tuple[str, ...]:
        """Returns the ids of the call of this session that a change belongs to."""
        origin = change_set.origin
        if origin.session_id == self._session_id:
            return origin.part_id, origin.call_id
        return tuple(caller.call_id for caller in origin.callers if caller.session_id == self._session_id)

    def _message_index(self, change_set: "snapshots_api.ChangeSet") -> int | None:
        if change_set.origin.kind != "call":
            return None
        return next((self._calls[name] for name in self._call_names(change_set) if name in self._calls), None)

    def _turn_number(self, change_set: "snapshots_api.ChangeSet") -> int:
        index = self._message_index(change_set)
        return 0 if index is None else self._turns[index]


def _begins_turn(message: Message) -> bool:
    """Returns whether a message is real user input, not synthetic text."""
    has_text = any(not part.synthetic for part in message.get_parts_by_type(TextPart))
    return message.role == "user" and not is_note(message) and (has_text or bool(message.get_parts_by_type(FilePart)))


NO_TOOLS_MESSAGE = "this engine has no built-in tools, so it records no file changes to undo"
NOTHING_MESSAGES = {"undo": "there is nothing to undo", "redo": "there is nothing to redo"}


class RestoreResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of an undo, redo or preview.

    - `direction`: "undo" or "redo".
    - `actions`: what was done to each file.
    - `uncovered`: files that may have changed too but have no snapshot.
    - `off`: the reason why nothing was done.
    - `message_id`: the message that records the result in the transcript.
    """

    direction: "snapshots_api.Direction"
    actions: "tuple[snapshots_api.FileAction, ...]" = ()
    uncovered: tuple[str, ...] = ()
    off: str = ""
    message_id: str = ""

    @property
    def changed(self) -> tuple[str, ...]:
        """The paths of the files that were restored, created or removed."""
        return snapshots_api.RestoreReport(self.actions).changed

    @property
    def conflicts(self) -> tuple[str, ...]:
        """Files that another program has changed since then; they are not restored."""
        return snapshots_api.RestoreReport(self.actions).conflicts

    @property
    def doubtful(self) -> tuple[str, ...]:
        """Files that may not have been changed by an agent; they are restored only on request."""
        return snapshots_api.RestoreReport(self.actions).doubtful


class FileChanges:
    """File changes of one session and the agents it called. `open_journal` takes the lease and returns the journal; a
    preview needs no lease. Without `to` the last turn is undone, otherwise everything from that message or call on."""

    def __init__(
        self,
        session_id: str,
        undo: UndoRecorder | None,
        store: Store,
        bus: EventBus,
        open_journal: Callable[[], Awaitable[Journal]],
    ) -> None:
        self.session_id = session_id
        self._undo = undo
        self._store = store
        self._bus = bus
        self._open_journal = open_journal

    async def preview(
        self, direction: "snapshots_api.Direction" = "undo", *, to: str | None = None, doubtful: bool = False
    ) -> RestoreResult:
        """Returns what `undo` or `redo` would do, with diffs. Nothing is changed."""
        snapshots = await self._open_snapshots()
        if isinstance(snapshots, str) or self._undo is None:
            return RestoreResult(direction=direction, off=str(snapshots))
        changes = await self._select_changes(snapshots, direction, to)
        if not changes:
            return RestoreResult(direction=direction, off=NOTHING_MESSAGES[direction])
        ids = [changed.id for changed in changes]
        report = await self._undo.stores.run_in_thread(
            lambda: snapshots.preview_restore(ids, direction, doubtful=doubtful)
        )
        return RestoreResult(direction=direction, actions=report.actions, uncovered=_uncovered_paths(changes))

    async def undo(self, to: str | None = None, *, doubtful: bool = False) -> RestoreResult:
        """Restores files to their state before the changes, and records that in the transcript for the model."""
        return await self._apply_changes("undo", to, doubtful=doubtful)

    async def redo(self, *, doubtful: bool = False) -> RestoreResult:
        """Reverts the last undo, if nothing else changed after it."""
        return await self._apply_changes("redo", None, doubtful=doubtful)

    async def undo_part(
        self, path: str, apply: "Callable[[snapshots_api.ChangeTracker], snapshots_api.ChangeSet | str]"
    ) -> RestoreResult:
        """Undoes a part of the changes of a file and records that in the transcript. `apply` runs in a thread and
        returns what it changed, or why it changed nothing."""
        snapshots = await self._open_snapshots()
        if isinstance(snapshots, str) or self._undo is None:
            return RestoreResult(direction="undo", off=str(snapshots))
        journal = await self._open_journal()
        change_set = await self._undo.stores.run_in_thread(lambda: apply(snapshots))
        if isinstance(change_set, str):
            return RestoreResult(
                direction="undo", actions=(snapshots_api.FileAction(path, "conflict"),), off=change_set
            )
        message_id = await record_change_set(journal, change_set)
        self._bus.publish(
            FilesRestoredEvent(
                session_id=self.session_id, direction="undo", files=change_set.paths, message_id=message_id
            )
        )
        action = "change" if change_set.files[0].after else "delete"
        return RestoreResult(direction="undo", actions=(snapshots_api.FileAction(path, action),), message_id=message_id)

    async def _apply_changes(
        self, direction: "snapshots_api.Direction", to: str | None, *, doubtful: bool
    ) -> RestoreResult:
        snapshots = await self._open_snapshots()
        if isinstance(snapshots, str) or self._undo is None:
            return RestoreResult(direction=direction, off=str(snapshots))
        journal = await self._open_journal()
        changes = await self._select_changes(snapshots, direction, to)
        if not changes:
            return RestoreResult(direction=direction, off=NOTHING_MESSAGES[direction])
        ids, origin = [changed.id for changed in changes], snapshots_api.ChangeOrigin(session_id=self.session_id)
        report, change_set = await self._undo.stores.run_in_thread(
            lambda: snapshots.apply_restore(ids, direction, doubtful=doubtful, origin=origin)
        )
        unrestored = (*report.conflicts, *report.doubtful)
        message_id = await record_change_set(journal, change_set, unrestored)
        self._bus.publish(
            FilesRestoredEvent(
                session_id=self.session_id,
                direction=direction,
                files=report.changed,
                left_alone=unrestored,
                message_id=message_id,
            )
        )
        return RestoreResult(
            direction=direction, actions=report.actions, uncovered=_uncovered_paths(changes), message_id=message_id
        )

    async def _open_snapshots(self) -> "snapshots_api.ChangeTracker | str":
        if self._undo is None:
            return NO_TOOLS_MESSAGE
        stored = await self._store.get(self.session_id)
        await self._undo.record_background_changes(self.session_id)
        return await self._undo.stores.open_snapshots(Path(stored.workspace_directory or "."))

    async def _select_changes(
        self, snapshots: "snapshots_api.ChangeTracker", direction: "snapshots_api.Direction", to: str | None
    ) -> "list[snapshots_api.ChangeSet]":
        assert self._undo is not None
        changes = await self._undo.stores.run_in_thread(lambda: snapshots.session_changes(self.session_id))
        history = ChangeHistory(changes, await SessionOutline.read(self._store, self.session_id), self.session_id)
        return history.to_undo(to) if direction == "undo" else history.to_redo()


def _uncovered_paths(changes: "Sequence[snapshots_api.ChangeSet]") -> tuple[str, ...]:
    return tuple(dict.fromkeys(path for changed in changes for path in changed.uncovered))
