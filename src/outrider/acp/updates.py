"""Converts events and stored messages of a session into protocol updates, and tracks token usage."""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import assert_never

import acp
import msgspec
from acp.helpers import ContentBlock
from acp.schema import (
    AgentMessageChunk,
    AgentPlanUpdate,
    AgentThoughtChunk,
    Cost,
    PlanEntry,
    SessionInfoUpdate,
    ToolCallProgress,
    ToolCallStart,
    Usage,
    UsageUpdate,
    UserMessageChunk,
)

from outrider.acp.tool_calls import ToolCallView, block_from_part, fence_text, replace_surrogates, view_tool_call
from outrider.engine.archive import SessionTranscript
from outrider.engine.engine import Engine
from outrider.engine.frontend import context_limit
from outrider.presentation.items import (
    CommandItem,
    FileItem,
    Notice,
    NoticeItem,
    ReasoningItem,
    TextItem,
    ToolCallItem,
    TranscriptItem,
    UserItem,
    damage_notices,
    event_notice,
    other_display,
    strike_out,
)
from outrider.presentation.tool_calls import FINISH_TOOL, call_todos, final_answer
from outrider.presentation.transcript import TranscriptView
from outrider.presentation.turn_updates import missing_text
from outrider.types.events import (
    DeltasDroppedEvent,
    Event,
    LLMResponseEvent,
    SessionUpdatedEvent,
)
from outrider.types.messages import Message
from outrider.types.parts import Tokens
from outrider.types.tool_state import TodoItem, ToolCompleted

Update = (
    UserMessageChunk
    | AgentMessageChunk
    | AgentThoughtChunk
    | ToolCallStart
    | ToolCallProgress
    | AgentPlanUpdate
    | SessionInfoUpdate
)
_LIST_ITEM = re.compile(r"^(?:\d+[.)]|[-*])\s+(?:\[.\]\s+)?(?P<item>\S.*)")


class UpdateBuilder:
    """Builds updates for one session from the items of its transcript. Tool calls and notices of child sessions appear
    among those of the session."""

    def __init__(self, session_id: str, folder: Path) -> None:
        self._session_id = session_id
        self._folder = folder
        self._transcript = TranscriptView(session_id, follow_children=True)
        self._sent_calls: dict[str, ToolCallView] = {}  # what was sent last, by item id
        self._sent_texts: dict[str, str] = {}  # text that was sent, by item id
        self._deltas_dropped = False  # whether the bus dropped deltas of the current text

    def includes_session(self, session_id: str) -> bool:
        return session_id == self._session_id or self._transcript.side.has_agent(session_id)

    def view_call(self, session_id: str, call_id: str) -> ToolCallView | None:
        is_main = session_id == self._session_id
        transcript = self._transcript if is_main else self._transcript.children.get(session_id)
        item = transcript.find_call(call_id) if transcript is not None else None
        return self._view_item(item, "" if is_main else session_id) if item is not None else None

    def replay_transcript(self, transcript: SessionTranscript) -> Iterator[Update]:
        """Yields the updates of stored messages, and the notices for damaged ones."""
        yield from self.replay_messages(transcript.messages)
        for notice in damage_notices(transcript):
            yield from self._notice_updates(notice)

    def replay_messages(self, messages: Iterable[Message]) -> Iterator[Update]:
        """Yields the updates of stored messages."""
        for item in self._transcript.load(messages):
            yield from self._own_item_updates(item)

    def event_updates(self, event: Event) -> Iterator[Update]:
        if isinstance(event, DeltasDroppedEvent):
            self._deltas_dropped = True
            return
        if not self.includes_session(event.session_id):
            return
        items = self._transcript.apply(event)
        if event.session_id == self._session_id:
            for item in items:
                if not (isinstance(item, NoticeItem) and item.notice.topic == "retry"):  # the event says more
                    yield from self._own_item_updates(item)
        else:
            for item in items:
                yield from self._child_item_updates(item, event.session_id)
        if (notice := _notice_without_item(event, items)) is not None:
            yield from self._notice_updates(notice, self._agent_name(event.session_id))
        if isinstance(event, SessionUpdatedEvent) and event.session_id == self._session_id:
            yield from _title_updates(event)

    def _own_item_updates(self, item: TranscriptItem) -> Iterator[Update]:
        match item:
            case UserItem() | CommandItem():
                yield from _user_updates(item)
            case TextItem():
                yield from self._text_updates(item)
            case ToolCallItem():
                yield from self._call_updates(item)
            case FileItem():
                if (block := block_from_part(item.part)) is not None:
                    yield _message_chunk(block, item.message_id)
            case NoticeItem():
                yield from self._notice_updates(item.notice)
            case _:
                assert_never(item)

    def _child_item_updates(self, item: TranscriptItem, session_id: str) -> Iterator[Update]:
        """Yields the updates of an item of a child session. Its texts are left out: the caller receives them as the
        output of its call."""
        match item:
            case ToolCallItem() if self._transcript.find_call(item.part.call_id) is item:
                # The call that started the child, which shows the activity of the child.
                yield from self._view_updates(item)
            case ToolCallItem():
                if item.part.tool != FINISH_TOOL:
                    yield from self._view_updates(item, session_id)
            case NoticeItem():
                yield from self._notice_updates(item.notice, self._agent_name(session_id))
            case UserItem() | CommandItem() | TextItem() | FileItem():
                pass
            case _:
                assert_never(item)

    def _text_updates(self, item: TextItem) -> Iterator[Update]:
        """Yields the part of a text that was not sent yet. After the bus has dropped deltas, a streamed text has gaps:
        nothing is sent until it is complete."""
        if item.streaming and self._deltas_dropped:
            return
        if item.withdrawn:
            yield from self._withdrawn_updates(item)
            return
        sent, self._sent_texts[item.id] = self._sent_texts.get(item.id, ""), item.text
        if not item.streaming:
            self._deltas_dropped = False
        thought = isinstance(item, ReasoningItem)
        # Sent text cannot be retracted, so an answer that a provider starts again is repeated. Text that it turns into
        # reasoning is not.
        repeated = "" if thought else f"\n\n{item.text}"
        added_text = missing_text(sent, item.text)
        unsent = repeated if added_text is None else added_text
        if unsent:
            yield _text_chunk(unsent, item.message_id, thought=thought)

    def _withdrawn_updates(self, item: TextItem) -> Iterator[Update]:
        """Yields the text of a failed attempt. Sent text cannot be retracted: the notice of the retry states that it is
        withdrawn. In a session that is loaded, it is sent struck out."""
        thought = isinstance(item, ReasoningItem)
        if item.id not in self._sent_texts and not thought:
            yield _text_chunk(strike_out(item.text.strip()) + "\n\n", item.message_id)
        self._sent_texts[item.id] = item.text

    def _call_updates(self, item: ToolCallItem) -> Iterator[Update]:
        if (answer := final_answer(item.part)) is not None:
            if isinstance(item.part.state, ToolCompleted) and item.id not in self._sent_texts:
                self._sent_texts[item.id] = answer
                yield _text_chunk(answer, item.message_id)
            return
        yield from self._view_updates(item)
        if (todos := call_todos(item.part)) is not None:
            yield plan_from_todos(todos)

    def _view_updates(self, item: ToolCallItem, child_id: str = "") -> Iterator[ToolCallStart | ToolCallProgress]:
        """Yields the update of a call; nothing if new input does not change what is shown."""
        view, sent = self._view_item(item, child_id), self._sent_calls.get(item.id)
        self._sent_calls[item.id] = view
        if sent is None:
            yield view.to_start()
        elif view != sent or view.status != "pending":
            yield view.to_progress()

    def _notice_updates(self, notice: Notice, agent: str = "") -> Iterator[Update]:
        """Yields a notice as a thought: the program wrote it, so it must not become part of the model's answer."""
        if notice.level != "detail":
            text = f"{agent}: {notice.text}" if agent else notice.text
            yield _text_chunk(f"{text}\n\n{notice.body}".rstrip() + "\n\n", thought=True)

    def _view_item(self, item: ToolCallItem, child_id: str) -> ToolCallView:
        """Returns the view of a call. A call of a child session names its agent, and in `_meta` the session and the
        call that started it."""
        output = item.child_activity or "\n".join(item.live_output)
        child = self._transcript.side.agents.get(child_id)
        if child is None:
            return view_tool_call(item.part, self._folder, output)
        caller = self._transcript.find_call(child.call_id)
        origin = {
            "agent": replace_surrogates(child.name),
            "session_id": child_id,
            "parent_tool_call_id": caller.part.id if caller is not None else None,
        }
        view = view_tool_call(item.part, self._folder, output, child.name)
        return msgspec.structs.replace(view, meta={"outrider": origin})

    def _agent_name(self, session_id: str) -> str:
        agent = self._transcript.side.agents.get(session_id)
        return agent.name if agent is not None else ""


def _notice_without_item(event: Event, items: Iterable[TranscriptItem]) -> Notice | None:
    """Returns the notice of an event for which the transcript has no item, because other front ends show the activity
    or messages of the program, which an editor does not receive."""
    if any(isinstance(item, NoticeItem) for item in items):
        return None
    match display := other_display(event):
        case "activity" | "message":
            return event_notice(event)
        case "call" | "approval" | None:
            return None
        case _:
            assert_never(display)


def _title_updates(event: SessionUpdatedEvent) -> Iterator[Update]:
    title = event.changes.get("title")
    if isinstance(title, str):
        yield SessionInfoUpdate(session_update="session_info_update", title=replace_surrogates(title))


def _user_updates(item: UserItem | CommandItem) -> Iterator[UserMessageChunk]:
    if isinstance(item, CommandItem):
        blocks = [acp.text_block(fence_text(f"! {item.command}\n{item.output}".rstrip()))]
    else:
        blocks = [acp.text_block(replace_surrogates(item.text))] if item.text else []
        blocks += [block for file in item.files if (block := block_from_part(file)) is not None]
    for block in blocks:
        yield UserMessageChunk(session_update="user_message_chunk", content=block, message_id=item.message_id)


def plan_from_todos(todos: Iterable[TodoItem]) -> AgentPlanUpdate:
    """Converts the agent's todo list; cancelled items are left out."""
    entries = [
        PlanEntry(content=replace_surrogates(todo.content), priority="medium", status=todo.status)
        for todo in todos
        if todo.status != "cancelled"
    ]
    return AgentPlanUpdate(session_update="plan", entries=entries)


def plan_from_text(text: str) -> AgentPlanUpdate:
    """Converts a plan in Markdown: one entry per list item, or one for the whole text."""
    items = [match["item"] for line in text.splitlines() if (match := _LIST_ITEM.match(line)) is not None]
    entries = [
        PlanEntry(content=replace_surrogates(item), priority="medium", status="pending") for item in items or [text]
    ]
    return AgentPlanUpdate(session_update="plan", entries=entries)


def _message_chunk(
    block: ContentBlock, message_id: str | None, *, thought: bool = False
) -> AgentMessageChunk | AgentThoughtChunk:
    if thought:
        return AgentThoughtChunk(session_update="agent_thought_chunk", content=block, message_id=message_id)
    return AgentMessageChunk(session_update="agent_message_chunk", content=block, message_id=message_id)


def _text_chunk(
    text: str, message_id: str | None = None, *, thought: bool = False
) -> AgentMessageChunk | AgentThoughtChunk:
    return _message_chunk(acp.text_block(replace_surrogates(text)), message_id, thought=thought)


class UsageTracker:
    """Token usage of one session and its child sessions."""

    def __init__(self, session_id: str, engine: Engine) -> None:
        self._session_id = session_id
        self._engine = engine
        self._turn = Tokens()

    def start_turn(self) -> None:
        self._turn = Tokens()

    def record_response(self, answer: LLMResponseEvent) -> UsageUpdate | None:
        """Adds the tokens of a response. Returns an update for responses of the session itself, if the context size is
        known."""
        self._turn += answer.tokens
        size = self._context_size()
        if answer.session_id != self._session_id or size is None:
            return None
        used = answer.tokens.prompt + answer.tokens.output
        return UsageUpdate(session_update="usage_update", used=used, size=size, cost=self._total_cost())

    def turn_usage(self) -> Usage | None:
        tokens = self._turn
        if not tokens.total:
            return None
        return Usage(
            total_tokens=tokens.total,
            input_tokens=tokens.input,
            output_tokens=tokens.output,
            thought_tokens=tokens.reasoning,
            cached_read_tokens=tokens.cache.read,
            cached_write_tokens=tokens.cache.write,
        )

    def _context_size(self) -> int | None:
        agent = self._engine.live[self._session_id].agent
        return context_limit(self._engine.runtime.spec.providers.values(), agent.model_ref)

    def _total_cost(self) -> Cost | None:
        cost = self._engine.live[self._session_id].journal.session.usage.total_cost
        return None if cost is None else Cost(amount=float(cost), currency="USD")
