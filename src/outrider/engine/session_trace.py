"""Builds the trace of a stored session: its transcript is converted into events for the event log that also records
live ones."""

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from decimal import Decimal
from typing import Any, Literal, TextIO

import msgspec
from msgspec.structs import replace

from outrider.engine.archive import SessionArchive, SessionTranscript, StoredSession
from outrider.engine.child_sessions import is_internal_agent
from outrider.errors import SessionNotFoundError
from outrider.sessions.records import SessionFilter
from outrider.tracing.event_log import EventLog
from outrider.tracing.trace import Trace
from outrider.types.codec import AnyPart
from outrider.types.events import (
    AgentCalledEvent,
    AgentReturnedEvent,
    ErrorEvent,
    Event,
    LLMRequestEvent,
    LLMResponseEvent,
    LoopCompletedEvent,
    LoopStartedEvent,
    ToolExecutionCompletedEvent,
    ToolExecutionStartedEvent,
)
from outrider.types.messages import Message
from outrider.types.origins import describe_origins
from outrider.types.parts import FilePart, ReasoningPart, StepFinishPart, TextPart, ToolPart, tool_result
from outrider.types.tool_state import ToolCompleted, ToolError, ToolPending, exit_code_of

MAX_PREVIEW = 2_000
MAX_TIMELINE_ENTRIES = 3_000
_PAGE_MESSAGES = 200


async def stored_trace(archive: SessionArchive, session_id: str) -> Trace:
    """Returns the trace of a session and of all sessions that its agents opened."""
    log = EventLog()
    for event in await _tree_events(archive, session_id):
        log.record(event)
    return Trace(log)


def log_of_turn(transcript: SessionTranscript, children: Sequence[SessionTranscript]) -> EventLog:
    """Returns the event log of some messages of a session and of the sessions that its agents opened."""
    log = EventLog()
    transcripts = [(transcript, [child.session for child in children])]
    transcripts += [(child, list[StoredSession]()) for child in children]
    for source, called in transcripts:
        for event in TranscriptEvents(source, called).iterate_events():
            log.record(event)
    return log


async def _tree_events(archive: SessionArchive, session_id: str) -> Sequence[Event]:
    """Returns the events of a session tree: parents before children, and the events of each session in order. The
    trace nests them."""
    events: list[Event] = []
    waiting = [session_id]
    while waiting:
        transcript = await _load_previews(archive, waiting.pop(0))
        child_filter = SessionFilter(parent_id=transcript.session.id)
        children = [
            child async for child in archive.iterate_sessions(child_filter) if not is_internal_agent(child.agent)
        ]
        events += TranscriptEvents(transcript, sorted(children, key=_created_at)).iterate_events()
        waiting += [child.id for child in children]
    return events


async def _load_previews(archive: SessionArchive, session_id: str) -> SessionTranscript:
    """Returns a transcript with only the start of each text and output, loaded page by page."""
    pages, before = list[list[Message]](), None
    while True:
        page = await archive.load(session_id, _PAGE_MESSAGES, before=before)
        pages.append([_preview_message(message) for message in page.messages])
        if page.first or not page.messages:
            return replace(page, messages=[message for loaded in reversed(pages) for message in loaded])
        before = page.messages[0].id


def _preview_message(message: Message) -> Message:
    preview = copy(message)  # a store of the program may still use the message
    preview.parts = [part for full in message.parts if (part := _preview_part(full)) is not None]
    return preview


def _preview_part(part: AnyPart) -> AnyPart | None:
    match part:
        case TextPart() if len(part.text) > MAX_PREVIEW:
            return replace(part, text=part.text[:MAX_PREVIEW])
        case ToolPart(state=ToolCompleted() as state) if state.attachments or len(state.output) > MAX_PREVIEW:
            return replace(part, state=replace(state, output=state.output[:MAX_PREVIEW], attachments=()))
        case ToolPart(state=ToolError() as state) if len(state.error) > MAX_PREVIEW:
            return replace(part, state=replace(state, error=state.error[:MAX_PREVIEW]))
        case ReasoningPart() | FilePart():
            return None
        case _:
            return part


class TranscriptEvents:
    """Converts the transcript of one session into events."""

    def __init__(self, transcript: SessionTranscript, children: Sequence[StoredSession]) -> None:
        self._messages = transcript.messages
        self._session = transcript.session
        self._children = list(children)

    def iterate_events(self) -> Iterator[Event]:
        turn: list[Message] = []
        for message in self._messages:
            if message.role == "user" and turn:
                yield from self._turn_events(turn)
                turn = []
            turn.append(message)
        if turn:
            yield from self._turn_events(turn)

    def _turn_events(self, turn: list[Message]) -> Iterator[Event]:
        first_message, last_message = turn[0], turn[-1]
        yield self._create_event(
            LoopStartedEvent,
            _start_time(first_message),
            first_message,
            user_message=first_message.join_text()[:MAX_PREVIEW],
        )
        for message in turn:
            if message.role == "assistant":
                yield from self._step_events(message)
        if last_message.role == "assistant" and _end_time(last_message) is not None:
            yield self._create_event(
                LoopCompletedEvent,
                _end_time(last_message) or 0,
                last_message,
                termination_reason="error"
                if last_message.error
                else "completed"
                if last_message.finish
                else "interrupted",
                total_turns=sum(message.role == "assistant" for message in turn),
                duration_ms=max(0, (_end_time(last_message) or 0) - _start_time(first_message)),
                output=last_message.join_text()[:MAX_PREVIEW],
            )

    def _step_events(self, message: Message) -> Iterator[Event]:
        start, calls = _start_time(message), message.get_calls()
        completed = message.time.completed if message.time else None
        model: dict[str, Any] = {}
        if message.model is not None:
            model = {"model": message.model.model, "provider": message.model.provider}
        yield self._create_event(LLMRequestEvent, start, message, message_count=0, has_tools=bool(calls), **model)
        if message.error is not None:
            failed = {"error_type": message.error.type, "message": message.error.message}
            yield self._create_event(ErrorEvent, completed or start, message, **failed)
        elif completed is not None:
            yield self._create_event(
                LLMResponseEvent, completed, message, **_usage_fields(message, completed - start), **model
            )
        for call in calls:
            yield from self._call_events(call, message)

    def _call_events(self, call: ToolPart, message: Message) -> Iterator[Event]:
        state, named = call.state, {"call_id": call.call_id}
        if isinstance(state, ToolPending):
            return
        call_fields = {"tool_name": call.tool, "tool_input": state.input}
        yield self._create_event(ToolExecutionStartedEvent, state.time.start, message, **named, **call_fields)
        child = self._child_of(call)
        if child is not None:
            text = str(state.input.get("message") or state.input.get("prompt") or "")
            agent_fields = {"callee": child.agent, "message": text[:MAX_PREVIEW]}
            yield self._create_event(
                AgentCalledEvent, state.time.start, message, **named, **agent_fields, child_session_id=child.id
            )
        if not isinstance(state, ToolCompleted | ToolError):
            return
        result, ok = tool_result(call), isinstance(state, ToolCompleted)
        output = result.content[:MAX_PREVIEW] if result else ""
        duration = {"duration_ms": state.time.end - state.time.start}
        if child is not None:
            return_fields = {"callee": child.agent, "output": output, "success": ok, "child_session_id": child.id}
            yield self._create_event(AgentReturnedEvent, state.time.end, message, **named, **return_fields, **duration)
        reason = state.reason if isinstance(state, ToolError) else ""
        end_fields: dict[str, Any] = {"tool_name": call.tool, "success": ok, "output_preview": output, "reason": reason}
        end_fields |= {"origins": describe_origins(call.origins), "exit_code": exit_code_of(state)}
        yield self._create_event(
            ToolExecutionCompletedEvent, state.time.end, message, **named, **end_fields, **duration
        )

    def _child_of(self, call: ToolPart) -> StoredSession | None:
        """Returns the child session of a call: the one that it names, or else the oldest unassigned one of its
        agent."""
        opened = getattr(call.state, "metadata", {}).get("child_session_id")
        agent_name = call.state.input.get("agent_name") if call.tool == "call_agent" else None
        named = (child for child in self._children if child.id == opened)
        match = next(named, None) or next((child for child in self._children if child.agent == agent_name), None)
        if match is not None:
            self._children.remove(match)
        return match

    def _create_event(self, kind: type[Event], time: int, message: Message, /, **fields: Any) -> Event:
        agent = message.agent or self._session.agent
        return kind(timestamp=time, session_id=self._session.id, agent_name=agent, **fields)


def _usage_fields(message: Message, duration: int) -> dict[str, Any]:
    tokens, finishes = message.tokens, message.get_parts_by_type(StepFinishPart)
    return {
        "stop_reason": message.finish,
        "has_tool_use": bool(message.get_calls()),
        "input_tokens": tokens.input,
        "output_tokens": tokens.output,
        "reasoning_tokens": tokens.reasoning,
        "cache_read_tokens": tokens.cache.read,
        "cache_write_tokens": tokens.cache.write,
        "cost": None if message.cost is None else str(message.cost),
        "duration_ms": max(0, duration),
        "cache_miss": next((miss.describe() for part in finishes if (miss := part.cache_miss)), ""),
    }


def _created_at(session: StoredSession) -> int:
    return session.time.created if session.time else 0


def _start_time(message: Message) -> int:
    return message.time.created if message.time else 0


def _end_time(message: Message) -> int | None:
    """Returns when the last part of a message ended: its text, or one of its calls."""
    ends = [call.state.time.end for call in message.get_calls() if isinstance(call.state, ToolCompleted | ToolError)]
    if message.time is not None and message.time.completed is not None:
        ends.append(message.time.completed)
    return max(ends, default=None)


def print_events(stream: TextIO) -> Callable[[Event], None]:
    """Returns a listener that prints every event to a stream, with inputs and outputs."""
    from outrider.tracing.console import EventLogger  # lazy: only debugging needs it

    return EventLogger(stream, verbose=True).show


class TimelineEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An answer or a call of a session or of an agent that it called, `depth` calls below it. `message_id` is the
    message of the session itself. Times are Unix milliseconds; `end` is None while it runs."""

    kind: Literal["model", "tool"]
    name: str
    agent: str
    message_id: str
    start: int
    end: int | None = None
    depth: int = 0
    failed: bool = False
    prompt_tokens: int = 0
    output_tokens: int = 0
    cost: Decimal | None = None


async def session_timeline(archive: SessionArchive, session_id: str) -> list[TimelineEntry]:
    """Returns what a session and the agents that it called did, in order; of a long session, the end."""
    await archive.store.get(session_id)
    entries = await _timeline_entries(archive, session_id, 0, {session_id})
    return entries[-MAX_TIMELINE_ENTRIES:]


async def _timeline_entries(
    archive: SessionArchive, session_id: str, depth: int, seen: set[str]
) -> list[TimelineEntry]:
    """Returns the entries of the last messages: pages are loaded from the end until there are enough of them."""
    entries, before = list[TimelineEntry](), None
    while len(entries) < MAX_TIMELINE_ENTRIES:
        try:
            page = await archive.load(session_id, _PAGE_MESSAGES, before=before)
        except SessionNotFoundError:  # the session of a called agent was deleted
            break
        entry_lists = [await _message_entries(archive, message, depth, seen) for message in page.messages]
        entries = [entry for entry_list in entry_lists for entry in entry_list] + entries
        if page.first or not page.messages:
            break
        before = page.messages[0].id
    return entries


async def _message_entries(
    archive: SessionArchive, message: Message, depth: int, seen: set[str]
) -> list[TimelineEntry]:
    if message.role != "assistant" or message.time is None:
        return []
    entries = [_answer_entry(message, depth)]
    for call in message.get_calls():
        if isinstance(call.state, ToolPending):
            continue
        entries.append(_call_entry(call, message, depth))
        child = call.state.metadata.get("child_session_id")
        if isinstance(child, str) and child not in seen:
            seen.add(child)
            called = await _timeline_entries(archive, child, depth + 1, seen)
            entries += [replace(entry, message_id=message.id) for entry in called]
    return entries


def _answer_entry(message: Message, depth: int) -> TimelineEntry:
    return TimelineEntry(
        kind="model",
        name=message.model.model if message.model else "model",
        agent=message.agent or "",
        message_id=message.id,
        start=_start_time(message),
        end=message.time.completed if message.time else None,
        depth=depth,
        failed=message.error is not None,
        prompt_tokens=message.tokens.prompt,
        output_tokens=message.tokens.output + message.tokens.reasoning,
        cost=message.cost,
    )


def _call_entry(call: ToolPart, message: Message, depth: int) -> TimelineEntry:
    state = call.state
    assert not isinstance(state, ToolPending)
    return TimelineEntry(
        kind="tool",
        name=call.tool,
        agent=message.agent or "",
        message_id=message.id,
        start=state.time.start,
        end=state.time.end if isinstance(state, ToolCompleted | ToolError) else None,
        depth=depth,
        failed=isinstance(state, ToolError),
    )
