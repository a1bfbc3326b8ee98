"""Which bus events become records of an event log, and what each record holds."""

from collections.abc import Callable
from typing import Any

from outrider.tracing.agent_event import AgentEvent, EventKind, bounded
from outrider.types.events import (
    AgentCalledEvent,
    AgentReturnedEvent,
    ErrorEvent,
    Event,
    LLMRequestEvent,
    LLMResponseEvent,
    LoopCompletedEvent,
    LoopStartedEvent,
    RetryScheduledEvent,
    ToolApprovalRequestedEvent,
    ToolApprovalResultEvent,
    ToolExecutionCompletedEvent,
    ToolExecutionStartedEvent,
)

OPEN_LIMIT = 10_000
FAILURES = ("error", "fail", "crash")
_LLM_NUMBERS = (
    "input_tokens",
    "output_tokens",
    "reasoning_tokens",
    "cache_read_tokens",
    "cache_write_tokens",
    "duration_ms",
)


class Recorder:
    """Turns events into records. What has begun and not ended waits in `open`, as the record its end will become."""

    def __init__(self) -> None:
        self.open: dict[tuple[str, str, str], AgentEvent] = {}
        self._notes: dict[tuple[str, str], dict[str, Any]] = {}
        self._makers: dict[type[Event], Callable[[Any], AgentEvent | None]] = {
            LoopStartedEvent: self._loop_started,
            LoopCompletedEvent: self._loop_completed,
            LLMRequestEvent: _llm_request,
            LLMResponseEvent: self._llm_response,
            ToolExecutionStartedEvent: self._tool_started,
            ToolExecutionCompletedEvent: self._tool_completed,
            ToolApprovalRequestedEvent: self._approval_requested,
            ToolApprovalResultEvent: self._approval_result,
            RetryScheduledEvent: self._retry,
            AgentCalledEvent: _agent_called,
            AgentReturnedEvent: _agent_returned,
            ErrorEvent: _error,
        }

    @property
    def heard(self) -> tuple[type[Event], ...]:
        return tuple(self._makers)

    def make(self, event: Event) -> AgentEvent | None:
        """The record of this event; None where it has none, or none yet."""
        maker = self._makers.get(type(event)) or self._maker_of_parent(event)
        return maker(event) if maker else None

    def _maker_of_parent(self, event: Event) -> Callable[[Any], AgentEvent | None] | None:
        return next((self._makers[cls] for cls in type(event).__mro__ if cls in self._makers), None)

    def resume(self, begun: list[AgentEvent]) -> None:
        """Take up what was open when a log was written."""
        self.open = {_key(record, record.type): record for record in begun}

    def _loop_started(self, event: LoopStartedEvent) -> None:
        self._begin(_record("finish", event, {"message": event.user_message}))

    def _loop_completed(self, event: LoopCompletedEvent) -> AgentEvent:
        self._notes.pop(_retries(event), None)
        failed = any(word in event.termination_reason.lower() for word in FAILURES)
        data = {
            "termination_reason": event.termination_reason,
            "total_turns": event.total_turns,
            "duration_ms": event.duration_ms,
            "output": event.output,
        }
        return self._end(_record("error" if failed else "finish", event, data), "finish")

    def _llm_response(self, event: LLMResponseEvent) -> AgentEvent:
        data: dict[str, Any] = {name: getattr(event, name) for name in _LLM_NUMBERS}
        data |= {"stop_reason": event.stop_reason, "has_tool_use": event.has_tool_use, "cost": event.cost}
        data |= {"model": event.model, "provider": event.provider, "first_token_ms": event.first_token_ms}
        data |= self._notes.pop(_retries(event), {})
        return _record("llm_response", event, data)

    def _retry(self, event: RetryScheduledEvent) -> None:
        notes = self._note(_retries(event))
        notes["retries"] = event.attempt
        notes["retry_wait_ms"] = notes.get("retry_wait_ms", 0) + event.delay_ms
        notes["retry_error"] = event.error[:500]

    def _tool_started(self, event: ToolExecutionStartedEvent) -> None:
        self._begin(_record("tool_exec", event, {"tool_name": event.tool_name, "input": event.tool_input}))

    def _tool_completed(self, event: ToolExecutionCompletedEvent) -> AgentEvent:
        data: dict[str, Any] = {
            "tool_name": event.tool_name,
            "success": event.success,
            "duration_ms": event.duration_ms,
            "output": event.output_preview,
        }
        if event.reason:
            data["reason"] = event.reason
        data |= self._notes.pop((event.session_id, event.call_id), {})
        return self._end(_record("tool_exec", event, data), "tool_exec")

    def _approval_requested(self, event: ToolApprovalRequestedEvent) -> None:
        self._note((event.session_id, event.call_id))["asked"] = event.timestamp

    def _approval_result(self, event: ToolApprovalResultEvent) -> None:
        notes = self._note((event.session_id, event.call_id))
        waited = event.timestamp - notes.pop("asked", event.timestamp)
        notes |= {"approved": event.approved, "approval_ms": max(0, waited)}

    def _begin(self, record: AgentEvent) -> None:
        record.data.update(started=record.timestamp, open=True)
        _make_room(self.open)
        self.open[_key(record, record.type)] = record

    def _end(self, record: AgentEvent, opened_as: EventKind) -> AgentEvent:
        begun = self.open.pop(_key(record, opened_as), None)
        if begun is not None:
            for name, value in begun.data.items():
                record.data.setdefault(name, value)
            record.data.pop("open", None)
        return record

    def _note(self, key: tuple[str, str]) -> dict[str, Any]:
        """Notes wait for the record that they belong to."""
        _make_room(self._notes)
        return self._notes.setdefault(key, {})


def _make_room(waiting: dict[Any, Any]) -> None:
    """What never ends must not pile up: the oldest gives way."""
    if len(waiting) >= OPEN_LIMIT:
        del waiting[next(iter(waiting))]


def _key(record: AgentEvent, opened_as: EventKind) -> tuple[str, str, str]:
    return opened_as, record.session_id or record.agent_name, record.call_id


def _retries(event: Event) -> tuple[str, str]:
    return event.session_id or event.agent_name, "retries"


def _record(kind: EventKind, event: Event, data: dict[str, Any]) -> AgentEvent:
    return AgentEvent(
        kind,
        event.agent_name,
        event.timestamp,
        event.call_id,
        event.parent_call_id,
        event.session_id,
        {name: bounded(value, 1) for name, value in data.items()},
    )


def _llm_request(event: LLMRequestEvent) -> AgentEvent:
    data = {"message_count": event.message_count, "has_tools": event.has_tools}
    return _record("llm_call", event, data | {"model": event.model, "provider": event.provider})


def _agent_called(event: AgentCalledEvent) -> AgentEvent:
    data = {"callee": event.callee, "message": event.message, "child_session_id": event.child_session_id}
    return _record("agent_call", event, data)


def _agent_returned(event: AgentReturnedEvent) -> AgentEvent:
    data = {"callee": event.callee, "output": event.output, "success": event.success}
    data |= {"duration_ms": event.duration_ms, "child_session_id": event.child_session_id}
    return _record("agent_return", event, data)


def _error(event: ErrorEvent) -> AgentEvent:
    return _record("error", event, {"error_type": event.error_type, "message": event.message})
