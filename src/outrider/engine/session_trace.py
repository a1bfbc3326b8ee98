"""The trace of a session that is kept: its transcript told again as events, to the log that listens to live ones."""

from collections.abc import Iterator, Sequence
from typing import Any

from outrider.engine.archive import Archive, StoredSession, Transcript
from outrider.engine.child_sessions import is_aside
from outrider.sessions.records import SessionFilter
from outrider.tracing.event_log import EventLog
from outrider.tracing.trace import Trace
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
from outrider.types.parts import ToolPart, tool_result
from outrider.types.tool_state import ToolCompleted, ToolError, ToolPending

PREVIEW = 2_000


async def stored_trace(archive: Archive, session_id: str) -> Trace:
    """Of a session and of all those that its agents opened."""
    log = EventLog()
    for event in await _tell_family(archive, session_id):
        log.record(event)
    return Trace(log)


async def _tell_family(archive: Archive, session_id: str) -> Sequence[Event]:
    """Parents before children, each session in its own order; the trace puts them into each other."""
    told: list[Event] = []
    waiting = [session_id]
    while waiting:
        transcript = await archive.load(waiting.pop(0))
        below = SessionFilter(parent_id=transcript.session.id)
        children = [one async for one in archive.all(below) if not is_aside(one.agent)]
        told += Story(transcript, sorted(children, key=_created)).tell()
        waiting += [child.id for child in children]
    return told


class Story:
    """One session, told again."""

    def __init__(self, transcript: Transcript, children: Sequence[StoredSession]) -> None:
        self._messages = transcript.messages
        self._session = transcript.session
        self._children = list(children)

    def tell(self) -> Iterator[Event]:
        turn: list[Message] = []
        for message in self._messages:
            if message.role == "user" and turn:
                yield from self._turn(turn)
                turn = []
            turn.append(message)
        if turn:
            yield from self._turn(turn)

    def _turn(self, turn: list[Message]) -> Iterator[Event]:
        first, last = turn[0], turn[-1]
        yield self._event(LoopStartedEvent, _start(first), first, user_message=first.get_text_content()[:PREVIEW])
        for message in turn:
            if message.role == "assistant":
                yield from self._step(message)
        if last.role == "assistant" and _end(last) is not None:
            yield self._event(
                LoopCompletedEvent,
                _end(last) or 0,
                last,
                termination_reason="error" if last.error else "completed" if last.finish else "interrupted",
                total_turns=sum(message.role == "assistant" for message in turn),
                duration_ms=max(0, (_end(last) or 0) - _start(first)),
                output=last.get_text_content()[:PREVIEW],
            )

    def _step(self, message: Message) -> Iterator[Event]:
        start, calls = _start(message), message.get_parts_by_type(ToolPart)
        answered = message.time.completed if message.time else None
        model: dict[str, Any] = {}
        if message.model is not None:
            model = {"model": message.model.model, "provider": message.model.provider}
        yield self._event(LLMRequestEvent, start, message, message_count=0, has_tools=bool(calls), **model)
        if message.error is not None:
            failed = {"error_type": message.error.type, "message": message.error.message}
            yield self._event(ErrorEvent, answered or start, message, **failed)
        elif answered is not None:
            yield self._event(LLMResponseEvent, answered, message, **_usage(message, answered - start), **model)
        for call in calls:
            yield from self._call(call, message)

    def _call(self, call: ToolPart, message: Message) -> Iterator[Event]:
        state, named = call.state, {"call_id": call.call_id}
        if isinstance(state, ToolPending):
            return
        given = {"tool_name": call.tool, "tool_input": state.input}
        yield self._event(ToolExecutionStartedEvent, state.time.start, message, **named, **given)
        child = self._child_of(call)
        if child is not None:
            words = str(state.input.get("message") or state.input.get("prompt") or "")
            asked = {"callee": child.agent, "message": words[:PREVIEW]}
            yield self._event(AgentCalledEvent, state.time.start, message, **named, **asked, child_session_id=child.id)
        if not isinstance(state, ToolCompleted | ToolError):
            return
        result, ok = tool_result(call), isinstance(state, ToolCompleted)
        output = result.content[:PREVIEW] if result else ""
        took = {"duration_ms": state.time.end - state.time.start}
        if child is not None:
            came = {"callee": child.agent, "output": output, "success": ok, "child_session_id": child.id}
            yield self._event(AgentReturnedEvent, state.time.end, message, **named, **came, **took)
        reason = state.reason if isinstance(state, ToolError) else ""
        ended = {"tool_name": call.tool, "success": ok, "output_preview": output, "reason": reason}
        yield self._event(ToolExecutionCompletedEvent, state.time.end, message, **named, **ended, **took)

    def _child_of(self, call: ToolPart) -> StoredSession | None:
        """The session that this call opened: the one that it names, else the oldest that is left of its agent."""
        opened = getattr(call.state, "metadata", {}).get("child_session_id")
        wanted = call.state.input.get("agent_name") if call.tool == "call_agent" else None
        named = (child for child in self._children if child.id == opened)
        found = next(named, None) or next((child for child in self._children if child.agent == wanted), None)
        if found is not None:
            self._children.remove(found)
        return found

    def _event(self, kind: type[Event], at: int, message: Message, /, **fields: Any) -> Event:
        agent = message.agent or self._session.agent
        return kind(timestamp=at, session_id=self._session.id, agent_name=agent, **fields)


def _usage(message: Message, duration: int) -> dict[str, Any]:
    tokens = message.tokens
    return {
        "stop_reason": message.finish,
        "has_tool_use": bool(message.get_parts_by_type(ToolPart)),
        "input_tokens": tokens.input,
        "output_tokens": tokens.output,
        "reasoning_tokens": tokens.reasoning,
        "cache_read_tokens": tokens.cache.read,
        "cache_write_tokens": tokens.cache.write,
        "cost": None if message.cost is None else str(message.cost),
        "duration_ms": max(0, duration),
    }


def _created(session: StoredSession) -> int:
    return session.time.created if session.time else 0


def _start(message: Message) -> int:
    return message.time.created if message.time else 0


def _end(message: Message) -> int | None:
    """When the last thing in a message ended: its text, or a call that it made."""
    ends = [
        call.state.time.end
        for call in message.get_parts_by_type(ToolPart)
        if isinstance(call.state, ToolCompleted | ToolError)
    ]
    if message.time is not None and message.time.completed is not None:
        ends.append(message.time.completed)
    return max(ends, default=None)
