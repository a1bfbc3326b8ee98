"""A session as front ends show it: items in order, folded from stored messages and from events.

A front end creates a `TranscriptView`, loads messages into it, feeds it events and renders the items that each call
returns as changed. Items keep their identity; `version` increases with every change, so that a renderer can cache what
it has drawn."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from time import monotonic
from typing import assert_never, cast

import msgspec

from outrider.presentation.activity import ChildAgent, SessionActivity, SideActivity
from outrider.presentation.notices import (
    ABORTED,
    Notice,
    NoticeLevel,
    compaction_notice,
    event_notice,
    message_error_notice,
)
from outrider.types.codec import AnyPart
from outrider.types.events import (
    AgentCalledEvent,
    BudgetExceededEvent,
    ErrorEvent,
    Event,
    LoopCompletedEvent,
    MessageAddedEvent,
    PartDeltaEvent,
    PartUpdatedEvent,
    ToolInputDeltaEvent,
    ToolOutputEvent,
)
from outrider.types.ids import new_id
from outrider.types.messages import Message
from outrider.types.parts import (
    STORED_KINDS,
    AgentPart,
    CompactionPart,
    FilePart,
    Part,
    PatchPart,
    ReasoningPart,
    RetryPart,
    SnapshotPart,
    StepFinishPart,
    StepStartPart,
    SubtaskPart,
    TextPart,
    ToolPart,
)

LIVE_OUTPUT_LINES = 400
"""Lines of a running call's output that are held in memory; the stored result has all of them."""
_LIVE_LINE_LENGTH = 2000
_COMMAND_OUTPUT = 100_000
PLAN_ANSWER = "plan_answer"


class TranscriptItem:
    """Base of all items. `expanded` is what a person chose; None leaves it to the front end's default."""

    def __init__(self, id: str, message_id: str = "") -> None:
        self.id = id
        self.message_id = message_id
        self.version = 0
        self.expanded: bool | None = None

    def touch(self) -> None:
        self.version += 1

    def toggle(self) -> None:
        self.expanded = not self.expanded
        self.touch()


class UserItem(TranscriptItem):
    """What a person wrote, with the attached files."""

    def __init__(self, id: str, text: str, files: tuple[FilePart, ...] = (), message_id: str = "") -> None:
        super().__init__(id, message_id)
        self.text = text
        self.files = files


class TextItem(TranscriptItem):
    """Text of the model; it grows while `streaming`."""

    def __init__(self, id: str, message_id: str = "", text: str = "", *, streaming: bool = True) -> None:
        super().__init__(id, message_id)
        self.text = text
        self.streaming = streaming

    def append(self, delta: str) -> None:
        self.text += delta
        self.touch()

    def finish(self, text: str) -> None:
        self.text = text
        self.streaming = False
        self.touch()


class ReasoningItem(TextItem):
    """Reasoning of the model, collapsed by default."""

    def __init__(self, id: str, message_id: str = "", text: str = "", *, streaming: bool = True) -> None:
        super().__init__(id, message_id, text, streaming=streaming)
        self.seconds: float | None = None


class ToolCallItem(TranscriptItem):
    """A tool call, from the first streamed character of its input to its end."""

    def __init__(self, part: ToolPart) -> None:
        super().__init__(part.id, part.message_id)
        self.part = part
        self.raw_input = ""
        self.live_output: deque[str] = deque([""], maxlen=LIVE_OUTPUT_LINES)
        self.child_activity = ""  # what the called agent is doing

    def append_input(self, delta: str) -> None:
        self.raw_input += delta
        self.touch()

    def append_output(self, text: str) -> None:
        first, *rest = text.split("\n")
        self.live_output[-1] = (self.live_output[-1] + first)[-_LIVE_LINE_LENGTH:]
        self.live_output.extend(rest)
        self.touch()

    def update(self, part: ToolPart) -> None:
        self.part = part
        self.touch()


class FileItem(TranscriptItem):
    """A file that the model made, such as an image."""

    def __init__(self, part: FilePart) -> None:
        super().__init__(part.id, part.message_id)
        self.part = part


class NoticeItem(TranscriptItem):
    """A sentence of the program itself; `body` is Markdown that can be expanded."""

    def __init__(self, id: str, notice: Notice, message_id: str = "") -> None:
        super().__init__(id, message_id)
        self.notice = notice

    @property
    def text(self) -> str:
        return self.notice.text

    @property
    def level(self) -> NoticeLevel:
        return self.notice.level

    @property
    def body(self) -> str:
        return self.notice.body


class CommandItem(TranscriptItem):
    """A command that the person ran with `!`. `exit_status` is None while it runs, and "" if it is not known any
    more."""

    def __init__(self, id: str, command: str) -> None:
        super().__init__(id)
        self.command = command
        self.output = ""
        self.exit_status: str | None = None

    def append_output(self, text: str) -> None:
        self.output = (self.output + text)[-_COMMAND_OUTPUT:]
        self.touch()

    def finish(self, exit_status: str) -> None:
        self.exit_status = exit_status
        self.touch()


StandardItem = UserItem | TextItem | ToolCallItem | FileItem | NoticeItem | CommandItem
"""Every item class of this module. A `match` over it that ends with `assert_never` covers new classes by force."""


def message_items(message: Message) -> Iterator[TranscriptItem]:
    """The items of a stored message."""
    if message.role == "user":
        yield from _user_items(message)
        return
    for part in message.parts:
        item = part_item(part)
        if item is not None:
            yield item
    if (notice := message_error_notice(message)) is not None:
        yield NoticeItem(f"{message.id}-error", notice, message.id)


def part_item(part: AnyPart) -> TranscriptItem | None:
    """The item of a complete part; None for bookkeeping. A kind that is unknown here gives a `detail` notice."""
    if type(part) not in STORED_KINDS:
        return NoticeItem(part.id, Notice("detail", "custom", part.type or "part", _as_code(part)), part.message_id)
    return _standard_item(cast("Part", part))


def _standard_item(part: Part) -> TranscriptItem | None:
    match part:
        case TextPart():
            shown = not part.synthetic and part.text.strip()
            return TextItem(part.id, part.message_id, part.text, streaming=False) if shown else None
        case ReasoningPart():
            return _reasoning_item(part) if part.text.strip() else None
        case ToolPart():
            return ToolCallItem(part)
        case FilePart():
            return FileItem(part)
        case RetryPart():
            notice = Notice("warning", "retry", f"attempt {part.attempt} failed: {part.error}")
            return NoticeItem(part.id, notice, part.message_id)
        case CompactionPart():
            return NoticeItem(part.id, compaction_notice(part), part.message_id)
        case PatchPart():
            return NoticeItem(part.id, Notice("detail", "files", f"changed: {', '.join(part.files)}"), part.message_id)
        case SubtaskPart():
            notice = Notice("detail", "agent", f"{part.agent}: {part.description}", part.prompt)
            return NoticeItem(part.id, notice, part.message_id)
        case StepStartPart() | StepFinishPart() | SnapshotPart() | AgentPart():
            return None
        case _:
            assert_never(part)


def _reasoning_item(part: ReasoningPart) -> ReasoningItem:
    item = ReasoningItem(part.id, part.message_id, part.text, streaming=False)
    if part.time is not None and part.time.end is not None:
        item.seconds = (part.time.end - part.time.start) / 1000
    return item


def _user_items(message: Message) -> Iterator[TranscriptItem]:
    if answer := message.metadata.get(PLAN_ANSWER):
        yield NoticeItem(f"{message.id}-plan", Notice("success", "end", f"the plan was {answer}"), message.id)
    for part in message.parts:
        if isinstance(part, CompactionPart):
            yield NoticeItem(part.id, compaction_notice(part), message.id)
        elif isinstance(part, TextPart) and "command" in part.metadata:
            yield _command_item(part)
    files = tuple(message.get_parts_by_type(FilePart))
    text = "\n".join(part.text for part in message.get_parts_by_type(TextPart) if not part.synthetic)
    if text.strip() or files:
        yield UserItem(message.id, text, files, message.id)


def _command_item(part: TextPart) -> CommandItem:
    item = CommandItem(part.id, str(part.metadata["command"]))
    item.message_id = part.message_id
    item.output = str(part.metadata.get("output", ""))
    item.exit_status = ""
    return item


def _as_code(part: AnyPart) -> str:
    text = msgspec.json.format(msgspec.json.encode(part.to_dict(), enc_hook=str), indent=2).decode()
    return f"```json\n{text}\n```"


class TranscriptView:
    """The items of one session. `find_message` returns a message of the session by its id, since events name messages
    and do not carry them. With `follow_children`, events of agents that were called fill a view each, in `children`."""

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
        self._follow_children = follow_children
        self._by_id: dict[str, TranscriptItem] = {}
        self._calls: dict[str, ToolCallItem] = {}
        self._reasoning_started: dict[str, float] = {}
        self._clock = clock

    def load(self, messages: Iterable[Message]) -> list[TranscriptItem]:
        """Appends the items of messages that are not shown yet."""
        return [item for message in messages for item in message_items(message) if self.add(item)]

    def refresh(self, messages: Iterable[Message]) -> None:
        """Updates items whose stored parts have changed, such as calls that a crash left open."""
        for message in messages:
            for part in message.parts:
                if part.id in self._by_id:
                    self.update_part(part)

    def prepend(self, messages: Iterable[Message]) -> int:
        """Inserts older messages at the top and returns the number of new items."""
        older = [item for message in messages for item in message_items(message) if item.id not in self._by_id]
        for item in older:
            self._index(item)
        self.items[:0] = older
        return len(older)

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
        """Whether the event belongs to this session or to an agent that was called in it."""
        return event.session_id == self.session_id or self.side.has_agent(event.session_id)

    def apply(self, event: Event) -> list[TranscriptItem]:
        """Folds an event and returns the items that are new or changed, those of called agents included."""
        if not self.concerns(event):
            return []
        own = event.session_id == self.session_id
        self.activity.apply(event, own=own)
        self.side.apply(event)
        if own:
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
        known = self._by_id.get(part.id)
        if known is None:
            item = part_item(part)
            return [item] if item is not None and self.add(item) else []
        if isinstance(known, TextItem) and isinstance(part, TextPart | ReasoningPart):
            self._finish_text(known, part)
        elif isinstance(known, ToolCallItem) and isinstance(part, ToolPart):
            known.update(part)
        else:
            return []
        return [known]

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
            case ErrorEvent() | BudgetExceededEvent() | LoopCompletedEvent():
                return self._show_notice(event)
            case AgentCalledEvent() if self._follow_children:
                self._child_view(event.child_session_id).agent = event.callee
                return []
            case _:
                return []

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
        """The message that ended with the error shows it too; it is shown once."""
        notice = event_notice(event)
        if notice is None or (isinstance(event, ErrorEvent) and event.error_type == ABORTED):
            return []
        last = self.items[-1] if self.items else None
        if isinstance(last, NoticeItem) and last.notice == notice:
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

    def _finish_text(self, item: TextItem, part: TextPart | ReasoningPart) -> None:
        item.finish(part.text)
        if isinstance(item, ReasoningItem) and item.id in self._reasoning_started:
            item.seconds = self._clock() - self._reasoning_started.pop(item.id)

    def _index(self, item: TranscriptItem) -> None:
        self._by_id[item.id] = item
        if isinstance(item, ToolCallItem):
            self._calls[item.part.call_id] = item
