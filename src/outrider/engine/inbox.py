"""The input queue of an open session: input is stored on arrival and moved to the transcript once; its future resolves
when its turn ends."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context, copy_context
from typing import Any, NamedTuple

from msgspec.structs import replace

from outrider.agents.output_type import OutputType
from outrider.agents.turn_state import TurnEnd, is_note
from outrider.engine.abort import is_abort_request
from outrider.engine.results import RunResult
from outrider.sessions.journal import Journal
from outrider.sessions.records import InboxItem, SessionUpdate
from outrider.sessions.store import Store
from outrider.types.messages import Message
from outrider.types.parts import ModelRef, TextPart

MAX_TITLE = 60
PublishChanges = Callable[..., None]


class InputOrigin(NamedTuple):
    """The context variables of the task that added an input, and the output type that it requested."""

    variables: Context
    output: OutputType | None = None


class SessionInbox:
    """Queues input for one session. `publish_changes` announces input as queued, taken or withdrawn. `notes` returns
    the workspace notes and `initial_state` its state; both are stored with the first input and stay the same.
    `make_result` makes the result of an input that starts no turn, `model` returns the model that answers.
    `describe_input` adds to an input what it is answered with. `current` is the origin of the newest input that
    was taken, None if it came from another process."""

    def __init__(
        self,
        journal: Journal,
        store: Store,
        publish_changes: PublishChanges,
        notes: Callable[[], str] = lambda: "",
        initial_state: Callable[[], Awaitable[TextPart | None]] | None = None,
        *,
        make_result: Callable[[TurnEnd], "RunResult[Any]"],
        model: Callable[[], ModelRef] | None = None,
        describe_input: Callable[[Message], None] | None = None,
    ) -> None:
        self._describe_input = describe_input
        self._model = model
        self._make_result = make_result
        self._journal = journal
        self._store = store
        self._publish_changes = publish_changes
        self._notes = notes
        self._initial_state = initial_state
        self._futures: dict[str, list[asyncio.Future[RunResult[Any]]]] = {}
        self._taken: list[str] = []
        self._origins: dict[str, InputOrigin] = {}
        self.current: InputOrigin | None = None
        self._unredacted: dict[str, Message] = {}
        self._take_lock = asyncio.Lock()

    async def put(
        self, item: InboxItem, output: OutputType | None = None
    ) -> tuple[InboxItem, asyncio.Future[RunResult[Any]]]:
        """Store an input and return it with a future for the end of its turn. An input with a known id is returned as
        first stored; if its turn is over, the future resolves with the last text."""
        end = self.expect_end(item.id)
        self._origins[item.id] = InputOrigin(copy_context(), output)
        try:
            stored = await self._store.put_inbox(item)
        except BaseException:
            self._drop_future(item.id, end)
            self._origins.pop(item.id, None)
            raise
        if stored.message.id == item.message.id:
            self._publish_changes(queued=item.id)
            if stored.message.join_text() != item.message.join_text():
                # The store redacts secrets; the model of this process gets the original text.
                self._unredacted[item.id] = item.message
        if stored.taken is not None and item.id not in self._taken:
            self._resolve_item(item.id, self._make_result(TurnEnd("completed", self.last_text())))
        return stored, end

    def expect_end(self, name: str) -> asyncio.Future[RunResult[Any]]:
        """Return a new future for the turn of this input. Several callers may wait; cancelling one future does not
        affect the others."""
        end: asyncio.Future[RunResult[Any]] = asyncio.get_running_loop().create_future()
        self._futures.setdefault(name, []).append(end)
        return end

    def mark_taken(self, name: str, output: OutputType | None = None) -> None:
        """Resolve the futures of this name at the end of the next turn."""
        self.current = InputOrigin(copy_context(), output)
        self._taken.append(name)

    async def take_next(self) -> bool:
        """Move the next input, and the notes before it, into the transcript. Notes start no turn."""
        async with self._take_lock:
            for item in await self.discard_aborts():
                message = await self._take_item(item)
                if not is_note(message):
                    return True
                self.resolve_taken(self._make_result(TurnEnd("completed")))
        return False

    async def discard_aborts(self) -> list[InboxItem]:
        """Return the waiting input. Abort requests are removed: the turn that they were sent for is over."""
        waiting = await self._pending_items()
        for item in waiting:
            if is_abort_request(item):
                await self._journal.discard_inbox_item(item.id)
        return [item for item in waiting if not is_abort_request(item)]

    async def take_steering(self) -> list[Message]:
        """Move input with delivery "steer" into the transcript during a turn."""
        async with self._take_lock:
            return [await self._take_item(item) for item in await self._pending_items() if item.delivery == "steer"]

    async def withdraw(self, item_id: str) -> bool:
        """Remove waiting input; return False if it is in the transcript already, or is unknown."""
        async with self._take_lock:
            if item_id not in {item.id for item in await self._pending_items()}:
                return False
            await self._journal.discard_inbox_item(item_id)
        self._publish_changes(withdrawn=item_id)
        self._origins.pop(item_id, None)
        self._resolve_item(item_id, self._make_result(TurnEnd("aborted")))
        return True

    def resolve_taken(self, end: "RunResult[Any]") -> None:
        """Resolve the futures of all input of this turn with the end of the turn."""
        for item_id in self._taken:
            self._resolve_item(item_id, end)
        self._taken.clear()

    def resolve_all(self, end: "RunResult[Any]") -> None:
        """Resolve all futures, because the session closes. Waiting input stays in the store for the next owner."""
        for name in list(self._futures):
            self._resolve_item(name, end)

    def last_text(self) -> str:
        messages = self._journal.session.messages
        return messages[-1].join_text() if messages else ""

    async def _pending_items(self) -> Sequence[InboxItem]:
        """Return stored input. Pending writes of the journal are retried first, so that no item is processed twice, for
        example after an abort or with a full disk."""
        if self._journal.has_pending_input:
            await self._journal.retry_writes()
        return await self._store.inbox(self._journal.session.id)

    async def _take_item(self, item: InboxItem) -> Message:
        """Move one input into the transcript. Its mode is stored before it, so that a crash between both writes loses
        neither."""
        item = replace(item, message=self._unredacted.pop(item.id, item.message))
        session, mode = self._journal.session, item.message.mode
        if mode is not None and mode != session.mode:
            await self._journal.update_session(SessionUpdate(mode=mode))
        if not session.messages:
            await self._describe_workspace(item.message)
        item.message.mode = item.message.mode or session.mode
        if self._model is not None and item.message.model is None:
            item.message.agent, item.message.model = item.message.agent or session.agent, self._model()
        if self._describe_input is not None and not is_note(item.message):
            self._describe_input(item.message)
        origin, resumed = self._origins.pop(item.id, None), self.current if self._taken else None
        # Stored input has no origin; `go_on`, which resumes it, may have its output type.
        self.current = resumed if origin is None and resumed is not None and resumed.output is not None else origin
        self._taken.append(item.id)  # before the write, so that its future is resolved even if that fails
        message = await self._journal.take_inbox_item(item)
        self._publish_changes(taken=item.id)
        if not session.title:
            await self._journal.update_session(SessionUpdate(title=first_line_title(message)))
        return message

    async def _describe_workspace(self, message: Message) -> None:
        """Store the workspace notes and the initial state with the first message. They stay the same to the end of the
        session, so that the cached prompt prefix stays valid."""
        notes, state = self._notes(), await self._initial_state() if self._initial_state else None
        message.system = notes if notes or state else None
        if state and not any(part.text == state.text for part in message.get_parts_by_type(TextPart)):
            message.add_part(state)

    def _drop_future(self, name: str, end: asyncio.Future[RunResult[Any]]) -> None:
        others = [other for other in self._futures.pop(name, ()) if other is not end]
        if others:
            self._futures[name] = others

    def _resolve_item(self, name: str, end: "RunResult[Any]") -> None:
        for waiting in self._futures.pop(name, ()):
            if not waiting.done():
                waiting.set_result(end)


def first_line_title(message: Message) -> str:
    """Return the first line of the input as a title that needs no model request."""
    line = next((line.strip() for line in message.join_text().splitlines() if line.strip()), "")
    return line if len(line) <= MAX_TITLE else f"{line[: MAX_TITLE - 1].rstrip()}…"
