"""Converts events and stored messages of a session into protocol updates, and tracks token usage."""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

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

from outrider.acp.tool_calls import MAX_OUTPUT_CHARS, ToolCallView, block_from_part, replace_surrogates, view_tool_call
from outrider.engine.engine import Engine
from outrider.engine.frontend import context_limit
from outrider.types.events import (
    AgentCalledEvent,
    DeltasDroppedEvent,
    Event,
    LLMResponseEvent,
    PartDeltaEvent,
    PartUpdatedEvent,
    SessionUpdatedEvent,
    ToolOutputEvent,
)
from outrider.types.messages import Message
from outrider.types.parts import FilePart, ModelRef, ReasoningPart, TextPart, ToolPart
from outrider.types.tool_state import ToolCompleted, ToolRunning
from outrider.types.usage import Tokens

Update = (
    UserMessageChunk
    | AgentMessageChunk
    | AgentThoughtChunk
    | ToolCallStart
    | ToolCallProgress
    | AgentPlanUpdate
    | SessionInfoUpdate
)
_FINISH_TOOL = "finish"
_LIST_ITEM = re.compile(r"^(?:\d+[.)]|[-*])\s+(?:\[.\]\s+)?(?P<item>\S.*)")


class TrackedCall(msgspec.Struct):
    """A call that was sent to the client; `output` is the end of its live output."""

    part: ToolPart
    agent: str = ""
    output: str = ""


class UpdateBuilder:
    """Builds updates for one session. Tool calls of child sessions appear among the calls of the session."""

    def __init__(self, session_id: str, folder: Path) -> None:
        self._session_id = session_id
        self._folder = folder
        self._callees: dict[str, str] = {}  # agent names, by child session id
        self._calls: dict[tuple[str, str], TrackedCall] = {}
        self._sent_texts: dict[str, str] = {}  # text that was sent, by part id
        self._deltas_dropped = False  # whether the bus dropped deltas of the current text

    def includes_session(self, session_id: str) -> bool:
        return session_id == self._session_id or session_id in self._callees

    def view_call(self, session_id: str, call_id: str) -> ToolCallView | None:
        tracked = self._calls.get((session_id, call_id))
        return self._view_tracked(tracked) if tracked else None

    def replay_messages(self, messages: Iterable[Message]) -> Iterator[Update]:
        """Yields the updates of stored messages."""
        for message in messages:
            for part in message.parts:
                if message.role == "assistant":
                    yield from self._part_updates(part, self._session_id)
                elif isinstance(part, TextPart | FilePart) and (block := block_from_part(part)) is not None:
                    yield UserMessageChunk(session_update="user_message_chunk", content=block, message_id=message.id)

    def event_updates(self, event: Event) -> Iterator[Update]:
        if isinstance(event, DeltasDroppedEvent):
            self._deltas_dropped = True
        elif self.includes_session(event.session_id):
            yield from self._session_event_updates(event, own=event.session_id == self._session_id)

    def _session_event_updates(self, event: Event, *, own: bool) -> Iterator[Update]:
        match event:
            case AgentCalledEvent():
                self._callees[event.child_session_id] = event.callee
            case PartDeltaEvent() if own and not self._deltas_dropped:
                self._sent_texts[event.part_id] = self._sent_texts.get(event.part_id, "") + event.delta
                yield _message_chunk(
                    acp.text_block(replace_surrogates(event.delta)),
                    event.message_id,
                    thought=event.field == "reasoning",
                )
            case PartUpdatedEvent() if own or isinstance(event.part, ToolPart):
                yield from self._part_updates(event.part, event.session_id)
            case ToolOutputEvent():
                yield from self._output_updates(event)
            case SessionUpdatedEvent(changes={"title": str(title)}) if own:
                yield SessionInfoUpdate(session_update="session_info_update", title=replace_surrogates(title))
            case _:
                pass

    def _part_updates(self, part: object, session_id: str) -> Iterator[Update]:
        match part:
            case TextPart(synthetic=False) | ReasoningPart():
                yield from self._text_updates(part)
            case FilePart():
                if (block := block_from_part(part)) is not None:
                    yield _message_chunk(block, part.message_id)
            case ToolPart():
                yield from self._call_updates(part, session_id)
            case _:
                pass

    def _text_updates(self, part: TextPart | ReasoningPart) -> Iterator[Update]:
        """Sends the missing rest of a complete text, because the bus may have dropped deltas."""
        sent, self._sent_texts[part.id], self._deltas_dropped = self._sent_texts.get(part.id, ""), part.text, False
        thought = isinstance(part, ReasoningPart)
        # A provider that restarts a part may turn sent text into reasoning; sent text cannot be retracted, so it is
        # repeated.
        repeated = "" if thought else f"\n\n{part.text}"
        rest = part.text[len(sent) :] if part.text.startswith(sent) else repeated
        if rest:
            yield _message_chunk(acp.text_block(replace_surrogates(rest)), part.message_id, thought=thought)

    def _call_updates(self, part: ToolPart, session_id: str) -> Iterator[Update]:
        if part.tool == _FINISH_TOOL:
            yield from self._finish_updates(part, session_id)
            return
        key = session_id, part.call_id
        tracked = self._calls.get(key)
        call = self._calls[key] = TrackedCall(
            part, self._callees.get(session_id, ""), tracked.output if tracked else ""
        )
        yield self._view_tracked(call).to_progress() if tracked else self._view_tracked(call).to_start()
        if isinstance(part.state, ToolCompleted) and "todos" in part.state.metadata and session_id == self._session_id:
            yield plan_from_todos(part.state.metadata["todos"])

    def _finish_updates(self, part: ToolPart, session_id: str) -> Iterator[Update]:
        """An agent in a team ends with the `finish` tool; its message is the answer."""
        message = str(part.state.input.get("message") or "")
        if session_id == self._session_id and isinstance(part.state, ToolCompleted) and part.id not in self._sent_texts:
            self._sent_texts[part.id] = message
            yield _message_chunk(acp.text_block(replace_surrogates(message)), part.message_id)

    def _output_updates(self, event: ToolOutputEvent) -> Iterator[Update]:
        call = self._calls.get((event.session_id, event.call_id))
        if call is not None and isinstance(call.part.state, ToolRunning):
            call.output = (call.output + event.output)[-MAX_OUTPUT_CHARS:]
            yield self._view_tracked(call).to_progress()

    def _view_tracked(self, call: TrackedCall) -> ToolCallView:
        return view_tool_call(call.part, self._folder, call.output, call.agent)


def plan_from_todos(todos: Iterable[Any]) -> AgentPlanUpdate:
    """Converts the agent's todo list; cancelled items are left out."""
    entries = [
        PlanEntry(
            content=replace_surrogates(str(todo["content"])), priority="medium", status=todo.get("status", "pending")
        )
        for todo in todos
        if todo.get("status") != "cancelled"
    ]
    return AgentPlanUpdate(session_update="plan", entries=entries)


def plan_from_text(text: str) -> AgentPlanUpdate:
    """Converts a plan in Markdown: one entry per list item, or one for the whole text."""
    items = [found["item"] for line in text.splitlines() if (found := _LIST_ITEM.match(line)) is not None]
    entries = [
        PlanEntry(content=replace_surrogates(item), priority="medium", status="pending") for item in items or [text]
    ]
    return AgentPlanUpdate(session_update="plan", entries=entries)


def _message_chunk(
    block: ContentBlock, message_id: str, *, thought: bool = False
) -> AgentMessageChunk | AgentThoughtChunk:
    if thought:
        return AgentThoughtChunk(session_update="agent_thought_chunk", content=block, message_id=message_id)
    return AgentMessageChunk(session_update="agent_message_chunk", content=block, message_id=message_id)


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
        return context_limit(self._engine.runtime.spec.providers.values(), ModelRef(agent.provider, agent.model))

    def _total_cost(self) -> Cost | None:
        cost = self._engine.live[self._session_id].journal.session.usage.total_cost
        return None if cost is None else Cost(amount=float(cost), currency="USD")
