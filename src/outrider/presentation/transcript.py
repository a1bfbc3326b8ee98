"""A session as front ends show it: items in order, folded from stored messages and from events.

A front end creates a `TranscriptView`, loads messages into it, feeds it events and renders the items that each call
returns as changed. Items keep their identity unless their part changes its kind; `version` increases with every
change, so that a renderer can cache what it has drawn."""

from collections.abc import Callable, Iterable, Iterator
from time import monotonic

from outrider.presentation.activity import ChildAgent, SessionActivity, SideActivity
from outrider.presentation.items import (
    ABORTED,
    FileItem,
    Notice,
    NoticeItem,
    ReasoningItem,
    TextItem,
    ToolCallItem,
    TranscriptItem,
    event_notice,
    has_other_display,
    merge_retry,
    message_error_notice,
    message_items,
    part_item,
)
from outrider.types.codec import AnyPart
from outrider.types.events import (
    AgentCalledEvent,
    ErrorEvent,
    Event,
    MessageAddedEvent,
    PartDeltaEvent,
    PartUpdatedEvent,
    ToolInputDeltaEvent,
    ToolOutputEvent,
)
from outrider.types.ids import new_id
from outrider.types.messages import Message
from outrider.types.parts import FilePart, ReasoningPart, StepFinishPart, SubtaskPart, TextPart, ToolPart, is_withdrawn


class TranscriptView:
    """The items of one session. `find_message` returns a message of the session by its id, because events name messages
    and do not carry them. With `follow_children`, each called agent has its own view in `children`."""

    def __init__(
        self,
        session_id: str,
        find_message: Callable[[str], Message | None] = lambda _: None,
        clock: Callable[[], float] = monotonic,
        *,
        agent: str = "",
        follow_children: bool = False,
    ) -> None:
        self.session_id = session_id
        self.agent = agent
        self.find_message = find_message
        self.items: list[TranscriptItem] = []
        self.activity = SessionActivity(clock)
        self.side = SideActivity(clock)
        self.children: dict[str, TranscriptView] = {}
        self.related_sessions: set[str] = set()  # child sessions other than agents, whose approvals are shown here
        self._follow_children = follow_children
        self._by_id: dict[str, TranscriptItem] = {}
        self._calls: dict[str, ToolCallItem] = {}
        self._reasoning_started: dict[str, float] = {}
        self._clock = clock

    def load(self, messages: Iterable[Message]) -> list[TranscriptItem]:
        """Appends the items of messages that are not shown yet."""
        return [item for message in messages for item in self._items_of(message) if self.add(item)]

    def refresh(self, messages: Iterable[Message]) -> None:
        """Updates items whose stored parts have changed, such as calls that a crash left open."""
        for message in messages:
            for part in message.parts:
                if part.id in self._by_id:
                    self.update_part(part)

    def prepend(self, messages: Iterable[Message], notices: Iterable[Notice] = ()) -> int:
        """Inserts older messages at the top, below notices about them, and returns the number of new items."""
        older: list[TranscriptItem] = [NoticeItem(new_id(), notice) for notice in notices]
        older += [item for message in messages for item in self._items_of(message) if item.id not in self._by_id]
        todos = self.side.todos
        for item in older:
            self._index(item)
        self.side.todos = todos or self.side.todos  # a later list replaces those of older calls
        self.items[:0] = older
        return len(older)

    def _items_of(self, message: Message) -> Iterator[TranscriptItem]:
        """Returns the items of a stored message, and notes the agents that it called."""
        for part in message.get_parts_by_type(SubtaskPart):
            self.side.add_subtask(part)
        return message_items(message)

    def add(self, item: TranscriptItem) -> bool:
        """Appends an item; returns False if one with this id exists."""
        if item.id in self._by_id:
            return False
        self._index(item)
        self.items.append(item)
        return True

    def add_notice(self, notice: Notice) -> NoticeItem:
        item = NoticeItem(new_id(), notice)
        self.add(item)
        return item

    def forget_first(self, number: int) -> None:
        """Drops items at the top that are no longer visible; the store has them."""
        for item in self.items[:number]:
            self._by_id.pop(item.id, None)
            if isinstance(item, ToolCallItem):
                self._calls.pop(item.part.call_id, None)
        del self.items[:number]

    def find_call(self, call_id: str) -> ToolCallItem | None:
        return self._calls.get(call_id)

    def concerns(self, event: Event) -> bool:
        """Returns whether the event belongs to this session, to an agent that was called in it or to a related
        session."""
        return (
            event.session_id == self.session_id
            or self.side.has_agent(event.session_id)
            or event.session_id in self.related_sessions
        )

    def apply(self, event: Event) -> list[TranscriptItem]:
        """Folds an event and returns the items that are new or changed, including those of called agents."""
        if not self.concerns(event):
            return []
        is_shown_session = event.session_id == self.session_id
        self.activity.apply(event, is_shown_session=is_shown_session)
        self.side.apply(event)
        if is_shown_session:
            return self._apply_own(event)
        changed = self._show_child_activity(self.side.agents.get(event.session_id))
        if self._follow_children:
            changed += self._child_view(event.session_id).apply(event)
        return changed

    def update_part(self, part: AnyPart) -> list[TranscriptItem]:
        """Applies the full value of a part. It replaces what deltas have shown, some of which may be missing."""
        if isinstance(part, StepFinishPart):
            return self._show_message_error(part.message_id)
        if isinstance(part, ToolPart):
            self.side.update_from_call(part)
        elif isinstance(part, SubtaskPart):
            self.side.add_subtask(part)
        item = self._by_id.get(part.id)
        if item is None:
            last_item = self.items[-1] if self.items else None
            if last_item is not None and merge_retry(last_item, part):
                self._by_id[part.id] = last_item
                return [last_item]
            new_item = part_item(part)
            return [new_item] if new_item is not None and self.add(new_item) else []
        return [item] if self._update_item(item, part) else self._replace_item(item, part)

    def _update_item(self, item: TranscriptItem, part: AnyPart) -> bool:
        """Applies the new value of the part that the item shows; returns False if the part is of another kind."""
        item.withdrawn = is_withdrawn(part)
        match item, part:
            case ReasoningItem(), ReasoningPart():
                self._finish_reasoning(item, part)
            case TextItem(), TextPart() if not isinstance(item, ReasoningItem):
                item.finish(part.text)
            case ToolCallItem(), ToolPart():
                item.update(part)
            case FileItem(), FilePart():
                item.update(part)
            case NoticeItem(), _ if isinstance(changed := part_item(part), NoticeItem):
                item.update(changed.notice)
            case _:
                return False
        return True

    def _replace_item(self, old_item: TranscriptItem, part: AnyPart) -> list[TranscriptItem]:
        """Shows a part that has become one of another kind, such as streamed text that turned out to be reasoning."""
        item = part_item(part)
        if item is None or type(item) is type(old_item):
            return []
        item.expanded = old_item.expanded
        self.items[self.items.index(old_item)] = item
        self._index(item)
        return [item]

    def _apply_own(self, event: Event) -> list[TranscriptItem]:
        match event:
            case MessageAddedEvent():
                message = self.find_message(event.message_id) if event.role == "user" else None
                return self.load([message]) if message is not None else []
            case PartDeltaEvent():
                return self._apply_delta(event)
            case ToolInputDeltaEvent() | ToolOutputEvent():
                return self._apply_call_delta(event)
            case PartUpdatedEvent():
                return self.update_part(event.part)
            case AgentCalledEvent():
                if self._follow_children:
                    self._child_view(event.child_session_id).agent = event.callee
                return []
            case _:
                return [] if has_other_display(event) else self._show_notice(event)

    def _apply_delta(self, event: PartDeltaEvent) -> list[TranscriptItem]:
        item = self._by_id.get(event.part_id)
        if item is None:
            kind = ReasoningItem if event.field == "reasoning" else TextItem
            item = kind(event.part_id, event.message_id)
            self.add(item)
            if isinstance(item, ReasoningItem):
                self._reasoning_started[item.id] = self._clock()
        if not isinstance(item, TextItem):
            return []
        item.append(event.delta)
        return [item]

    def _apply_call_delta(self, event: ToolInputDeltaEvent | ToolOutputEvent) -> list[TranscriptItem]:
        if isinstance(event, ToolInputDeltaEvent):
            call = self._by_id.get(event.part_id)
            if not isinstance(call, ToolCallItem):
                return []
            call.append_input(event.delta)
        else:
            call = self._calls.get(event.call_id)
            if call is None:
                return []
            call.append_output(event.output)
        return [call]

    def _show_notice(self, event: Event) -> list[TranscriptItem]:
        """Shows the notice of an event. An error is shown once, although the message that it ended has it too."""
        notice = event_notice(event)
        if notice is None or (isinstance(event, ErrorEvent) and event.error_type == ABORTED):
            return []
        last_item = self.items[-1] if self.items else None
        if isinstance(last_item, NoticeItem) and last_item.notice == notice:
            return []
        return [self.add_notice(notice)]

    def _show_message_error(self, message_id: str) -> list[TranscriptItem]:
        message = self.find_message(message_id)
        notice = message_error_notice(message) if message is not None else None
        if notice is None:
            return []
        item = NoticeItem(f"{message_id}-error", notice, message_id)
        return [item] if self.add(item) else []

    def _show_child_activity(self, agent: ChildAgent | None) -> list[TranscriptItem]:
        call = self._calls.get(agent.call_id) if agent is not None else None
        if agent is None or call is None or call.child_activity == agent.activity:
            return []
        call.child_activity = agent.activity
        call.touch()
        return [call]

    def _child_view(self, session_id: str) -> "TranscriptView":
        if session_id not in self.children:
            self.children[session_id] = TranscriptView(session_id, clock=self._clock)
        return self.children[session_id]

    def _finish_reasoning(self, item: ReasoningItem, part: ReasoningPart) -> None:
        item.finish(part.text)
        if item.id in self._reasoning_started:
            item.seconds = self._clock() - self._reasoning_started.pop(item.id)

    def _index(self, item: TranscriptItem) -> None:
        self._by_id[item.id] = item
        if isinstance(item, ToolCallItem) and not item.withdrawn:
            self._calls[item.part.call_id] = item
            self.side.update_from_call(item.part)
